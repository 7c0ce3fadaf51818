//! A loaded model as the SDK sees it: batches through llama.cpp's context, prefixes through its sequences.

use std::sync::Arc;
use std::time::Duration;

use engine_sdk::{
    Batch, Device, DeviceBytes, EmbeddingSpec, Logits, MemoryUse, Model, ModelSpec, Progress, Slot, Status,
    StatusCode, Tokenize, reason,
};

use crate::embedding::Pooled;
use crate::header::Header;
use crate::limits::Limits;
use crate::native::{Context, DecodeError};
use crate::options::Options;
use crate::sequences::{Kv, Sequences};
use crate::tokenizer::LlamaTokenizer;

/// A GGUF model in llama.cpp.
pub struct LlamaModel {
    context: Context,
    tokenizer: Arc<LlamaTokenizer>,
    limits: Limits,
    options: Options,
    devices: Vec<Device>,
    sequences: Sequences,
    /// Bytes of KV that a token takes on all devices together, for the figures.
    kv_per_token: u64,
    keeps_scores: bool,
    /// None: it answers.
    embedding: Option<Pooled>,
}

impl LlamaModel {
    pub(crate) fn new(
        context: Context,
        tokenizer: LlamaTokenizer,
        limits: Limits,
        header: &Header,
        options: Options,
        devices: Vec<Device>,
    ) -> LlamaModel {
        let shares = header.shares_cells(&options);
        let sequences = Sequences::new(limits.sequences_max, shares, context.model().window());
        let tokens = u64::from(limits.context_length) * u64::from(limits.sequences_max);
        LlamaModel {
            kv_per_token: limits.kv_bytes / tokens.max(1),
            keeps_scores: header.keeps_scores,
            embedding: header.embedding,
            context,
            tokenizer: Arc::new(tokenizer),
            limits,
            options,
            devices,
            sequences,
        }
    }
}

impl Kv for Context {
    fn remove(&mut self, sequence: u32, from: u32) -> bool {
        Context::remove(self, sequence, from)
    }

    fn share(&mut self, from: u32, to: u32, tokens: u32) {
        Context::share(self, from, to, tokens);
    }

    fn first_held(&self, sequence: u32) -> Option<u32> {
        Context::first_held(self, sequence)
    }
}

impl Model for LlamaModel {
    fn spec(&self) -> ModelSpec {
        ModelSpec {
            vocabulary_size: u32::try_from(self.context.vocabulary_size()).unwrap_or(u32::MAX),
            context_length: self.limits.context_length,
            sequences_max: self.limits.sequences_max,
            batch_tokens_max: self.limits.batch_tokens_max,
            end_tokens: self.tokenizer.end_tokens(),
        }
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::clone(&self.tokenizer) as Arc<dyn Tokenize>
    }

    fn prefill_gap(&self) -> Duration {
        self.options.prefill_gap
    }

    /// `reuse` comes behind it and does what there is to do.
    fn start(&mut self, _slot: Slot, _tokens_max: u32) -> Result<(), Status> {
        Ok(())
    }

    fn reuse(&mut self, slot: Slot, prompt: &[u32], salt: u64) -> u32 {
        // Of what is read whole nothing is gone on from.
        let whole = self.embedding.is_some_and(|pooled| pooled.whole);
        let prompt = if whole { &prompt[..1] } else { prompt };
        self.sequences.begin(slot, prompt, salt, &mut self.context)
    }

    fn end(&mut self, slot: Slot) {
        self.sequences.end(slot);
    }

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let LlamaModel { context, sequences, .. } = self;
        let mut decoded = context.decode(batch, |slot| sequences.of(slot), logits, progress);
        // What idle sequences hold is for whoever needs it.
        if matches!(decoded, Err(DecodeError::NoRoom)) && sequences.forget_idle(context) {
            decoded = context.decode(batch, |slot| sequences.of(slot), logits, progress);
        }
        match decoded {
            Ok(()) => {
                batch.rows().for_each(|row| sequences.read(row.slot, row.tokens));
                Ok(())
            }
            Err(error) => {
                // Part of the batch may be in the KV. All sequences end with this.
                context.clear();
                sequences.forget_all();
                Err(match error {
                    DecodeError::Ended(status) => status,
                    DecodeError::NoRoom => Status::new(
                        StatusCode::Internal,
                        reason::INTERNAL,
                        format!("llama.cpp has no cells for {} tokens more", batch.tokens().len()),
                    ),
                })
            }
        }
    }

    fn embeddings(&self) -> Option<EmbeddingSpec> {
        let size = self.context.model().embedding_size();
        self.embedding.map(|pooled| EmbeddingSpec { size, only: true, whole: pooled.whole })
    }

    fn embed(&mut self, slot: Slot, out: &mut [f32]) -> Result<(), Status> {
        self.context.embedding(self.sequences.of(slot), out)
    }

    fn memory(&self) -> MemoryUse {
        let details = serde_json::json!({
            "model": self.context.model().description(),
            "devices": self.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(),
            "kv_format": self.options.kv_format.as_str(),
            "mmap": self.options.mmap,
            "repack": self.options.repack,
            "flash_attention": !self.keeps_scores,
            "shared_kv": self.options.shared_kv,
            "cached_tokens": self.sequences.reused_tokens(),
        });
        let device = |total: &DeviceBytes| DeviceBytes { device: total.device.clone(), bytes: total.bytes };
        MemoryUse {
            // llama.cpp allocates everything when it loads.
            devices: self.limits.totals.iter().map(device).collect(),
            kv_bytes_used: self.sequences.tokens_running() * self.kv_per_token,
            kv_bytes_total: self.limits.kv_bytes,
            details_json: details.to_string(),
        }
    }
}
