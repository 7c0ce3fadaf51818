//! Which engines an operator has disabled: kept in the data folder, so that a restart changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::handle::EngineError;
use crate::NodeError;

const FILE_NAME: &str = "engines-disabled.json";
/// Of the file: a thousand engines fit.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default)]
pub struct Disabled {
    path: PathBuf,
    rules: BTreeSet<Rule>,
}

/// `version` `None`: every version, also those that come later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Rule {
    engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

impl Disabled {
    /// A missing file: nothing is disabled. One that cannot be read stops the node: an engine somebody took out of use
    /// must not come back by accident.
    pub fn read(data_dir: &Path) -> Result<Disabled, NodeError> {
        let path = data_dir.join(FILE_NAME);
        let failed =
            |source| NodeError::Io { what: "read what engines are disabled in", path: path.clone(), source };
        let rules = match fs::metadata(&path) {
            Ok(about) if about.len() > FILE_BYTES_MAX => {
                return Err(failed(std::io::Error::other(format!("it is over {FILE_BYTES_MAX} bytes long"))));
            }
            Ok(_) => {
                let text = fs::read(&path).map_err(failed)?;
                serde_json::from_slice(&text).map_err(|e| failed(e.into()))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Disabled { path, rules })
    }

    pub fn contains(&self, engine: &str, version: &str) -> bool {
        self.rules.iter().any(|r| r.engine == engine && r.version.as_deref().is_none_or(|v| v == version))
    }

    /// Changes nothing if it cannot be kept. `versions` are those that are there: enabling one where all were disabled
    /// leaves the others disabled by name.
    pub fn set(
        &mut self,
        engine: &str,
        version: Option<&str>,
        versions: &[String],
        enabled: bool,
    ) -> Result<(), EngineError> {
        let rule =
            |version: Option<&str>| Rule { engine: engine.to_owned(), version: version.map(str::to_owned) };
        let mut rules = self.rules.clone();
        match (enabled, version) {
            (false, Some(_)) => {
                rules.insert(rule(version));
            }
            (false, None) => {
                rules.retain(|r| r.engine != engine);
                rules.insert(rule(None));
            }
            (true, None) => rules.retain(|r| r.engine != engine),
            (true, Some(one)) => {
                if rules.remove(&rule(None)) {
                    rules.extend(versions.iter().filter(|v| *v != one).map(|v| rule(Some(v))));
                }
                rules.remove(&rule(version));
            }
        }
        self.keep(&rules).map_err(|source| EngineError::Keep { path: self.path.clone(), source })?;
        self.rules = rules;
        Ok(())
    }

    /// Beside it first, so that the file is whole at any time.
    fn keep(&self, rules: &BTreeSet<Rule>) -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(rules)?;
        let beside = self.path.with_extension("json.new");
        fs::write(&beside, text)?;
        fs::rename(&beside, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(disabled: &mut Disabled, version: Option<&str>, enabled: bool) {
        disabled.set("echo", version, &["1.0.0".into(), "2.0.0".into()], enabled).unwrap();
    }

    fn check(data: &Path, first: bool, second: bool, later: bool) {
        let kept = Disabled::read(data).unwrap();
        let found = ["1.0.0", "2.0.0", "3.0.0"].map(|v| kept.contains("echo", v));
        assert_eq!(found, [first, second, later]);
        assert!(!kept.contains("other", "1.0.0"));
    }

    #[test]
    fn what_is_decided_survives_a_restart() {
        let data = tempfile::tempdir().unwrap();
        let mut disabled = Disabled::read(data.path()).unwrap();
        set(&mut disabled, Some("1.0.0"), false);
        check(data.path(), true, false, false);
        set(&mut disabled, None, false);
        check(data.path(), true, true, true);
        set(&mut disabled, Some("2.0.0"), true);
        check(data.path(), true, false, false);
        set(&mut disabled, None, true);
        check(data.path(), false, false, false);
    }

    #[test]
    fn a_file_that_cannot_be_understood_stops_the_node_and_is_named() {
        for text in [&b"{"[..], b"[{\"version\": 1}]", &vec![b' '; 2 << 20]] {
            let data = tempfile::tempdir().unwrap();
            fs::write(data.path().join(FILE_NAME), text).unwrap();
            let error = Disabled::read(data.path()).unwrap_err();
            assert!(error.to_string().contains(FILE_NAME), "{error}");
        }
    }
}
