//! What cargo knows about the workspace.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::shell;

#[derive(Debug, Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    pub workspace_members: Vec<String>,
    pub target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub name: String,
    /// `None` is a normal dependency; else `dev` or `build`.
    pub kind: Option<String>,
    /// Set for packages of this workspace.
    pub path: Option<PathBuf>,
}

impl Metadata {
    /// Without the packages of others.
    pub fn read() -> Result<Self> {
        let json = shell::output(shell::cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
        serde_json::from_str(&json).context("cargo metadata printed something else than its JSON")
    }

    /// The packages of this workspace, in name order.
    pub fn members(&self) -> Vec<&Package> {
        let mut members: Vec<_> =
            self.packages.iter().filter(|p| self.workspace_members.contains(&p.id)).collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members
    }
}
