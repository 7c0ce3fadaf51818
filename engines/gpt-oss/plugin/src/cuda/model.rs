//! A model that is loaded on a GPU: batches to spans, and tokens that the device has chosen.

use std::sync::Arc;

use engine_sdk::{
    Batch, Choice, DeviceBytes, Draw, KvLayout, Logits, MemoryUse, Model, ModelSpec, Progress, Sampler, Slot,
    Status, Tokenize, Tokenizer,
};
use gpt_oss_cuda::{CudaModel, Span};

use super::{DRIVER_BYTES, layout, status};
use crate::tables::Tables;

/// gpt-oss on a GPU.
pub struct CudaGptOss {
    model: CudaModel,
    tokenizer: Arc<Tokenizer>,
    end_tokens: Vec<u32>,
    /// Such as `cuda:0`.
    device: String,
}

impl CudaGptOss {
    pub(super) fn new(
        model: CudaModel,
        tokenizer: Tokenizer,
        end_tokens: Vec<u32>,
        device: String,
    ) -> CudaGptOss {
        CudaGptOss { model, tokenizer: Arc::new(tokenizer), end_tokens, device }
    }

    fn run(&mut self, batch: &Batch) -> Result<(), Status> {
        let tables = Tables::of(batch);
        let tables = tables.each(|first, blocks| (first, blocks));
        let spans: Vec<Span<'_>> = batch
            .rows()
            .zip(tables)
            .map(|(row, tables)| Span {
                position: row.position as usize,
                tokens: row.tokens,
                tables,
                wants_logits: row.wants_logits,
            })
            .collect();
        self.model.forward(&spans).map_err(|error| status(&error))
    }
}

impl Model for CudaGptOss {
    fn spec(&self) -> ModelSpec {
        let bounds = self.model.bounds();
        ModelSpec {
            vocabulary_size: self.model.config().vocabulary as u32,
            context_length: bounds.context_length as u32,
            sequences_max: bounds.sequences_max as u32,
            batch_tokens_max: bounds.batch_tokens_max as u32,
            end_tokens: self.end_tokens.clone(),
        }
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::clone(&self.tokenizer) as Arc<dyn Tokenize>
    }

    fn kv(&self) -> Option<KvLayout> {
        Some(layout(self.model.config(), self.model.bounds().blocks as u64))
    }

    fn start(&mut self, _slot: Slot, _tokens_max: u32) -> Result<(), Status> {
        Ok(())
    }

    fn end(&mut self, _slot: Slot) {}

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        _progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        self.run(batch)?;
        for row in 0..logits.rows() {
            self.model.logits(row, logits.row_mut(row)).map_err(|error| status(&error))?;
        }
        Ok(())
    }

    fn chooses(&self) -> bool {
        true
    }

    fn forward_and_choose(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        sampler: &mut Sampler,
        _progress: &mut Progress<'_>,
    ) -> Result<Vec<Result<Choice, Status>>, Status> {
        self.run(batch)?;
        if draws.is_empty() {
            return Ok(Vec::new());
        }
        let chosen = self.model.sample(draws, &self.end_tokens).map_err(|error| status(&error))?;
        let mut logits = Vec::new();
        let mut choices = Vec::with_capacity(draws.len());
        for (row, (choice, draw)) in chosen.into_iter().zip(draws).enumerate() {
            choices.push(match choice {
                Some(choice) => choice,
                None => {
                    logits.resize(self.model.config().vocabulary, 0.0);
                    self.model.logits(row, &mut logits).map_err(|error| status(&error))?;
                    sampler.choose_for(&mut logits, draw)
                }
            });
        }
        Ok(choices)
    }

    fn memory(&self) -> MemoryUse {
        let needs = self.model.needs();
        let details = serde_json::json!({
            "weights_bytes": needs.weights,
            "kv_bytes": needs.kv,
            "workspace_bytes": needs.workspace,
            "kernels": gpt_oss_cuda::cuda::images().collect::<Vec<_>>(),
        });
        MemoryUse {
            devices: vec![DeviceBytes { device: self.device.clone(), bytes: needs.total() + DRIVER_BYTES }],
            details_json: details.to_string(),
            ..MemoryUse::default()
        }
    }
}
