//! The router as a node sees it: takes the join and gives the connection.

use std::convert::Infallible;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use node_api::transport::{NodeLink, check_upgrade, error_response, switching_protocols};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Of a node's own words when it joins.
const JOIN_BYTES_MAX: usize = 1 << 20;

pub struct Joining {
    pub url: String,
    joined: mpsc::Receiver<NodeLink>,
}

impl Joining {
    pub async fn listen() -> Result<Joining> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port on loopback")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (sender, joined) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                // Without it the first request would wait; with an error the run only gets slower.
                let _ = tcp.set_nodelay(true);
                let sender = sender.clone();
                let service = service_fn(move |request| take(request, sender.clone()));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(tcp), service).with_upgrades());
            }
        });
        Ok(Joining { url, joined })
    }

    /// The connection of the node that joins next.
    pub async fn next(&mut self) -> Option<NodeLink> {
        self.joined.recv().await
    }
}

async fn take(
    mut request: Request<Incoming>,
    joined: mpsc::Sender<NodeLink>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Err(error) = check_upgrade(request.headers()) {
        return Ok(error_response::<Full<Bytes>>(&error));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    // What it says of itself does not matter here; it has to be read before the connection changes hands.
    let _ = Limited::new(request.into_body(), JOIN_BYTES_MAX).collect().await;
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        if let Ok(link) = NodeLink::open(upgraded).await {
            // Whoever waited may have run out of time.
            let _ = joined.send(link).await;
        }
    });
    Ok(switching_protocols())
}
