//! What was registered: the manifest of a model, what a node makes of it, and the checks of both.
//!
//! A manifest is made once, by the router, at registration ([`registration::build_manifest`]). It names every file a
//! node may fetch with its size and hash; nothing outside it is ever used. It carries no weights and no secrets.
//!
//! **Invariant:** nothing here touches the network or reads a model's files; bytes come in, values go out.

#![forbid(unsafe_code)]

pub mod allowlist;
pub mod descriptor;
pub mod listing;
pub mod manifest;
pub mod paths;
pub mod registration;
pub mod supported;

pub use allowlist::Allowlist;
pub use descriptor::{DescriptorError, DescriptorFile, ModelDescriptor};
pub use listing::{ListedFile, Snapshot};
pub use manifest::{FileRepo, FileRole, Format, Manifest, ManifestError, ManifestFile, Source};
pub use registration::{KnownEngine, RegistrationError, Request, Rules, build_manifest};
pub use supported::{SupportedArtifact, SupportedModel, SupportedModels};
