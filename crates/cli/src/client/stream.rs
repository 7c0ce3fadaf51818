//! Server-sent events of a chat: bytes in any cut, JSON values out.

use std::collections::VecDeque;
use std::pin::Pin;

use anyhow::{Context, Result, bail};
use futures_util::{Stream, StreamExt as _};

use crate::output::ApiFailure;

/// One line of a stream; a whole tool call's arguments fit many times.
const LINE_BYTES_MAX: usize = 16 << 20;

type Parts = Pin<Box<dyn Stream<Item = Result<Vec<u8>>> + Send>>;

pub struct Events {
    parts: Parts,
    lines: Lines,
    ready: VecDeque<String>,
    done: bool,
}

impl Events {
    pub fn new<B: AsRef<[u8]>, E: std::error::Error + Send + Sync + 'static>(
        parts: impl Stream<Item = Result<B, E>> + Send + 'static,
    ) -> Events {
        let parts = parts.map(|part| match part {
            Ok(bytes) => Ok(bytes.as_ref().to_vec()),
            Err(e) => Err(anyhow::Error::new(e).context("the stream broke off")),
        });
        Events { parts: Box::pin(parts), lines: Lines::default(), ready: VecDeque::new(), done: false }
    }

    /// The next event, or `None` after `[DONE]`. An event that tells of an error is an error here, and so is an end
    /// without `[DONE]`.
    pub async fn next(&mut self) -> Result<Option<serde_json::Value>> {
        loop {
            while let Some(line) = self.ready.pop_front() {
                let Some(data) = line.strip_prefix("data:") else { continue };
                let data = data.trim_start();
                if data == "[DONE]" {
                    self.done = true;
                    return Ok(None);
                }
                let event: serde_json::Value =
                    serde_json::from_str(data).context("an event of the stream is no JSON")?;
                if event.get("error").is_some() {
                    let body: openai_api::ErrorBody = serde_json::from_value(event)
                        .context("an error event of the stream has an unknown form")?;
                    let e = body.error;
                    return Err(
                        ApiFailure { status: 200, message: e.message, code: e.code, hint: e.hint }.into()
                    );
                }
                return Ok(Some(event));
            }
            if self.done {
                return Ok(None);
            }
            match self.parts.next().await {
                Some(part) => self.ready.extend(self.lines.feed(&part?)?),
                None => bail!("the stream ended before the reply did"),
            }
        }
    }
}

/// Cuts bytes into lines.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let text = String::from_utf8(line).context("a line of the stream is no UTF-8")?;
            lines.push(text.trim_end_matches(['\r', '\n']).to_owned());
        }
        if self.rest.len() > LINE_BYTES_MAX {
            bail!("a line of the stream is longer than {LINE_BYTES_MAX} bytes");
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(parts: &[&str]) -> Events {
        let parts: Vec<Result<Vec<u8>, std::io::Error>> =
            parts.iter().map(|p| Ok(p.as_bytes().to_vec())).collect();
        Events::new(futures_util::stream::iter(parts))
    }

    async fn all(mut events: Events) -> Result<Vec<serde_json::Value>> {
        let mut seen = Vec::new();
        while let Some(event) = events.next().await? {
            seen.push(event);
        }
        Ok(seen)
    }

    #[tokio::test]
    async fn any_cut_gives_the_same_events() {
        let text = ": loading\n\ndata: {\"a\":\"é\"}\r\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n";
        let expected = vec![serde_json::json!({"a": "é"}), serde_json::json!({"b": 2})];
        for size in 1..text.len() {
            let parts: Vec<Result<Vec<u8>, std::io::Error>> =
                text.as_bytes().chunks(size).map(|c| Ok(c.to_vec())).collect();
            let seen = all(Events::new(futures_util::stream::iter(parts))).await.expect("a whole stream");
            assert_eq!(seen, expected, "cut every {size} bytes");
        }
    }

    #[tokio::test]
    async fn an_error_event_is_an_error() {
        let error = all(events(&[
            "data: {\"error\":{\"message\":\"the worker died\",\"type\":\"server_error\",\"param\":null,\"code\":\"x\"}}\n\n",
        ]))
        .await
        .expect_err("an error event");
        assert_eq!(error.to_string(), "the worker died");
    }

    #[tokio::test]
    async fn an_end_without_done_is_an_error() {
        let error = all(events(&["data: {}\n\n"])).await.expect_err("no [DONE]");
        assert!(error.to_string().contains("ended before"), "{error}");
    }
}
