//! A model that is loaded on an adapter: batches to spans.

use std::sync::Arc;

use engine_sdk::{
    Batch, Choice, DeviceBytes, Draw, KvLayout, Logits, MemoryUse, Model, ModelSpec, Progress, Row, Sampling,
    Slot, Status, Tokenize, Tokenizer,
};
use gpt_oss_wgpu::ops::sample::chooses;
use gpt_oss_wgpu::{Needs, Span, Table, WgpuModel};

use super::{ended, layout, status};
use crate::tables::Tables;

/// gpt-oss on Metal, Vulkan or Direct3D 12.
pub struct WgpuGptOss {
    model: WgpuModel,
    tokenizer: Arc<Tokenizer>,
    end_tokens: Vec<u32>,
    /// Which form of the weights runs, and why.
    runs: String,
    /// Tokens that the SDK chose, from a row's logits.
    chosen_by_host: u64,
}

impl WgpuGptOss {
    pub(super) fn new(
        model: WgpuModel,
        tokenizer: Tokenizer,
        end_tokens: Vec<u32>,
        runs: String,
    ) -> WgpuGptOss {
        WgpuGptOss { model, tokenizer: Arc::new(tokenizer), end_tokens, runs, chosen_by_host: 0 }
    }
}

fn spans<'a>(batch: &'a Batch, tables: &'a [Vec<Table<'a>>]) -> Vec<Span<'a>> {
    let span = |(row, tables): (Row<'a>, &'a Vec<Table<'a>>)| Span {
        position: row.position as usize,
        tokens: row.tokens,
        tables,
        wants_logits: row.wants_logits,
        chosen_by: row.chosen_by,
    };
    batch.rows().zip(tables).map(span).collect()
}

impl Model for WgpuGptOss {
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
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let tables = Tables::of(batch);
        let tables = tables.each(|first, blocks| Table { first, blocks });
        let report = |done, total| progress.report(done, total);
        self.model.forward(&spans(batch, &tables), logits.as_mut_slice(), report).map_err(ended)
    }

    fn launches(&self) -> bool {
        true
    }

    fn chooses_unaided(&self, sampling: &Sampling) -> bool {
        chooses(sampling, self.model.bounds().sequences_max)
    }

    fn launch(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let tables = Tables::of(batch);
        let tables = tables.each(|first, blocks| Table { first, blocks });
        let report = |done, total| progress.report(done, total);
        self.model.launch(&spans(batch, &tables), draws, &self.end_tokens, report).map_err(ended)
    }

    fn collect(
        &mut self,
        _progress: &mut Progress<'_>,
    ) -> Result<Vec<Option<Result<Choice, Status>>>, Status> {
        self.model.collect().map_err(|error| status(&error))
    }

    fn logits(&mut self, draw: usize, logits: &mut [f32]) -> Result<(), Status> {
        self.chosen_by_host += 1;
        self.model.logits(draw, logits).map_err(|error| status(&error))
    }

    fn memory(&self) -> MemoryUse {
        let needs = Needs::of(self.model.config(), self.model.bounds());
        let adapter = self.model.gpu().adapter();
        let details = serde_json::json!({
            "runs": self.runs,
            "adapter": adapter.name,
            "driver": adapter.driver,
            "kernels": adapter.form.as_str(),
            "weights_bytes": needs.weights,
            "kv_bytes": needs.kv,
            "workspace_bytes": needs.workspace,
            "encode_microseconds": self.model.encoding().total().as_micros() as u64,
            "chosen_by_host": self.chosen_by_host,
            "launches_of_last_step": self.model.dispatches(),
        });
        MemoryUse {
            devices: vec![DeviceBytes { device: adapter.id.clone(), bytes: self.model.gpu().used() }],
            details_json: details.to_string(),
            ..MemoryUse::default()
        }
    }
}
