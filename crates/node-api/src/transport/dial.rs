//! The node's half of joining: dial the router, ask to be taken, and get the bare connection.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{DIAL_TIMEOUT, ERROR_BYTES_MAX};
use crate::{ApiError, Join, LINK_PATH, UPGRADE_TOKEN};

/// Why a node is not connected.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("{0} is no address of a router: it has to be http://host:port")]
    Address(String),
    #[error("the join secret holds characters that a header cannot")]
    Secret,
    #[error("cannot reach the router at {address}")]
    Connect { address: String, source: std::io::Error },
    #[error("the router at {address} did not answer within {} s", DIAL_TIMEOUT.as_secs())]
    Timeout { address: String },
    #[error("the connection to {address} broke while joining")]
    Http { address: String, source: hyper::Error },
    /// It answered, and said no.
    #[error("the router at {address} does not take this node ({}): {}", reason.status, reason.message)]
    Refused { address: String, reason: ApiError },
    #[error("{address} answered {status}, which no llm-router does: is something else listening there?")]
    NotARouter { address: String, status: u16 },
}

/// A connection on which this node was taken; serve on it.
#[derive(Debug)]
pub struct Dialled {
    pub io: Upgraded,
    /// The router's address, for logs.
    pub address: String,
}

/// Connects to the router at `router` (`http://host:port`, a path is ignored) and joins it.
pub async fn dial(router: &Uri, secret: &str, join: &Join) -> Result<Dialled, DialError> {
    let (Some("http"), Some(host)) = (router.scheme_str(), router.host()) else {
        return Err(DialError::Address(router.to_string()));
    };
    let address = format!("{host}:{}", router.port_u16().unwrap_or(80));
    let bearer = HeaderValue::try_from(format!("Bearer {secret}")).map_err(|_| DialError::Secret)?;

    let timed_out = |_| DialError::Timeout { address: address.clone() };
    let connect = |source| DialError::Connect { address: address.clone(), source };
    let tcp =
        timeout(DIAL_TIMEOUT, TcpStream::connect(&address)).await.map_err(timed_out)?.map_err(connect)?;
    // Tokens leave one by one: waiting to fill a packet would cost each of them.
    tcp.set_nodelay(true).map_err(connect)?;

    let body = serde_json::to_vec(join).expect("a join holds only strings, numbers and lists");
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(LINK_PATH);
    let headers = request.headers_mut();
    headers
        .insert(HOST, HeaderValue::try_from(&address).map_err(|_| DialError::Address(router.to_string()))?);
    headers.insert(AUTHORIZATION, bearer);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(UPGRADE_TOKEN));

    let asked = timeout(DIAL_TIMEOUT, ask(tcp, request, &address));
    let io = asked.await.map_err(|_| DialError::Timeout { address: address.clone() })??;
    Ok(Dialled { io, address })
}

async fn ask(tcp: TcpStream, request: Request<Full<Bytes>>, address: &str) -> Result<Upgraded, DialError> {
    let http = |source| DialError::Http { address: address.to_owned(), source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(http)?;
    // Ends with the upgrade, or when `sender` and its answer are dropped.
    let connection = tokio::spawn(connection.with_upgrades());
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(source) => {
            connection.abort();
            return Err(http(source));
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return hyper::upgrade::on(response).await.map_err(http);
    }
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await;
    connection.abort();
    let reason = body.ok().and_then(|b| serde_json::from_slice::<ApiError>(&b.to_bytes()).ok());
    Err(match reason {
        Some(reason) => {
            DialError::Refused { address: address.to_owned(), reason: ApiError { status, ..reason } }
        }
        None => DialError::NotARouter { address: address.to_owned(), status },
    })
}
