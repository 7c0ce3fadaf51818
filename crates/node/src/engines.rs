//! The engines found on this machine, and which of them runs a model.

mod choice;
mod copy;
mod disabled;
mod handle;
mod manifest;
mod print;
mod probe;
mod read;
mod trust;
mod watcher;

pub use choice::{Choice, DeviceChosen};
pub use handle::{EngineError, Engines, EnginesConfig, Version};
pub use manifest::{EngineManifest, ManifestProblem};

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use node_api::{DeviceInfo, EngineState, EngineSummary, FailedTrial};

use crate::{NodeError, WorkerProgram};

/// The engines in these folders, each tried in a worker of its own, as a node would find them: for `doctor`. Keeps nothing.
pub async fn find(dirs: &[PathBuf], program: &WorkerProgram) -> Result<EngineRegistry, NodeError> {
    let scratch = tempfile::tempdir().map_err(|e| NodeError::Looking { reason: e.to_string() })?;
    let (dirs, data_dir) = (dirs.to_vec(), scratch.path().to_owned());
    let engines = Engines::start(EnginesConfig { dirs, data_dir, program: program.clone() }).await?;
    Ok((*engines.current()).clone())
}

/// An engine that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    pub manifest: EngineManifest,
    /// Where it was found.
    pub folder: PathBuf,
    /// Absolute path of the shared library that workers open: in the node's own copy.
    pub library: PathBuf,
    /// Of the library, lower-case hex.
    pub sha256: String,
    /// Of names and hashes of all its files.
    content: String,
    /// Kept as long as somebody may open the library.
    copy: Option<Arc<copy::Copy>>,
}

impl Engine {
    /// For people and logs: `gpt-oss 0.1.0`.
    pub fn label(&self) -> String {
        format!("{} {}", self.manifest.id, self.manifest.version)
    }

    pub fn same_name(&self, other: &Engine) -> bool {
        (&self.manifest.id, &self.manifest.version) == (&other.manifest.id, &other.manifest.version)
    }

    /// The same engine, version and files.
    pub fn is_same_build(&self, other: &Engine) -> bool {
        self.same_name(other) && self.content == other.content
    }

    /// Whether its copy goes with its last holder.
    fn retire(&self, retired: bool) {
        if let Some(copy) = &self.copy {
            copy.retire(retired);
        }
    }
}

/// A folder that holds an engine that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEngine {
    pub folder: PathBuf,
    /// What could be read of its manifest.
    pub manifest: Option<EngineManifest>,
    /// Of its library, where it was read.
    pub sha256: String,
    pub reason: String,
}

/// All that was found, good and bad, and what was decided about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineRegistry {
    pub engines: Vec<Engine>,
    pub refused: Vec<RefusedEngine>,
    /// Where was looked.
    pub dirs: Vec<PathBuf>,
    /// (id, version) of those an operator disabled.
    disabled: BTreeSet<(String, String)>,
    failed_trials: Vec<(Version, FailedTrial)>,
}

impl EngineRegistry {
    /// `runtime/device kind` of everything that can run here: what decides which files of a model are fetched.
    pub fn runtimes(&self, devices: &[DeviceInfo]) -> Vec<String> {
        let mut runtimes: Vec<String> = Vec::new();
        for engine in self.engines.iter().filter(|engine| self.is_enabled(engine)) {
            for runtime in &engine.manifest.runtimes {
                let kinds =
                    engine.manifest.devices.iter().filter(|kind| devices.iter().any(|d| d.kind == **kind));
                runtimes.extend(kinds.map(|kind| format!("{runtime}/{kind}")));
            }
        }
        runtimes.sort();
        runtimes.dedup();
        runtimes
    }

    /// Whether some engine can use devices of this kind.
    pub fn uses(&self, kind: &str) -> bool {
        self.engines.iter().any(|engine| engine.manifest.devices.iter().any(|k| k == kind))
    }

    /// Not disabled by an operator.
    pub fn is_enabled(&self, engine: &Engine) -> bool {
        !self.disabled.contains(&(engine.manifest.id.clone(), engine.manifest.version.clone()))
    }

    /// The failed trial of this build with this model, if there was one since its folder last changed.
    pub fn failed_trial(&self, engine: &Engine, model: &str) -> Option<&FailedTrial> {
        let version = Version::of(engine);
        self.failed_trials.iter().find(|(v, trial)| *v == version && trial.model == model).map(|(_, t)| t)
    }

    /// Versions of an engine that are there, refused ones too.
    pub fn versions_of(&self, id: &str) -> Vec<String> {
        let refused = self.refused.iter().filter_map(|refused| refused.manifest.as_ref());
        let all = self.engines.iter().map(|engine| &engine.manifest).chain(refused);
        all.filter(|manifest| manifest.id == id).map(|manifest| manifest.version.clone()).collect()
    }

    /// As routers are told.
    pub fn summaries(&self) -> Vec<EngineSummary> {
        let found = self.engines.iter().map(|engine| {
            let state = if self.is_enabled(engine) { EngineState::Available } else { EngineState::Disabled };
            let version = Version::of(engine);
            let failed = self.failed_trials.iter().filter(|(v, _)| *v == version);
            EngineSummary {
                failed_trials: failed.map(|(_, trial)| trial.clone()).collect(),
                ..summary(&engine.manifest, engine.sha256.clone(), state)
            }
        });
        let refused = self.refused.iter().map(|refused| {
            let state = EngineState::Refused { reason: refused.reason.clone() };
            match &refused.manifest {
                Some(manifest) => summary(manifest, refused.sha256.clone(), state),
                None => {
                    let name = refused.folder.file_name().unwrap_or(refused.folder.as_os_str());
                    let id = name.to_string_lossy().into_owned();
                    summary(&EngineManifest { id, ..EngineManifest::default() }, String::new(), state)
                }
            }
        });
        found.chain(refused).collect()
    }
}

fn summary(manifest: &EngineManifest, sha256: String, state: EngineState) -> EngineSummary {
    EngineSummary {
        id: manifest.id.clone(),
        version: manifest.version.clone(),
        abi_version: manifest.abi_version.clone(),
        runtimes: manifest.runtimes.clone(),
        architectures: manifest.architectures.clone(),
        formats: manifest.formats.clone(),
        devices: manifest.devices.clone(),
        capabilities: manifest.capabilities.clone(),
        sha256,
        state,
        failed_trials: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
