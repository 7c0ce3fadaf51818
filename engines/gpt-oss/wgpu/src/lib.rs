//! gpt-oss on Metal, Vulkan and Direct3D 12: one host in Rust on wgpu, and kernels in WGSL.
//!
//! Reading order: [`adapters`] (what there is, with `registered`), [`device`] (memory and launches), [`shaders`] (the kernels' text), [`ops`]
//! (what each kernel computes, and a check of it), [`plan`] (what lies where), [`step`] (what a step tells the kernels),
//! [`model`] (the forward pass), [`measure`] (how fast each kernel is).
//!
//! **Invariant:** unsafe code is one line in `experimental`, and on macOS what wraps mapped weights (`metal`, `model::mapped`). Kernels keep the checks of bounds that wgpu adds.

#![deny(unsafe_code)]

pub mod adapters;
pub mod device;
#[expect(unsafe_code, reason = "one line, which says why")]
mod experimental;
pub mod measure;
#[cfg(target_os = "macos")]
#[expect(unsafe_code, reason = "buffers that are not wgpu's own")]
mod metal;
pub mod model;
pub mod ops;
mod pages;
pub mod plan;
mod registered;
pub mod shaders;
mod step;
pub mod testing;

pub use adapters::{Adapter, Api, Verdict};
pub use device::{DeviceError, Gpu};
pub use model::{Encoding, KeptWeights, LoadError, Span, Table, WgpuModel};
pub use plan::{BLOCK_TOKENS, Bounds, KvGroups, Needs};
