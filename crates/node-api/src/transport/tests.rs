//! Both sides of the connection against each other, over real sockets and over pipes in memory.

mod calls;
mod joining;
mod line_codec;
