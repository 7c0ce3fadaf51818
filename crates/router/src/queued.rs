//! What a caller learns of its wait: the headers `x-queue-position` and `x-queue-wait-ms`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::response::{IntoResponse as _, Response};
use http::{HeaderName, HeaderValue};

use crate::error::Failure;

/// Requests for the model that were ahead of it when it came.
pub const POSITION: HeaderName = HeaderName::from_static("x-queue-position");
/// From its arrival until a node had it; of an answer that begins before, until then.
pub const WAIT_MS: HeaderName = HeaderName::from_static("x-queue-wait-ms");

/// The waits of one request's sequences; of several the longest is told.
#[derive(Debug)]
pub struct Queued {
    since: Instant,
    came: AtomicBool,
    position: AtomicU64,
    /// Sequences without a node.
    waiting: AtomicU64,
    waited_ms: AtomicU64,
}

impl Queued {
    pub fn new() -> Queued {
        Queued {
            since: Instant::now(),
            came: AtomicBool::new(false),
            position: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            waited_ms: AtomicU64::new(0),
        }
    }

    /// A sequence begins to wait behind so many others.
    pub fn came(&self, position: usize) {
        self.came.store(true, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.position.fetch_max(u64::try_from(position).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// It waits no more.
    pub fn placed(&self, waited: Duration) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waited_ms.fetch_max(milliseconds(waited), Ordering::Relaxed);
    }

    /// What `answer` comes to, with the headers on it if anything waited for it at all.
    pub async fn stamped(&self, answer: impl Future<Output = Result<Response, Failure>>) -> Response {
        let mut response = answer.await.into_response();
        if !self.came.load(Ordering::Relaxed) {
            return response;
        }
        let waited = match self.waiting.load(Ordering::Relaxed) {
            0 => self.waited_ms.load(Ordering::Relaxed),
            _ => milliseconds(self.since.elapsed()),
        };
        let headers = response.headers_mut();
        headers.insert(POSITION, HeaderValue::from(self.position.load(Ordering::Relaxed)));
        headers.insert(WAIT_MS, HeaderValue::from(waited));
        response
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
