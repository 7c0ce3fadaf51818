//! The router's side, the callers, and the promises that are checked after every event.

use std::collections::BTreeMap;
use std::time::Duration;

use dispatch::{
    Decision, Dispatcher, Failure, LOAD_WAIT_MAX, Limits, NODE_RETURN_WAIT, NodeView, RETRIES_PER_SECOND,
    RETRY_RESERVE, RETRY_SHARE, Refusal, SURPLUS, Ticket, Verdict, WORKER_DEATHS_MAX,
};

use super::node::{Aboard, Host, State, Told};

const LIMITS: Limits = Limits { queue_length: 40, queue_wait: Duration::from_secs(60) };
const MODELS: usize = 3;
const NODES: usize = 3;
/// A request in so many is poisoned.
const POISON: u64 = 40;

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub struct Chaos {
    pub poison: bool,
    /// Workers die by themselves.
    pub crashes: bool,
    /// Nodes come and go, loads fail, callers give up.
    pub nodes: bool,
}

#[derive(Debug, Default)]
pub struct Sums {
    pub submitted: u64,
    pub answered: u64,
    pub quarantined: u64,
    pub failed: u64,
    pub refused_full: u64,
    pub refused_not_ready: u64,
    pub refused_late: u64,
    pub gave_up: u64,
    pub retries: u64,
}

impl Sums {
    fn ended(&self) -> u64 {
        self.answered
            + self.quarantined
            + self.failed
            + self.refused_full
            + self.refused_not_ready
            + self.refused_late
            + self.gave_up
    }
}

#[derive(Debug)]
struct Request {
    model: usize,
    poisoned: bool,
    deaths: u32,
    sent: u32,
    /// Where it is.
    node: Option<usize>,
    /// Since it waits.
    since: Duration,
}

#[derive(Debug)]
struct Node {
    connected: bool,
    draining: bool,
    hosts: Vec<Host>,
}

pub struct World {
    chaos: Chaos,
    random: Random,
    now: Duration,
    dispatcher: Dispatcher,
    nodes: Vec<Node>,
    live: BTreeMap<Ticket, Request>,
    /// Of each model, the latest ticket that was sent for the first time.
    latest: Vec<Option<Ticket>>,
    pub sums: Sums,
}

impl World {
    pub fn new(seed: u64, chaos: Chaos) -> World {
        let mut random = Random(seed);
        let node = |random: &mut Random| Node {
            connected: true,
            draining: false,
            hosts: (0..MODELS).map(|_| Host::new(1 + random.below(6) as u32)).collect(),
        };
        let nodes = (0..NODES).map(|_| node(&mut random)).collect();
        let mut world = World {
            chaos,
            random,
            now: Duration::ZERO,
            dispatcher: Dispatcher::new(LIMITS),
            nodes,
            live: BTreeMap::new(),
            latest: vec![None; MODELS],
            sums: Sums::default(),
        };
        for node in 0..NODES {
            world.tell(node);
        }
        world
    }

    /// One random event, and the check.
    pub fn step(&mut self) {
        let (node, model) =
            (self.random.below(NODES as u64) as usize, self.random.below(MODELS as u64) as usize);
        // What is away does not stay away for long.
        if self.random.below(20) == 0 && !self.nodes[node].connected {
            self.connect(node);
        }
        if self.random.below(20) == 0 && self.nodes[node].draining {
            self.nodes[node].draining = false;
            self.tell(node);
        }
        match self.random.below(100) {
            0..25 => self.submit(model),
            25..45 => (0..3).for_each(|_| self.begin(node, model)),
            45..65 => (0..3).for_each(|_| self.finish(node, model)),
            65..80 => self.load(node, model),
            80..84 => self.now += Duration::from_millis(self.random.below(800)),
            84..88 => self.now += Duration::from_millis(self.random.below(100)),
            88..92 => self.tell(node),
            92..94 if self.chaos.crashes => {
                let told = self.nodes[node].hosts[model].die();
                self.told(told);
                self.tell(node);
            }
            94 if self.chaos.nodes => {
                let told = self.nodes[node].hosts[model].fail_load();
                self.told(told);
                self.tell(node);
            }
            95 if self.chaos.nodes && self.nodes[node].connected => self.connect(node),
            96 if self.chaos.nodes => {
                self.nodes[node].draining = true;
                self.tell(node);
            }
            97..99 if self.chaos.nodes => self.give_up(),
            _ => {}
        }
        self.poll();
        self.check();
    }

