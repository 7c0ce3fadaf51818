//! The "model": which token has which logit, from the history of its sequence alone.

use std::sync::Arc;

use engine_sdk::{
    Batch, DeviceBytes, EmbeddingSpec, Logits, MemoryUse, Model, ModelSpec, Progress, Slot, Status, Tokenize,
};

use crate::KV_BYTES_PER_TOKEN;
use crate::pace::Pace;
use crate::tokens::{ByteTokens, END, SPACE, VOCABULARY};

const LOGIT_ECHO: f32 = 20.0;
const LOGIT_SPACE: f32 = 10.0;
/// Numbers of an embedding.
const EMBEDDING_SIZE: u32 = 8;

pub struct EchoModel {
    spec: ModelSpec,
    slots: Vec<History>,
    pace: Pace,
    device: String,
}

/// What a slot has seen.
#[derive(Default)]
struct History {
    tokens: Vec<u32>,
    /// Length of the prompt, known when its last chunk has come.
    prompt: Option<usize>,
}

impl EchoModel {
    pub fn new(
        device: &str,
        context_length: u32,
        sequences_max: u32,
        batch_tokens_max: u32,
        pace: Pace,
    ) -> EchoModel {
        EchoModel {
            spec: ModelSpec {
                vocabulary_size: VOCABULARY,
                context_length,
                sequences_max,
                batch_tokens_max,
                end_tokens: vec![END],
            },
            slots: (0..sequences_max).map(|_| History::default()).collect(),
            pace,
            device: device.to_owned(),
        }
    }
}

impl History {
    /// The token that follows: the prompt's next one, then the end.
    fn next(&mut self) -> u32 {
        let prompt = *self.prompt.get_or_insert(self.tokens.len());
        let produced = self.tokens.len() - prompt;
        self.tokens[..prompt].get(produced).copied().unwrap_or(END)
    }
}

impl Model for EchoModel {
    fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::new(ByteTokens)
    }

    fn start(&mut self, slot: Slot, _tokens_max: u32) -> Result<(), Status> {
        self.slots[slot.index()] = History::default();
        Ok(())
    }

    fn end(&mut self, slot: Slot) {
        self.slots[slot.index()] = History::default();
    }

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        self.pace.wait();
        let mut written = 0;
        for (done, row) in (0..).zip(batch.rows()) {
            progress.report(done, batch.len() as u64)?;
            let history = &mut self.slots[row.slot.index()];
            history.tokens.truncate(row.position as usize);
            history.tokens.extend_from_slice(row.tokens);
            if row.wants_logits {
                let out = logits.row_mut(written);
                out.fill(0.0);
                out[SPACE as usize] = LOGIT_SPACE;
                out[history.next() as usize] = LOGIT_ECHO;
                written += 1;
            }
        }
        Ok(())
    }

    fn embeddings(&self) -> Option<EmbeddingSpec> {
        Some(EmbeddingSpec { size: EMBEDDING_SIZE, only: false, whole: false })
    }

    fn embed(&mut self, slot: Slot, out: &mut [f32]) -> Result<(), Status> {
        out.fill(0.0);
        for token in &self.slots[slot.index()].tokens {
            out[(token % EMBEDDING_SIZE) as usize] += 1.0;
        }
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        let used = self.slots.iter().map(|s| s.tokens.len() as u64 * KV_BYTES_PER_TOKEN).sum();
        MemoryUse {
            devices: vec![DeviceBytes { device: self.device.clone(), bytes: used }],
            kv_bytes_used: used,
            kv_bytes_total: u64::from(self.spec.sequences_max)
                * u64::from(self.spec.context_length)
                * KV_BYTES_PER_TOKEN,
            details_json: String::new(),
        }
    }
}
