//! Follows the engine folders: reads what is new, tries it, and says what is there.
//!
//! It looks every [`LOOK_INTERVAL`] instead of asking the system to be told: notifications do not come from network
//! folders, are lost when a folder is mounted over, and a look at a few dozen folders costs less than a millisecond. A
//! folder that changed is read when two looks in a row see the same of it, so that one half copied is not taken for an
//! engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::copy::Copies;
use super::handle::EnginesConfig;
use super::print::{Place, Print};
use super::probe::{self, Verdict};
use super::read::{self, Reading};
use super::{Engine, EngineRegistry, RefusedEngine};
use crate::NodeError;

pub const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// For a look at the folders, and for reading those that changed: a network folder may never answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The first pause before an engine that died or hung when it was tried is tried again; doubled up to the last.
const RETRY_MIN: Duration = Duration::from_secs(60);
const RETRY_MAX: Duration = Duration::from_secs(3600);
const COPIES: &str = "engine-copies";

#[derive(Debug)]
pub struct Watcher {
    config: EnginesConfig,
    copies: Arc<Mutex<Copies>>,
    known: BTreeMap<Place, Known>,
    /// Folders that changed, as the last look saw them.
    changing: BTreeMap<Place, Print>,
    /// Counts looks: of two equal engines the one that was there first stays.
    looks: u64,
}

#[derive(Debug)]
struct Known {
    print: Print,
    /// What is used from there. It stays while its folder holds something that is refused.
    engine: Option<Used>,
    refused: Option<RefusedEngine>,
    retry: Option<Retry>,
}

#[derive(Debug)]
struct Used {
    engine: Engine,
    since: u64,
}

#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Instant,
    pause: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eager {
    /// Folders that changed and keep still.
    No,
    /// All that changed, at once.
    Changed,
    /// Those that were refused too.
    Refused,
}

impl Watcher {
    pub fn new(config: EnginesConfig) -> Result<Watcher, NodeError> {
        let dir = config.data_dir.join(COPIES);
        let copies = Copies::open(dir.clone());
        let copies = copies.map_err(|source| NodeError::Io { what: "make the folder", path: dir, source })?;
        let copies = Arc::new(Mutex::new(copies));
        Ok(Watcher { config, copies, known: BTreeMap::new(), changing: BTreeMap::new(), looks: 0 })
    }

    pub async fn look_first(&mut self) -> Result<EngineRegistry, String> {
        self.look(Eager::Changed).await?;
        Ok(self.registry())
    }

    pub async fn look_again(&mut self) -> Result<EngineRegistry, String> {
        self.look(Eager::Refused).await?;
        Ok(self.registry())
    }

    /// `None`: nothing changed.
    pub async fn look_if_changed(&mut self) -> Result<Option<EngineRegistry>, String> {
        Ok(self.look(Eager::No).await?.then(|| self.registry()))
    }

    /// Whether anything is different now.
    async fn look(&mut self, eager: Eager) -> Result<bool, String> {
        self.looks += 1;
        let dirs = self.config.dirs.clone();
        let seen = off_the_loop(move || super::print::look(&dirs)).await?;
        let mut different = self.forget_gone(&seen);
        let now = Instant::now();
        let mut due = Vec::new();
        for (place, print) in seen {
            let known = self.known.get(&place);
            let same = known.is_some_and(|known| known.print == print);
            let again = known.is_some_and(|known| match known.retry {
                Some(retry) if now >= retry.at => true,
                _ => eager == Eager::Refused && known.refused.is_some(),
            });
            let still = self.changing.get(&place) == Some(&print);
            if again || (!same && (still || eager != Eager::No)) {
                self.changing.remove(&place);
                due.push((place, print));
            } else if same {
                self.changing.remove(&place);
            } else {
                self.changing.insert(place, print);
            }
        }
        different |= !due.is_empty();
        if !due.is_empty() {
            self.read(due).await?;
        }
        Ok(different)
    }

    fn forget_gone(&mut self, seen: &[(Place, Print)]) -> bool {
        let before = self.known.len();
        self.known.retain(|place, known| {
            let stays = seen.iter().any(|(there, _)| there == place);
            if !stays && let Some(used) = &known.engine {
                used.engine.retire(true);
                tracing::info!(
                    engine_id = used.engine.manifest.id,
                    engine_version = used.engine.manifest.version,
                    "the engine's folder is gone; it gets no new workers"
                );
            }
            stays
        });
        self.changing.retain(|place, _| seen.iter().any(|(there, _)| there == place));
        self.known.len() != before
    }

