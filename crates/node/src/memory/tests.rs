//! Asking for room on a machine that is played, with a clock that is held.

mod enforcing;
mod waiting;
mod world;
