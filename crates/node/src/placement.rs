//! Which engine runs a model, and on which device: in an order, with the reason for each place.
//!
//! The order itself is pure ([`order`](mod@order)); what engines reached is kept in a file ([`scores`]) and comes from a
//! short sequence that a freshly loaded worker runs ([`measure`]).

pub mod measure;
pub mod order;
pub mod scores;

use model_manifest::Manifest;
use node_api::{Candidate, DeviceInfo, ModelSettings, Score};

use crate::engines::{Choice, EngineRegistry};
use crate::memory::Memory;
use order::{Known, Way, Wish};
use scores::Scores;

pub use scores::Measured;

/// One way to run a model, and why it is where it is in the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    pub choice: Choice,
    pub reason: String,
    /// Of this engine with this model on such a device, perhaps of an older version.
    pub score: Option<Score>,
    /// It failed its trial with this model: taken only where it is the only one.
    pub failed: bool,
}

impl Placed {
    /// As routers are told.
    pub fn candidate(&self) -> Candidate {
        Candidate {
            engine: self.choice.engine.manifest.id.clone(),
            engine_version: self.choice.engine.manifest.version.clone(),
            device: self.choice.device.id.clone(),
            reason: self.reason.clone(),
            score: self.score,
        }
    }
}

/// All ways to run a model here.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The best first, never empty.
    pub placed: Vec<Placed>,
    /// Positions in `placed`, in their order: engines to be measured before the first request is served, as another engine
    /// could run the model too. After each, ask for a plan again. Empty: nothing is to be measured.
    pub unmeasured: Vec<usize>,
}

/// Orders the ways to run a model here. Otherwise the reason why there is none, for the operator.
pub fn plan(
    registry: &EngineRegistry,
    manifest: &Manifest,
    settings: &ModelSettings,
    devices: &[DeviceInfo],
    memory: &Memory,
    scores: &Scores,
) -> Result<Plan, String> {
    let choices = registry.candidates(manifest, devices)?;
    let fingerprint = manifest.fingerprint();
    let way = |choice: &Choice| Way {
        engine: choice.engine.manifest.id.clone(),
        version: choice.engine.manifest.version.clone(),
        device: choice.device.id.clone(),
        kind: choice.device.kind.clone(),
        free: memory.free(&choice.device.id),
        failed: registry.failed_trial(&choice.engine, &manifest.id).map(|trial| trial.reason.clone()),
        known: measured(choice, &fingerprint, devices).and_then(|what| scores.find(&what)),
    };
    let ways: Vec<Way> = choices.iter().map(way).collect();
    let wish = Wish { engine: settings.engine.as_deref(), devices: &settings.devices };
    let ordered = order::order(&ways, &wish)?;
    let unmeasured = order::unmeasured(&ways, &ordered, &wish);
    let placed = ordered.into_iter().map(|ranked| Placed {
        choice: choices[ranked.way].clone(),
        reason: ranked.reason,
        score: ways[ranked.way].known.as_ref().map(Known::score),
        failed: ways[ranked.way].failed.is_some(),
    });
    Ok(Plan { placed: placed.collect(), unmeasured })
}

/// What a score is about: this build with this model on such a device. `None`: the device is not one of these.
pub fn measured(choice: &Choice, fingerprint: &str, devices: &[DeviceInfo]) -> Option<Measured> {
    let device = devices.iter().find(|device| device.id == choice.device.id)?;
    Some(Measured {
        engine: choice.engine.manifest.id.clone(),
        version: choice.engine.manifest.version.clone(),
        sha256: choice.engine.sha256.clone(),
        fingerprint: fingerprint.to_owned(),
        // Two of the same make are one: what is measured on one holds for the other.
        device: format!("{} {}", device.kind, device.name),
    })
}
