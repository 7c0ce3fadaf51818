//! The router's own API.

mod ask;
pub mod engines;
pub mod loaded;
pub mod models;
pub mod nodes;
pub mod system;
