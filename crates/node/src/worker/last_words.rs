//! What a worker prints: into the log line by line, within limits, and kept for its obituary.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};

use super::connection::Shared;

/// Of one line; the rest of a longer one is left out.
pub const LINE_BYTES_MAX: usize = 4 << 10;
/// Lines logged a second; more are counted and left out.
pub const LINES_PER_SECOND_MAX: u32 = 200;
/// Lines kept.
pub const LAST_LINES: usize = 12;
/// Bytes taken from the pipe at once.
const READ_BYTES: usize = 16 << 10;

/// At most [`LINES_PER_SECOND_MAX`] a second.
#[derive(Debug)]
pub struct RateLimit {
    window: Instant,
    used: u32,
    dropped: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        RateLimit { window: Instant::now(), used: 0, dropped: 0 }
    }
}

impl RateLimit {
    /// Whether one more may be logged. Says in the log how many were not.
    pub fn allows(&mut self) -> bool {
        if self.window.elapsed() >= Duration::from_secs(1) {
            if self.dropped > 0 {
                tracing::warn!(lines = self.dropped, "an engine logs too much; lines were left out");
            }
            *self = RateLimit::default();
        }
        if self.used < LINES_PER_SECOND_MAX {
            self.used += 1;
            return true;
        }
        self.dropped += 1;
        false
    }
}

/// Logs every line with the engine's id until the pipe ends, and returns the last ones.
pub async fn read(mut pipe: impl AsyncRead + Unpin, shared: Arc<Shared>) -> Vec<String> {
    let mut last = VecDeque::with_capacity(LAST_LINES);
    let mut limit = RateLimit::default();
    let mut line = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut take = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            return;
        }
        if limit.allows() {
            let (engine_id, engine_version) = (&shared.engine_id, &shared.engine_version);
            tracing::info!(engine_id, engine_version, model = shared.model, "{text}");
        }
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(text);
    };
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        for part in buffer[..n].split_inclusive(|b| *b == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                take(&mut line);
            }
        }
    }
    take(&mut line);
    last.into()
}
