//! The address that is measured: one request, its parts timed as they arrive.

use std::error::Error as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use futures_util::StreamExt as _;
use openai_api::models::ModelList;
use serde_json::{Value, json};
use tokio::time::timeout;
use url::Url;

use super::BenchArguments;
use super::arguments::Api;
use super::sample::Sample;
use crate::client::is_loopback;
use crate::client::stream::Events;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the list of models.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Of the words of an error that make its kind.
const ERROR_CHARS_MAX: usize = 200;
/// Of an error's body.
const ERROR_BYTES_MAX: usize = 64 << 10;

pub struct Target {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
    api: Api,
    deadline: Duration,
}

impl Target {
    /// `url` is the origin, or the address below which the API lies (`https://host/openai/v1`).
    pub fn new(url: &str, arguments: &BenchArguments) -> Result<Target> {
        let mut base = Url::parse(url)
            .ok()
            .filter(|u| ["http", "https"].contains(&u.scheme()) && u.has_host())
            .with_context(|| format!("`{url}` is no address\nhint: it looks like http://127.0.0.1:8411"))?;
        {
            let versioned = base.path().trim_end_matches('/').ends_with("/v1");
            let Ok(mut segments) = base.path_segments_mut() else { bail!("`{url}` is no base for paths") };
            segments.pop_if_empty();
            if !versioned {
                segments.push("v1");
            }
        }
        let key = match &arguments.key_env {
            None => None,
            Some(name) => Some(std::env::var(name).map_err(|_| {
                anyhow!(
                    "the environment variable {name} has no key\nhint: --key-env takes the variable's name"
                )
            })?),
        };
        // Each connection is kept: the measured times are the server's, not those of connecting.
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        if is_loopback(&base) {
            http = http.no_proxy();
        }
        let http = http.build().context("cannot set up HTTP")?;
        let deadline = Duration::try_from_secs_f64(arguments.deadline).unwrap_or(Duration::MAX);
        Ok(Target { http, base, key, api: arguments.api, deadline })
    }

    pub fn url(&self) -> &str {
        self.base.as_str()
    }

    /// The model, where there is no choice.
    pub async fn only_model(&self) -> Result<String> {
        let ask = async {
            let response = self.request(self.http.get(self.address(&["models"]))).send().await?;
            let text = response.error_for_status()?.text().await?;
            anyhow::Ok(serde_json::from_str::<ModelList>(&text)?.data)
        };
        let models = timeout(LIST_TIMEOUT, ask).await.map_err(anyhow::Error::from).flatten();
        let models = models
            .with_context(|| format!("{} does not list its models\nhint: name the model", self.base))?;
        match models.as_slice() {
            [model] => Ok(model.id.clone()),
            [] => bail!("{} has no model that is ready", self.base),
            many => {
                let ids: Vec<&str> = many.iter().map(|m| m.id.as_str()).collect();
                bail!("{} has several models\nhint: name one of {}", self.base, ids.join(", "))
            }
        }
    }

    pub fn body(&self, model: &str, prompt: &str, arguments: &BenchArguments) -> Value {
        let mut body = json!({
            "model": model,
            "max_tokens": arguments.max_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        match self.api {
            Api::Chat => body["messages"] = json!([{"role": "user", "content": prompt}]),
            Api::Completions => body["prompt"] = prompt.into(),
        }
        if arguments.ignore_eos {
            body["ignore_eos"] = true.into();
            body["min_tokens"] = arguments.max_tokens.into();
        }
        body
    }

    /// Sends a request and follows its answer to the end. What fails is in the sample.
    pub async fn ask(&self, body: &Value, begin: Instant, due: Duration) -> Sample {
        let mut sample = Sample { due, ..Sample::default() };
        // The deadline counts from when it was due, as the times do.
        let left = (due + self.deadline).saturating_sub(begin.elapsed());
        let followed = timeout(left, self.follow(body, begin, &mut sample)).await;
        sample.error = match followed {
            Ok(Ok(())) if sample.parts.is_empty() && sample.completion_tokens.is_none_or(|t| t == 0) => {
                Some("an answer without a token".to_owned())
            }
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(words(&error)),
            Err(_) => Some(format!("over the deadline of {} s", self.deadline.as_secs_f64())),
        };
        sample.ended = begin.elapsed();
        sample
    }

    async fn follow(&self, body: &Value, begin: Instant, sample: &mut Sample) -> Result<()> {
        let address = match self.api {
            Api::Chat => self.address(&["chat", "completions"]),
            Api::Completions => self.address(&["completions"]),
        };
        let response = self.request(self.http.post(address)).json(body).send().await;
        let response = response.map_err(reqwest::Error::without_url).context("no answer")?;
        let status = response.status();
        if !status.is_success() {
            let mut text = Vec::new();
            let mut parts = response.bytes_stream();
            while let Some(Ok(part)) = parts.next().await
                && text.len() < ERROR_BYTES_MAX
            {
                text.extend_from_slice(&part);
            }
            bail!("{}: {}", status.as_u16(), message(&text));
        }
        let mut events = Events::new(response.bytes_stream());
        while let Some(event) = events.next().await? {
            let at = begin.elapsed();
            if has_text(&event) {
                sample.parts.push(at);
            }
            let count = |name: &str| event["usage"][name].as_u64();
            sample.prompt_tokens = count("prompt_tokens").or(sample.prompt_tokens);
            sample.completion_tokens = count("completion_tokens").or(sample.completion_tokens);
        }
        Ok(())
    }

    fn request(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    fn address(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        url
    }
}

/// Whether an event carries something that a model said: text, reasoning, or a part of a call.
fn has_text(event: &Value) -> bool {
    let filled = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    event["choices"].as_array().into_iter().flatten().any(|choice| {
        let delta = &choice["delta"];
        filled(&choice["text"])
            || ["content", "reasoning", "reasoning_content", "refusal"]
                .iter()
                .any(|name| filled(&delta[*name]))
            || delta["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
    })
}

/// The server's own words, where it has some.
fn message(body: &[u8]) -> String {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let words = json.as_ref().and_then(|j| j["error"]["message"].as_str().or(j["message"].as_str()));
    let words = words.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    shortened(&words)
}

/// The chain of causes on one line.
fn words(error: &anyhow::Error) -> String {
    let mut text = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    // Of reqwest's own errors the cause is worth more than the outer words.
    if let Some(source) = error.downcast_ref::<reqwest::Error>().and_then(|e| e.source()) {
        text = source.to_string();
    }
    shortened(&text)
}

fn shortened(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(ERROR_CHARS_MAX).collect()
}
