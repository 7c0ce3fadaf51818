//! The state machine.
//!
//! What an event costs does not depend on how many requests wait: a queue for each model, of which only the head is looked
//! at, and one ordered set of deadlines.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::RetryBudget;
use crate::model::{Host, Model};
use crate::node_view::{NodeView, Replica};
use crate::retry::{Failure, History, Verdict};

/// While a model loads, its requests do not grow too old, but after all of this they do.
pub const LOAD_WAIT_MAX: Duration = Duration::from_secs(900);
/// A load that has not moved for this long keeps nobody waiting; where [`Limits::queue_wait`] is longer, that counts.
pub const LOAD_STALL_MAX: Duration = Duration::from_secs(60);
/// When the last node of a model is gone, those that wait for it give it time to come back: that of a restart.
pub const NODE_RETURN_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait for one model.
    pub queue_length: usize,
    /// How long one waits.
    pub queue_wait: Duration,
}

/// A request, from [`Dispatcher::submit`] to [`Dispatcher::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    pub ticket: Ticket,
    /// Requests for the same model that came before it and still wait.
    pub position: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Send {
        ticket: Ticket,
        node: Arc<str>,
        /// Workers that died with it so far.
        worker_deaths: u32,
    },
    /// The ticket is gone; it needs no `finish`.
    Refuse { ticket: Ticket, refusal: Refusal },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No node has the model ready.
    NotReady,
    /// So many requests wait for the model already.
    QueueFull { waiting: usize },
    /// No place came free in time.
    WaitedTooLong { waited: Duration },
}

#[derive(Debug)]
struct Request {
    model: Arc<str>,
    affinity: u64,
    history: History,
    /// Nodes that failed it without a death, once for each time.
    failed_on: Vec<Arc<str>>,
    /// The head of the queue never gives way to one that came later.
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Before it is sent again.
    Paused {
        until: Duration,
    },
    /// `alarm`: where it is among the alarms.
    Waiting {
        since: Duration,
        alarm: Option<Duration>,
    },
    Running {
        node: Arc<str>,
        connection: u64,
        begun: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// The end of a pause or of a wait.
    Request(Ticket),
    /// The end of the time in which a node may come back.
    Hostless(Arc<str>),
}

#[derive(Debug)]
pub struct Dispatcher {
    limits: Limits,
    /// Which connection of each node is the present one: what ran on an earlier one counts no longer.
    nodes: HashMap<Arc<str>, u64>,
    models: HashMap<Arc<str>, Model>,
    requests: HashMap<Ticket, Request>,
    budget: RetryBudget,
    alarms: BTreeSet<(Duration, Alarm)>,
    /// Models whose queue may move.
    dirty: Vec<Arc<str>>,
    next_ticket: u64,
    next_connection: u64,
    waiting: usize,
}

impl Dispatcher {
    pub fn new(limits: Limits) -> Dispatcher {
        Dispatcher {
            limits,
            nodes: HashMap::new(),
            models: HashMap::new(),
            requests: HashMap::new(),
            budget: RetryBudget::new(),
            alarms: BTreeSet::new(),
            dirty: Vec::new(),
            next_ticket: 0,
            next_connection: 0,
            waiting: 0,
        }
    }

    /// A node came or changed.
    pub fn set_node(&mut self, now: Duration, id: &str, view: &NodeView) {
        let id = match self.nodes.get_key_value(id) {
            Some((id, _)) => Arc::clone(id),
            None => {
                let id: Arc<str> = id.into();
                self.nodes.insert(Arc::clone(&id), self.next_connection);
                self.next_connection += 1;
                id
            }
        };
        for name in view.replicas.keys() {
            if !self.models.contains_key(name.as_str()) {
                self.models.insert(name.as_str().into(), Model::default());
            }
        }
        let names: Vec<Arc<str>> = self.models.keys().cloned().collect();
        for name in names {
            let model = self.models.get_mut(&name).expect("it was just listed");
            match view.replicas.get(&*name) {
                Some(replica) => {
                    let host = model.hosts.entry(Arc::clone(&id)).or_insert_with(|| Host {
                        replica: Replica::Ready,
                        open: false,
                        memory_free: 0,
                        running: 0,
                        beginning: 0,
                        rests_until: Duration::ZERO,
                    });
                    if moves(host.replica, *replica) {
                        model.progress_at = now;
                    }
                    host.replica = *replica;
                    host.open = !view.draining;
                    host.memory_free = view.memory_free;
                }
                None => match model.hosts.get_mut(&id) {
                    // What runs there is still to be given back.
                    Some(host) if host.running > 0 => host.open = false,
                    Some(_) => drop(model.hosts.remove(&id)),
                    None => continue,
                },
            }
            self.hosts_changed(now, &name);
        }
    }

