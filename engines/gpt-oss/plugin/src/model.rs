//! A loaded model as the SDK sees it: blocks from its layout, batches to spans.

use std::sync::Arc;
use std::time::Duration;

use engine_sdk::{
    Batch, DeviceBytes, KvGroup, KvLayout, KvMemory, Logits, MemoryUse, Model, ModelSpec, Progress, Slot,
    Status, Tokenize, Tokenizer,
};
use gpt_oss_cpu::{BLOCK_TOKENS, CpuModel, Isa, Kv, Span, Table};

use crate::CPU;
use crate::limits::Limits;
use crate::options::Options;
use crate::tables::Tables;

/// gpt-oss on the cpu.
pub struct GptOssModel {
    model: CpuModel,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    options: Options,
    /// Which form of the weights runs, and why.
    runs: String,
    kv: Kv,
}

impl GptOssModel {
    pub(crate) fn new(
        model: CpuModel,
        tokenizer: Tokenizer,
        limits: Limits,
        options: Options,
        runs: String,
    ) -> GptOssModel {
        let shape = model.kv_shape();
        let blocks = limits.kv_bytes / shape.block_bytes();
        // A table of all blocks is there whether they are used or not; no machine has memory for as many.
        let kv = Kv::new(shape, blocks.min(u64::from(u32::MAX)) as usize);
        GptOssModel { model, tokenizer: Arc::new(tokenizer), limits, options, runs, kv }
    }
}

impl Model for GptOssModel {
    fn spec(&self) -> ModelSpec {
        ModelSpec {
            vocabulary_size: self.model.config().vocabulary as u32,
            context_length: self.limits.context_length,
            sequences_max: self.limits.sequences_max,
            batch_tokens_max: self.limits.batch_tokens_max,
            end_tokens: self.model.store().end_tokens().to_vec(),
        }
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::clone(&self.tokenizer) as Arc<dyn Tokenize>
    }

    fn kv(&self) -> Option<KvLayout> {
        let shape = self.kv.shape();
        let group = |window: &Option<usize>| KvGroup { window: window.map(|w| w as u32) };
        Some(KvLayout {
            block_tokens: BLOCK_TOKENS as u32,
            block_bytes: shape.block_bytes(),
            blocks: self.kv.blocks() as u32,
            groups: shape.windows().iter().map(group).collect(),
            memory: KvMemory::Ram,
        })
    }

    fn prefill_gap(&self) -> Duration {
        self.options.prefill_gap
    }

    fn start(&mut self, _slot: Slot, _tokens_max: u32) -> Result<(), Status> {
        Ok(())
    }

    fn end(&mut self, _slot: Slot) {}

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let tables = Tables::of(batch);
        let tables = tables.each(|first, blocks| Table { first, blocks });
        let spans: Vec<Span<'_>> = batch
            .rows()
            .zip(&tables)
            .map(|(row, tables)| Span {
                position: row.position as usize,
                tokens: row.tokens,
                tables,
                wants_logits: row.wants_logits,
            })
            .collect();
        self.model
            .forward(&spans, &mut self.kv, logits.as_mut_slice(), |done, total| progress.report(done, total))
    }

    fn memory(&self) -> MemoryUse {
        let replaced = self.options.copy_bytes(self.model.config()).replaced;
        let spent = self.model.spent();
        let mut details = serde_json::json!({
            "forward_seconds": { "matrices": spent.matrices, "attention": spent.attention, "rest": spent.rest },
            "isa": self.model.isa().as_str(),
            "amx_refused": Isa::amx_refused(),
            "kernels": kernels(&self.model),
            "kv_format": self.options.kv_format.as_str(),
            "activations": self.model.activations().as_str(),
            "threads": self.model.threads(),
            "pinned": self.model.is_pinned(),
            "deterministic": self.options.deterministic,
            "dense_weights": self.options.dense_weights.as_str(),
            "runs": self.runs,
            "weights_mapped_bytes": self.model.store().tensor_bytes().0.saturating_sub(replaced),
        });
        if let Some(copy) = self.model.dense_copy() {
            details["weights_copy"] = serde_json::json!({
                "bytes": copy.bytes(),
                "huge_page_bytes": copy.huge_bytes(),
                "seconds": copy.seconds(),
            });
        }
        MemoryUse {
            // Blocks keep their memory once they have been used: it is granted, and the next sequence wants it.
            devices: vec![DeviceBytes {
                device: CPU.to_owned(),
                bytes: self.limits.workspace + self.kv.bytes(),
            }],
            details_json: details.to_string(),
            // The SDK counts blocks.
            ..MemoryUse::default()
        }
    }
}

/// What multiplies weights of each form, from how many vectors on: `{"mxfp4": {"1": "avx512 vnni", …}, …}`.
fn kernels(model: &CpuModel) -> serde_json::Value {
    let mut kernels = serde_json::json!({});
    for choice in model.kernels() {
        kernels[choice.weights][choice.vectors_min.to_string()] = choice.kernel.into();
    }
    kernels
}
