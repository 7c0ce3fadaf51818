//! The body of an HTTP/1.1 answer, bytes in, its end and its events out.

use anyhow::{Context as _, Result, bail};

/// A chunk's size line is a few hexadecimal digits; extensions are not used by anybody here.
const SIZE_LINE_BYTES_MAX: usize = 64;

/// How the end of a body is known.
#[derive(Debug)]
enum Kind {
    /// So many bytes are still to come.
    Sized(u64),
    Chunked(Chunk),
}

#[derive(Debug)]
enum Chunk {
    /// What there is of the line with the size.
    Size(Vec<u8>),
    /// So many bytes of data are still to come, then a line break.
    Data(u64),
    /// Bytes of the line break after the data that are still to come; the last chunk has none of data.
    Break { left: u8, last: bool },
}

/// Reads one body.
#[derive(Debug)]
pub struct Body {
    kind: Kind,
    after_newline: bool,
    /// Empty lines seen: each ends an event of a stream.
    pub events: u64,
    /// The data, where it is wanted.
    pub kept: Option<Vec<u8>>,
}

impl Body {
    pub fn sized(bytes: u64, keep: bool) -> Body {
        Body::of(Kind::Sized(bytes), keep)
    }

    pub fn chunked(keep: bool) -> Body {
        Body::of(Kind::Chunked(Chunk::Size(Vec::new())), keep)
    }

    fn of(kind: Kind, keep: bool) -> Body {
        Body { kind, after_newline: false, events: 0, kept: keep.then(Vec::new) }
    }

    /// Takes bytes; answers how many of them were the body's, and whether it is whole.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, bool)> {
        let mut at = 0;
        loop {
            match &mut self.kind {
                Kind::Sized(0) => return Ok((at, true)),
                Kind::Sized(left) => {
                    let n = within(*left, bytes.len() - at);
                    *left -= n as u64;
                    self.data(&bytes[at..at + n]);
                    at += n;
                }
                Kind::Chunked(Chunk::Data(0)) => {
                    self.kind = Kind::Chunked(Chunk::Break { left: 2, last: false })
                }
                Kind::Chunked(Chunk::Data(left)) => {
                    let n = within(*left, bytes.len() - at);
                    *left -= n as u64;
                    self.data(&bytes[at..at + n]);
                    at += n;
                }
                Kind::Chunked(Chunk::Break { left: 0, last: true }) => return Ok((at, true)),
                Kind::Chunked(Chunk::Break { left: 0, last: false }) => {
                    self.kind = Kind::Chunked(Chunk::Size(Vec::new()));
                }
                Kind::Chunked(Chunk::Break { left, .. }) => {
                    if at < bytes.len() {
                        *left -= 1;
                        at += 1;
                    }
                }
                Kind::Chunked(Chunk::Size(line)) => {
                    while at < bytes.len() && line.last() != Some(&b'\n') {
                        line.push(bytes[at]);
                        at += 1;
                    }
                    if line.len() > SIZE_LINE_BYTES_MAX {
                        bail!("the size of a chunk is no number");
                    }
                    if line.last() == Some(&b'\n') {
                        let text = std::str::from_utf8(line).context("the size of a chunk is no number")?;
                        let size = u64::from_str_radix(text.trim(), 16)
                            .context("the size of a chunk is no number")?;
                        self.kind = Kind::Chunked(match size {
                            0 => Chunk::Break { left: 2, last: true },
                            size => Chunk::Data(size),
                        });
                    }
                }
            }
            if at == bytes.len() && !self.is_whole() {
                return Ok((at, false));
            }
        }
    }

    fn is_whole(&self) -> bool {
        matches!(&self.kind, Kind::Sized(0) | Kind::Chunked(Chunk::Break { left: 0, last: true }))
    }

    fn data(&mut self, data: &[u8]) {
        for byte in data {
            let newline = *byte == b'\n';
            self.events += u64::from(newline && self.after_newline);
            self.after_newline = newline;
        }
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(data);
        }
    }
}

fn within(left: u64, available: usize) -> usize {
    usize::try_from(left).map_or(available, |left| left.min(available))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In cuts of every size: (bytes of the body, events, data).
    fn check(make: fn() -> Body, bytes: &[u8], expected: (usize, u64, &str)) {
        for cut in 1..=bytes.len() {
            let (mut body, mut used) = (make(), 0);
            for part in bytes.chunks(cut) {
                let (n, whole) = body.feed(part).expect("a body");
                used += n;
                if whole {
                    break;
                }
            }
            let kept = String::from_utf8(body.kept.clone().expect("it was kept")).expect("text");
            assert_eq!((used, body.events, kept.as_str()), expected, "cut every {cut}");
            assert!(body.is_whole());
        }
    }

    #[test]
    fn chunks_end_with_an_empty_one() {
        let bytes = b"9\r\ndata: a\n\n\r\nB\r\ndata: b\n\nda\r\n7\r\nta: c\n\n\r\n0\r\n\r\nHTTP";
        check(|| Body::chunked(true), bytes, (bytes.len() - 4, 3, "data: a\n\ndata: b\n\ndata: c\n\n"));
    }

    #[test]
    fn a_sized_body_ends_at_its_size() {
        check(|| Body::sized(3, true), b"abcdef", (3, 0, "abc"));
        let mut empty = Body::sized(0, false);
        assert_eq!(empty.feed(b"").expect("a body"), (0, true));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        assert!(Body::chunked(false).feed(b"xyz\r\n").is_err());
        assert!(Body::chunked(false).feed(&[b'0'; SIZE_LINE_BYTES_MAX + 1]).is_err());
    }
}
