//! What the router knows right now: registered models, connected nodes, and which request runs where.
//!
//! One lock over all of it, held only for look-ups and for the dispatcher's decisions, never across an await.

mod operate;
mod place;
mod registered;
mod tasks;
mod view;

pub use operate::{Commanded, on_node};
pub use place::{OnNode, Place};
pub use registered::{CHAT_TEMPLATE, Registered, TOKENIZER_CONFIG};
pub use view::unknown_model;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dispatch::{Decision, Dispatcher, NodeView, Refusal, Ticket};
use model_manifest::Source;
use node_api::transport::NodeLink;
use node_api::{DesiredModel, DesiredModels, NodeInfo, NodeStatus};
use time::OffsetDateTime;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What `Retry-After` says of a model that is on its way, and of a queue of which nobody knows yet how long one waits in it.
pub const RETRY_AFTER_SECONDS: u32 = 5;
/// What it says of a queue in which one waits longer than this; a caller who stays away for more misses a place that is free.
pub const RETRY_AFTER_SECONDS_MAX: u32 = 60;

pub struct Cluster {
    inner: Mutex<Inner>,
    /// The dispatcher's next deadline is earlier than the one that is watched.
    deadline_changed: Notify,
    /// Counts changes of the registered models, for the tasks that tell the nodes.
    revision: watch::Sender<u64>,
    /// The dispatcher's time counts from here.
    started: Instant,
    /// Of the router's own machine; `None`: whoever connects is on it, since only loopback is listened on.
    machine_id: Option<String>,
}

struct Inner {
    models: BTreeMap<String, Arc<Registered>>,
    nodes: BTreeMap<String, Node>,
    dispatcher: Dispatcher,
    waiting: HashMap<Ticket, oneshot::Sender<Result<Chosen, Refusal>>>,
    /// When the task that watches the dispatcher's deadlines wakes up by itself.
    watched: Option<Duration>,
    next_connection: u64,
}

/// A connected node.
struct Node {
    info: NodeInfo,
    link: NodeLink,
    connection: u64,
    /// Cancelled when the node is gone: whatever runs on it ends.
    gone: CancellationToken,
    connected_since: OffsetDateTime,
    last_heard: Instant,
    status: Option<NodeStatus>,
}

impl Inner {
    /// Why no node takes requests, when none does.
    fn nobody_serves(&self) -> &'static str {
        let draining = |n: &Node| n.status.as_ref().is_some_and(|s| s.draining);
        match self.nodes.values().filter(|n| draining(n)).count() {
            _ if self.nodes.is_empty() => "no node is connected",
            0 => "the connected nodes are still joining",
            ending if ending == self.nodes.len() => "the connected nodes are ending",
            _ => "the connected nodes are joining or ending",
        }
    }
}

impl Node {
    /// It has told its state and is not ending.
    fn serves(&self) -> bool {
        self.status.as_ref().is_some_and(|s| !s.draining)
    }
}

/// The node a request was given to.
struct Chosen {
    node_id: Arc<str>,
    link: NodeLink,
    gone: CancellationToken,
    worker_deaths: u32,
}

/// A node's place among the connected ones.
pub struct Connection {
    number: u64,
    /// Cancelled when the node joined again and this connection is the old one.
    pub gone: CancellationToken,
}

impl Cluster {
    pub fn new(limits: dispatch::Limits, machine_id: Option<String>) -> Arc<Cluster> {
        let inner = Inner {
            models: BTreeMap::new(),
            nodes: BTreeMap::new(),
            dispatcher: Dispatcher::new(limits),
            waiting: HashMap::new(),
            watched: None,
            next_connection: 0,
        };
        Arc::new(Cluster {
            inner: Mutex::new(inner),
            deadline_changed: Notify::new(),
            revision: watch::Sender::new(0),
            started: Instant::now(),
            machine_id,
        })
    }

    /// Refuses requests that waited too long. Runs until it is dropped.
    pub async fn watch_deadlines(self: Arc<Cluster>) {
        loop {
            let deadline = {
                let mut inner = self.lock();
                inner.watched = inner.dispatcher.next_deadline();
                inner.watched
            };
            match deadline {
                None => self.deadline_changed.notified().await,
                Some(at) => {
                    tokio::select! {
                        () = self.deadline_changed.notified() => {}
                        () = tokio::time::sleep_until((self.started + at).into()) => self.dispatch(&mut self.lock()),
                    }
                }
            }
        }
    }

    /// A model was registered or its settings changed.
    pub fn set_model(&self, model: Registered) {
        let mut inner = self.lock();
        inner.models.insert(model.manifest.id.clone(), Arc::new(model));
        self.models_changed(inner);
    }

    pub fn remove_model(&self, id: &str) {
        let mut inner = self.lock();
        inner.models.remove(id);
        self.models_changed(inner);
    }

    pub fn model(&self, id: &str) -> Option<Arc<Registered>> {
        self.lock().models.get(id).cloned()
    }

    /// Ids of those whose file's header was read by an older version.
    pub fn models_of_older_headers(&self) -> Vec<String> {
        let inner = self.lock();
        inner.models.iter().filter(|(_, m)| m.older_header.is_some()).map(|(id, _)| id.clone()).collect()
    }

