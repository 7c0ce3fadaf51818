//! Answers as server-sent events: a real status while there is nothing to send, comments while there is silence.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use serde::Serialize;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Failure;

/// Proxies in front would otherwise collect the stream.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// So long a model may load before the head goes out: a load that cannot be begun still has a status of its own.
const LOADING_HEAD_WAIT: Duration = Duration::from_secs(2);

/// What goes into a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// The model loads; 0 to 1.
    Loading(f32),
    /// A JSON value.
    Data(String),
}

impl Item {
    pub fn json<T: Serialize>(value: &T) -> Item {
        Item::Data(serde_json::to_string(value).expect("answers hold only strings, numbers and lists"))
    }
}

/// The answer to a request that asked for a stream.
///
/// The head waits for the first item, but no longer than `keep_alive`: what fails until then has its own status, what
/// fails later is an event with the error, after which nothing comes. A stream that ends well ends with `[DONE]`.
pub async fn respond(mut items: BoxStream<'static, Result<Item, Failure>>, keep_alive: Duration) -> Response {
    let patience = Instant::now() + keep_alive;
    let loading_patience = Instant::now() + keep_alive.min(LOADING_HEAD_WAIT);
    let mut loading = None;
    let first = loop {
        let until = if loading.is_some() { loading_patience } else { patience };
        match timeout_at(until, items.next()).await {
            Ok(Some(Err(failure))) => return failure.into_response(),
            Ok(Some(Ok(Item::Loading(progress)))) => loading = Some(progress),
            Ok(Some(Ok(item))) => break render(&item),
            Ok(None) => return response_of(stream::once(async { done() }).boxed()),
            Err(_) => break loading.map_or_else(silence, |progress| render(&Item::Loading(progress))),
        }
    };
    let rest = stream::unfold(Some(items), move |items| async move {
        let mut items = items?;
        match timeout(keep_alive, items.next()).await {
            Ok(Some(Ok(item))) => Some((render(&item), Some(items))),
            Ok(Some(Err(failure))) => {
                failure.log();
                let error = Item::json(&failure.body());
                Some((render(&error), None))
            }
            Ok(None) => Some((done(), None)),
            Err(_) => Some((silence(), Some(items))),
        }
    });
    response_of(stream::once(async move { first }).chain(rest).boxed())
}

/// The response around the events.
fn response_of(events: BoxStream<'static, Bytes>) -> Response {
    let mut response = Body::from_stream(events.map(Ok::<Bytes, Infallible>)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

fn render(item: &Item) -> Bytes {
    match item {
        Item::Loading(progress) => {
            format!(": loading the model, {:.0} %\n\n", progress.clamp(0.0, 1.0) * 100.0).into()
        }
        // JSON has no line breaks outside of strings, and within them they are escaped.
        Item::Data(json) => format!("data: {json}\n\n").into(),
    }
}

fn silence() -> Bytes {
    Bytes::from_static(b": waiting\n\n")
}

fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}