    /// No new requests, all nodes well: everything has to come to its end.
    pub fn settle(&mut self) {
        for node in 0..NODES {
            self.nodes[node].draining = false;
            self.nodes[node].connected = true;
            self.tell(node);
        }
        let mut turns = 0;
        while !self.live.is_empty() {
            turns += 1;
            assert!(turns < 10_000, "{} requests never come to an end: {:?}", self.live.len(), self.live);
            for node in 0..NODES {
                for model in 0..MODELS {
                    self.load(node, model);
                    self.begin(node, model);
                    self.finish(node, model);
                }
            }
            self.now += Duration::from_millis(50);
            self.poll();
            self.check();
        }
        assert_eq!(self.sums.submitted, self.sums.ended(), "every request has one end: {:?}", self.sums);
        assert_eq!(self.dispatcher.waiting(), 0);
    }

    fn submit(&mut self, model: usize) {
        let poisoned = self.chaos.poison && self.random.below(POISON) == 0;
        let affinity = self.random.below(4);
        let before =
            self.live.values().filter(|r| r.model == model && r.node.is_none() && r.sent == 0).count();
        let submitted = self.dispatcher.submit(self.now, &name(model), affinity);
        assert!(
            submitted.position >= before.min(1)
                && submitted.position <= LIMITS.queue_length + self.live.len()
        );
        self.sums.submitted += 1;
        let request = Request { model, poisoned, deaths: 0, sent: 0, node: None, since: self.now };
        assert!(self.live.insert(submitted.ticket, request).is_none(), "a ticket is given once");
    }

    fn begin(&mut self, node: usize, model: usize) {
        let choice = self.random.below(16) as usize;
        let told = self.nodes[node].hosts[model].begin(choice);
        self.told(told);
    }

    fn finish(&mut self, node: usize, model: usize) {
        let host = &mut self.nodes[node].hosts[model];
        if host.begun.is_empty() {
            return;
        }
        let ticket = host.begun.remove(self.random.below(host.begun.len() as u64) as usize);
        self.sums.answered += 1;
        self.end(ticket);
    }

    fn load(&mut self, node: usize, model: usize) {
        let host = &mut self.nodes[node].hosts[model];
        let before = host.state;
        host.load(0.3);
        if host.state != before {
            self.tell(node);
        }
    }

    /// It is lost with all it has, or comes back with nothing loaded.
    fn connect(&mut self, node: usize) {
        self.nodes[node].connected ^= true;
        if self.nodes[node].connected {
            return self.tell(node);
        }
        self.dispatcher.remove_node(self.now, &format!("node-{node}"));
        for host in &mut self.nodes[node].hosts {
            *host = Host::new(host.sequences_max);
        }
        let lost =
            self.live.iter().filter(|(_, r)| r.node == Some(node)).map(|(t, _)| *t).collect::<Vec<_>>();
        for ticket in lost {
            self.failed(ticket, Failure::NobodyDied);
        }
    }

    fn give_up(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let ticket = *self.live.keys().nth(at).expect("it is below the length");
        self.sums.gave_up += 1;
        self.end(ticket);
    }

    /// The node's status reaches the router.
    fn tell(&mut self, node: usize) {
        let state = &self.nodes[node];
        if !state.connected {
            return;
        }
        let replicas = state.hosts.iter().enumerate().map(|(m, host)| (name(m), host.replica())).collect();
        let view = NodeView { draining: state.draining, memory_free: node as u64, replicas };
        self.dispatcher.set_node(self.now, &format!("node-{node}"), &view);
    }

