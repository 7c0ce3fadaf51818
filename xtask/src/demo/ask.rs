//! Sends one conversation of the reference to the router, as any client would, and compares the answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use super::reference::Prompt;

/// A tiny model answers in seconds; a loaded machine may take longer.
const ANSWER_MAX: Duration = Duration::from_secs(180);
/// An error body; a page of another server would be cut.
const ERROR_BYTES_MAX: u64 = 64 << 10;

#[derive(Default, Serialize)]
pub struct Answer {
    pub name: String,
    pub content: Option<String>,
    pub reasoning: Option<String>,
    pub tool_call: Option<Value>,
    pub finish_reason: String,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub first_token_ms: f64,
    pub tokens_per_second: f64,
    /// Where it is not what the reference says.
    pub differences: Vec<String>,
    #[serde(skip)]
    streamed: bool,
}

pub fn ask(router: &str, model: &str, prompt: &Prompt, show_stream: bool) -> Result<Answer> {
    let mut body = json!({
        "model": model,
        "messages": prompt.messages,
        "reasoning_effort": prompt.reasoning_effort,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if let Some(tools) = &prompt.tools {
        body["tools"] = tools.clone();
    }
    let mut answer =
        receive(router, &body, show_stream).with_context(|| format!("no answer to {}", prompt.name))?;
    answer.name = prompt.name.clone();
    answer.compare(prompt);
    Ok(answer)
}

fn receive(router: &str, body: &Value, show_stream: bool) -> Result<Answer> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(ANSWER_MAX))
        .http_status_as_error(false)
        .build()
        .into();
    let start = Instant::now();
    let mut response = agent.post(format!("{router}/v1/chat/completions")).send_json(body)?;
    if response.status() != 200 {
        let text =
            response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
        bail!("the router answered {}: {text}", response.status());
    }
    let mut answer = Answer { streamed: show_stream, ..Answer::default() };
    let mut first = None;
    let mut whole = false;
    for line in BufReader::new(response.body_mut().as_reader()).lines() {
        let line = line.context("the stream broke off")?;
        let Some(data) = line.strip_prefix("data:") else { continue };
        if data.trim() == "[DONE]" {
            whole = true;
            break;
        }
        let event: Value = serde_json::from_str(data).context("an event of the stream is no JSON")?;
        if let Some(error) = event.get("error") {
            bail!("the stream failed: {error}");
        }
        if answer.add(&event, show_stream)? && first.is_none() {
            first = Some(start.elapsed());
        }
    }
    if !whole {
        bail!("the stream ended without [DONE]");
    }
    let all = start.elapsed().as_secs_f64();
    let first = first.context("the stream had no token")?.as_secs_f64();
    answer.first_token_ms = (first * 1e4).round() / 10.0;
    let rate = answer.completion_tokens.saturating_sub(1) as f64 / (all - first).max(1e-3);
    answer.tokens_per_second = (rate * 10.0).round() / 10.0;
    Ok(answer)
}

impl Answer {
    /// Adds one event; `true` when it held something of the reply.
    fn add(&mut self, event: &Value, show: bool) -> Result<bool> {
        if let Some(usage) = event["usage"].as_object() {
            let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
            (self.prompt_tokens, self.completion_tokens) =
                (count("prompt_tokens"), count("completion_tokens"));
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = reason.to_owned();
        }
        let delta = &choice["delta"];
        let mut something = false;
        if let Some(text) = delta["reasoning"].as_str().filter(|t| !t.is_empty()) {
            self.reasoning.get_or_insert_default().push_str(text);
            something = true;
        }
        if let Some(text) = delta["content"].as_str().filter(|t| !t.is_empty()) {
            if show {
                let lead = if self.content.is_none() { "   assistant: " } else { "" };
                eprint!("{lead}{text}");
                std::io::stderr().flush()?;
            }
            self.content.get_or_insert_default().push_str(text);
            something = true;
        }
        for call in delta["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let mine = self.tool_call.get_or_insert_with(|| json!({"name": "", "arguments": ""}));
            for field in ["name", "arguments"] {
                let part = call["function"][field].as_str().unwrap_or_default();
                mine[field] = json!(format!("{}{part}", mine[field].as_str().unwrap_or_default()));
            }
            something = true;
        }
        Ok(something)
    }

    fn compare(&mut self, prompt: &Prompt) {
        let call = prompt.tool_call.as_ref().map(|c| json!({"name": c.name, "arguments": c.arguments}));
        let expected_finish = if call.is_some() { "tool_calls" } else { "stop" };
        let mut differences = Vec::new();
        let mut same = |what: &str, ours: Value, theirs: Value| {
            if ours != theirs {
                differences.push(format!("{what}: {ours} instead of {theirs}"));
            }
        };
        same("content", json!(self.content), json!(prompt.content));
        same("reasoning", json!(self.reasoning), json!(prompt.reasoning));
        same("tool call", json!(self.tool_call), json!(call));
        same("finish reason", json!(self.finish_reason), json!(expected_finish));
        same("prompt tokens", json!(self.prompt_tokens), json!(prompt.prompt_token_ids.len()));
        same("completion tokens", json!(self.completion_tokens), json!(prompt.completion_token_ids.len()));
        self.differences = differences;
    }

    pub fn show(&self) {
        if self.streamed {
            eprintln!();
        } else {
            if let Some(reasoning) = &self.reasoning {
                eprintln!("    thinking: {reasoning}");
            }
            if let Some(content) = &self.content {
                eprintln!("   assistant: {content}");
            }
            if let Some(call) = &self.tool_call {
                let part = |field: &str| call[field].as_str().unwrap_or_default().to_owned();
                eprintln!("   tool call: {} {}", part("name"), part("arguments"));
            }
        }
        eprintln!(
            "   [first token after {:.2} s, {:.1} tokens/s, {} tokens]",
            self.first_token_ms / 1000.0,
            self.tokens_per_second,
            self.completion_tokens
        );
        for difference in &self.differences {
            eprintln!("   DIFFERS from the reference: {difference}");
        }
    }
}