    async fn read(&mut self, due: Vec<(Place, Print)>) -> Result<(), String> {
        let copies = Arc::clone(&self.copies);
        let readings = off_the_loop(move || {
            let mut copies = copies.lock().unwrap_or_else(PoisonError::into_inner);
            due.into_iter()
                .map(|(place, print)| {
                    let reading = read::read(&place, &mut copies);
                    (place, print, reading)
                })
                .collect::<Vec<_>>()
        })
        .await?;
        let mut to_try = Vec::new();
        let mut others = Vec::new();
        for (place, print, reading) in readings {
            match reading {
                Reading::Refused(refused) => others.push((place, print, Err(*refused))),
                Reading::Engine(engine) => match self.used(&place) {
                    Some(used) if used.is_same_build(&engine) => others.push((place, print, Ok(*engine))),
                    Some(used) if used.same_name(&engine) => {
                        engine.retire(true);
                        let refused = changed_in_place(used, *engine);
                        others.push((place, print, Err(refused)));
                    }
                    _ => to_try.push((place, print, *engine)),
                },
            }
        }
        for (place, print, outcome) in others {
            match outcome {
                Ok(engine) => self.take(place, print, engine),
                Err(refused) => self.refuse(place, print, refused, None),
            }
        }
        let engines: Vec<Engine> = to_try.iter().map(|(.., engine)| engine.clone()).collect();
        let verdicts = probe::probe(&engines, &self.config.program).await;
        for ((place, print, engine), verdict) in to_try.into_iter().zip(verdicts) {
            let (reason, passes) = match verdict {
                Verdict::Good => {
                    self.take(place, print, engine);
                    continue;
                }
                Verdict::Refused(reason) => (reason, false),
                Verdict::Died(reason) => (reason, true),
            };
            engine.retire(true);
            let pause = self.known.get(&place).and_then(|known| known.retry).map(|retry| retry.pause * 2);
            let pause = pause.unwrap_or(RETRY_MIN).min(RETRY_MAX);
            let retry = passes.then(|| Retry { at: Instant::now() + pause, pause });
            let refused = RefusedEngine {
                folder: place.folder.clone(),
                manifest: Some(engine.manifest.clone()),
                sha256: engine.sha256.clone(),
                reason,
            };
            self.refuse(place, print, refused, retry);
        }
        Ok(())
    }

    fn used(&self, place: &Place) -> Option<&Engine> {
        self.known.get(place)?.engine.as_ref().map(|used| &used.engine)
    }

    fn take(&mut self, place: Place, print: Print, engine: Engine) {
        let before = self.known.remove(&place).and_then(|known| known.engine);
        let same_build = before.as_ref().is_some_and(|used| used.engine.is_same_build(&engine));
        if !same_build {
            if let Some(used) = &before {
                used.engine.retire(true);
            }
            tracing::info!(
                engine_id = engine.manifest.id,
                engine_version = engine.manifest.version,
                sha256 = engine.sha256,
                folder = %place.folder.display(),
                "an engine is found"
            );
        }
        engine.retire(false);
        let since = before.filter(|_| same_build).map_or(self.looks, |used| used.since);
        let known = Known { print, engine: Some(Used { engine, since }), refused: None, retry: None };
        self.known.insert(place, known);
    }

    fn refuse(&mut self, place: Place, print: Print, refused: RefusedEngine, retry: Option<Retry>) {
        let reason = &refused.reason;
        let before = self.known.remove(&place);
        if before.as_ref().and_then(|known| known.refused.as_ref()).is_none_or(|r| r.reason != *reason) {
            tracing::warn!(folder = %refused.folder.display(), reason, "an engine is refused");
        }
        // What was there under the same name stays in use; another name says that it was replaced.
        let engine = before.and_then(|known| known.engine).filter(|used| {
            let stays = refused.manifest.as_ref().is_none_or(|manifest| {
                (&manifest.id, &manifest.version) == (&used.engine.manifest.id, &used.engine.manifest.version)
            });
            used.engine.retire(!stays);
            stays
        });
        self.known.insert(place, Known { print, engine, refused: Some(refused), retry });
    }

    /// Of the same engine and version in two folders the one that was there first counts, then the one that comes first.
    fn registry(&self) -> EngineRegistry {
        let mut registry = EngineRegistry { dirs: self.config.dirs.clone(), ..EngineRegistry::default() };
        for (place, known) in &self.known {
            if let Some(used) = &known.engine {
                let rivals =
                    self.known.iter().filter_map(|(place, known)| Some((place, known.engine.as_ref()?)));
                let first = rivals
                    .filter(|(_, other)| other.engine.same_name(&used.engine))
                    .min_by_key(|(place, other)| (other.since, (*place).clone()));
                match first {
                    Some((first, _)) if first != place => registry.refused.push(RefusedEngine {
                        folder: place.folder.clone(),
                        manifest: Some(used.engine.manifest.clone()),
                        sha256: used.engine.sha256.clone(),
                        reason: format!(
                            "the same engine and version is used from {}; remove one, or give this one a new version",
                            first.folder.display()
                        ),
                    }),
                    _ => registry.engines.push(used.engine.clone()),
                }
            }
            registry.refused.extend(known.refused.clone());
        }
        registry
    }
}

fn changed_in_place(used: &Engine, engine: Engine) -> RefusedEngine {
    RefusedEngine {
        reason: format!(
            "{} was changed in place: its library was {} and is {} now; what was there before goes on. Give the new \
             one a new version and a folder of its own",
            engine.label(),
            short(&used.sha256),
            short(&engine.sha256)
        ),
        folder: engine.folder.clone(),
        sha256: engine.sha256.clone(),
        manifest: Some(engine.manifest),
    }
}

fn short(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

async fn off_the_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let secs = READ_TIMEOUT.as_secs();
    match timeout(READ_TIMEOUT, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.map_err(|e| e.to_string()),
        Err(_) => Err(format!("they did not answer within {secs} s; is a network folder among them?")),
    }
}

/// The directories it looks into, for messages.
pub fn names(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ")
}