    fn told(&mut self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::Begun(ticket) => self.dispatcher.begun(ticket),
                Told::Died(ticket) => self.failed(ticket, Failure::WorkerDied),
                Told::LoadFailed(ticket) => self.failed(ticket, Failure::NobodyDied),
                Told::DiedAfterTokens(ticket) => {
                    self.sums.failed += 1;
                    self.end(ticket);
                }
            }
        }
    }

    fn failed(&mut self, ticket: Ticket, failure: Failure) {
        let request = self.live.get_mut(&ticket).expect("nodes have only live requests");
        request.deaths += u32::from(failure == Failure::WorkerDied);
        request.node = None;
        request.since = self.now;
        assert!(request.deaths <= WORKER_DEATHS_MAX, "on a third dying worker: {request:?}");
        match self.dispatcher.failed(self.now, ticket, failure) {
            Verdict::Again => self.sums.retries += 1,
            Verdict::Quarantined => {
                assert_eq!(request.deaths, WORKER_DEATHS_MAX);
                assert!(self.chaos.crashes || request.poisoned, "an innocent is quarantined: {request:?}");
                self.sums.quarantined += 1;
                self.end(ticket);
            }
            Verdict::OverBudget | Verdict::TriedOften => {
                self.sums.failed += 1;
                self.end(ticket);
            }
        }
    }

    fn end(&mut self, ticket: Ticket) {
        self.dispatcher.finish(ticket);
        let request = self.live.remove(&ticket).expect("a request ends once");
        if let Some(node) = request.node {
            self.nodes[node].hosts[request.model].remove(ticket);
        }
    }

    fn poll(&mut self) {
        loop {
            let decisions = self.dispatcher.poll(self.now);
            if decisions.is_empty() {
                break;
            }
            for decision in decisions {
                match decision {
                    Decision::Send { ticket, node, worker_deaths } => self.sent(ticket, &node, worker_deaths),
                    Decision::Refuse { ticket, refusal } => self.refused(ticket, refusal),
                }
            }
        }
    }

    fn sent(&mut self, ticket: Ticket, node: &str, worker_deaths: u32) {
        let node: usize = node.strip_prefix("node-").and_then(|n| n.parse().ok()).expect("our names");
        let request = self.live.get_mut(&ticket).expect("only live requests are sent");
        assert!(request.node.is_none(), "sent while it is on a node: {request:?}");
        assert_eq!(request.deaths, worker_deaths);
        assert!(worker_deaths < WORKER_DEATHS_MAX);
        let state = &mut self.nodes[node];
        assert!(state.connected && !state.draining, "sent to a node that takes nothing");
        if request.sent == 0 {
            let latest = &mut self.latest[request.model];
            assert!(latest.is_none_or(|latest| latest < ticket), "overtaken: {ticket:?} after {latest:?}");
            *latest = Some(ticket);
        }
        request.sent += 1;
        request.node = Some(node);
        let aboard = Aboard { ticket, worker_deaths, poisoned: request.poisoned };
        state.hosts[request.model].outside.push_back(aboard);
    }

    fn refused(&mut self, ticket: Ticket, refusal: Refusal) {
        let request = self.live.remove(&ticket).expect("only live requests are refused");
        assert!(request.node.is_none(), "refused while it is on a node: {request:?}");
        match refusal {
            Refusal::QueueFull { .. } => {
                assert_eq!(request.sent, 0, "one that was let in is not turned away");
                self.sums.refused_full += 1;
            }
            Refusal::NotReady => {
                assert!(self.nodes.iter().all(|n| !n.connected || n.draining), "some node has the model");
                self.sums.refused_not_ready += 1;
            }
            Refusal::WaitedTooLong { waited } => {
                assert!(waited >= LIMITS.queue_wait);
                self.sums.refused_late += 1;
            }
        }
    }

    fn check(&mut self) {
        let longest = LOAD_WAIT_MAX.max(LIMITS.queue_wait) + NODE_RETURN_WAIT;
        let waiting = self.live.values().filter(|r| r.node.is_none());
        assert_eq!(self.dispatcher.waiting(), waiting.clone().count(), "nobody is lost");
        for request in waiting {
            assert!(self.now <= request.since + longest, "it starves: {request:?}");
        }
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.connected) {
            for (model, host) in node.hosts.iter().enumerate() {
                let running = self.dispatcher.running(&format!("node-{index}"), &name(model));
                assert_eq!(running as usize, host.requests(), "node and router count alike: {host:?}");
                if host.state == State::Loaded {
                    // Some may have come when it had another worker, one at a time.
                    assert!(running <= host.sequences_max + SURPLUS, "more than it can run: {host:?}");
                }
            }
        }
        let earned = self.sums.submitted / RETRY_SHARE + self.now.as_secs() * RETRIES_PER_SECOND;
        assert!(self.sums.retries <= RETRY_RESERVE + earned + 1, "over the budget: {:?}", self.sums);
    }
}

fn name(model: usize) -> String {
    format!("model-{model}")
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}
