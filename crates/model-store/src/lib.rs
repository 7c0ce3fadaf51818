//! Gets the files of models: asks the hub what there is, downloads with resume, verifies, and remembers what it verified.
//!
//! The router uses [`HubClient`] and [`register`] and never touches weights. A node uses [`Store`], whose files lie in
//! the Hugging Face cache layout so that the user's other tools share them.
//!
//! **Invariant:** a path that [`Store`] returns holds bytes whose sha256 is the manifest's. **Invariant:** the caller's
//! token goes to the hub's origin and nowhere else. **Invariant:** in the cache there is nothing but what its other users
//! expect there; what is ours alone lies in our own state folder.

#![forbid(unsafe_code)]

mod brought;
pub mod cache;
pub mod config;
mod folder;
pub mod hub;
pub mod location;
pub mod progress;
pub mod register;
pub mod store;
pub mod verified;

pub use config::{HubConfig, HubConfigError, RetryPolicy, Token};
pub use hub::{HubClient, HubError, RepoInfo, install_tls_provider};
pub use location::{Location, LocationError};
pub use progress::{Phase, Progress};
pub use register::{RegisterError, Registered, read_gguf_header, register_folder, register_hub};
pub use store::{LocalModel, Removed, Store, StoreConfig, StoreError};
pub use verified::Verified;
