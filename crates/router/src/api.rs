//! The router's own API.

pub mod models;
pub mod nodes;
pub mod system;
