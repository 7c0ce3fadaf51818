//! The cpu device of gpt-oss: mapped weights, SIMD kernels chosen at run time, a small thread pool.
//!
//! Reading order: [`mapped`] (files), [`model`] (the forward pass), then its parts: [`linear`], [`experts`],
//! [`attention`] over [`kv`], all on [`pool`] and [`kernel`].
//!
//! Activations, keys and values are f32. With bf16 keys and values the logits would differ from the float32 reference
//! by more than the 1e-3 that is promised; they cost 4 KiB per token and layer, and only full layers grow.
//!
//! **Invariant:** unsafe code is in [`mapped`], [`pool`] and the SIMD files of [`kernel`] only.

#![deny(unsafe_code)]

mod attention;
mod experts;
pub mod int8;
pub mod kernel;
mod kv;
mod linear;
#[expect(unsafe_code, reason = "a mapping is only as sound as the file under it")]
pub mod mapped;
mod math;
pub mod model;
#[expect(unsafe_code, reason = "threads borrow what the caller's stack and one array hold")]
pub mod pool;
mod product;

pub use kernel::{Isa, Order};
pub use kv::{BLOCK_TOKENS, Kv, KvShape, Sequences, Table};
pub use mapped::Mapped;
pub use model::{CpuModel, Needs, Span};
pub use pool::Pool;
pub use product::product;