    /// A node is gone. What ran on it is still to be finished or sent again by whoever ran it.
    pub fn remove_node(&mut self, now: Duration, id: &str) {
        self.nodes.remove(id);
        let had = self.models.iter_mut().filter_map(|(name, m)| m.hosts.remove(id).map(|_| Arc::clone(name)));
        for name in had.collect::<Vec<_>>() {
            self.hosts_changed(now, &name);
        }
    }

    /// A request came. What becomes of it comes out of [`Dispatcher::poll`]. `affinity`: see [`crate::affinity`].
    pub fn submit(&mut self, now: Duration, model: &str, affinity: u64) -> Submitted {
        self.budget.earn();
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let name = match self.models.get_key_value(model) {
            Some((name, _)) => Arc::clone(name),
            None => {
                let name: Arc<str> = model.into();
                self.models.insert(Arc::clone(&name), Model::default());
                name
            }
        };
        let position = self.models.get(&name).map_or(0, |m| m.queue.len());
        let request = Request {
            model: name,
            affinity,
            history: History::default(),
            failed_on: Vec::new(),
            phase: Phase::Waiting { since: now, alarm: None },
        };
        self.requests.insert(ticket, request);
        self.enqueue(ticket);
        Submitted { ticket, position }
    }

    /// A running request has begun: its model is in a worker.
    pub fn begun(&mut self, ticket: Ticket) {
        let Some(request) = self.requests.get_mut(&ticket) else { return };
        let Phase::Running { node, connection, begun } = &mut request.phase else { return };
        if std::mem::replace(begun, true) || self.nodes.get(node) != Some(connection) {
            return;
        }
        let name = Arc::clone(&request.model);
        if let Some(host) = self.models.get_mut(&name).and_then(|m| m.hosts.get_mut(node)) {
            host.beginning = host.beginning.saturating_sub(1);
        }
        self.mark(&name);
    }

    /// A running request failed before anything of it was sent on. What is not sent again is still to be finished.
    pub fn failed(&mut self, now: Duration, ticket: Ticket, failure: Failure) -> Verdict {
        let Some(request) = self.requests.get_mut(&ticket) else { return Verdict::TriedOften };
        let Phase::Running { node, connection, begun } = &request.phase else { return Verdict::TriedOften };
        let pause = match request.history.failed(failure) {
            Ok(pause) => pause,
            Err(verdict) => return verdict,
        };
        if !self.budget.spend(now) {
            return Verdict::OverBudget;
        }
        let (node, connection, begun) = (Arc::clone(node), *connection, *begun);
        let model = Arc::clone(&request.model);
        if failure == Failure::NobodyDied {
            request.failed_on.push(Arc::clone(&node));
            // Those behind it would only bring about the same failed load, one after another.
            if let Some(host) =
                self.models.get_mut(&model).and_then(|m| m.hosts.get_mut(&node)).filter(|_| !begun)
            {
                host.rests_until = host.rests_until.max(now + pause);
            }
        }
        if pause.is_zero() {
            request.phase = Phase::Waiting { since: now, alarm: None };
            self.enqueue(ticket);
        } else {
            request.phase = Phase::Paused { until: now + pause };
            self.alarms.insert((now + pause, Alarm::Request(ticket)));
            self.waiting += 1;
        }
        self.release(&model, &node, connection, begun);
        Verdict::Again
    }

    /// A request ended, or its caller went away. An unknown ticket is ignored: it was refused before.
    pub fn finish(&mut self, ticket: Ticket) {
        let Some(request) = self.requests.remove(&ticket) else { return };
        match request.phase {
            Phase::Running { node, connection, begun } => {
                self.release(&request.model, &node, connection, begun)
            }
            Phase::Paused { until } => {
                self.alarms.remove(&(until, Alarm::Request(ticket)));
                self.waiting -= 1;
            }
            Phase::Waiting { alarm, .. } => {
                self.leave_queue(&request.model, ticket, alarm);
                // The model may be of no use any more.
                self.mark(&request.model);
            }
        }
    }

