//! The engine plugins that a node on this machine would find.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Finding;

/// A manifest is a page of text; this stops the reading of something else.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// What a person wants to know of a manifest. The node checks all of it before it uses a plugin.
#[derive(Deserialize)]
struct Manifest {
    id: String,
    version: String,
    library: String,
    architectures: Vec<String>,
    devices: Vec<String>,
}

pub fn findings(dirs: &[PathBuf]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = dirs.iter().flat_map(|dir| in_dir(dir)).collect();
    if findings.is_empty() {
        let places: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
        findings.push(Finding::fail(
            "engines",
            format!("none in {}", places.join(" or ")),
            "put an engine's folder there, or name its place with --engines-dir; from sources: `cargo xtask build`",
        ));
    }
    findings
}

fn in_dir(dir: &Path) -> Vec<Finding> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders.iter().map(|folder| one(folder)).collect()
}

fn one(folder: &Path) -> Finding {
    let advice = "install the engine anew; the node passes this one over";
    let path = folder.join("manifest.json");
    let manifest: Manifest = match read(&path) {
        Ok(manifest) => manifest,
        Err(e) => return Finding::warn("engine", format!("{}: {e}", path.display()), advice),
    };
    let library = folder.join(&manifest.library);
    if !library.is_file() {
        let found = format!("{} {}: {} is missing", manifest.id, manifest.version, library.display());
        return Finding::warn("engine", found, advice);
    }
    Finding::ok(
        "engine",
        format!(
            "{} {}: {} on {}; {}",
            manifest.id,
            manifest.version,
            manifest.architectures.join(", "),
            manifest.devices.join(", "),
            folder.display()
        ),
    )
}

fn read(path: &Path) -> Result<Manifest, String> {
    let size = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    if size > MANIFEST_BYTES_MAX {
        return Err(format!("{size} bytes are no manifest"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    serde_json::from_str(&text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn no_engine_broken_engine_and_missing_library_are_told_apart() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let dirs = [dir.path().to_owned()];
        assert_eq!(findings(&dirs)[0].verdict, Verdict::Fail);
        let folder = dir.path().join("echo-1.0.0");
        std::fs::create_dir(&folder).expect("writable");
        assert!(findings(&dirs)[0].found.contains("manifest.json"));
        std::fs::write(folder.join("manifest.json"), "{").expect("writable");
        assert_eq!(findings(&dirs)[0].verdict, Verdict::Warn);
        let manifest =
            r#"{"id":"echo","version":"1.0.0","library":"lib","architectures":["echo"],"devices":["cpu"]}"#;
        std::fs::write(folder.join("manifest.json"), manifest).expect("writable");
        assert!(findings(&dirs)[0].found.contains("is missing"));
        std::fs::write(folder.join("lib"), "").expect("writable");
        assert_eq!(findings(&dirs)[0].verdict, Verdict::Ok);
    }
}
