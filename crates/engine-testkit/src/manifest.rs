//! `manifest.json` of an engine folder, as far as tests need it; `include/engine/manifest.schema.json` is the whole.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    pub id: String,
    pub version: String,
    pub library: String,
    pub runtimes: Vec<String>,
    pub devices: Vec<String>,
    #[serde(default)]
    pub capabilities: Vec<String>,
}

impl Manifest {
    pub fn read(engine_dir: &Path) -> Result<Manifest> {
        let path = engine_dir.join("manifest.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot understand {}", path.display()))
    }

    /// Absolute path of the shared library.
    pub fn library_path(&self, engine_dir: &Path) -> Result<PathBuf> {
        let path = std::path::absolute(engine_dir.join(&self.library))?;
        anyhow::ensure!(
            path.is_file(),
            "{} names the library {}, which is not there",
            engine_dir.display(),
            self.library
        );
        Ok(path)
    }
}
