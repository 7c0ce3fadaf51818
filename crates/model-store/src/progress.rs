//! How far a model's files are, as one value that is replaced whenever it changes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Watchers are told of mere bytes at most this often.
const INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Looking at what is there.
    #[default]
    Waiting,
    Downloading,
    Verifying,
    Done,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    /// Bytes here and whole, of all files that are wanted.
    pub bytes_done: u64,
    pub bytes_total: u64,
    /// The files being worked on now.
    pub files: Vec<String>,
}

/// Adds up what the files of one model report.
pub(crate) struct Tracker<'a> {
    sender: &'a watch::Sender<Progress>,
    state: Mutex<State>,
}

struct State {
    files: BTreeMap<String, (Phase, u64)>,
    bytes_total: u64,
    told: Instant,
}

impl<'a> Tracker<'a> {
    pub fn new(
        sender: &'a watch::Sender<Progress>,
        files: impl IntoIterator<Item = (String, u64)>,
    ) -> Tracker<'a> {
        let mut bytes_total = 0;
        let files = files
            .into_iter()
            .map(|(name, size)| {
                bytes_total += size;
                (name, (Phase::Waiting, 0))
            })
            .collect();
        let tracker =
            Tracker { sender, state: Mutex::new(State { files, bytes_total, told: Instant::now() }) };
        tracker.tell();
        tracker
    }

    /// `bytes` of `file` are done in `phase`.
    pub fn set(&self, file: &str, phase: Phase, bytes: u64) {
        let changed = {
            let mut state = self.state.lock().expect("no holder of the lock can panic");
            let Some(entry) = state.files.get_mut(file) else { return };
            let changed = entry.0 != phase;
            *entry = (phase, bytes);
            let due = changed || state.told.elapsed() >= INTERVAL;
            if due {
                state.told = Instant::now();
            }
            due
        };
        if changed {
            self.tell();
        }
    }

    /// The file no longer counts: it is optional and failed.
    pub fn drop_file(&self, file: &str, size: u64) {
        {
            let mut state = self.state.lock().expect("no holder of the lock can panic");
            if state.files.remove(file).is_some() {
                state.bytes_total -= size;
            }
        }
        self.tell();
    }

    fn tell(&self) {
        let state = self.state.lock().expect("no holder of the lock can panic");
        let any = |phase| state.files.values().any(|(p, _)| *p == phase);
        let phase = if any(Phase::Downloading) {
            Phase::Downloading
        } else if any(Phase::Verifying) {
            Phase::Verifying
        } else if any(Phase::Waiting) {
            Phase::Waiting
        } else {
            Phase::Done
        };
        let active = |p: Phase| matches!(p, Phase::Downloading | Phase::Verifying);
        self.sender.send_replace(Progress {
            phase,
            bytes_done: state.files.values().map(|(_, bytes)| bytes).sum(),
            bytes_total: state.bytes_total,
            files: state
                .files
                .iter()
                .filter(|(_, (p, _))| active(*p))
                .map(|(name, _)| name.clone())
                .collect(),
        });
    }
}
