//! An engine crate may forbid unsafe code and still export the symbol.
#![forbid(unsafe_code)]

use std::sync::Arc;

use engine_sdk::{
    Batch, Device, DeviceBytes, Engine, EngineInfo, Estimate, Logits, Model, ModelFiles, ModelSpec, Progress,
    Settings, Slot, Status, Tokenize, Tokenizer,
};

struct Nothing;

impl Engine for Nothing {
    type Model = NoModel;

    fn info() -> EngineInfo {
        EngineInfo { id: "nothing", version: "0.0.1" }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        Ok(Vec::new())
    }

    fn estimate(_: &ModelFiles, _: &Settings) -> Result<Estimate, Status> {
        Ok(Estimate::default())
    }

    fn load(
        _: &ModelFiles,
        _: &Settings,
        _: &[DeviceBytes],
        _: &mut Progress<'_>,
    ) -> Result<NoModel, Status> {
        Err(Status::unsupported("unsupported_model", "this engine runs nothing"))
    }
}

struct NoModel(Arc<Tokenizer>);

impl Model for NoModel {
    fn spec(&self) -> ModelSpec {
        ModelSpec {
            vocabulary_size: 1,
            context_length: 2,
            sequences_max: 1,
            batch_tokens_max: 1,
            end_tokens: Vec::new(),
        }
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::clone(&self.0) as Arc<dyn Tokenize>
    }

    fn start(&mut self, _: Slot, _: u32) -> Result<(), Status> {
        Ok(())
    }

    fn end(&mut self, _: Slot) {}

    fn forward(&mut self, _: &Batch, _: &mut Logits<'_>, _: &mut Progress<'_>) -> Result<(), Status> {
        Ok(())
    }
}

engine_sdk::export_engine!(Nothing);

#[test]
fn the_entry_gives_the_same_table_at_every_call() {
    let table = llmr_engine_entry();
    assert!(!table.is_null());
    assert_eq!(table, llmr_engine_entry());
}
