//! How a worker's life ended.

use std::fmt;
use std::sync::Arc;

/// Told to everything that waits for the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnd {
    pub cause: EndCause,
    /// For people: who did what, with the exit status and its last words.
    pub reason: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// The node wanted it: unload, reload, its own end.
    Asked,
    /// By itself, or by somebody outside: exit, signal, lack of memory.
    Crashed,
    /// Killed by the watchdog.
    Hung,
    /// Killed for taking more memory than it was granted.
    OverBudget,
    /// Killed because it sent what cannot be understood.
    Garbage,
}

impl EndCause {
    /// For logs.
    pub fn name(self) -> &'static str {
        match self {
            EndCause::Asked => "asked",
            EndCause::Crashed => "crashed",
            EndCause::Hung => "hung",
            EndCause::OverBudget => "over_budget",
            EndCause::Garbage => "garbage",
        }
    }
}

impl fmt::Display for WorkerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
