//! The node's handle on its engines: what is there now, and what an operator decided about it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_api::FailedTrial;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::disabled::Disabled;
use super::watcher::Watcher;
use super::{Engine, EngineRegistry};
use crate::{NodeError, WorkerProgram};

/// Why an operator's wish about an engine was not granted.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("there is no engine {asked} here; there are {known}")]
    Unknown { asked: String, known: String },
    #[error("which engines are disabled cannot be kept in {}", path.display())]
    Keep { path: PathBuf, source: std::io::Error },
    #[error("the engine folders could not be looked at: {0}")]
    Look(String),
}

/// Where engines are looked for, and where the node keeps what it knows of them.
#[derive(Debug, Clone)]
pub struct EnginesConfig {
    /// Earlier ones win.
    pub dirs: Vec<PathBuf>,
    /// The node's own: private copies of libraries, and what is disabled.
    pub data_dir: PathBuf,
    /// What tries an engine before it counts.
    pub program: WorkerProgram,
}

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Engines {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    current: watch::Sender<Arc<EngineRegistry>>,
    decided: Mutex<Decided>,
    /// Held through a look: one at a time.
    watcher: tokio::sync::Mutex<Watcher>,
}

/// What was decided about engines, whether they are there or not.
#[derive(Debug)]
struct Decided {
    disabled: Disabled,
    failed: Vec<(Version, FailedTrial)>,
}

/// One build of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub id: String,
    pub version: String,
    pub sha256: String,
}

/// Failed trials that are remembered; the oldest goes first.
const FAILED_TRIALS_MAX: usize = 256;

impl Version {
    pub fn of(engine: &Engine) -> Version {
        let (id, version) = (engine.manifest.id.clone(), engine.manifest.version.clone());
        Version { id, version, sha256: engine.sha256.clone() }
    }
}

impl Engines {
    /// Looks for engines and tries each. Call [`follow`](Self::follow) to keep looking.
    pub async fn start(config: EnginesConfig) -> Result<Engines, NodeError> {
        let disabled = Disabled::read(&config.data_dir)?;
        let engines = Engines {
            shared: Arc::new(Shared {
                current: watch::Sender::new(Arc::default()),
                decided: Mutex::new(Decided { disabled, failed: Vec::new() }),
                watcher: tokio::sync::Mutex::new(Watcher::new(config)?),
            }),
        };
        let mut watcher = engines.shared.watcher.lock().await;
        match watcher.look_first().await {
            Ok(found) => engines.publish(found),
            // It looks again and again; a node without engines says so to whoever asks it for a model.
            Err(error) => tracing::error!("the engine folders could not be looked at: {error}"),
        }
        drop(watcher);
        Ok(engines)
    }

    /// What is there now.
    pub fn current(&self) -> Arc<EngineRegistry> {
        self.shared.current.borrow().clone()
    }

    /// Told of every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<EngineRegistry>> {
        self.shared.current.subscribe()
    }

    /// Looks again now, as an operator asks: refused engines are tried again, and failed trials forgotten.
    pub async fn rescan(&self) -> Result<Arc<EngineRegistry>, EngineError> {
        let mut watcher = self.shared.watcher.lock().await;
        let found = watcher.look_again().await.map_err(EngineError::Look)?;
        self.decided().failed.clear();
        drop(watcher);
        self.publish(found);
        Ok(self.current())
    }

    /// Disables or enables an engine, all its versions or one, and remembers it.
    pub fn set_enabled(
        &self,
        engine: &str,
        version: Option<&str>,
        enabled: bool,
    ) -> Result<Arc<EngineRegistry>, EngineError> {
        let registry = self.current();
        let versions = registry.versions_of(engine);
        if versions.is_empty() || version.is_some_and(|wanted| !versions.iter().any(|v| v == wanted)) {
            let asked = version.map_or_else(|| engine.to_owned(), |version| format!("{engine} {version}"));
            let mut known: Vec<String> = registry.engines.iter().map(Engine::label).collect();
            known.sort();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(EngineError::Unknown { asked, known });
        }
        self.decided().disabled.set(engine, version, &versions, enabled)?;
        tracing::info!(engine_id = engine, version, enabled, "an operator decided about an engine");
        self.publish((*registry).clone());
        Ok(self.current())
    }

    /// A version that was to take a model over, and failed: it is not tried with that model again until its folder
    /// changes or an operator asks for another look.
    pub fn note_failed_trial(&self, engine: &Engine, model: &str, reason: &str) {
        let version = Version::of(engine);
        let trial =
            FailedTrial { model: model.to_owned(), reason: reason.to_owned(), at: crate::clock::unix_now() };
        let mut decided = self.decided();
        decided.failed.retain(|(v, t)| !(*v == version && t.model == model));
        if decided.failed.len() == FAILED_TRIALS_MAX {
            decided.failed.remove(0);
        }
        decided.failed.push((version, trial));
        drop(decided);
        self.publish((*self.current()).clone());
    }

    /// Looks at the folders every few seconds until `end`, and publishes what changed.
    pub async fn follow(self, end: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(super::watcher::LOOK_INTERVAL) => {}
                () = end.cancelled() => return,
            }
            let mut watcher = self.shared.watcher.lock().await;
            let found = tokio::select! {
                found = watcher.look_if_changed() => found,
                () = end.cancelled() => return,
            };
            drop(watcher);
            match found {
                Ok(Some(found)) => self.publish(found),
                Ok(None) => {}
                Err(error) => tracing::warn!("the engine folders could not be looked at: {error}"),
            }
        }
    }

    /// Adds what was decided to what was found. Subscribers are told only of a difference.
    fn publish(&self, mut found: EngineRegistry) {
        let mut decided = self.decided();
        // A trial counts for the build that failed it.
        let there: Vec<Version> = found.engines.iter().map(Version::of).collect();
        decided.failed.retain(|(version, _)| {
            there.contains(version)
                || !there.iter().any(|v| (&v.id, &v.version) == (&version.id, &version.version))
        });
        found.disabled = there
            .iter()
            .filter(|v| decided.disabled.contains(&v.id, &v.version))
            .map(|v| (v.id.clone(), v.version.clone()))
            .collect();
        found.failed_trials = decided.failed.clone();
        let found = Arc::new(found);
        self.shared.current.send_if_modified(|current| {
            let differs = **current != *found;
            if differs {
                *current = Arc::clone(&found);
            }
            differs
        });
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.shared.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