    /// Decides what can be decided now.
    pub fn poll(&mut self, now: Duration) -> Vec<Decision> {
        let mut decisions = Vec::new();
        while let Some((at, _)) = self.alarms.first()
            && *at <= now
        {
            let (_, alarm) = self.alarms.pop_first().expect("it was just looked at");
            match alarm {
                Alarm::Request(ticket) => self.alarm(now, ticket, &mut decisions),
                Alarm::Hostless(model) => self.give_up_on(&model, &mut decisions),
            }
        }
        while let Some(name) = self.dirty.pop() {
            self.serve(now, &name, &mut decisions);
        }
        decisions
    }

    /// When to poll again if nothing changes before.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Requests that no node has.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How long a request for the model waits for its place these days: as long as the one that was sent last, or as long
    /// as the one that is next by now. `None`: none has been sent yet.
    pub fn wait(&self, now: Duration, model: &str) -> Option<Duration> {
        let model = self.models.get(model)?;
        let next = model.queue.first().and_then(|ticket| self.requests.get(ticket));
        let by_now = match next.map(|request| &request.phase) {
            Some(Phase::Waiting { since, .. }) => now.saturating_sub(*since),
            _ => Duration::ZERO,
        };
        model.waited.map(|waited| waited.max(by_now))
    }

    /// Requests for a model that a node has.
    pub fn running(&self, node: &str, model: &str) -> u32 {
        self.models.get(model).and_then(|m| m.hosts.get(node)).map_or(0, |h| h.running)
    }

    /// Sends from the head of a model's queue as long as there is room, and looks after those that came and stay.
    fn serve(&mut self, now: Duration, name: &Arc<str>, decisions: &mut Vec<Decision>) {
        let Some(model) = self.models.get_mut(name) else { return };
        model.dirty = false;
        while let Some(ticket) = model.queue.first().copied() {
            let request = self.requests.get_mut(&ticket).expect("every ticket of a queue has a request");
            let Some(node) = model.choose(now, request.affinity, &request.failed_on) else { break };
            let connection = *self.nodes.get(&node).expect("the hosts of a model are nodes");
            let host = model.hosts.get_mut(&node).expect("the choice is one of the hosts");
            host.running += 1;
            host.beginning += 1;
            model.queue.pop_first();
            self.waiting -= 1;
            let running = Phase::Running { node: Arc::clone(&node), connection, begun: false };
            if let Phase::Waiting { since, alarm } = std::mem::replace(&mut request.phase, running) {
                model.waited = Some(now.saturating_sub(since));
                if let Some(at) = alarm {
                    self.alarms.remove(&(at, Alarm::Request(ticket)));
                }
            }
            let worker_deaths = request.history.worker_deaths;
            decisions.push(Decision::Send { ticket, node, worker_deaths });
        }
        let (hostless, loading, progress_at) = (!model.has_host(), model.is_loading(), model.progress_at);
        let given_up = model.hostless_since.is_none_or(|since| now >= since + NODE_RETURN_WAIT);
        let fresh = std::mem::take(&mut model.fresh);
        for ticket in fresh.into_iter().rev() {
            let model = self.models.get(name).expect("only its queue changes here");
            let Some(request) = self.requests.get_mut(&ticket).filter(|_| model.queue.contains(&ticket))
            else {
                continue;
            };
            let Phase::Waiting { since, alarm } = &mut request.phase else { continue };
            // One that is sent again was let in before, and its node may be on its way back.
            let sent_before = request.history.worker_deaths > 0 || !request.failed_on.is_empty();
            let waiting = model.queue.len();
            if hostless && (given_up || !sent_before) {
                self.refuse(ticket, Refusal::NotReady, decisions);
            } else if waiting > self.limits.queue_length && !sent_before {
                self.refuse(ticket, Refusal::QueueFull { waiting: waiting - 1 }, decisions);
            } else {
                let at = deadline(self.limits, *since, loading, progress_at);
                *alarm = Some(at);
                self.alarms.insert((at, Alarm::Request(ticket)));
            }
        }
        if self.models.get(name).is_some_and(|m| m.queue.is_empty() && m.hosts.is_empty()) {
            self.forget(name);
        }
    }

