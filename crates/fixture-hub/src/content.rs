//! Sends a file or a range of it, and does the harm that was asked for on the way.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::watch;

use crate::answer::error;
use crate::fault::Fault;
use crate::repo::{Content, Entry};

const PIECE_BYTES: usize = 64 << 10;
/// A stalled body ends after this even when nobody releases it, so that no test can hang on it.
const STALL_MAX: Duration = Duration::from_secs(120);

/// The bytes of `entry` that the request asks for. `stalls` wakes stalled bodies when its value changes.
pub(crate) fn send(
    entry: &Entry,
    method: &Method,
    request: &HeaderMap,
    fault: Option<Fault>,
    stalls: watch::Receiver<u64>,
) -> Response {
    match &fault {
        Some(Fault::Status(status)) => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return error(status, "injected");
        }
        Some(Fault::RateLimited { retry_after_s }) => {
            let mut response = error(StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded");
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(*retry_after_s));
            return response;
        }
        Some(Fault::Body(text)) => return Response::new(Body::from(text.clone())),
        _ => {}
    }
    let asked = request
        .get(header::RANGE)
        .and_then(|v| v.to_str().ok())
        .filter(|_| fault != Some(Fault::IgnoreRange));
    let (status, start, end) = match asked.map(|range| parse_range(range, entry.size)) {
        None | Some(Range::Ignored) => (StatusCode::OK, 0, entry.size),
        Some(Range::Bytes { start, end }) => (StatusCode::PARTIAL_CONTENT, start, end),
        Some(Range::Unsatisfiable) => {
            let mut response = error(StatusCode::RANGE_NOT_SATISFIABLE, "Range not satisfiable");
            insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{}", entry.size));
            return response;
        }
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        stream(entry.content.clone(), start, end, fault, stalls)
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - start));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if status == StatusCode::PARTIAL_CONTENT {
        insert(headers, header::CONTENT_RANGE, &format!("bytes {start}-{}/{}", end - 1, entry.size));
    }
    response
}

pub(crate) fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    // Names of files are the only free text here, and those are percent-encoded before.
    headers.insert(name, HeaderValue::from_str(value).expect("the value is printable ASCII"));
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// `end` is one past the last byte.
    Bytes {
        start: u64,
        end: u64,
    },
    Unsatisfiable,
    /// Not a form this server knows: answered with the whole, as RFC 9110 allows.
    Ignored,
}

fn parse_range(text: &str, size: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Ignored;
    };
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(start), _) if start >= size => Range::Unsatisfiable,
        (Ok(start), Ok(last)) if last >= start => {
            Range::Bytes { start, end: size.min(last.saturating_add(1)) }
        }
        (Ok(start), Err(_)) if last.is_empty() => Range::Bytes { start, end: size },
        (Err(_), Ok(0)) if first.is_empty() => Range::Unsatisfiable,
        (Err(_), Ok(suffix)) if first.is_empty() && size > 0 => {
            Range::Bytes { start: size.saturating_sub(suffix), end: size }
        }
        (Err(_), Ok(_)) if first.is_empty() => Range::Unsatisfiable,
        _ => Range::Ignored,
    }
}

struct Sending {
    content: Content,
    at: u64,
    end: u64,
    sent: u64,
    fault: Option<Fault>,
    stalls: watch::Receiver<u64>,
    broken: bool,
}

fn stream(
    content: Content,
    start: u64,
    end: u64,
    fault: Option<Fault>,
    stalls: watch::Receiver<u64>,
) -> Body {
    let sending = Sending { content, at: start, end, sent: 0, fault, stalls, broken: false };
    Body::from_stream(futures_util::stream::unfold(sending, |mut sending| async move {
        if sending.broken {
            return None;
        }
        let piece = sending.next_piece().await;
        sending.broken = matches!(piece, Some(Err(_)));
        piece.map(|piece| (piece, sending))
    }))
}

impl Sending {
    async fn next_piece(&mut self) -> Option<std::io::Result<Bytes>> {
        if self.at == self.end {
            return None;
        }
        let mut length = (self.end - self.at).min(PIECE_BYTES as u64);
        match self.fault {
            Some(Fault::CutAfter(limit)) => {
                if self.sent >= limit {
                    // What was sent before has to reach the other side first: the server writes when it waits.
                    tokio::task::yield_now().await;
                    return Some(Err(std::io::Error::new(
                        std::io::ErrorKind::ConnectionReset,
                        "injected cut",
                    )));
                }
                length = length.min(limit - self.sent);
            }
            Some(Fault::StallAfter(limit)) => {
                if self.sent >= limit {
                    // A timeout is a released stall: the rest of the body follows.
                    tokio::time::timeout(STALL_MAX, self.stalls.changed()).await.ok();
                    self.fault = None;
                } else {
                    length = length.min(limit - self.sent);
                }
            }
            Some(Fault::Slow { piece_bytes, pause }) => {
                if self.sent > 0 {
                    tokio::time::sleep(pause).await;
                }
                length = length.min(piece_bytes.max(1) as u64);
            }
            _ => {}
        }
        let piece = match self.read(length).await {
            Ok(piece) => piece,
            Err(e) => return Some(Err(e)),
        };
        self.at += length;
        self.sent += length;
        Some(Ok(piece))
    }

    async fn read(&mut self, length: u64) -> std::io::Result<Bytes> {
        let length = usize::try_from(length).expect("a piece fits in memory");
        let mut piece = match &self.content {
            Content::Memory(bytes) => {
                let at = usize::try_from(self.at).expect("an offset into memory");
                bytes.slice(at..at + length)
            }
            Content::Disk(path) => {
                let mut file = tokio::fs::File::open(path).await?;
                file.seek(std::io::SeekFrom::Start(self.at)).await?;
                let mut buffer = vec![0; length];
                file.read_exact(&mut buffer).await?;
                buffer.into()
            }
        };
        if self.fault == Some(Fault::WrongBytes) && self.sent == 0 {
            let mut wrong = piece.to_vec();
            wrong[0] ^= 1;
            piece = wrong.into();
        }
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_rfc_9110_says() {
        let cases = [
            ("bytes=0-9", 100, Range::Bytes { start: 0, end: 10 }),
            ("bytes=90-", 100, Range::Bytes { start: 90, end: 100 }),
            ("bytes=90-500", 100, Range::Bytes { start: 90, end: 100 }),
            ("bytes=-10", 100, Range::Bytes { start: 90, end: 100 }),
            ("bytes=-500", 100, Range::Bytes { start: 0, end: 100 }),
            ("bytes=100-", 100, Range::Unsatisfiable),
            ("bytes=-0", 100, Range::Unsatisfiable),
            ("bytes=0-", 0, Range::Unsatisfiable),
            ("bytes=9-3", 100, Range::Ignored),
            ("bytes=0-1,5-6", 100, Range::Ignored),
            ("lines=0-1", 100, Range::Ignored),
        ];
        for (text, size, expected) in cases {
            assert_eq!(parse_range(text, size), expected, "{text} of {size}");
        }
    }
}
