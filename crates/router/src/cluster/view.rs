//! The cluster as `/api` and `/v1/models` show it.

use admin_api::{Availability, EngineOnNode, Model, ModelOnNode, NodeState};
use http::StatusCode;
use model_manifest::Source;
use node_api::{Counters, EngineSummary, MemoryStatus, ModelState};

use super::{Cluster, Inner, Node, RETRY_AFTER_SECONDS, Registered};
use crate::error::{Failure, Retry};

/// Nodes named in one reason.
const NODES_NAMED_MAX: usize = 3;

impl Cluster {
    pub fn model_view(&self, id: &str) -> Option<Model> {
        let inner = self.lock();
        inner.models.get(id).map(|m| self.describe(&inner, m))
    }

    pub fn model_views(&self) -> Vec<Model> {
        let inner = self.lock();
        inner.models.values().map(|m| self.describe(&inner, m)).collect()
    }

    pub fn node_views(&self) -> Vec<admin_api::Node> {
        let inner = self.lock();
        let mut nodes: Vec<admin_api::Node> = inner.nodes.values().map(|n| self.describe_node(n)).collect();
        nodes.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        nodes
    }

    /// Nodes that have told their state and are not ending.
    pub fn serving_node_count(&self) -> usize {
        let inner = self.lock();
        inner.nodes.values().filter(|n| n.serves()).count()
    }

    /// Why no node takes requests, when none does.
    pub fn nobody_serves(&self) -> &'static str {
        self.lock().nobody_serves()
    }

    pub fn engine_views(&self) -> Vec<EngineOnNode> {
        let inner = self.lock();
        let of_node = |node: &Node| {
            let on_node = |engine: &EngineSummary| EngineOnNode {
                node_id: node.info.id.clone(),
                node_name: node.info.name.clone(),
                engine: engine.clone(),
            };
            node.status.iter().flat_map(|s| &s.engines).map(on_node).collect::<Vec<_>>()
        };
        let mut engines: Vec<EngineOnNode> = inner.nodes.values().flat_map(of_node).collect();
        engines.sort_by(|a, b| {
            (&a.engine.id, &a.engine.version, &a.node_name).cmp(&(
                &b.engine.id,
                &b.engine.version,
                &b.node_name,
            ))
        });
        engines
    }

    /// Why a model takes no requests: unknown, or not ready and the reason.
    pub fn not_ready(&self, id: &str) -> Failure {
        let Some(model) = self.model_view(id) else { return unknown_model(id) };
        let reason = model.reason.unwrap_or_else(|| "it became so since the request came".to_owned());
        let retry = match model.state {
            Availability::Unsupported => Retry::Useless,
            Availability::Failed if !model.nodes.iter().any(|node| may_recover(&node.state)) => {
                Retry::Useless
            }
            _ => Retry::After(RETRY_AFTER_SECONDS),
        };
        Failure::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "model_not_ready",
            format!("model `{id}` is not ready: {reason}"),
        )
        .hint(format!("`llm-router models show {id}` shows its state on every node"))
        .retry(retry)
    }

    fn describe(&self, inner: &Inner, model: &Registered) -> Model {
        let manifest = &model.manifest;
        let mut state = Availability::NoNode;
        let mut nodes = Vec::new();
        for node in inner.nodes.values() {
            let on_node = self.on_node(node, model);
            // A node that ends offers nothing any more, and is still shown.
            if !node.status.as_ref().is_some_and(|s| s.draining) {
                state = state.max(Availability::of(&on_node.state));
            }
            nodes.push(on_node);
        }
        Model {
            id: manifest.id.clone(),
            fingerprint: model.fingerprint.clone(),
            source: manifest.source.clone(),
            format: manifest.format,
            architecture: manifest.architecture.clone(),
            runtimes: manifest.runtimes.clone(),
            context_length_max: manifest.context_length_max,
            tasks: inner.tasks(model),
            total_bytes: manifest.total_bytes(),
            files: manifest.files.len().try_into().unwrap_or(u32::MAX),
            created: model.created,
            settings: model.settings.clone(),
            state,
            reason: reason(model, state, &nodes, inner.nobody_serves()),
            notes: model.older_header.iter().cloned().collect(),
            nodes,
        }
    }

    fn on_node(&self, node: &Node, model: &Registered) -> ModelOnNode {
        let told = node.status.iter().flat_map(|s| &s.models);
        let told = told.into_iter().find(|m| m.id == model.manifest.id && m.fingerprint == model.fingerprint);
        let state = match (told, &model.manifest.source) {
            (Some(told), _) => told.state.clone(),
            (None, Source::Local { path }) if !self.same_machine(&node.info) => {
                let reason =
                    format!("the model is the folder {path} on the router's machine, the node is on another");
                ModelState::Unsupported { reason }
            }
            (None, _) => ModelState::Waiting,
        };
        ModelOnNode {
            node_id: node.info.id.clone(),
            node_name: node.info.name.clone(),
            state,
            notes: told.map_or_else(Vec::new, |t| t.notes.clone()),
            replicas: told.map_or_else(Vec::new, |t| t.replicas.clone()),
            candidates: told.map_or_else(Vec::new, |t| t.candidates.clone()),
            requests_waiting: told.map_or(0, |t| t.requests_waiting),
        }
    }

    fn describe_node(&self, node: &Node) -> admin_api::Node {
        let info = &node.info;
        let status = node.status.as_ref();
        admin_api::Node {
            id: info.id.clone(),
            name: info.name.clone(),
            version: info.version.clone(),
            os: info.os.clone(),
            arch: info.arch.clone(),
            state: match status {
                None => NodeState::Joining,
                Some(s) if s.draining => NodeState::Draining,
                Some(_) => NodeState::Connected,
            },
            cpu_only: crate::link::is_cpu_only(info),
            same_machine: self.same_machine(info),
            devices: info.devices.clone(),
            engines: status.map_or_else(Vec::new, |s| s.engines.clone()),
            alerts: status.map_or_else(Vec::new, |s| s.alerts.clone()),
            counters: status.map_or_else(Counters::default, |s| s.counters.clone()),
            memory: status.map_or_else(MemoryStatus::default, |s| s.memory.clone()),
            connected_since: node.connected_since.unix_timestamp(),
            last_heard_ms: node.last_heard.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            requests_running: status.map_or(0, |s| s.requests_running),
            requests_waiting: status.map_or(0, |s| s.requests_waiting),
            models_ready: status.map_or(0, |s| {
                let ready = s.models.iter().filter(|m| m.state.is_ready()).count();
                ready.try_into().unwrap_or(u32::MAX)
            }),
        }
    }
}

