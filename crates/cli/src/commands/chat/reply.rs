//! Shows one reply as it comes.

use std::io::Write as _;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::client::stream::Events;
use crate::output;

const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";

/// Prints the reply, or collects it for `--json`, and gives its content.
pub async fn show(mut events: Events, with_reasoning: bool, as_json: bool) -> Result<String> {
    let start = Instant::now();
    let mut reply = Reply::default();
    let mut printer = Printer { style: output::stdout_has_style(), dim: false, wrote: false };
    while let Some(event) = events.next().await? {
        let delta = &event["choices"][0]["delta"];
        let reasoning = delta["reasoning"].as_str().unwrap_or_default();
        let content = delta["content"].as_str().unwrap_or_default();
        let calls = delta["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        if reply.first_token_ms.is_none() && !(reasoning.is_empty() && content.is_empty() && calls.is_empty())
        {
            reply.first_token_ms = Some(start.elapsed().as_millis() as u64);
        }
        reply.reasoning.push_str(reasoning);
        reply.content.push_str(content);
        if let Some(reason) = event["choices"][0]["finish_reason"].as_str() {
            reply.finish_reason = Some(reason.to_owned());
        }
        if event["usage"].is_object() {
            reply.usage = event["usage"].clone();
        }
        if !as_json {
            // Without colours reasoning could not be told from the answer, so a pipe gets the answer alone.
            if with_reasoning && printer.style {
                printer.write(reasoning, true)?;
            }
            printer.write(content, false)?;
            for call in calls {
                printer.write(call["function"]["name"].as_str().unwrap_or_default(), false)?;
                printer.write(call["function"]["arguments"].as_str().unwrap_or_default(), false)?;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if as_json {
        output::print_json(&reply.as_json(seconds))?;
    } else {
        printer.end(&reply.summary(seconds))?;
    }
    Ok(reply.content)
}

#[derive(Default)]
struct Reply {
    content: String,
    reasoning: String,
    finish_reason: Option<String>,
    first_token_ms: Option<u64>,
    usage: Value,
}

impl Reply {
    fn as_json(&self, seconds: f64) -> Value {
        json!({
            "content": self.content,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "first_token_ms": self.first_token_ms,
            "seconds": seconds,
        })
    }

    fn summary(&self, seconds: f64) -> String {
        let tokens = self.usage["completion_tokens"].as_u64().unwrap_or_default();
        let first = self.first_token_ms.unwrap_or_default() as f64 / 1000.0;
        // The first token waits for the prompt; the rest tells how fast the model speaks.
        let rate = tokens.saturating_sub(1) as f64 / (seconds - first).max(1e-3);
        let why = match self.finish_reason.as_deref() {
            Some("stop") | None => "",
            Some("length") => ", cut at the longest length",
            Some("tool_calls") => ", a tool call",
            Some(_) => ", ended early",
        };
        format!("{tokens} tokens, first after {first:.2} s, then {rate:.1} tokens/s{why}")
    }
}

struct Printer {
    style: bool,
    dim: bool,
    wrote: bool,
}

impl Printer {
    fn write(&mut self, text: &str, dim: bool) -> std::io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        if self.style && dim != self.dim {
            // Reasoning and answer are paragraphs of their own.
            write!(out, "{}{}", if dim { DIM } else { PLAIN }, if self.wrote { "\n" } else { "" })?;
        }
        self.dim = dim;
        self.wrote = true;
        // What a model writes must not steer the terminal.
        let safe: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        write!(out, "{safe}")?;
        out.flush()
    }

    fn end(&mut self, summary: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out)?;
        if self.style {
            writeln!(out, "{DIM}{summary}{PLAIN}")?;
        }
        out.flush()
    }
}
