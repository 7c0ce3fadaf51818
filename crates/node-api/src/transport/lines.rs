//! Lines of JSON: values out of bytes however they are cut, and back.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::Stream;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::{Serialize, de::DeserializeOwned};

use super::link::LinkError;
use super::local::LocalEvents;
use crate::LINE_BYTES_MAX;

/// Why bytes are no line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    #[error("a line of {length} bytes is not what it should be")]
    Parse { length: usize, source: serde_json::Error },
    #[error("the stream ended in the middle of a line, after {0} bytes of it")]
    Cut(usize),
}

/// One value as one line.
pub fn encode_line<T: Serialize>(value: &T) -> Result<Bytes, LineError> {
    let mut line = BytesMut::new();
    append_line(value, &mut line)?;
    Ok(line.freeze())
}

/// One value as one line at the end of `out`; on failure `out` is as it was.
pub(super) fn append_line<T: Serialize>(value: &T, out: &mut BytesMut) -> Result<(), LineError> {
    let start = out.len();
    let written = serde_json::to_writer((&mut *out).writer(), value);
    let result = match written {
        Err(source) => Err(LineError::Parse { length: 0, source }),
        Ok(()) if out.len() - start >= LINE_BYTES_MAX => Err(LineError::TooLong),
        Ok(()) => {
            out.put_u8(b'\n');
            return Ok(());
        }
    };
    out.truncate(start);
    result
}

/// Takes bytes as they come and gives whole lines. Empty lines are passed over.
#[derive(Debug, Default)]
pub struct LineDecoder {
    buffer: BytesMut,
    /// Bytes of `buffer` known to hold no newline.
    searched: usize,
}

impl LineDecoder {
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, `None` until more bytes come. After an error the stream cannot be used further.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot choose its item's type at each call"
    )]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        loop {
            let Some(at) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') else {
                self.searched = self.buffer.len();
                if self.searched >= LINE_BYTES_MAX {
                    return Err(LineError::TooLong);
                }
                return Ok(None);
            };
            let line = self.buffer.split_to(self.searched + at + 1);
            self.searched = 0;
            if line.len() > LINE_BYTES_MAX {
                return Err(LineError::TooLong);
            }
            let line = line.trim_ascii();
            if !line.is_empty() {
                let parse = |source| LineError::Parse { length: line.len(), source };
                return serde_json::from_slice(line).map(Some).map_err(parse);
            }
        }
    }

    /// Whether the stream may end here.
    pub fn finish(&self) -> Result<(), LineError> {
        match self.buffer.len() {
            0 => Ok(()),
            n => Err(LineError::Cut(n)),
        }
    }
}

/// What a node answers, value after value. Dropping it cancels what it answers.
#[derive(Debug)]
pub struct Lines<T> {
    source: Source<T>,
}

#[derive(Debug)]
enum Source<T> {
    Wire(Box<Body<T>>),
    Local(LocalEvents<T>),
}

impl<T> Lines<T> {
    /// Lines of JSON; dropping them resets the HTTP/2 stream.
    pub(super) fn new(body: Incoming) -> Lines<T> {
        let body = Body {
            body,
            decoder: LineDecoder::default(),
            ready: VecDeque::new(),
            error: None,
            ended: false,
            kind: PhantomData,
        };
        Lines { source: Source::Wire(Box::new(body)) }
    }

    pub(super) fn local(events: LocalEvents<T>) -> Lines<T> {
        Lines { source: Source::Local(events) }
    }
}

impl<T: DeserializeOwned + Unpin> Lines<T> {
    /// The next value; `None` at the end. After an error comes `None`.
    pub async fn next(&mut self) -> Option<Result<T, LinkError>> {
        futures_util::StreamExt::next(self).await
    }
}

impl<T: DeserializeOwned + Unpin> Stream for Lines<T> {
    type Item = Result<T, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.source {
            Source::Wire(body) => body.poll_next(cx),
            Source::Local(events) => Pin::new(events).poll_next(cx),
        }
    }
}

/// The body of an answer, taken apart.
#[derive(Debug)]
struct Body<T> {
    body: Incoming,
    decoder: LineDecoder,
    ready: VecDeque<T>,
    /// Comes after `ready`: whole lines before a broken one still count.
    error: Option<LinkError>,
    ended: bool,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Body<T> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), LineError> {
        self.decoder.extend(bytes);
        while let Some(value) = self.decoder.next()? {
            self.ready.push_back(value);
        }
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, LinkError>>> {
        loop {
            if let Some(value) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(value)));
            }
            if let Some(error) = self.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let mut frame = self.body.frame();
            let result = match ready!(Pin::new(&mut frame).poll(cx)) {
                None => {
                    self.ended = true;
                    self.decoder.finish().map_err(|source| LinkError::Line { source })
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.take(&data).map_err(|source| LinkError::Line { source }),
                    // Trailers say nothing in this contract.
                    Err(_) => Ok(()),
                },
                Some(Err(source)) => Err(LinkError::Lost { source }),
            };
            if let Err(error) = result {
                self.ended = true;
                self.error = Some(error);
            }
        }
    }
}
