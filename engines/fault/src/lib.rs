//! The engine that misbehaves on request, so that tests see the host survive it.
//!
//! Where no rule strikes it is a well-behaved engine: the answer is the prompt, `repeat` times, then the end. It is a
//! function of the prompt alone, so that every answer can be checked whole. A model is a folder with a `config.json`;
//! what stands under `fault` may also come as the model's options, which win:
//!
//! ```json
//! { "model_type": "fault", "max_position_embeddings": 4096,
//!   "fault": {
//!     "repeat": 3, "tokens_per_second": 50, "load_ms": 2000, "weights_bytes": 1000000,
//!     "faults": [
//!       { "at": "load", "do": { "exit": { "code": 3 } }, "times": { "file": "/tmp/state", "at_most": 1 } },
//!       { "at": "step", "do": "hang", "prompt": "poison", "token": 2 },
//!       { "at": "submit", "do": { "fail": { "code": 2, "reason": "kv_full", "message": "no room" } } }
//!     ] } }
//! ```
//!
//! What goes wrong before a model is known is asked for by the build metadata of the version: `0.1.0+hang-in-open`
//! (see `version.rs`). It computes on `cpu`, where it takes real memory, and on the host's simulated devices `sim:0`, …,
//! where it says that it does.

mod act;
mod config;
mod load;
mod memory;
mod model;
mod plan;
mod system;
mod table;
mod version;

// The tokenizer is echo's: bytes, and three control tokens.
#[path = "../../echo/src/tokens.rs"]
mod tokens;

use std::sync::Arc;

use engine_sdk::{Device, DeviceBytes, EngineInfo, Estimate, ModelFiles, Progress, Settings, Status};

use crate::config::Config;
use crate::model::FaultModel;
use crate::plan::Point;

pub use table::llmr_engine_entry;

pub struct Engine;

impl engine_sdk::Engine for Engine {
    type Model = FaultModel;

    fn info() -> EngineInfo {
        EngineInfo { id: "fault", version: version::version() }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        // Of simulated devices only the host knows.
        Ok(vec![Device {
            id: "cpu".to_owned(),
            kind: "cpu".to_owned(),
            name: "the processor".to_owned(),
            memory_total: 0,
            memory_free: 0,
        }])
    }

    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
        let config = Config::read(files, settings)?;
        let plan = config.plan();
        plan.strike(Point::Estimate, &[], None)?;
        Ok(load::estimate(&config, &plan))
    }

    fn load(
        files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &mut Progress<'_>,
    ) -> Result<FaultModel, Status> {
        let config = Config::read(files, settings)?;
        let plan = Arc::new(config.plan());
        table::remember(&plan);
        plan.strike(Point::Load, &[], Some(progress))?;
        load::load(config, plan, settings, budget, progress)
    }
}
