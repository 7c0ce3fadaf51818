//! The node as HTTP/2 server: requests in, a [`NodeService`] asked, lines out.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use super::{
    CONNECTION_WINDOW_BYTES, Io, PING_INTERVAL, PING_TIMEOUT, STREAM_WINDOW_BYTES, STREAMS_MAX, append_line,
    error_response,
};
use crate::{
    ApiError, DesiredModels, EngineCommand, EngineReply, GenerateEvent, GenerateRequest, LINE_BYTES_MAX,
    ModelCommand, ModelStatus, NodeStatus, TokenizeReply, TokenizeRequest,
};

/// Values that become lines. Dropped when the router drops the stream.
pub type EventStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// Lines that are ready together leave in one frame: so many at most.
const LINES_PER_FRAME: usize = 64;

/// What a router can ask of a node.
pub trait NodeService: Send + Sync + 'static {
    /// The whole state now, then at every change and at least once a [`crate::HEARTBEAT`].
    fn status(&self) -> EventStream<NodeStatus>;
    fn put_models(&self, models: DesiredModels) -> impl Future<Output = Result<(), ApiError>> + Send;
    /// Answers as soon as the request is taken; what comes of it is in the events.
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<EventStream<GenerateEvent>, ApiError>> + Send;
    fn tokenize(
        &self,
        request: TokenizeRequest,
    ) -> impl Future<Output = Result<TokenizeReply, ApiError>> + Send;
    /// Answers when the command is done: handovers wait for loads.
    fn engines(&self, command: EngineCommand) -> impl Future<Output = Result<EngineReply, ApiError>> + Send;
    /// Answers when the model is loaded, or has left its workers.
    fn model(&self, command: ModelCommand) -> impl Future<Output = Result<ModelStatus, ApiError>> + Send;
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves until the router goes away (`Ok` or what broke) or `end` is cancelled. On `end` no new request is taken and
/// those that run go on; drop the future to cut them.
pub async fn serve<S: NodeService>(
    io: impl Io,
    service: Arc<S>,
    end: CancellationToken,
) -> Result<(), hyper::Error> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let connection = builder.serve_connection(
        io,
        service_fn(move |request| {
            let service = Arc::clone(&service);
            async move { Ok::<_, Infallible>(answer(service.as_ref(), request).await) }
        }),
    );
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = end.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

async fn answer<S: NodeService>(service: &S, request: Request<Incoming>) -> Response<Body> {
    let result = match (request.method().clone(), request.uri().path()) {
        (Method::GET, "/v1/status") => Ok(lines(service.status())),
        (Method::PUT, "/v1/models") => put_models(service, request).await,
        (Method::POST, "/v1/generate" | "/v1/embed") => generate(service, request).await,
        (Method::POST, "/v1/tokenize") => tokenize(service, request).await,
        (Method::POST, "/v1/engines") => engines(service, request).await,
        (Method::POST, "/v1/model") => model(service, request).await,
        (method, path) => Err(ApiError {
            status: StatusCode::NOT_FOUND.as_u16(),
            code: "unknown_call".to_owned(),
            message: format!("this node has no {method} {path}"),
            hint: Some("run the same version of llm-router on router and node".to_owned()),
            ..ApiError::default()
        }),
    };
    result.unwrap_or_else(|error| error_response::<Full<Bytes>>(&error).map(BodyExt::boxed_unsync))
}

async fn put_models<S: NodeService>(
    service: &S,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    service.put_models(body(request).await?).await?;
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

async fn generate<S: NodeService>(
    service: &S,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    Ok(lines(service.generate(body(request).await?).await?))
}

async fn tokenize<S: NodeService>(
    service: &S,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    Ok(json(&service.tokenize(body(request).await?).await?))
}

async fn engines<S: NodeService>(
    service: &S,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    Ok(json(&service.engines(body(request).await?).await?))
}

async fn model<S: NodeService>(service: &S, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    Ok(json(&service.model(body(request).await?).await?))
}

fn json<T: Serialize>(reply: &T) -> Response<Body> {
    let json = serde_json::to_vec(reply).expect("the contract's types hold only strings, numbers and lists");
    let mut response = Response::new(Full::from(json).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, ApiError> {
    let path = request.uri().path().to_owned();
    let bad = |what: String| ApiError {
        status: StatusCode::BAD_REQUEST.as_u16(),
        code: "bad_body".to_owned(),
        message: format!("the body of {path} {what}"),
        ..ApiError::default()
    };
    let bytes = Limited::new(request.into_body(), LINE_BYTES_MAX).collect().await;
    let bytes = bytes.map_err(|e| bad(format!("could not be read: {e}")))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|e| bad(format!("could not be understood: {e}")))
}

fn lines<T: Serialize + Send + 'static>(values: EventStream<T>) -> Response<Body> {
    let frames = values.ready_chunks(LINES_PER_FRAME).map(|values| {
        let mut data = BytesMut::new();
        for value in &values {
            if let Err(error) = append_line(value, &mut data) {
                tracing::error!(%error, "a line for the router is left out");
            }
        }
        Ok(Frame::data(data.freeze()))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}
