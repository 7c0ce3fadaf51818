//! What is counted of one model's requests.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{Error, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use super::CONSTANT;

/// Upper bounds in seconds. vLLM's are all among them, so that queries with its bounds find them; the small ones are ours,
/// for models that answer faster than it expects.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
];
const REQUEST_SECONDS: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0,
    50_000.0, 100_000.0, 200_000.0,
];
const POSITIONS: &[f64] = &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// Shared by all requests for the model; only atomics inside.
pub struct ModelMetrics {
    pub(super) running: IntGauge,
    pub(super) waiting: IntGauge,
    pub(super) queue_seconds: Histogram,
    pub(super) queue_position: Histogram,
    pub(super) first_token_seconds: Histogram,
    pub(super) between_tokens_seconds: Histogram,
    pub(super) request_seconds: Histogram,
    pub(super) request_prompt_tokens: Histogram,
    pub(super) request_generation_tokens: Histogram,
    pub(super) prompt_tokens: IntCounter,
    pub(super) generation_tokens: IntCounter,
    pub(super) prefix_queries: IntCounter,
    pub(super) prefix_hits: IntCounter,
    ended: IntCounterVec,
    failed: IntCounterVec,
    retries: IntCounterVec,
    refused: IntCounterVec,
    pub(super) retries_over_budget: IntCounter,
    pub(super) quarantined: IntCounter,
    pub(super) loading_waits: IntCounter,
}

impl ModelMetrics {
    pub(super) fn new(id: &str) -> ModelMetrics {
        let opts = |name: &str, help: &str| Opts::new(name, help).const_label("model_name", id);
        let gauge = |name, help| IntGauge::with_opts(opts(name, help)).expect(CONSTANT);
        let counter = |name, help| IntCounter::with_opts(opts(name, help)).expect(CONSTANT);
        let counters = |name, help, label| IntCounterVec::new(opts(name, help), &[label]).expect(CONSTANT);
        let histogram = |name, help, bounds: &[f64]| {
            let opts = HistogramOpts::from(opts(name, help)).buckets(bounds.to_vec());
            Histogram::with_opts(opts).expect(CONSTANT)
        };
        ModelMetrics {
            running: gauge("vllm:num_requests_running", "Requests that a node has."),
            waiting: gauge(
                "vllm:num_requests_waiting",
                "Requests that wait in the router for a place on a node.",
            ),
            queue_seconds: histogram(
                "vllm:request_queue_time_seconds",
                "From the arrival of a request to its first place on a node.",
                REQUEST_SECONDS,
            ),
            queue_position: histogram(
                "llm_router_queue_position",
                "Requests of the model ahead of one when it came; 0: none.",
                POSITIONS,
            ),
            first_token_seconds: histogram(
                "vllm:time_to_first_token_seconds",
                "From the arrival of a request to its first token.",
                FIRST_TOKEN_SECONDS,
            ),
            between_tokens_seconds: histogram(
                "vllm:inter_token_latency_seconds",
                "Between two tokens of one request.",
                BETWEEN_TOKENS_SECONDS,
            ),
            request_seconds: histogram(
                "vllm:e2e_request_latency_seconds",
                "From the arrival of a request to its end.",
                REQUEST_SECONDS,
            ),
            request_prompt_tokens: histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS),
            request_generation_tokens: histogram(
                "vllm:request_generation_tokens",
                "Tokens of an answer.",
                TOKENS,
            ),
            prompt_tokens: counter("vllm:prompt_tokens_total", "Tokens of prompts."),
            generation_tokens: counter("vllm:generation_tokens_total", "Tokens of answers."),
            prefix_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Tokens of prompts that were looked for in the prefix cache.",
            ),
            prefix_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Tokens of prompts that the prefix cache had.",
            ),
            ended: counters(
                "vllm:request_success_total",
                "Requests that ended, by how: stop, length, abort (the caller went away), error.",
                "finished_reason",
            ),
            failed: counters(
                "llm_router_request_failures_total",
                "Requests that ended with an error, by the HTTP status it has or would have had.",
                "status",
            ),
            retries: counters(
                "llm_router_request_retries_total",
                "Times a request was sent again, by cause: worker_died, failed.",
                "cause",
            ),
            refused: counters(
                "llm_router_queue_refusals_total",
                "Requests that got no place: queue_full, waited_too_long, not_ready.",
                "reason",
            ),
            retries_over_budget: counter(
                "llm_router_retries_over_budget_total",
                "Requests not sent again because the budget of retries was used up.",
            ),
            quarantined: counter(
                "llm_router_requests_quarantined_total",
                "Requests that failed alone because two workers had died with them.",
            ),
            loading_waits: counter(
                "llm_router_request_loading_waits_total",
                "Requests that had to wait while their model was loaded.",
            ),
        }
    }

    pub(super) fn ended(&self, how: &'static str) {
        self.ended.with_label_values(&[how]).inc();
    }

    pub(super) fn failed(&self, status: http::StatusCode) {
        self.failed.with_label_values(&[status.as_str()]).inc();
    }

    pub(super) fn retried(&self, cause: &'static str) {
        self.retries.with_label_values(&[cause]).inc();
    }

    pub(super) fn refused(&self, reason: &'static str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), Error> {
        let all: [Box<dyn Collector>; 20] = [
            Box::new(self.running.clone()),
            Box::new(self.waiting.clone()),
            Box::new(self.queue_seconds.clone()),
            Box::new(self.queue_position.clone()),
            Box::new(self.first_token_seconds.clone()),
            Box::new(self.between_tokens_seconds.clone()),
            Box::new(self.request_seconds.clone()),
            Box::new(self.request_prompt_tokens.clone()),
            Box::new(self.request_generation_tokens.clone()),
            Box::new(self.prompt_tokens.clone()),
            Box::new(self.generation_tokens.clone()),
            Box::new(self.prefix_queries.clone()),
            Box::new(self.prefix_hits.clone()),
            Box::new(self.ended.clone()),
            Box::new(self.failed.clone()),
            Box::new(self.retries.clone()),
            Box::new(self.refused.clone()),
            Box::new(self.retries_over_budget.clone()),
            Box::new(self.quarantined.clone()),
            Box::new(self.loading_waits.clone()),
        ];
        all.into_iter().try_for_each(|one| registry.register(one))
    }
}

pub(super) fn observe(histogram: &Histogram, time: Duration) {
    histogram.observe(time.as_secs_f64());
}
