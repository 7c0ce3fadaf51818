//! The cpu device of gpt-oss: mapped weights, SIMD kernels chosen at run time, a small thread pool.
//!
//! Reading order: [`mapped`] (files), [`model`] (the forward pass), then its parts: [`linear`], [`experts`],
//! [`attention`] over [`kv`], all on [`pool`] and [`kernel`].
//!
//! **Invariant:** unsafe code is in [`mapped`], [`pool`], `kv/store.rs` and the SIMD files of [`kernel`] and of
//! `attention` only.

#![deny(unsafe_code)]

mod attention;
mod experts;
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator is told by a call of C")
)]
mod heap;
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
mod spent;

pub use heap::keep_freed;
pub use kernel::{Activations, Isa, Order};
pub use kv::{BLOCK_TOKENS, Kv, KvFormat, KvShape, Sequences, Table};
pub use mapped::Mapped;
pub use model::{CpuModel, DenseBytes, DenseCopy, Needs, PrepareError, Span};
pub use pool::Pool;
pub use product::product;
pub use spent::Spent;
