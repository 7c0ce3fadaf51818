//! A lean HTTP/1.1 client: the bytes of a request are made once, of an answer only what is needed is looked at.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::events::Body;

const READ_BYTES: usize = 64 << 10;
const HEADERS_MAX: usize = 64;
/// Of an answer; ours have a few hundred.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A connection that is kept from request to request.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

/// An answer that has come whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub events: u64,
    pub body: Option<Vec<u8>>,
}

/// An answer and when it came.
#[derive(Debug)]
pub struct Streamed {
    pub status: u16,
    /// Of each event, by the caller's clock.
    pub times: Vec<u64>,
    pub body: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; READ_BYTES], filled: 0 })
    }

    /// Sends the bytes of a request and reads its answer to the end.
    pub async fn send(&mut self, request: &[u8], keep_body: bool) -> Result<Answer> {
        let (status, mut body) = self.begin(request, keep_body, || {}).await?;
        loop {
            let (used, whole) = body.feed(&self.buffer[..self.filled])?;
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used;
            if whole {
                return Ok(Answer { status, events: body.events, body: body.kept });
            }
            self.read().await?;
        }
    }

    /// The same, with the time at which each event of the answer came.
    pub async fn stream(&mut self, request: &[u8], now: fn() -> u64) -> Result<Streamed> {
        let mut came = now();
        let (status, mut body) = self.begin(request, true, || came = now()).await?;
        let mut times = Vec::new();
        loop {
            let (used, whole) = body.feed(&self.buffer[..self.filled])?;
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used;
            times.resize(usize::try_from(body.events)?, came);
            if whole {
                return Ok(Streamed { status, times, body: body.kept.unwrap_or_default() });
            }
            self.read().await?;
            came = now();
        }
    }

    /// Sends the bytes of a request and reads the head of its answer; `came` is called whenever something of it came.
    async fn begin(
        &mut self,
        request: &[u8],
        keep_body: bool,
        mut came: impl FnMut(),
    ) -> Result<(u16, Body)> {
        self.stream.write_all(request).await.context("the request could not be sent")?;
        loop {
            if let Some((used, status, body)) = head(&self.buffer[..self.filled], keep_body)? {
                self.buffer.copy_within(used..self.filled, 0);
                self.filled -= used;
                return Ok((status, body));
            }
            if self.filled >= HEAD_BYTES_MAX {
                bail!("the head of the answer is longer than {HEAD_BYTES_MAX} bytes");
            }
            self.read().await?;
            came();
        }
    }

    async fn read(&mut self) -> Result<()> {
        let n = self.stream.read(&mut self.buffer[self.filled..]).await.context("the answer broke off")?;
        if n == 0 {
            bail!("the connection was closed before the answer was whole");
        }
        self.filled += n;
        Ok(())
    }
}

/// The head of an answer: its length in bytes, the status, and how its body is read. `None`: more has to come.
fn head(bytes: &[u8], keep: bool) -> Result<Option<(usize, u16, Body)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(used) = response.parse(bytes).context("the answer is no HTTP/1.1")? else {
        return Ok(None);
    };
    let status = response.code.context("the answer has no status")?;
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value)?;
            let length = text.trim().parse().context("content-length is no number")?;
            return Ok(Some((used, status, Body::sized(length, keep))));
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding")
            && header.value.eq_ignore_ascii_case(b"chunked")
        {
            return Ok(Some((used, status, Body::chunked(keep))));
        }
    }
    Ok(Some((used, status, Body::sized(0, keep))))
}

/// The bytes of a request with a JSON body.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").into_bytes()
}
