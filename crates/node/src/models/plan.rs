//! What a model's keeper does next. Pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// A model as its keeper sees it.
#[derive(Debug, Clone)]
pub struct View {
    /// The files are here and an engine here runs it.
    pub runnable: bool,
    /// Somebody has to do something first: its files are broken.
    pub barred: bool,
    /// Requests wait for it, it was loaded when its worker died, or an operator said so.
    pub demanded: bool,
    /// Requests wait for it.
    pub waiting: bool,
    /// No start before this: its workers died.
    pub start_at: Option<Instant>,
    /// Those that take requests.
    pub replicas: Vec<Serving>,
    /// How many there should be.
    pub replicas_wanted: usize,
    /// No attempt at a further replica before this.
    pub extra_at: Option<Instant>,
    /// No hand-over for age's sake before this: the last one failed.
    pub upkeep_at: Option<Instant>,
    pub last_used: Instant,
    pub keep_alive: Option<Duration>,
    pub restart_after: Option<Duration>,
    pub restart_after_requests: Option<u64>,
}

/// A replica that takes requests.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// Another engine, or other settings, than would be chosen now; and that choice has not failed yet.
    pub outdated: bool,
    /// An operator wants a new worker in its place.
    pub renew: bool,
    /// An operator disabled its engine, and no other runs the model.
    pub retired: bool,
    pub running: u32,
    pub requests: u64,
    pub loaded_at: Instant,
}

/// One thing to do. Places are those in [`View::replicas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The first replica.
    Load,
    /// One more beside those that serve.
    LoadMore,
    HandOver {
        place: usize,
        why: Why,
    },
    /// It is one too many, or its engine is not to be used.
    Leave {
        place: usize,
    },
    /// Nobody has used it for its time.
    Expire,
    /// Until something changes, or this moment.
    Wait(Option<Instant>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Asked,
    Outdated,
    Upkeep,
}

pub fn plan(view: &View, now: Instant) -> Step {
    if view.barred {
        return Step::Wait(None);
    }
    if view.replicas.is_empty() {
        return match view.start_at {
            _ if !view.demanded || !view.runnable => Step::Wait(None),
            Some(at) if at > now => Step::Wait(Some(at)),
            _ => Step::Load,
        };
    }
    let place = |wanted: &dyn Fn(&Serving) -> bool| view.replicas.iter().position(wanted);
    if let Some(place) = place(&|replica| replica.retired) {
        return Step::Leave { place };
    }
    if let Some(place) = place(&|replica| replica.renew) {
        return Step::HandOver { place, why: Why::Asked };
    }
    if let Some(place) = place(&|replica| replica.outdated) {
        return Step::HandOver { place, why: Why::Outdated };
    }
    if view.replicas.len() > view.replicas_wanted.max(1) {
        let idlest = view.replicas.iter().enumerate().min_by_key(|(_, replica)| replica.running);
        return Step::Leave { place: idlest.map_or(0, |(place, _)| place) };
    }
    let mut next: Option<Instant> = None;
    let mut until = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));

    let idle = !view.waiting && view.replicas.iter().all(|replica| replica.running == 0);
    if let (true, Some(keep)) = (idle, view.keep_alive) {
        // A time that cannot be told is never.
        match view.last_used.checked_add(keep) {
            Some(end) if end <= now => return Step::Expire,
            Some(end) => until(end),
            None => {}
        }
    }
    for (place, replica) in view.replicas.iter().enumerate() {
        let full = view.restart_after_requests.is_some_and(|most| replica.requests >= most);
        let old_at = view.restart_after.and_then(|age| replica.loaded_at.checked_add(age));
        let old = old_at.is_some_and(|at| at <= now);
        let put_off = view.upkeep_at.filter(|at| *at > now);
        match (full || old, put_off) {
            (true, Some(at)) => until(at),
            (true, None) => return Step::HandOver { place, why: Why::Upkeep },
            (false, _) => {}
        }
        if let (false, Some(at)) = (old, old_at) {
            until(at);
        }
    }
    if view.runnable && view.replicas.len() < view.replicas_wanted {
        match view.extra_at {
            Some(at) if at > now => until(at),
            _ => return Step::LoadMore,
        }
    }
    Step::Wait(next)
}

#[cfg(test)]
mod tests;
