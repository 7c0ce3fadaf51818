//! Dialling a real HTTP server: taken, refused, and things that are no router.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::calls::{Echo, join};
use crate::transport::{
    DialError, NodeLink, check_upgrade, dial, error_response, serve, switching_protocols,
};
use crate::{ApiError, Join, LINK_PATH};

/// A router that takes whoever knows `secret` and hands out what joined.
async fn router(secret: &'static str) -> (Uri, mpsc::Receiver<(Join, NodeLink)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (joined, joins) = mpsc::channel(4);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let joined = joined.clone();
            let service = service_fn(move |request| link(request, secret, joined.clone()));
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(tcp), service).with_upgrades());
        }
    });
    (uri, joins)
}

async fn link(
    mut request: Request<Incoming>,
    secret: &str,
    joined: mpsc::Sender<(Join, NodeLink)>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().path(), LINK_PATH);
    let refused = |error: &ApiError| Ok(error_response::<Full<Bytes>>(error));
    match check_upgrade(request.headers()) {
        Err(error) => return refused(&error),
        Ok(given) if given != secret => {
            return refused(&ApiError {
                status: 401,
                code: "join_secret_wrong".into(),
                message: "that is not the secret".into(),
                ..ApiError::default()
            });
        }
        Ok(_) => {}
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let join = serde_json::from_slice(&body).unwrap();
    tokio::spawn(async move {
        let link = NodeLink::open(upgrade.await.unwrap()).await.unwrap();
        joined.send((join, link)).await.unwrap();
    });
    Ok(switching_protocols())
}

#[tokio::test]
async fn a_node_that_is_taken_serves_on_the_connection_it_dialled() {
    let (uri, mut joins) = router("s3cret").await;
    let dialled = dial(&uri, "s3cret", &join()).await.unwrap();
    let end = tokio_util::sync::CancellationToken::new();
    tokio::spawn(serve(dialled.io, Echo::new().into(), end));
    let (joined, link) = joins.recv().await.unwrap();
    assert_eq!(joined, join());
    let first = link.status().await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(first.sequence, 1);
}

#[tokio::test]
async fn a_refusal_arrives_with_its_reason() {
    let (uri, _joins) = router("s3cret").await;
    match dial(&uri, "guess", &join()).await {
        Err(DialError::Refused { reason, .. }) => {
            assert_eq!((reason.status, reason.code.as_str()), (401, "join_secret_wrong"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nobody_listening_is_named_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = dial(&format!("http://{address}").parse().unwrap(), "s", &join()).await.unwrap_err();
    assert!(matches!(error, DialError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn a_web_server_that_is_no_router_is_said_to_be_none() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let page =
            service_fn(async |_| Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("<html>hello")))));
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tcp), page).await
    });
    let error = dial(&uri, "s", &join()).await.unwrap_err();
    assert!(matches!(error, DialError::NotARouter { status: 200, .. }), "{error:?}");
}

#[tokio::test]
async fn addresses_and_secrets_that_cannot_be_used_are_refused_before_dialling() {
    let error = dial(&"https://router:1".parse().unwrap(), "s", &join()).await.unwrap_err();
    assert!(matches!(error, DialError::Address(_)), "{error:?}");
    let error = dial(&"http://127.0.0.1:1".parse().unwrap(), "a\nb", &join()).await.unwrap_err();
    assert!(matches!(error, DialError::Secret), "{error:?}");
}

#[test]
fn another_version_gets_426_and_no_secret_401() {
    let mut headers = http::HeaderMap::new();
    assert_eq!(check_upgrade(&headers).unwrap_err().status, 426);
    headers.insert("connection", "keep-alive, Upgrade".parse().unwrap());
    headers.insert("upgrade", "llm-router-node/999".parse().unwrap());
    let error = check_upgrade(&headers).unwrap_err();
    assert_eq!(error.status, 426);
    assert!(error.message.contains("llm-router-node/999"), "{error}");
    headers.insert("upgrade", crate::UPGRADE_TOKEN.parse().unwrap());
    assert_eq!(check_upgrade(&headers).unwrap_err().status, 401);
    headers.insert("authorization", "Bearer abc".parse().unwrap());
    assert_eq!(check_upgrade(&headers).unwrap(), "abc");
}