pub fn unknown_model(id: &str) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "model_not_found", format!("there is no model `{id}`"))
        .param("model")
        .hint("`llm-router models ls` lists the registered models, `llm-router models add` registers one")
}

fn reason(
    model: &Registered,
    state: Availability,
    nodes: &[ModelOnNode],
    nobody_serves: &str,
) -> Option<String> {
    let percent = |done: u64, total: u64| (done.min(total) * 100).checked_div(total).unwrap_or(0);
    let words = |on_node: &ModelOnNode| {
        if Availability::of(&on_node.state) != state {
            return None;
        }
        let what = match &on_node.state {
            ModelState::Unsupported { reason } => reason.clone(),
            ModelState::Failed { reason, retrying: true } => format!("{reason} (it is tried again)"),
            ModelState::Failed { reason, retrying: false } => reason.clone(),
            ModelState::Downloading { bytes_done, bytes_total, .. } => {
                format!("downloading, {} %", percent(*bytes_done, *bytes_total))
            }
            ModelState::Verifying { bytes_done, bytes_total } => {
                format!("verifying, {} %", percent(*bytes_done, *bytes_total))
            }
            ModelState::Waiting => "waiting to be looked at".to_owned(),
            ModelState::Ready { .. } | ModelState::Loading { .. } | ModelState::Loaded { .. } => return None,
        };
        Some(format!("node {}: {what}", on_node.node_name))
    };
    if state.is_ready() {
        return None;
    }
    // Where a node is at work on it an engine came after the registration.
    if model.manifest.runtimes.is_empty() && matches!(state, Availability::NoNode | Availability::Unsupported)
    {
        let manifest = &model.manifest;
        return Some(format!(
            "no engine is known for architecture {} in format {}; install one on a node",
            manifest.architecture, manifest.format
        ));
    }
    if state == Availability::NoNode {
        return Some(format!("{nobody_serves}; start one with `llm-router node`"));
    }
    let all: Vec<String> = nodes.iter().filter_map(words).collect();
    let more = all.len().saturating_sub(NODES_NAMED_MAX);
    let shown = all.into_iter().take(NODES_NAMED_MAX).collect::<Vec<_>>().join("; ");
    Some(if more > 0 { format!("{shown}; and {more} more nodes") } else { shown })
}

/// Whether a failed model may come back without anybody doing something about it.
fn may_recover(state: &ModelState) -> bool {
    matches!(state, ModelState::Failed { retrying: true, .. })
}
