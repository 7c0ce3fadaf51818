//! Optimized execution caches that a trusted publisher offers beside the weights.

use super::{Draft, Registration};
use crate::manifest::{FileRole, Source};
use crate::{ListedFile, SupportedArtifact};

/// Where publishers put them, what engines call them, and the device they are for. Of two for one name the first counts.
const BY_CONVENTION: [(&str, &str, &str); 4] = [
    ("metal/model.bin", "model.metal.bin", "metal"),
    ("model.metal.bin", "model.metal.bin", "metal"),
    ("model.directml.bin", "model.directml.bin", "directml"),
    ("model.dml.bin", "model.dml.bin", "directml"),
];

/// The artifacts of the model's repository and of those that the list of supported models names, as far as the
/// publisher is on the allowlist. Without a runtime that could use them there are none.
pub(super) fn find(registration: Registration<'_>, runtimes: &[String]) -> Vec<Draft> {
    let Registration { snapshot, rules, .. } = registration;
    let own = match &snapshot.source {
        Source::Hub { repo, .. } => repo.clone(),
        // A folder has no publisher; an operator who trusts theirs puts `local/*` on the list.
        Source::Local { .. } => "local/folder".to_owned(),
    };
    let mut found: Vec<Draft> = Vec::new();
    let mut add = |draft: Draft| {
        if !found.iter().any(|f| f.name == draft.name) {
            found.push(draft);
        }
    };
    if rules.allowlist.allows(&own) {
        for (path, name, device) in BY_CONVENTION {
            if let Some(file) = snapshot.file(path) {
                let runtimes: Vec<String> = runtimes.iter().map(|r| format!("{r}/{device}")).collect();
                add(draft(name, file, runtimes));
            }
        }
    }
    let listed = rules.supported.by_repository(&own).map(|m| m.artifacts.as_slice()).unwrap_or_default();
    for artifact in listed {
        if let Some(draft) = listed_artifact(registration, &own, artifact) {
            add(draft);
        }
    }
    found.retain(|draft| !draft.runtimes.is_empty());
    found
}

fn listed_artifact(registration: Registration<'_>, own: &str, artifact: &SupportedArtifact) -> Option<Draft> {
    let Registration { snapshot, rules, artifact_sources, .. } = registration;
    let repo = artifact.repository.as_deref().unwrap_or(own);
    if !rules.allowlist.allows(repo) {
        return None;
    }
    if repo.eq_ignore_ascii_case(own) {
        return Some(draft(&artifact.name, snapshot.file(&artifact.path)?, artifact.runtimes.clone()));
    }
    let source = artifact_sources.iter().find(|s| s.repo.repo.eq_ignore_ascii_case(repo))?;
    let file = source.files.iter().find(|f| f.path == artifact.path)?;
    let mut draft = draft(&artifact.name, file, artifact.runtimes.clone());
    draft.repo = Some(source.repo.clone());
    Some(draft)
}

fn draft(name: &str, file: &ListedFile, runtimes: Vec<String>) -> Draft {
    Draft {
        name: name.to_owned(),
        role: FileRole::Artifact,
        listed: file.clone(),
        repo: None,
        optional: true,
        runtimes,
    }
}
