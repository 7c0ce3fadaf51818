//! Who may be on a worker together before their first tokens, so that a death names its culprit.
//!
//! A worker that dies takes along every request that had not begun, and any of them may be the one that killed it. One that
//! has seen a death is therefore let on a worker only when no other request on it has yet to begin, and others wait until it
//! has: at its second death nobody else can have been the cause, and nobody else is counted.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Held from before a request is submitted until its first token.
#[derive(Debug)]
pub enum Pass {
    Shared { _held: OwnedRwLockReadGuard<()> },
    Alone { _held: OwnedRwLockWriteGuard<()> },
}

/// Waits for its turn at a replica's gate, in order of arrival: neither kind of request keeps the other out for ever. Every
/// holder lets go at its first token or its worker's end, which the watchdogs bound.
pub async fn enter(gate: &Arc<RwLock<()>>, worker_deaths: u32) -> Pass {
    let gate = Arc::clone(gate);
    match worker_deaths {
        0 => Pass::Shared { _held: gate.read_owned().await },
        _ => Pass::Alone { _held: gate.write_owned().await },
    }
}

#[cfg(test)]
mod tests;
