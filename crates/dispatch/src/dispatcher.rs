//! The state machine.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::node_view::{NodeView, Replica};

/// How often a request is sent at most, the first time included.
pub const ATTEMPTS_MAX: u32 = 3;
/// Before a request is sent again to a node that failed it; doubled each time.
pub const RETRY_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests that run on one node at once.
    pub node_requests_max: u32,
    /// Requests that wait.
    pub waiting_max: usize,
    /// How long one waits.
    pub wait_max: Duration,
}

/// A request, from [`Dispatcher::submit`] to [`Dispatcher::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Send {
        ticket: Ticket,
        node: String,
    },
    /// The ticket is gone; it needs no `finish`.
    Refuse {
        ticket: Ticket,
        refusal: Refusal,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No node has the model ready.
    NotReady,
    /// So many requests wait already.
    QueueFull { waiting: usize },
    /// No place came free in time.
    WaitedTooLong { waited: Duration },
}

#[derive(Debug)]
struct Request {
    model: String,
    /// Nodes it was sent to, once for each time.
    tried: Vec<String>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Waiting { since: Duration, not_before: Duration },
    Running { node: String, connection: u64 },
}

#[derive(Debug)]
struct Node {
    view: NodeView,
    running: u32,
    /// A node that went and came back has another number: what ran on it before counts no longer.
    connection: u64,
}

#[derive(Debug)]
pub struct Dispatcher {
    limits: Limits,
    nodes: BTreeMap<String, Node>,
    requests: HashMap<Ticket, Request>,
    /// In order of arrival; a retry goes to the front.
    queue: VecDeque<Ticket>,
    next_ticket: u64,
    next_connection: u64,
}

impl Dispatcher {
    pub fn new(limits: Limits) -> Dispatcher {
        Dispatcher {
            limits,
            nodes: BTreeMap::new(),
            requests: HashMap::new(),
            queue: VecDeque::new(),
            next_ticket: 0,
            next_connection: 0,
        }
    }

    /// A node came or changed.
    pub fn set_node(&mut self, id: &str, view: NodeView) {
        match self.nodes.get_mut(id) {
            Some(node) => node.view = view,
            None => {
                let connection = self.next_connection;
                self.next_connection += 1;
                self.nodes.insert(id.to_owned(), Node { view, running: 0, connection });
            }
        }
    }

    /// A node is gone. What ran on it is still to be finished or sent again by whoever ran it.
    pub fn remove_node(&mut self, id: &str) {
        self.nodes.remove(id);
    }

    /// A request came. What becomes of it comes out of [`Dispatcher::poll`].
    pub fn submit(&mut self, now: Duration, model: &str) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let phase = Phase::Waiting { since: now, not_before: now };
        self.requests.insert(ticket, Request { model: model.to_owned(), tried: Vec::new(), phase });
        self.queue.push_back(ticket);
        ticket
    }

    /// A running request failed before anything of it was sent on. False: it was tried often enough, and is still to be
    /// finished.
    pub fn retry(&mut self, now: Duration, ticket: Ticket) -> bool {
        let Some(request) = self.requests.get_mut(&ticket) else { return false };
        let Phase::Running { node, connection } = &request.phase else { return false };
        if request.tried.len() >= ATTEMPTS_MAX as usize {
            return false;
        }
        release(&mut self.nodes, node, *connection);
        let pause = RETRY_PAUSE * (1 << (request.tried.len().saturating_sub(1)));
        request.phase = Phase::Waiting { since: now, not_before: now + pause };
        self.queue.push_front(ticket);
        true
    }

    /// A request ended, or its caller went away. An unknown ticket is ignored: it was refused before.
    pub fn finish(&mut self, ticket: Ticket) {
        let Some(request) = self.requests.remove(&ticket) else { return };
        match request.phase {
            Phase::Waiting { .. } => self.queue.retain(|t| *t != ticket),
            Phase::Running { node, connection } => release(&mut self.nodes, &node, connection),
        }
    }

    /// Decides what can be decided now.
    pub fn poll(&mut self, now: Duration) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let mut kept = VecDeque::with_capacity(self.queue.len());
        for ticket in std::mem::take(&mut self.queue) {
            match self.decide(now, ticket, kept.len()) {
                Some(decision) => decisions.push(decision),
                None => kept.push_back(ticket),
            }
        }
        self.queue = kept;
        decisions
    }

    /// When to poll again if nothing changes before.
    pub fn next_deadline(&self) -> Option<Duration> {
        let deadline = |ticket| match self.requests.get(ticket)?.phase {
            Phase::Waiting { since, not_before } if not_before > since => Some(not_before),
            Phase::Waiting { since, .. } => Some(since + self.limits.wait_max),
            Phase::Running { .. } => None,
        };
        self.queue.iter().filter_map(deadline).min()
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Requests that run on a node.
    pub fn running(&self, node: &str) -> u32 {
        self.nodes.get(node).map_or(0, |n| n.running)
    }

    /// `None`: it goes on waiting behind `before` others.
    fn decide(&mut self, now: Duration, ticket: Ticket, before: usize) -> Option<Decision> {
        let request = self.requests.get_mut(&ticket).expect("every ticket of the queue has a request");
        let Phase::Waiting { since, not_before } = request.phase else {
            unreachable!("a running request is not in the queue")
        };
        let has_model = |n: &Node| !n.view.draining && n.view.replicas.contains_key(&request.model);
        let refusal = if !self.nodes.values().any(has_model) {
            Refusal::NotReady
        } else if let Some(id) =
            choose(&self.nodes, request, now >= not_before, self.limits.node_requests_max)
        {
            let node = self.nodes.get_mut(&id).expect("the choice is one of the nodes");
            node.running += 1;
            request.tried.push(id.clone());
            request.phase = Phase::Running { node: id.clone(), connection: node.connection };
            return Some(Decision::Send { ticket, node: id });
        } else if now >= since + self.limits.wait_max {
            Refusal::WaitedTooLong { waited: now - since }
        } else if before >= self.limits.waiting_max {
            Refusal::QueueFull { waiting: before }
        } else {
            // The pause of a retry is over and every place is taken: from here on it waits like any other.
            if now >= not_before {
                request.phase = Phase::Waiting { since, not_before: since };
            }
            return None;
        };
        self.requests.remove(&ticket);
        Some(Decision::Refuse { ticket, refusal })
    }
}

fn release(nodes: &mut BTreeMap<String, Node>, id: &str, connection: u64) {
    if let Some(node) = nodes.get_mut(id).filter(|n| n.connection == connection) {
        assert!(node.running > 0, "a place is given back once");
        node.running -= 1;
    }
}

/// The best node with a free place. A node that failed the request before gets it only when `again`.
fn choose<'n>(
    nodes: &'n BTreeMap<String, Node>,
    request: &Request,
    again: bool,
    requests_max: u32,
) -> Option<String> {
    let candidate = |(id, node): (&'n String, &Node)| {
        let replica = node.view.replicas.get(&request.model)?;
        let times = request.tried.iter().filter(|t| *t == id).count();
        if node.view.draining || node.running >= requests_max || (times > 0 && !again) {
            return None;
        }
        let preference = match replica {
            Replica::Loaded { sequences_max } if node.running < *sequences_max => 0,
            Replica::Loading => 1,
            Replica::Ready => 2,
            // Behind one that would have to load: there the request would run, here it would wait.
            Replica::Loaded { .. } => 3,
        };
        Some((times, preference, node.running, id))
    };
    nodes.iter().filter_map(candidate).min().map(|(.., id)| id.clone())
}

#[cfg(test)]
mod tests;
