//! Which engines could run a model here, the best first: kept up to date as engines come and go.

use std::sync::Arc;

use super::Entry;
use super::entry::{Files, Way};
use crate::engines::Choice;
use crate::node::Node;
use crate::placement::{self, Placed};

/// What changed for the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refreshed {
    /// They are what they have to be.
    Done,
    /// Other engines want other files: these have to be fetched first.
    Fetch,
    /// No engine here runs it, and why.
    Nothing(String),
}

/// Looks at the engines there are now. Called at every change of them, and of the model's settings.
pub(super) fn refresh(node: &Arc<Node>, entry: &Entry) -> Refreshed {
    match look(node, entry) {
        Err(reason) => {
            entry.change(node, |entry| {
                entry.ways.clear();
                entry.unmeasured.clear();
            });
            Refreshed::Nothing(reason)
        }
        Ok(found) => {
            let files = files(node, entry);
            let mut state = entry.lock();
            if state.files != Files::Here || state.fetched_for != files {
                // Until they are here what was chosen before goes on, and what was not is not loaded.
                return Refreshed::Fetch;
            }
            (state.ways, state.unmeasured) = found;
            drop(state);
            entry.tell(node);
            Refreshed::Done
        }
    }
}

/// The same once the files are here.
pub(super) fn adopt(node: &Arc<Node>, entry: &Entry, files: Vec<String>) {
    let found = look(node, entry).unwrap_or_default();
    entry.change(node, |entry| {
        entry.files = Files::Here;
        entry.fetched_for = files;
        (entry.ways, entry.unmeasured) = found;
    });
}

/// Names of the files that the engines here can use.
pub(super) fn files(node: &Node, entry: &Entry) -> Vec<String> {
    let runtimes = node.runtimes();
    let files = entry.desired.manifest.files.iter().filter(|file| file.is_for(&runtimes));
    files.map(|file| file.name.clone()).collect()
}

/// The ways in their order, and the engines to be measured first.
fn look(node: &Node, entry: &Entry) -> Result<(Vec<Way>, Vec<Choice>), String> {
    let (registry, settings) = (node.engines.current(), entry.settings());
    let manifest = &entry.desired.manifest;
    let plan = placement::plan(&registry, manifest, &settings, &node.devices, &node.memory, &node.scores)?;
    let way = |placed: &Placed| Way {
        candidate: placed.candidate(),
        choice: placed.choice.clone(),
        failed: placed.failed,
    };
    let unmeasured = plan.unmeasured.iter().map(|place| plan.placed[*place].choice.clone());
    Ok((plan.placed.iter().map(way).collect(), unmeasured.collect()))
}
