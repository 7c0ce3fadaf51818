//! The router's handle on one node.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    ANSWER_TIMEOUT, COMMAND_TIMEOUT, CONNECTION_WINDOW_BYTES, ERROR_BYTES_MAX, GENERATE_ANSWER_TIMEOUT, Io,
    LineError, Lines, PING_INTERVAL, PING_TIMEOUT, STREAM_WINDOW_BYTES, TOKENIZE_TIMEOUT,
};
use crate::{
    ApiError, DesiredModels, EngineCommand, EngineReply, GenerateEvent, GenerateRequest, LINE_BYTES_MAX,
    ModelCommand, ModelStatus, NodeStatus, TokenizeReply, TokenizeRequest,
};

/// Why a call of a node came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The node answered, and said no.
    #[error(transparent)]
    Refused(ApiError),
    #[error("the connection to the node broke")]
    Lost { source: hyper::Error },
    #[error("the node did not answer {call} within {} s", after.as_secs())]
    Timeout { call: &'static str, after: Duration },
    #[error("the node answered {call} with {status} and no reason")]
    BadAnswer { call: &'static str, status: u16 },
    #[error("the node's answer cannot be read")]
    Line { source: LineError },
}

/// A connected node. Cheap to clone; all clones share the connection, which ends when the last is dropped.
#[derive(Debug, Clone)]
pub struct NodeLink {
    sender: SendRequest<Full<Bytes>>,
    closed: CancellationToken,
}

impl NodeLink {
    /// Starts HTTP/2 on a connection on which a node waits as server.
    pub async fn open(io: impl Io) -> Result<NodeLink, LinkError> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let opened = timeout(ANSWER_TIMEOUT, builder.handshake(io)).await;
        let opened =
            opened.map_err(|_| LinkError::Timeout { call: "the HTTP/2 preface", after: ANSWER_TIMEOUT })?;
        let (sender, connection) = opened.map_err(|source| LinkError::Lost { source })?;
        let closed = CancellationToken::new();
        let guard: DropGuard = closed.clone().drop_guard();
        // Owned by the connection itself: it ends when the peer or the last handle goes, or when a ping stays unanswered.
        tokio::spawn(async move {
            let _guard = guard;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a node ended");
            }
        });
        Ok(NodeLink { sender, closed })
    }

    /// Returns when the connection is gone.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled() || self.sender.is_closed()
    }

    /// The node's state, line after line; silence of [`crate::SILENCE_MAX`] is the caller's to notice.
    pub async fn status(&self) -> Result<Lines<NodeStatus>, LinkError> {
        let response = self.call("status", Method::GET, "/v1/status", Bytes::new(), ANSWER_TIMEOUT).await?;
        Ok(Lines::new(response.into_body()))
    }

    pub async fn put_models(&self, models: &DesiredModels) -> Result<(), LinkError> {
        self.call("the wanted models", Method::PUT, "/v1/models", json(models), ANSWER_TIMEOUT)
            .await
            .map(drop)
    }

    /// Drop the lines to cancel the request.
    pub async fn generate(&self, request: &GenerateRequest) -> Result<Lines<GenerateEvent>, LinkError> {
        let body = json(request);
        // A node of before would not see that it is to embed, and answer.
        let path = if request.embed { "/v1/embed" } else { "/v1/generate" };
        let response = self.call("a request", Method::POST, path, body, GENERATE_ANSWER_TIMEOUT).await?;
        Ok(Lines::new(response.into_body()))
    }

    pub async fn tokenize(&self, request: &TokenizeRequest) -> Result<TokenizeReply, LinkError> {
        self.ask("a text to tokenize", "/v1/tokenize", json(request), TOKENIZE_TIMEOUT).await
    }

    /// Returns when the command is done, which may take a load.
    pub async fn engines(&self, command: &EngineCommand) -> Result<EngineReply, LinkError> {
        self.ask("a command for its engines", "/v1/engines", json(command), COMMAND_TIMEOUT).await
    }

    /// Returns when the command is done, which may take a load.
    pub async fn model(&self, command: &ModelCommand) -> Result<ModelStatus, LinkError> {
        self.ask("a command for a model", "/v1/model", json(command), COMMAND_TIMEOUT).await
    }

    /// A call with one value as its answer.
    async fn ask<T: DeserializeOwned>(
        &self,
        call: &'static str,
        path: &'static str,
        body: Bytes,
        after: Duration,
    ) -> Result<T, LinkError> {
        let response = self.call(call, Method::POST, path, body, after).await?;
        let body = Limited::new(response.into_body(), LINE_BYTES_MAX).collect();
        let body = timeout(ANSWER_TIMEOUT, body).await;
        let body = body.map_err(|_| LinkError::Timeout { call, after: ANSWER_TIMEOUT })?;
        let Ok(body) = body else { return Err(LinkError::BadAnswer { call, status: 200 }) };
        let bytes = body.to_bytes();
        serde_json::from_slice(&bytes)
            .map_err(|source| LinkError::Line { source: LineError::Parse { length: bytes.len(), source } })
    }

    async fn call(
        &self,
        call: &'static str,
        method: Method,
        path: &'static str,
        body: Bytes,
        after: Duration,
    ) -> Result<Response<Incoming>, LinkError> {
        let mut sender = self.sender.clone();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        // The authority is never looked at: the connection itself is the address.
        *request.uri_mut() = format!("http://node{path}").parse().expect("our paths are valid");
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = timeout(after, async {
            sender.ready().await?;
            sender.send_request(request).await
        });
        let answer = answer.await.map_err(|_| LinkError::Timeout { call, after })?;
        let response = answer.map_err(|source| LinkError::Lost { source })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body =
            timeout(ANSWER_TIMEOUT, Limited::new(response.into_body(), ERROR_BYTES_MAX).collect()).await;
        Err(match body.ok().and_then(Result::ok).and_then(|b| serde_json::from_slice(&b.to_bytes()).ok()) {
            Some(error) => LinkError::Refused(error),
            None => LinkError::BadAnswer { call, status: status.as_u16() },
        })
    }
}

impl From<LinkError> for ApiError {
    /// As the router passes it on: a refusal word for word, anything else as 502, to be tried on another node.
    fn from(error: LinkError) -> ApiError {
        match error {
            LinkError::Refused(error) => error,
            other => ApiError {
                status: StatusCode::BAD_GATEWAY.as_u16(),
                code: "node_lost".to_owned(),
                message: other.to_string(),
                retry: true,
                ..ApiError::default()
            },
        }
    }
}

fn json<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).expect("the contract's types hold only strings, numbers and lists").into()
}
