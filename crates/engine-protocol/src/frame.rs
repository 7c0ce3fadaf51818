//! Hello and frames: bytes in, messages out.

use serde::{Serialize, de::DeserializeOwned};

/// 64 MiB: a prompt of the largest context with room to spare; a longer length is a broken peer.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// `LLMRWRK\0`, then the protocol version, then the sender's process id, both little-endian `u32`.
pub const HELLO_BYTES: usize = 16;
const MAGIC: [u8; 8] = *b"LLMRWRK\0";

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the peer did not say hello: it sent {0:02x?}")]
    NotHello([u8; 8]),
    #[error("a frame of {0} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLong(usize),
    #[error("a frame of {length} bytes could not be understood")]
    Decode { length: usize, source: postcard::Error },
    #[error("a frame of {length} bytes has {left} bytes after its message")]
    Trailing { length: usize, left: usize },
    #[error("a message could not be written as a frame")]
    Encode { source: postcard::Error },
}

/// What each side says first. The layout is the same for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub protocol_version: u32,
    pub process_id: u32,
}

impl Hello {
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.protocol_version.to_le_bytes());
        out[12..].copy_from_slice(&self.process_id.to_le_bytes());
        out
    }

    pub fn from_bytes(bytes: [u8; HELLO_BYTES]) -> Result<Hello, FrameError> {
        let (magic, rest) = bytes.split_first_chunk::<8>().expect("sixteen bytes hold eight");
        if *magic != MAGIC {
            return Err(FrameError::NotHello(*magic));
        }
        let word = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        Ok(Hello { protocol_version: word(0), process_id: word(4) })
    }
}

/// Appends one frame to `out`, so that several leave in one write.
pub fn encode_frame<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let buffer = std::mem::take(out);
    *out = postcard::to_extend(message, buffer).map_err(|source| FrameError::Encode { source })?;
    let length = out.len() - start - 4;
    if length > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(FrameError::TooLong(length));
    }
    let length = u32::try_from(length).expect("the limit is below 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Collects bytes as they come and gives out whole messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    at: usize,
}

impl FrameReader {
    pub fn extend(&mut self, bytes: &[u8]) {
        // Consumed bytes are dropped only when they are the larger half, so that each byte moves at most twice.
        if self.at > self.buffer.len() / 2 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, `None` until more bytes come. After an error the connection cannot be used further.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot choose its message type at each call"
    )]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let Some(head) = self.buffer[self.at..].first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong(length));
        }
        let start = self.at + 4;
        let Some(body) = self.buffer.get(start..start + length) else { return Ok(None) };
        let (message, left) =
            postcard::take_from_bytes::<M>(body).map_err(|source| FrameError::Decode { length, source })?;
        if !left.is_empty() {
            return Err(FrameError::Trailing { length, left: left.len() });
        }
        self.at = start + length;
        Ok(Some(message))
    }
}