    pub fn node_count(&self) -> usize {
        self.lock().nodes.len()
    }

    /// Engines of all connected nodes, in the form registration asks for.
    pub fn known_engines(&self) -> Vec<model_manifest::KnownEngine> {
        let inner = self.lock();
        let engines = inner.nodes.values().filter_map(|n| n.status.as_ref()).flat_map(|s| &s.engines);
        let known = engines.filter(|e| e.state == node_api::EngineState::Available).flat_map(|engine| {
            engine.runtimes.iter().map(|runtime| model_manifest::KnownEngine {
                runtime: runtime.clone(),
                architectures: engine.architectures.clone(),
                formats: [model_manifest::Format::Safetensors, model_manifest::Format::Gguf]
                    .into_iter()
                    .filter(|f| engine.formats.iter().any(|name| name == f.as_str()))
                    .collect(),
            })
        });
        known.collect()
    }

    /// Tells when the registered models change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// What a node should have. Local folders only for nodes on this machine.
    pub fn desired(&self, info: &NodeInfo) -> DesiredModels {
        let same_machine = self.same_machine(info);
        let inner = self.lock();
        let offered =
            |m: &&Arc<Registered>| same_machine || !matches!(m.manifest.source, Source::Local { .. });
        let desired = |m: &Arc<Registered>| DesiredModel {
            fingerprint: m.fingerprint.clone(),
            manifest: m.manifest.clone(),
            settings: m.settings.clone(),
        };
        DesiredModels { models: inner.models.values().filter(offered).map(desired).collect() }
    }

    fn same_machine(&self, info: &NodeInfo) -> bool {
        self.machine_id.as_ref().is_none_or(|own| *own == info.machine_id)
    }

    /// A node connected. One with the same id that is still here is taken for its earlier self, and ends.
    pub fn join(&self, info: NodeInfo, link: NodeLink) -> Connection {
        let mut inner = self.lock();
        let connection = Connection { number: inner.next_connection, gone: CancellationToken::new() };
        inner.next_connection += 1;
        let id = info.id.clone();
        let node = Node {
            info,
            link,
            connection: connection.number,
            gone: connection.gone.clone(),
            connected_since: OffsetDateTime::now_utc(),
            last_heard: Instant::now(),
            status: None,
        };
        if let Some(old) = inner.nodes.insert(id.clone(), node) {
            tracing::warn!(
                node = id,
                name = old.info.name,
                "the node joined again; its old connection is closed"
            );
            old.gone.cancel();
        }
        inner.dispatcher.remove_node(self.now(), &id);
        self.dispatch(&mut inner);
        connection
    }

    /// A node told its state.
    pub fn heard(&self, id: &str, connection: &Connection, status: NodeStatus) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let Some(node) = inner.nodes.get_mut(id).filter(|n| n.connection == connection.number) else {
            return;
        };
        node.last_heard = Instant::now();
        let view = view_of(&inner.models, &status);
        node.status = Some(status);
        inner.dispatcher.set_node(self.now(), id, &view);
        self.dispatch(inner);
    }

    /// A node's connection ended.
    pub fn leave(&self, id: &str, connection: &Connection) {
        let mut inner = self.lock();
        connection.gone.cancel();
        if inner.nodes.get(id).is_some_and(|n| n.connection == connection.number) {
            inner.nodes.remove(id);
            inner.dispatcher.remove_node(self.now(), id);
            self.dispatch(&mut inner);
        }
    }

    fn models_changed(&self, mut inner: MutexGuard<'_, Inner>) {
        let inner = &mut *inner;
        for (id, node) in &inner.nodes {
            if let Some(status) = &node.status {
                inner.dispatcher.set_node(self.now(), id, &view_of(&inner.models, status));
            }
        }
        self.dispatch(inner);
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Hands the dispatcher's decisions to those who wait for them.
    fn dispatch(&self, inner: &mut Inner) {
        loop {
            let decisions = inner.dispatcher.poll(self.now());
            if decisions.is_empty() {
                break;
            }
            for decision in decisions {
                let (ticket, outcome) = match decision {
                    Decision::Refuse { ticket, refusal } => (ticket, Err(refusal)),
                    Decision::Send { ticket, node: id, worker_deaths } => {
                        let node = inner.nodes.get(&*id).expect("the dispatcher knows only connected nodes");
                        let (link, gone) = (node.link.clone(), node.gone.clone());
                        (ticket, Ok(Chosen { node_id: id, link, gone, worker_deaths }))
                    }
                };
                let waiter = inner.waiting.remove(&ticket);
                // Whoever waited went away: its place is free for the next, hence the loop.
                if waiter.is_none_or(|w| w.send(outcome).is_err()) {
                    inner.dispatcher.finish(ticket);
                }
            }
        }
        let next = inner.dispatcher.next_deadline();
        if next.is_some_and(|next| inner.watched.is_none_or(|watched| next < watched)) {
            self.deadline_changed.notify_one();
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it was held left the data as consistent as any early return would.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn view_of(models: &BTreeMap<String, Arc<Registered>>, status: &NodeStatus) -> NodeView {
    NodeView::of(status, |id, fingerprint| models.get(id).is_some_and(|m| m.fingerprint == fingerprint))
}
