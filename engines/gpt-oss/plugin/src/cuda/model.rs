//! A model that is loaded on a GPU: batches to spans, and tokens that the device has chosen.

use std::sync::Arc;

use engine_sdk::{
    Batch, Choice, DeviceBytes, Draw, KvLayout, Logits, MemoryUse, Model, ModelSpec, Progress, Sampling,
    Slot, Status, Tokenize, Tokenizer,
};
use gpt_oss_cuda::ops::embed::chosen;
use gpt_oss_cuda::ops::sample::chooses;
use gpt_oss_cuda::{CudaModel, DeviceError, Span};

use super::{layout, status};
use crate::tables::Tables;

/// gpt-oss on a GPU.
pub struct CudaGptOss {
    model: CudaModel,
    tokenizer: Arc<Tokenizer>,
    end_tokens: Vec<u32>,
    place: Place,
}

/// Where a model is.
#[derive(Debug)]
pub(crate) struct Place {
    /// Such as `cuda:0`.
    pub device: String,
    /// What the driver took there for itself; an estimate where it does not tell.
    pub driver_bytes: u64,
}

impl CudaGptOss {
    pub(super) fn new(
        model: CudaModel,
        tokenizer: Tokenizer,
        end_tokens: Vec<u32>,
        place: Place,
    ) -> CudaGptOss {
        CudaGptOss { model, tokenizer: Arc::new(tokenizer), end_tokens, place }
    }

    fn run(&mut self, batch: &Batch, draws: &[Draw<'_>]) -> Result<(), Status> {
        let tables = Tables::of(batch);
        let tables = tables.each(|first, blocks| (first, blocks));
        // Of each row that reads what the step before chooses, the token's name.
        let names: Vec<Option<[u32; 1]>> =
            batch.rows().map(|row| row.chosen_by.map(|draw| [chosen(draw)])).collect();
        let spans: Vec<Span<'_>> = batch
            .rows()
            .zip(tables)
            .zip(&names)
            .map(|((row, tables), name)| Span {
                position: row.position as usize,
                tokens: name.as_ref().map_or(row.tokens, |name| &name[..]),
                tables,
                wants_logits: row.wants_logits,
            })
            .collect();
        let launched = self.model.launch(&spans, draws, &self.end_tokens);
        launched.map_err(|error| self.failed(&error))
    }

    /// After a failure of the device nothing is under way.
    fn failed(&mut self, error: &DeviceError) -> Status {
        self.model.abandon();
        status(error)
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
        self.run(batch, &[])?;
        self.model.collect().map_err(|error| self.failed(&error))?;
        for row in 0..logits.rows() {
            self.logits(row, logits.row_mut(row))?;
        }
        Ok(())
    }

    fn launches(&self) -> bool {
        true
    }

    fn chooses_unaided(&self, sampling: &Sampling) -> bool {
        chooses(sampling, &self.end_tokens)
    }

    fn launch(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        _progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        self.run(batch, draws)
    }

    fn collect(
        &mut self,
        _progress: &mut Progress<'_>,
    ) -> Result<Vec<Option<Result<Choice, Status>>>, Status> {
        self.model.collect().map_err(|error| self.failed(&error))
    }

    fn logits(&mut self, draw: usize, logits: &mut [f32]) -> Result<(), Status> {
        self.model.logits(draw, logits).map_err(|error| self.failed(&error))
    }

    fn memory(&self) -> MemoryUse {
        let (needs, Place { device, driver_bytes }) = (self.model.needs(), &self.place);
        let details = serde_json::json!({
            "weights_bytes": needs.weights,
            "kv_bytes": needs.kv,
            "workspace_bytes": needs.workspace,
            "driver_bytes": driver_bytes,
            "kernels": gpt_oss_cuda::cuda::images().collect::<Vec<_>>(),
        });
        MemoryUse {
            devices: vec![DeviceBytes { device: device.clone(), bytes: needs.total() + driver_bytes }],
            details_json: details.to_string(),
            ..MemoryUse::default()
        }
    }
}
