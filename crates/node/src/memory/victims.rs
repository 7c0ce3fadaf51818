//! Who leaves for a load, and in which order. Pure.
//!
//! Those who are leaving already count first, then idle models, least recently used first, then busy ones, least recently
//! used first. As few leave as suffice. Nobody leaves before its minimum stay is over: of two models that do not fit
//! together, with requests for both all the time, each is loaded at most once in a minimum stay. A busy model is never
//! ended; it is told to take no new requests, and only when everybody who has to leave could.

use std::time::Duration;

use tokio::time::Instant;

use super::GrantId;

/// A model in a worker, or on its way there, as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    pub grant: GrantId,
    /// Requests are on it.
    pub busy: bool,
    /// It takes no new requests and leaves by itself.
    pub leaving: bool,
    /// Of its last request, or of its load.
    pub last_used: Instant,
}

/// The same with what the ledger knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub tenant: Tenant,
    /// `None`: it is being loaded.
    pub loaded_at: Option<Instant>,
}

impl Candidate {
    /// When it may be asked to leave; `None`: not known while it is loaded.
    fn stays_until(&self, minimum_stay: Duration) -> Option<Instant> {
        self.loaded_at.map(|at| at + minimum_stay)
    }

    fn past_stay(&self, now: Instant, minimum_stay: Duration) -> bool {
        self.stays_until(minimum_stay).is_some_and(|until| until <= now)
    }
}

/// What comes next for a load that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// End this idle model, then look again. `remaining`: how many have to leave, this one included.
    Evict { grant: GrantId, remaining: usize },
    /// Tell these busy models to take no new requests, then wait for them.
    Drain(Vec<GrantId>),
    /// Wait for a change, at most until then.
    Wait(Option<Instant>),
    /// It would not fit if all of these left.
    Never,
}

/// `candidates` hold something where the load wants to go; `fits` answers whether it fits when those have left.
pub fn next(
    mut candidates: Vec<Candidate>,
    now: Instant,
    minimum_stay: Duration,
    fits: impl Fn(&[GrantId]) -> bool,
) -> Next {
    let free_to_go = |c: &Candidate| !c.tenant.busy && c.past_stay(now, minimum_stay);
    candidates.sort_by_key(|c| {
        let rank = match c.tenant.leaving {
            true => 0,
            false if free_to_go(c) => 1,
            // A busy model past its stay and an idle one within it: whoever was used longer ago.
            false => 2,
        };
        (rank, c.tenant.last_used, c.tenant.grant)
    });
    let mut chosen: Vec<GrantId> = candidates.iter().map(|c| c.tenant.grant).collect();
    let Some(count) = (1..=chosen.len()).find(|count| fits(&chosen[..*count])) else { return Next::Never };
    chosen.truncate(count);
    // Who gives nothing that is missing may stay.
    for index in (0..chosen.len()).rev() {
        let mut fewer = chosen.clone();
        fewer.remove(index);
        if !fewer.is_empty() && fits(&fewer) {
            chosen = fewer;
        }
    }
    let chosen: Vec<&Candidate> = candidates.iter().filter(|c| chosen.contains(&c.tenant.grant)).collect();
    let (leaving, staying): (Vec<&Candidate>, Vec<&Candidate>) =
        chosen.into_iter().partition(|c| c.tenant.leaving);
    if staying.iter().any(|c| !c.past_stay(now, minimum_stay)) {
        // One that is being loaded tells of itself when it is done.
        return Next::Wait(
            staying.iter().filter_map(|c| c.stays_until(minimum_stay)).filter(|at| *at > now).max(),
        );
    }
    let busy: Vec<GrantId> = staying.iter().filter(|c| c.tenant.busy).map(|c| c.tenant.grant).collect();
    if !busy.is_empty() {
        return Next::Drain(busy);
    }
    match staying.first() {
        // Idle ones go last, when those who take long have gone.
        Some(first) if leaving.is_empty() => {
            Next::Evict { grant: first.tenant.grant, remaining: staying.len() }
        }
        _ => Next::Wait(None),
    }
}

/// The idle model that leaves next where memory is short.
pub fn least_recently_used(
    candidates: &[Candidate],
    now: Instant,
    minimum_stay: Duration,
) -> Option<GrantId> {
    candidates
        .iter()
        .filter(|c| !c.tenant.busy && !c.tenant.leaving && c.past_stay(now, minimum_stay))
        .min_by_key(|c| (c.tenant.last_used, c.tenant.grant))
        .map(|c| c.tenant.grant)
}

#[cfg(test)]
mod tests;
