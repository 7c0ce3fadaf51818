//! Which replica gets a request. Pure.

/// A replica that takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    pub running: u32,
    /// Sequences it runs at once; more than these wait inside the engine.
    pub sequences_max: u32,
    /// It had a request with the same beginning not long ago: what it computed of it may still be there.
    pub knows_prefix: bool,
}

/// The place in `seats` of the one to take: of those that know the beginning and have room the least loaded, else the
/// least loaded of all, measured by its own size. Of equals the first. `None`: there is none.
pub fn pick(seats: &[Seat]) -> Option<usize> {
    let room = |seat: &Seat| seat.running < seat.sequences_max;
    let least = |wanted: &dyn Fn(&Seat) -> bool| {
        let fitting = seats.iter().enumerate().filter(|(_, seat)| wanted(seat));
        fitting.min_by(|(_, a), (_, b)| load(a).cmp(&load(b))).map(|(place, _)| place)
    };
    least(&|seat| seat.knows_prefix && room(seat)).or_else(|| least(&|_| true))
}

/// Thousandths of what it can run at once.
fn load(seat: &Seat) -> u64 {
    u64::from(seat.running) * 1000 / u64::from(seat.sequences_max.max(1))
}

#[cfg(test)]
mod tests;