    /// A pause or a wait is over.
    fn alarm(&mut self, now: Duration, ticket: Ticket, decisions: &mut Vec<Decision>) {
        let Some(request) = self.requests.get_mut(&ticket) else { return };
        match &mut request.phase {
            Phase::Running { .. } => {}
            Phase::Paused { .. } => {
                request.phase = Phase::Waiting { since: now, alarm: None };
                self.waiting -= 1;
                self.enqueue(ticket);
            }
            Phase::Waiting { since, alarm } => {
                let model = self.models.get(&request.model);
                let (loading, progress_at) = model.map_or((false, now), |m| (m.is_loading(), m.progress_at));
                let (since, at) = (*since, deadline(self.limits, *since, loading, progress_at));
                if at > now {
                    *alarm = Some(at);
                    self.alarms.insert((at, Alarm::Request(ticket)));
                } else {
                    *alarm = None;
                    self.refuse(ticket, Refusal::WaitedTooLong { waited: now - since }, decisions);
                }
            }
        }
    }

    /// No node came back in time.
    fn give_up_on(&mut self, name: &Arc<str>, decisions: &mut Vec<Decision>) {
        let queue = self.models.get(name).map(|m| m.queue.iter().copied().collect::<Vec<_>>());
        for ticket in queue.unwrap_or_default() {
            self.refuse(ticket, Refusal::NotReady, decisions);
        }
    }

    fn refuse(&mut self, ticket: Ticket, refusal: Refusal, decisions: &mut Vec<Decision>) {
        self.finish(ticket);
        decisions.push(Decision::Refuse { ticket, refusal });
    }

    fn enqueue(&mut self, ticket: Ticket) {
        let name = Arc::clone(&self.requests.get(&ticket).expect("it is the caller's").model);
        let model = self.models.entry(Arc::clone(&name)).or_default();
        model.queue.insert(ticket);
        model.fresh.push(ticket);
        self.waiting += 1;
        self.mark(&name);
    }

    fn leave_queue(&mut self, name: &Arc<str>, ticket: Ticket, alarm: Option<Duration>) {
        if let Some(at) = alarm {
            self.alarms.remove(&(at, Alarm::Request(ticket)));
        }
        if self.models.get_mut(name).is_some_and(|m| m.queue.remove(&ticket)) {
            self.waiting -= 1;
        }
    }

    fn release(&mut self, name: &Arc<str>, node: &Arc<str>, connection: u64, begun: bool) {
        if self.nodes.get(node) != Some(&connection) {
            return;
        }
        let Some(model) = self.models.get_mut(name) else { return };
        let Some(host) = model.hosts.get_mut(node) else { return };
        assert!(host.running > 0, "a place is given back once");
        host.running -= 1;
        if !begun {
            host.beginning = host.beginning.saturating_sub(1);
        }
        self.mark(name);
    }

    fn mark(&mut self, name: &Arc<str>) {
        if let Some(model) = self.models.get_mut(name)
            && !std::mem::replace(&mut model.dirty, true)
        {
            self.dirty.push(Arc::clone(name));
        }
    }

    fn hosts_changed(&mut self, now: Duration, name: &Arc<str>) {
        let Some(model) = self.models.get_mut(name) else { return };
        let alarm = |since: Duration| (since + NODE_RETURN_WAIT, Alarm::Hostless(Arc::clone(name)));
        match (model.has_host(), model.hostless_since) {
            (true, Some(since)) => {
                model.hostless_since = None;
                self.alarms.remove(&alarm(since));
            }
            (false, None) => {
                model.hostless_since = Some(now);
                self.alarms.insert(alarm(now));
            }
            _ => {}
        }
        self.mark(name);
    }

    fn forget(&mut self, name: &Arc<str>) {
        if let Some(since) = self.models.remove(name).and_then(|m| m.hostless_since) {
            self.alarms.remove(&(since + NODE_RETURN_WAIT, Alarm::Hostless(Arc::clone(name))));
        }
    }
}

/// Whether a load is further than it was.
fn moves(before: Replica, after: Replica) -> bool {
    match (before, after) {
        (Replica::Loading { progress: before }, Replica::Loading { progress: after }) => after > before,
        (_, Replica::Loading { .. }) => true,
        (Replica::Loading { .. }, Replica::Loaded { .. }) => true,
        _ => false,
    }
}

/// When a wait ends. Time in which the model's load moves does not count, up to a limit.
fn deadline(limits: Limits, since: Duration, loading: bool, progress_at: Duration) -> Duration {
    let wait = if loading { limits.queue_wait.max(LOAD_STALL_MAX) } else { limits.queue_wait };
    let longest = since + LOAD_WAIT_MAX.max(limits.queue_wait);
    (since.max(progress_at) + wait).min(longest)
}

#[cfg(test)]
mod tests;
