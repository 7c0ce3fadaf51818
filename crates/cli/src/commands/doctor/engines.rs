//! The engine plugins that a node on this machine would find, tried as the node tries them.

use std::path::PathBuf;

use anyhow::Result;
use node::WorkerProgram;
use node::engines::{Engine, RefusedEngine, find};

use super::Finding;

/// One finding an engine folder; none at all is a failure.
pub async fn findings(dirs: &[PathBuf], worker: &WorkerProgram) -> Result<Vec<Finding>> {
    let registry = find(dirs, worker).await?;
    let available = registry.engines.iter().map(available);
    let findings: Vec<Finding> = available.chain(registry.refused.iter().map(refused)).collect();
    if findings.is_empty() {
        let places: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
        return Ok(vec![Finding::fail(
            "engines",
            format!("none in {}", places.join(" or ")),
            "put an engine's folder there, or name its place with --engines-dir; from sources: `cargo xtask build`",
        )]);
    }
    Ok(findings)
}

fn available(engine: &Engine) -> Finding {
    let folder = &engine.folder;
    Finding::ok(
        "engine",
        format!(
            "{}: {} on {}; {}",
            engine.label(),
            engine.manifest.architectures.join(", "),
            engine.manifest.devices.join(", "),
            folder.display()
        ),
    )
}

fn refused(engine: &RefusedEngine) -> Finding {
    Finding::warn(
        "engine",
        format!("{}: {}", engine.folder.display(), engine.reason),
        "install the engine anew; the node passes this one over",
    )
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[tokio::test]
    async fn no_engine_and_a_broken_engine_are_told_apart() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let dirs = [dir.path().to_owned()];
        // Neither folder gets as far as a worker.
        let worker = WorkerProgram::of_product("no such program");
        let none = findings(&dirs, &worker).await.expect("the folder is looked into");
        assert_eq!(none[0].verdict, Verdict::Fail);
        let folder = dir.path().join("echo-1.0.0");
        std::fs::create_dir(&folder).expect("writable");
        std::fs::write(folder.join("manifest.json"), "{").expect("writable");
        let found = findings(&dirs, &worker).await.expect("the folder is looked into");
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Warn));
        assert!(found[0].found.contains("echo-1.0.0"), "{}", found[0].found);
    }
}
