//! The store against a hub on real sockets: what arrives is what was registered, whatever the line does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disk;
mod download;
mod folder;
mod remove;
mod world;
