//! The gpt-oss model, written once and readably in scalar f32: the oracle every device is compared with.
//!
//! Reading order: [`store`] opens a checkpoint, [`weights`] looks into it, [`oracle`] runs it. [`rope`] and [`router`]
//! hold the two pieces that devices share with it.
//!
//! **Invariant:** no unsafe, no threads, no intrinsics.

#![forbid(unsafe_code)]

pub mod oracle;
pub mod rope;
pub mod router;
pub mod store;
pub mod weights;

pub use model_formats::gpt_oss::{Attention, GptOssConfig};
pub use oracle::{Cache, Oracle};
pub use store::{OpenError, Store};
pub use weights::{Bf16, Mxfp4, Weights};
