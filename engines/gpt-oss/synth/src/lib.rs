//! Writes gpt-oss checkpoints of random weights in the exact published form: for tests of loading, memory and speed.
//!
//! Names, types, shapes, order, shard split, shard names and padding are the published ones, so a 20b checkpoint has
//! the published file sizes to the byte. The numbers are noise of sensible size; what such a model says is nonsense.
//! Everything is a function of shape and seed. Beside them: the same as GGUF files, which llama.cpp reads, those of small
//! models of other families, and a small checkpoint such as the demo's converted to GGUF or to Metal's `model.bin`.

#![forbid(unsafe_code)]

mod fill;
mod gguf;
mod metal;
mod plan;
mod shape;
mod tokenizer;
mod write;

pub use gguf::{
    BertShape, Dense, DenseShape, Family, LargeKind, LargeShape, MadeTensor, Pooling, convert_gguf,
    write_bert_gguf, write_dense_gguf, write_gguf, write_large_gguf, write_pooled_gguf, write_split_gguf,
    write_vocabulary_gguf,
};
pub use metal::convert_metal;
pub use plan::{Plan, PlannedShard};
pub use shape::Shape;
pub use write::{SynthError, write_checkpoint};
