//! A static HTTP/1.1 server: every answer lies ready, and is like the router's in size and form.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::STREAM_TOKENS;

const READ_BYTES: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// Events in one write, as many as a node puts in one frame.
const EVENTS_PER_WRITE: u32 = 64;

pub struct Upstream {
    pub address: SocketAddr,
}

/// What it answers.
struct Answers {
    whole: Bytes,
    /// The head, then the writes of a stream.
    stream: Vec<Bytes>,
}

impl Upstream {
    pub async fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port on loopback")?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            let answers = std::sync::Arc::new(Answers::new());
            while let Ok((stream, _)) = listener.accept().await {
                let answers = std::sync::Arc::clone(&answers);
                tokio::spawn(async move {
                    // A connection that breaks is the peer's affair.
                    let _ = serve(stream, &answers).await;
                });
            }
        });
        Ok(Upstream { address })
    }
}

impl Answers {
    fn new() -> Answers {
        let body = r#"{"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,"model":"bench/echo","system_fingerprint":"0123456789ab-stand-in/1.0.0","choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let whole = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let event = concat!(
            r#"data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,"#,
            r#""model":"bench/echo","system_fingerprint":"0123456789ab-stand-in/1.0.0","choices":[{"index":0,"text":"a","#,
            r#""logprobs":null,"finish_reason":null}]}"#,
            "\n\n"
        );
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let mut stream = vec![Bytes::from_static(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )];
        let mut left = STREAM_TOKENS;
        while left > 0 {
            let events = left.min(EVENTS_PER_WRITE);
            stream.push((0..events).map(|_| chunk(event)).collect::<String>().into());
            left -= events;
        }
        stream.push((chunk("data: [DONE]\n\n") + "0\r\n\r\n").into());
        Answers { whole: whole.into(), stream }
    }
}

async fn serve(mut stream: TcpStream, answers: &Answers) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut filled = 0;
    loop {
        let request = loop {
            if let Some(request) = parse(&buffer[..filled])? {
                break request;
            }
            if filled == buffer.len() {
                anyhow::bail!("a request is longer than {READ_BYTES} bytes");
            }
            let n = stream.read(&mut buffer[filled..]).await?;
            if n == 0 {
                return Ok(());
            }
            filled += n;
        };
        buffer.copy_within(request.length..filled, 0);
        filled -= request.length;
        if request.streamed {
            for part in &answers.stream {
                stream.write_all(part).await?;
            }
        } else {
            stream.write_all(&answers.whole).await?;
        }
    }
}

struct Request {
    /// Head and body.
    length: usize,
    streamed: bool,
}

/// `None` until it is whole.
fn parse(bytes: &[u8]) -> Result<Option<Request>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(bytes)? else { return Ok(None) };
    let length = request.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let length: usize = match length {
        Some(header) => std::str::from_utf8(header.value)?.trim().parse()?,
        None => 0,
    };
    let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
    // The only two bodies there are; see `started::request`.
    let streamed =
        body.windows(super::started::STREAMED.len()).any(|w| w == super::started::STREAMED.as_bytes());
    Ok(Some(Request { length: head + length, streamed }))
}
