//! The table as a host calls it: a whole life, then everything a host or an engine can do wrong.

mod faults;
mod harness;
mod life;
mod misuse;
