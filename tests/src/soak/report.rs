//! What a soak found, and its one line.

use std::fmt;

use crate::soak::chaos::Done;
use crate::soak::load::Tally;
use crate::soak::watch::Held;

#[derive(Debug, Clone)]
pub struct Report {
    pub seed: u64,
    pub seconds: f64,
    pub tally: Tally,
    pub done: Done,
    pub before: Held,
    pub after: Held,
    /// Truthful errors are no failure of the run.
    pub errors_allowed: bool,
    /// For whoever looks into a failure.
    pub node_log_tail: String,
}

impl Report {
    /// Everything that is not as promised; empty: the run passed.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = self.tally.broken_words.clone();
        if self.tally.broken > complaints.len() as u64 {
            complaints.push(format!("and {} more", self.tally.broken - complaints.len() as u64));
        }
        if !self.errors_allowed {
            let refused = self.tally.refused.iter();
            complaints.extend(refused.map(|(what, r)| format!("{} times {what}: {:?}", r.count, r.words)));
        }
        complaints.extend(self.done.failed.iter().cloned());
        complaints.extend(self.after.growth(&self.before));
        if self.tally.complete == 0 {
            complaints.push("not one request was answered".to_owned());
        }
        complaints
    }

    /// The truthful errors by status and code, with some of their words: a line each.
    pub fn refusals(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (what, refusals) in &self.tally.refused {
            lines.push(format!("{} times {what}", refusals.count));
            lines.extend(refusals.words.iter().map(|words| format!("    {words}")));
        }
        lines
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(
            f,
            "soak seed {} {:.0} s: {} requests, {} complete, {} left by us, {} truthful errors, {} broken promises, \
             {} reloads, {} kills, {} hangs, {} crashes, {} node restarts, memory {} -> {} MiB, descriptors {} -> {}",
            self.seed,
            self.seconds,
            self.tally.requests,
            self.tally.complete,
            self.tally.left,
            self.tally.truthful_errors(),
            self.tally.broken,
            self.done.reloads,
            self.done.kills,
            self.done.hangs,
            self.done.crashes,
            self.done.node_restarts,
            mib(self.before.memory()),
            mib(self.after.memory()),
            self.before.descriptors(),
            self.after.descriptors(),
        )
    }
}
