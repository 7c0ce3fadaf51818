//! A loaded model as the SDK sees it: slots with caches, batches to spans.

use std::sync::Arc;

use engine_sdk::{
    Batch, DeviceBytes, Logits, MemoryUse, Model, ModelSpec, Progress, Slot, Status, Tokenize, Tokenizer,
    reason,
};
use gpt_oss_cpu::{CpuModel, Kv, Span};

use crate::CPU;
use crate::limits::Limits;

/// gpt-oss on the cpu.
pub struct GptOssModel {
    model: CpuModel,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    /// One for each slot; the cache of the sequence that runs there.
    caches: Vec<Option<Kv>>,
}

impl GptOssModel {
    pub(crate) fn new(model: CpuModel, tokenizer: Tokenizer, limits: Limits) -> GptOssModel {
        let caches = (0..limits.sequences_max).map(|_| None).collect();
        GptOssModel { model, tokenizer: Arc::new(tokenizer), limits, caches }
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

    fn start(&mut self, slot: Slot, tokens_max: u32) -> Result<(), Status> {
        let tokens_max = tokens_max.min(self.limits.context_length);
        self.caches[slot.index()] = Some(self.model.new_kv(tokens_max as usize));
        Ok(())
    }

    fn end(&mut self, slot: Slot) {
        self.caches[slot.index()] = None;
    }

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        for row in batch.rows() {
            let held = self.caches[row.slot.index()].as_ref().map(Kv::len);
            if held != Some(row.position as usize) {
                let message = format!(
                    "slot {} holds {held:?} positions, and the batch goes on at {}",
                    row.slot.index(),
                    row.position
                );
                return Err(Status::internal(reason::INTERNAL, message));
            }
        }
        let spans: Vec<Span<'_>> = batch
            .rows()
            .map(|row| Span {
                sequence: row.slot.index(),
                tokens: row.tokens,
                wants_logits: row.wants_logits,
            })
            .collect();
        self.model.forward(&spans, &mut self.caches, logits.as_mut_slice(), |done, total| {
            progress.report(done, total)
        })
    }

    fn memory(&self) -> MemoryUse {
        let used: u64 = self.caches.iter().flatten().map(Kv::bytes).sum();
        let details = serde_json::json!({
            "isa": self.model.isa().as_str(),
            "threads": self.model.threads(),
            "weights_mapped_bytes": self.model.store().checkpoint().tensor_bytes(),
        });
        MemoryUse {
            devices: vec![DeviceBytes { device: CPU.to_owned(), bytes: self.limits.workspace + used }],
            kv_bytes_used: used,
            kv_bytes_total: self.limits.kv_bytes,
            details_json: details.to_string(),
        }
    }
}
