//! Counts what one request comes to: its tokens, when they came, and how it ended.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;

use super::ModelMetrics;
use super::model::observe;

/// An answer on its way. One that is dropped before its end counts as aborted by its caller.
pub struct Answer {
    model: Arc<ModelMetrics>,
    arrived: Instant,
    last_token: Option<Instant>,
    tokens: u32,
    ended: bool,
}

impl Answer {
    /// A request came.
    pub fn begin(model: Arc<ModelMetrics>) -> Answer {
        Answer { model, arrived: Instant::now(), last_token: None, tokens: 0, ended: false }
    }

    /// The sequence runs; told once, however often it was tried.
    pub fn started(&self, prompt_tokens: u32, cached_tokens: u32) {
        let model = &self.model;
        model.prompt_tokens.inc_by(prompt_tokens.into());
        model.prefix_queries.inc_by(prompt_tokens.into());
        model.prefix_hits.inc_by(cached_tokens.into());
        model.request_prompt_tokens.observe(prompt_tokens.into());
    }

    pub fn token(&mut self) {
        let now = Instant::now();
        match self.last_token {
            None => observe(&self.model.first_token_seconds, now - self.arrived),
            Some(last) => observe(&self.model.between_tokens_seconds, now - last),
        }
        self.last_token = Some(now);
        self.tokens += 1;
        self.model.generation_tokens.inc();
    }

    /// It is complete; `length`: because there was no room for more.
    pub fn finished(&mut self, length: bool) {
        self.end(if length { "length" } else { "stop" });
    }

    pub fn failed(&mut self, status: StatusCode) {
        if !self.ended {
            self.model.failed(status);
        }
        self.end("error");
    }

    fn end(&mut self, how: &'static str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.model.ended(how);
        self.model.request_generation_tokens.observe(self.tokens.into());
        observe(&self.model.request_seconds, self.arrived.elapsed());
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.end("abort");
    }
}
