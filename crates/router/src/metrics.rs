//! What a monitoring system asks of a router: `GET /metrics`, in Prometheus' text format.
//!
//! Figures that vLLM has too carry its names and meanings (`vllm:…`, label `model_name`), so that dashboards and alerts made
//! for it work here; the others are `llm_router_…`. Requests are counted where they run, in [`Wait`] and [`Answer`]; what
//! nodes tell is turned into figures when somebody asks, so a node that has gone leaves none behind.
//!
//! **Invariant:** a model is a label value only while it is registered, and nothing on a token's way takes a lock.

mod answer;
mod model;
mod nodes;
mod wait;

pub use answer::Answer;
pub use model::ModelMetrics;
pub use wait::{RetryCause, Wait};

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::{Method, StatusCode};
use prometheus::core::Collector;
use prometheus::{Gauge, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

/// As Prometheus wants it named.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;
/// `route` of a request that no route is for: what callers make up is no label.
const NO_ROUTE: &str = "none";

pub struct Metrics {
    models: RwLock<BTreeMap<String, Arc<ModelMetrics>>>,
    /// Counts what is said of models that are not registered any more; nobody reads it.
    nowhere: Arc<ModelMetrics>,
    http: IntCounterVec,
}

/// The state that is told beside what was counted.
pub struct Snapshot {
    pub nodes: Vec<admin_api::Node>,
    pub models: Vec<admin_api::Model>,
    pub uptime: Duration,
    pub draining: bool,
}

impl Metrics {
    pub fn new() -> Metrics {
        let http =
            Opts::new("llm_router_http_requests_total", "HTTP requests answered, by route and status.");
        Metrics {
            models: RwLock::default(),
            nowhere: Arc::new(ModelMetrics::new("")),
            http: IntCounterVec::new(http, &["route", "method", "status"]).expect(CONSTANT),
        }
    }

    /// A model was registered.
    pub fn add_model(&self, id: &str) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        models.entry(id.to_owned()).or_insert_with(|| Arc::new(ModelMetrics::new(id)));
    }

    /// A model was removed: its figures go with it.
    pub fn remove_model(&self, id: &str) {
        self.models.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Where a request for the model is counted; asked once a request.
    pub fn model(&self, id: &str) -> Arc<ModelMetrics> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(models.get(id).unwrap_or(&self.nowhere))
    }

    /// An HTTP request was answered; `route` is the path as it was declared.
    pub fn answered(&self, route: Option<&str>, method: &Method, status: StatusCode) {
        let known = [Method::GET, Method::POST, Method::PATCH, Method::DELETE, Method::PUT, Method::HEAD];
        let method = if known.contains(method) { method.as_str() } else { "other" };
        self.http.with_label_values(&[route.unwrap_or(NO_ROUTE), method, status.as_str()]).inc();
    }

    /// Everything as text.
    pub fn render(&self, snapshot: &Snapshot) -> Result<String, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(self.http.clone()))?;
        let models: Vec<_> =
            self.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for model in models {
            model.register(&registry)?;
        }
        router_figures(&registry, snapshot)?;
        nodes::register(&registry, snapshot)?;
        TextEncoder::new().encode_to_string(&registry.gather())
    }
}

/// Why making a metric from constants cannot fail.
const CONSTANT: &str = "names and labels of metrics are constants that are valid";

fn router_figures(registry: &Registry, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let build = Opts::new("llm_router_build_info", "Always 1; the version of the router that answers.");
    let build = IntGauge::with_opts(build.const_label("version", env!("CARGO_PKG_VERSION")))?;
    build.set(1);
    let uptime = Gauge::new("llm_router_uptime_seconds", "Since the router started.")?;
    uptime.set(snapshot.uptime.as_secs_f64());
    let draining = IntGauge::new("llm_router_draining", "1 once the router was told to end.")?;
    draining.set(snapshot.draining.into());
    let all: [Box<dyn Collector>; 3] = [Box::new(build), Box::new(uptime), Box::new(draining)];
    all.into_iter().try_for_each(|one| registry.register(one))
}

#[cfg(test)]
mod tests;
