//! Packages of a Debian other than this machine's, unpacked below `build/` and never installed.
//!
//! Everything of apt's that is written lies under `build/apt`, so that this machine's own sources stay as they are and no root
//! is needed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// An apt whose sources, lists and downloads lie in `build/apt/SUITE`.
pub struct Suite {
    dir: PathBuf,
}

impl Suite {
    /// Fetches the suite's lists.
    ///
    /// # Errors
    /// This machine has no apt with Debian's packages, or the address does not answer.
    pub fn open(name: &str) -> Result<Suite> {
        // The address this machine's own apt uses for Debian, so that a mirror or proxy set up there serves here too.
        let targets = shell::output(shell::command("apt-get").args([
            "indextargets",
            "--format",
            "$(ORIGIN) $(LABEL) $(REPO_URI)",
        ]))?;
        let address = targets
            .lines()
            .find_map(|line| line.strip_prefix("Debian Debian "))
            .context("apt here has no Debian source")?;
        let dir = shell::build_dir().join("apt").join(name);
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = dir.join(folder);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let source = format!("deb [signed-by={keys}] {address} {name} main\n");
        let list = dir.join("sources.list");
        std::fs::write(&list, source).with_context(|| format!("cannot write {}", list.display()))?;
        let suite = Suite { dir };
        suite.run("apt-get", &["-qq", "update"])?;
        Ok(suite)
    }

    /// The versions that the suite has of a package, the newest first.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let listed = self.run("apt-cache", &["madison", package])?;
        let version = |line: &str| line.split('|').nth(1).map(|version| version.trim().to_owned());
        Ok(listed.lines().filter_map(version).collect())
    }

    /// Fetches a package and unpacks it into a folder that is not there yet.
    pub fn unpack(&self, package: &str, version: &str, into: &Path) -> Result<()> {
        // What an earlier one left, cut off before it was unpacked.
        for left in self.packages()? {
            std::fs::remove_file(&left).with_context(|| format!("cannot remove {}", left.display()))?;
        }
        self.run("apt-get", &["-qq", "download", &format!("{package}={version}")])?;
        let found = self.packages()?;
        ensure!(found.len() == 1, "apt left {} packages in {}", found.len(), self.dir.display());
        let partial = into.with_extension("partial");
        std::fs::create_dir_all(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
        shell::output(shell::command("dpkg").arg("-x").arg(&found[0]).arg(&partial))?;
        std::fs::rename(&partial, into).with_context(|| format!("cannot move to {}", into.display()))?;
        std::fs::remove_file(&found[0]).with_context(|| format!("cannot remove {}", found[0].display()))
    }

    fn packages(&self) -> Result<Vec<PathBuf>> {
        let entries =
            std::fs::read_dir(&self.dir).with_context(|| format!("cannot list {}", self.dir.display()))?;
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let option = |name: &str, path: &str| format!("-o{name}={}", self.dir.join(path).display());
        shell::output(
            shell::command(program)
                .current_dir(&self.dir)
                .arg(option("Dir::Etc::sourcelist", "sources.list"))
                .arg("-oDir::Etc::sourceparts=/dev/null")
                .arg(option("Dir::State::lists", "lists"))
                .arg(option("Dir::Cache", "cache"))
                // As root apt drops to a user of its own, who may not be able to write below this folder.
                .arg("-oAPT::Sandbox::User=root")
                .args(words),
        )
    }
}
