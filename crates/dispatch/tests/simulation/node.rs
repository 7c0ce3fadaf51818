//! A node as far as the dispatcher and the promises go: for each model a worker, a gate before it, and those that wait.

use std::collections::VecDeque;

use dispatch::{Replica, Ticket};

/// A model on a node.
#[derive(Debug)]
pub struct Host {
    pub state: State,
    pub sequences_max: u32,
    /// At the node, and on no worker yet: in order of arrival.
    pub outside: VecDeque<Aboard>,
    /// On the worker, before their first token.
    pub beginning: Vec<Aboard>,
    /// On the worker, after it.
    pub begun: Vec<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum State {
    Ready,
    Loading(f32),
    Loaded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aboard {
    pub ticket: Ticket,
    pub worker_deaths: u32,
    pub poisoned: bool,
}

/// What a node tells the router about its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Begun(Ticket),
    /// The worker died before its first token, and after those of the others.
    Died(Ticket),
    DiedAfterTokens(Ticket),
    LoadFailed(Ticket),
}

impl Host {
    pub fn new(sequences_max: u32) -> Host {
        Host {
            state: State::Ready,
            sequences_max,
            outside: VecDeque::new(),
            beginning: Vec::new(),
            begun: Vec::new(),
        }
    }

    pub fn replica(&self) -> Replica {
        match self.state {
            State::Ready => Replica::Ready,
            State::Loading(progress) => Replica::Loading { progress },
            State::Loaded => Replica::Loaded { sequences_max: self.sequences_max, workers: 1 },
        }
    }

    pub fn requests(&self) -> usize {
        self.outside.len() + self.beginning.len() + self.begun.len()
    }

    pub fn remove(&mut self, ticket: Ticket) {
        self.outside.retain(|a| a.ticket != ticket);
        self.beginning.retain(|a| a.ticket != ticket);
        self.begun.retain(|t| *t != ticket);
    }

    /// A load gets on, and is done at 1.
    pub fn load(&mut self, by: f32) {
        self.state = match self.state {
            State::Ready if !self.outside.is_empty() => State::Loading(0.0),
            State::Loading(progress) if progress + by >= 1.0 => State::Loaded,
            State::Loading(progress) => State::Loading(progress + by),
            other => other,
        };
    }

    /// Those that wait for it are told; the node is ready to try again.
    pub fn fail_load(&mut self) -> Vec<Told> {
        if !matches!(self.state, State::Loading(_)) {
            return Vec::new();
        }
        self.state = State::Ready;
        self.outside.drain(..).map(|a| Told::LoadFailed(a.ticket)).collect()
    }

    /// Lets on the worker whom the gate lets: a request with a death only when nobody else aboard has yet to begin, nobody
    /// beside it, and all in order of arrival.
    pub fn board(&mut self) {
        while self.state == State::Loaded
            && let Some(first) = self.outside.front()
        {
            let alone = self.beginning.iter().any(|a| a.worker_deaths > 0);
            if alone || (first.worker_deaths > 0 && !self.beginning.is_empty()) {
                return;
            }
            self.beginning.extend(self.outside.pop_front());
        }
    }

    /// One that is aboard begins; a poisoned one kills the worker instead.
    pub fn begin(&mut self, choice: usize) -> Vec<Told> {
        self.board();
        if self.state != State::Loaded || self.beginning.is_empty() {
            return Vec::new();
        }
        let at = choice % self.beginning.len();
        if self.beginning[at].poisoned {
            let suspects = self.beginning.iter().filter(|a| a.worker_deaths > 0).count();
            assert!(
                suspects == 0 || self.beginning.len() == 1,
                "one that has seen a death is alone: {self:?}"
            );
            return self.die();
        }
        let begun = self.beginning.swap_remove(at).ticket;
        self.begun.push(begun);
        vec![Told::Begun(begun)]
    }

    /// The worker dies. Those that wait outside do not: they were on no worker.
    pub fn die(&mut self) -> Vec<Told> {
        if self.state != State::Loaded {
            return Vec::new();
        }
        self.state = State::Ready;
        let before = self.beginning.drain(..).map(|a| Told::Died(a.ticket));
        let after = self.begun.drain(..).map(Told::DiedAfterTokens);
        before.chain(after).collect()
    }
}
