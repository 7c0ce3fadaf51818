//! The engines found on this machine, and which of them runs a model.

mod choice;
mod manifest;
mod probe;
mod scan;

pub use choice::Choice;
pub use manifest::{EngineManifest, ManifestProblem};
pub use scan::scan;

use std::path::PathBuf;

use node_api::{DeviceInfo, EngineState, EngineSummary};

use crate::{NodeError, WorkerProgram};

/// The engines in these folders, each tried in a worker of its own: what a node offers, and what `doctor` shows.
pub async fn find(dirs: &[PathBuf], program: &WorkerProgram) -> Result<EngineRegistry, NodeError> {
    let dirs = dirs.to_vec();
    let registry = tokio::task::spawn_blocking(move || scan(&dirs)).await;
    let registry = registry.map_err(|e| NodeError::Looking { reason: e.to_string() })?;
    Ok(probe::probe(registry, program).await)
}

/// An engine that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    pub manifest: EngineManifest,
    /// Absolute path of the shared library.
    pub library: PathBuf,
    /// Of the library, lower-case hex.
    pub sha256: String,
}

impl Engine {
    /// For people and logs: `gpt-oss 0.1.0`.
    pub fn label(&self) -> String {
        format!("{} {}", self.manifest.id, self.manifest.version)
    }
}

/// A folder that holds an engine that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEngine {
    pub folder: PathBuf,
    /// What could be read of its manifest.
    pub manifest: Option<EngineManifest>,
    pub reason: String,
}

/// All that was found, good and bad.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineRegistry {
    pub engines: Vec<Engine>,
    pub refused: Vec<RefusedEngine>,
    /// Where was looked.
    pub dirs: Vec<PathBuf>,
}

impl EngineRegistry {
    /// `runtime/device kind` of everything that can run here: what decides which files of a model are fetched.
    pub fn runtimes(&self, devices: &[DeviceInfo]) -> Vec<String> {
        let mut runtimes: Vec<String> = Vec::new();
        for engine in &self.engines {
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

    /// As routers are told.
    pub fn summaries(&self) -> Vec<EngineSummary> {
        let available = self
            .engines
            .iter()
            .map(|engine| summary(&engine.manifest, engine.sha256.clone(), EngineState::Available));
        let refused = self.refused.iter().map(|refused| {
            let state = EngineState::Refused { reason: refused.reason.clone() };
            match &refused.manifest {
                Some(manifest) => summary(manifest, String::new(), state),
                None => {
                    let name = refused.folder.file_name().unwrap_or(refused.folder.as_os_str());
                    let id = name.to_string_lossy().into_owned();
                    summary(&EngineManifest { id, ..EngineManifest::default() }, String::new(), state)
                }
            }
        });
        available.chain(refused).collect()
    }
}

fn summary(manifest: &EngineManifest, sha256: String, state: EngineState) -> EngineSummary {
    EngineSummary {
        id: manifest.id.clone(),
        version: manifest.version.clone(),
        runtimes: manifest.runtimes.clone(),
        architectures: manifest.architectures.clone(),
        formats: manifest.formats.clone(),
        devices: manifest.devices.clone(),
        capabilities: manifest.capabilities.clone(),
        sha256,
        state,
    }
}

#[cfg(test)]
mod tests;
