//! The calls over HTTP/2, the router's side.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::link::LinkError;
use super::{
    ANSWER_TIMEOUT, CONNECTION_WINDOW_BYTES, ERROR_BYTES_MAX, Io, LineError, Lines, PING_INTERVAL,
    PING_TIMEOUT, STREAM_WINDOW_BYTES,
};
use crate::{DesiredModels, GenerateEvent, GenerateRequest, LINE_BYTES_MAX, NodeStatus};

/// A connection to a node. It ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    sender: SendRequest<Full<Bytes>>,
}

impl Wire {
    /// `closed` is cancelled when the connection is gone.
    pub async fn open(io: impl Io, closed: CancellationToken) -> Result<Wire, LinkError> {
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
        let guard: DropGuard = closed.drop_guard();
        // Owned by the connection itself: it ends when the peer or the last handle goes, or when a ping stays unanswered.
        tokio::spawn(async move {
            let _guard = guard;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a node ended");
            }
        });
        Ok(Wire { sender })
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub async fn status(&self, call: &'static str, after: Duration) -> Result<Lines<NodeStatus>, LinkError> {
        let response = self.call(call, Method::GET, "/v1/status", Bytes::new(), after).await?;
        Ok(Lines::new(response.into_body()))
    }

    pub async fn put_models(
        &self,
        models: &DesiredModels,
        call: &'static str,
        after: Duration,
    ) -> Result<(), LinkError> {
        self.call(call, Method::PUT, "/v1/models", json(models), after).await.map(drop)
    }

    pub async fn generate(
        &self,
        request: &GenerateRequest,
        call: &'static str,
        after: Duration,
    ) -> Result<Lines<GenerateEvent>, LinkError> {
        // A node of before would not see that it is to embed, and answer.
        let path = if request.embed { "/v1/embed" } else { "/v1/generate" };
        let response = self.call(call, Method::POST, path, json(request), after).await?;
        Ok(Lines::new(response.into_body()))
    }

    /// A call with one value as its answer.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        path: &'static str,
        question: &impl Serialize,
        call: &'static str,
        after: Duration,
    ) -> Result<T, LinkError> {
        let response = self.call(call, Method::POST, path, json(question), after).await?;
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

fn json<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).expect("the contract's types hold only strings, numbers and lists").into()
}
