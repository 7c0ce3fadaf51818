//! Nodes as an operator names them, and what is loaded on them.

use admin_api::{LoadedModel, ModelOnNode};
use http::StatusCode;
use node_api::transport::NodeLink;
use node_api::{EngineSummary, ModelStatus};
use tokio_util::sync::CancellationToken;

use super::{Cluster, Node, RETRY_AFTER_SECONDS};
use crate::error::{Failure, Retry};

/// Longer names are nobody's, and need not be said back whole.
const NAME_CHARS_MAX: usize = 256;

/// A node that takes commands.
pub struct Commanded {
    pub id: String,
    pub name: String,
    pub link: NodeLink,
    /// Cancelled when the node is gone.
    pub gone: CancellationToken,
}

impl Cluster {
    /// The nodes that a command is for: one by its id or name, or all that take requests. In order of name.
    pub fn commanded(&self, node: Option<&str>) -> Result<Vec<Commanded>, Failure> {
        let inner = self.lock();
        let named = |n: &&Node| node.is_none_or(|name| n.info.id == name || n.info.name == name);
        let mut found: Vec<Commanded> = inner
            .nodes
            .values()
            .filter(named)
            .filter(|n| n.serves())
            .map(|n| Commanded {
                id: n.info.id.clone(),
                name: n.info.name.clone(),
                link: n.link.clone(),
                gone: n.gone.clone(),
            })
            .collect();
        if found.is_empty() {
            return Err(match node {
                None => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "no_node", inner.nobody_serves())
                    .hint("start one with `llm-router node`")
                    .retry(Retry::After(RETRY_AFTER_SECONDS)),
                Some(node) if inner.nodes.values().any(|n| named(&n)) => {
                    let message = format!("node {node} is joining or ending, and takes no commands");
                    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "node_not_ready", message)
                        .param("node")
                        .retry(Retry::After(RETRY_AFTER_SECONDS))
                }
                Some(node) => unknown_node(node),
            });
        }
        found.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok(found)
    }

    /// A node answered a command with the engines it has now. What it tells later is newer.
    pub fn engines_told(&self, node: &Commanded, engines: &[EngineSummary]) {
        let mut inner = self.lock();
        // One that joined again since has told its engines by itself.
        let known = inner.nodes.get_mut(&node.id).filter(|_| !node.gone.is_cancelled());
        if let Some(status) = known.and_then(|known| known.status.as_mut()) {
            status.engines = engines.to_vec();
        }
    }

    /// What is in workers now, in order of model, node and worker.
    pub fn loaded(&self) -> Vec<LoadedModel> {
        let inner = self.lock();
        let mut all = Vec::new();
        for node in inner.nodes.values() {
            for told in node.status.iter().flat_map(|s| &s.models) {
                // Also of an earlier registration that still drains: it takes memory, whoever it belongs to.
                let settings = inner.models.get(&told.id).map(|m| &m.settings);
                all.extend(told.replicas.iter().map(|replica| LoadedModel {
                    model: told.id.clone(),
                    node_id: node.info.id.clone(),
                    node_name: node.info.name.clone(),
                    keep_alive_seconds: settings.and_then(|s| s.keep_alive_seconds),
                    replica: replica.clone(),
                }));
            }
        }
        all.sort_by(|a, b| {
            (&a.model, &a.node_name, a.replica.worker).cmp(&(&b.model, &b.node_name, b.replica.worker))
        });
        all
    }

    /// The node a model is loaded on when nobody says which: one that has it, else the ready one with the most free memory.
    pub fn best_to_load(&self, model: &str) -> Option<String> {
        let inner = self.lock();
        let registered = inner.models.get(model)?;
        let of = |node: &Node| {
            let status = node.status.as_ref().filter(|s| !s.draining)?;
            let told =
                status.models.iter().find(|m| m.id == model && m.fingerprint == registered.fingerprint)?;
            let devices = status.memory.devices.iter();
            let free = devices.map(|d| d.total.saturating_sub(d.used.max(d.reserved))).max();
            let free = free.unwrap_or(status.memory.ram_available);
            told.state.is_ready().then(|| (!told.replicas.is_empty(), free, node.info.id.clone()))
        };
        inner.nodes.values().filter_map(of).max().map(|(_, _, id)| id)
    }
}

/// A node's answer about a model, in the form it has everywhere else.
pub fn on_node(node: &Commanded, status: ModelStatus) -> ModelOnNode {
    ModelOnNode {
        node_id: node.id.clone(),
        node_name: node.name.clone(),
        state: status.state,
        notes: status.notes,
        replicas: status.replicas,
        candidates: status.candidates,
        requests_waiting: status.requests_waiting,
    }
}

fn unknown_node(node: &str) -> Failure {
    let shown: String = node.chars().take(NAME_CHARS_MAX).collect();
    Failure::new(StatusCode::NOT_FOUND, "node_not_found", format!("no node `{shown}` is connected"))
        .param("node")
        .hint("`llm-router nodes ls` lists the connected nodes")
}
