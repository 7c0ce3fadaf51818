//! Counts one request's way to a node, and its times there.

use std::sync::Arc;
use std::time::Instant;

use super::ModelMetrics;
use super::model::observe;

/// A request that waits or runs. It stops counting when it is dropped.
pub struct Wait {
    model: Arc<ModelMetrics>,
    since: Instant,
    running: bool,
    /// The first place was found: later waits are those of retries.
    placed_once: bool,
    loading: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryCause {
    /// A worker died with the request on it.
    WorkerDied,
    /// The node refused it, or was lost.
    Failed,
}

impl Wait {
    /// A request came.
    pub fn begin(model: Arc<ModelMetrics>) -> Wait {
        model.waiting.inc();
        Wait { model, since: Instant::now(), running: false, placed_once: false, loading: false }
    }

    /// How many requests were ahead of it when it came.
    pub fn position(&self, ahead: usize) {
        self.model.queue_position.observe(ahead as f64);
    }

    /// A node has it now.
    pub fn placed(&mut self) {
        if self.running {
            return;
        }
        self.running = true;
        self.model.waiting.dec();
        self.model.running.inc();
        if !self.placed_once {
            self.placed_once = true;
            observe(&self.model.queue_seconds, self.since.elapsed());
        }
    }

    /// Its model is being loaded.
    pub fn loading(&mut self) {
        if !self.loading {
            self.loading = true;
            self.model.loading_waits.inc();
        }
    }

    /// It waits again.
    pub fn retry(&mut self, cause: RetryCause) {
        self.model.retried(match cause {
            RetryCause::WorkerDied => "worker_died",
            RetryCause::Failed => "failed",
        });
        if self.running {
            self.running = false;
            self.model.running.dec();
            self.model.waiting.inc();
        }
    }

    /// It would have been sent again, had there been any retries left.
    pub fn over_budget(&self) {
        self.model.retries_over_budget.inc();
    }

    /// It fails alone, so that it takes no further worker along.
    pub fn quarantined(&self) {
        self.model.quarantined.inc();
    }

    /// It got no place; `reason` is one of `queue_full`, `waited_too_long`, `not_ready`.
    pub fn refused(&self, reason: &'static str) {
        self.model.refused(reason);
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let gauge = if self.running { &self.model.running } else { &self.model.waiting };
        gauge.dec();
    }
}
