//! What engines reached with models, kept in the node's data folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_api::Score;
use serde::{Deserialize, Serialize};

use super::order::Known;

/// Scores kept; the oldest goes first. A node has a few engines, and at most 1024 models.
pub const SCORES_MAX: usize = 4096;
/// Bytes of the file at most: four times what so many scores take.
const FILE_BYTES_MAX: u64 = 8 << 20;
const FILE: &str = "scores.json";

/// What a score is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Measured {
    pub engine: String,
    pub version: String,
    /// Of the library, lower-case hex.
    pub sha256: String,
    /// Of the model's manifest.
    pub fingerprint: String,
    /// Kind and name.
    pub device: String,
}

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Scores {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    known: Mutex<BTreeMap<Measured, Score>>,
    /// Held while the file is written: the later state is written later.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    what: Measured,
    #[serde(flatten)]
    score: Score,
}

impl Scores {
    /// Reads what is kept. A file that cannot be read is said and put aside: engines are then measured again.
    pub fn open(data_dir: &Path) -> Scores {
        let path = data_dir.join(FILE);
        let known = read(&path).unwrap_or_else(|reason| {
            let aside = path.with_extension("json.unreadable");
            let kept = std::fs::rename(&path, &aside);
            tracing::warn!(
                path = %path.display(),
                reason,
                aside = kept.is_ok().then(|| aside.display().to_string()),
                "the measured scores cannot be read; engines are measured again"
            );
            BTreeMap::new()
        });
        Scores {
            shared: Arc::new(Shared {
                path,
                known: Mutex::new(known),
                writing: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Of this build, or the last one of another build of the engine with the same model and device.
    pub fn find(&self, what: &Measured) -> Option<Known> {
        let known = self.known();
        if let Some(score) = known.get(what) {
            return Some(Known::Own(*score));
        }
        let same = |other: &Measured| {
            (&other.engine, &other.fingerprint, &other.device)
                == (&what.engine, &what.fingerprint, &what.device)
        };
        let others = known.iter().filter(|(other, _)| same(other));
        let (other, score) = others.max_by_key(|(_, score)| score.measured_at)?;
        Some(Known::Other { version: other.version.clone(), score: *score })
    }

    /// Remembers a score and writes the file. A file that cannot be written is said in the log: the score counts until
    /// the node ends.
    pub async fn note(&self, what: Measured, score: Score) {
        {
            let mut known = self.known();
            known.insert(what, score);
            while known.len() > SCORES_MAX {
                let oldest =
                    known.iter().min_by_key(|(_, score)| score.measured_at).map(|(what, _)| what.clone());
                oldest.map(|what| known.remove(&what));
            }
        }
        let _turn = self.shared.writing.lock().await;
        let lines: Vec<Line> =
            self.known().iter().map(|(what, score)| Line { what: what.clone(), score: *score }).collect();
        let path = self.shared.path.clone();
        let written = tokio::task::spawn_blocking(move || write(&path, &lines)).await;
        if let Err(reason) =
            written.map_err(|e| e.to_string()).and_then(|done| done.map_err(|e| e.to_string()))
        {
            tracing::warn!(path = %self.shared.path.display(), reason, "the measured scores cannot be kept");
        }
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn known(&self) -> MutexGuard<'_, BTreeMap<Measured, Score>> {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<BTreeMap<Measured, Score>, String> {
    let bytes = match std::fs::metadata(path) {
        Ok(meta) if meta.len() > FILE_BYTES_MAX => {
            return Err(format!("it has {} bytes, at most {FILE_BYTES_MAX} are read", meta.len()));
        }
        Ok(_) => std::fs::read(path).map_err(|e| e.to_string())?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(e.to_string()),
    };
    let lines: Vec<Line> = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    if lines.len() > SCORES_MAX {
        return Err(format!("it holds {} scores, at most {SCORES_MAX} are kept", lines.len()));
    }
    Ok(lines.into_iter().map(|line| (line.what, line.score)).collect())
}

/// A new file in the old one's place, so that an end in between leaves one of the two whole.
fn write(path: &Path, lines: &[Line]) -> std::io::Result<()> {
    let new = path.with_extension("json.new");
    std::fs::write(&new, serde_json::to_vec_pretty(lines).map_err(std::io::Error::other)?)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests;
