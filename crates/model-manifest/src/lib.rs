//! What was registered: the manifest of a model, what a node makes of it, and the checks of both.
//!
//! A manifest is made once, by the router, at registration. It names every file a node may fetch with its size and
//! hash; nothing outside it is ever used. It carries no weights and no secrets.
//!
//! **Invariant:** nothing here touches the network or reads a model's files; bytes come in, values go out.

pub mod descriptor;
pub mod manifest;

pub use descriptor::{DescriptorFile, ModelDescriptor};
pub use manifest::{FileRole, Format, Manifest, ManifestFile, Source};
