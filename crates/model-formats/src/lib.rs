//! File formats of models: bytes in, values out.
//!
//! Everything read here comes from strangers. Each parser has named limits, never panics, never allocates more than a
//! small multiple of what it was given, and its errors name the file and the tensor.
//!
//! **Invariant:** nothing here opens a file or knows any other crate of this workspace.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod file_name;
pub mod generation_config;
pub mod gguf;
pub mod gpt_oss;
mod json;
pub mod metal;
pub mod mxfp4;
pub mod safetensors;
pub mod shard_index;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use config::{Config, ConfigError, detect_runtime};
pub use file_name::{FileNameError, check_file_name};
pub use generation_config::{GenerationConfig, GenerationConfigError};
pub use gguf::{GgufError, GgufModel};
pub use metal::{METAL_FILE, MetalError, MetalFile};
pub use safetensors::{Dtype, Header, HeaderError, Tensor};
pub use shard_index::{IndexError, ShardIndex};
