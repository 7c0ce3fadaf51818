//! What router and child say to each other: JSON behind a four-byte length, little endian.

use std::borrow::Cow;
use std::io::{self, Read, Write};

use chat::{RenderError, RenderRequest, Rendered, TemplateSource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Raised when the messages change. Both sides are one binary: a difference means a broken installation.
pub(crate) const VERSION: u32 = 2;
/// Largest request: messages, tools and template. A million tokens of text are some 5 MB.
pub(crate) const REQUEST_BYTES_MAX: usize = 6 << 20;
/// Largest answer: a prompt of the greatest length, escaped.
pub(crate) const ANSWER_BYTES_MAX: usize = 24 << 20;

/// The child holds more memory than it may.
pub(crate) const EXIT_MEMORY: i32 = 77;
/// The child noticed itself that it takes too long; its router has gone.
pub(crate) const EXIT_TIME: i32 = 78;
/// The binary has another allocator than [`crate::CappedAllocator`].
pub(crate) const EXIT_NO_CAP: i32 = 79;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ask<'a> {
    /// [`TemplateSource::id`].
    pub template: Cow<'a, str>,
    /// Left out when the child was given it before.
    pub source: Option<Cow<'a, TemplateSource>>,
    pub nonce: u64,
    pub request: Cow<'a, RenderRequest>,
    /// Checked before the template runs.
    pub schemas: Cow<'a, [Schema]>,
}

/// A JSON Schema of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// Where in the request it is.
    pub param: String,
    pub text: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// First of all.
    Hello {
        version: u32,
    },
    /// The request was read; the time starts.
    Started,
    /// The template has been forgotten; ask again with its source.
    UnknownTemplate,
    Done(Result<Rendered, RenderError>),
}

pub(crate) fn encode(message: &impl Serialize, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let len = frame.len() - 4;
    if len > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {len} bytes, more than {bytes_max}"),
        ));
    }
    // Both limits are far below 4 GiB.
    frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(frame)
}

pub(crate) fn write(to: &mut impl Write, message: &impl Serialize, bytes_max: usize) -> io::Result<()> {
    to.write_all(&encode(message, bytes_max)?)?;
    to.flush()
}

/// `None` at the end of the input.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    if let Err(error) = from.read_exact(&mut header) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let len = u32::from_le_bytes(header) as usize;
    if len > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {len} bytes, more than {bytes_max}"),
        ));
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}
