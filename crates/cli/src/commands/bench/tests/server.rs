//! A server that hands every request to the test, which answers when and how it likes.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Machines that test are busy.
pub const STATE_MAX: Duration = Duration::from_secs(60);

pub struct Server {
    pub url: String,
    requests: mpsc::UnboundedReceiver<Asked>,
}

/// A request that waits for its answer.
pub struct Asked {
    pub head: String,
    pub body: Value,
    stream: TcpStream,
}

impl Server {
    pub async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address: SocketAddr = listener.local_addr().expect("an address");
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Some(asked) = read(stream).await {
                        let _ = sender.send(asked);
                    }
                });
            }
        });
        Server { url: format!("http://{address}"), requests }
    }

    /// The next request.
    pub async fn next(&mut self) -> Asked {
        let next = tokio::time::timeout(STATE_MAX, self.requests.recv());
        next.await.expect("a request comes in time").expect("the server lives")
    }

    /// Whether a request waits now.
    pub fn is_asked(&self) -> bool {
        !self.requests.is_empty()
    }
}

async fn read(mut stream: TcpStream) -> Option<Asked> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut part).await.ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&part[..n]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap_or("0");
        if body.len() >= length.parse().expect("a number") {
            let body = serde_json::from_str(body).unwrap_or(Value::Null);
            return Some(Asked { head, body, stream });
        }
    }
}

impl Asked {
    /// The head of a stream; the connection closes at its end.
    pub async fn begin(&mut self) {
        self.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n").await;
    }

    pub async fn text(&mut self, text: &str) {
        let event = serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}, "text": text}]});
        self.write(&format!("data: {event}\n\n")).await;
    }

    /// Usage and the end.
    pub async fn end(mut self, prompt_tokens: u64, completion_tokens: u64) {
        let usage =
            serde_json::json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens});
        let event = serde_json::json!({"choices": [], "usage": usage});
        self.write(&format!("data: {event}\n\ndata: [DONE]\n\n")).await;
    }

    /// A whole stream of so many parts.
    pub async fn answer(mut self, parts: u64) {
        self.begin().await;
        for _ in 0..parts {
            self.text("word").await;
        }
        self.end(5, parts).await;
    }

    /// Without a stream.
    pub async fn json(mut self, status: &str, body: Value) {
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
        self.write(&format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await;
    }

    async fn write(&mut self, text: &str) {
        // The client may be gone: that is what some tests are about.
        let _ = self.stream.write_all(text.as_bytes()).await;
    }
}
