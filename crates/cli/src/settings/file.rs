//! The TOML file: what neither flag nor environment said.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    ClientSettings, CommonSettings, ConfigPlace, HubSettings, JoinSettings, NodeSettings, RouterSettings,
};

/// A settings file is short; this stops the reading of a wrong one.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConfigFile {
    #[serde(flatten)]
    pub common: toml::Table,
    pub client: ClientSettings,
    pub hub: HubSettings,
    pub join: JoinSettings,
    pub router: RouterSettings,
    pub node: NodeSettings,
}

impl ConfigFile {
    /// A file that was named has to be there; the usual one need not.
    pub fn read(place: &ConfigPlace, usual: &Path) -> Result<ConfigFile> {
        let path = match &place.config {
            Some(path) => path.clone(),
            None if usual.exists() => usual.to_owned(),
            None => return Ok(ConfigFile::default()),
        };
        let text = read_text(&path)?;
        Self::parse(&text).with_context(|| {
            format!("{} is no settings file\nhint: docs/configuration.md lists every key", path.display())
        })
    }

    pub fn parse(text: &str) -> Result<ConfigFile> {
        let file: ConfigFile = toml::from_str(text)?;
        // The top level is checked here: serde cannot refuse unknown keys of a flattened part.
        if let Err(error) = file.common() {
            let key = file.common.keys().find(|key| {
                CommonSettings::deserialize(toml::Table::from_iter([(
                    (*key).clone(),
                    file.common[key.as_str()].clone(),
                )]))
                .is_err()
            });
            return Err(match key.and_then(|key| line_of(text, key)) {
                Some(line) => error.context(format!(
                    "line {line} is no setting; the tables are [client], [hub], [join], [router] and [node]"
                )),
                None => error,
            });
        }
        Ok(file)
    }

    pub fn common(&self) -> Result<CommonSettings> {
        Ok(CommonSettings::deserialize(self.common.clone())?)
    }
}

/// The line, counted from 1, of a key or table of the top level.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let starts = |line: &str| {
        let line = line.trim_start().trim_start_matches('[').trim_start().trim_start_matches(['"', '\'']);
        line.strip_prefix(key).is_some_and(|rest| {
            rest.trim_start_matches(['"', '\'']).trim_start().starts_with(['=', ']', '.'])
        })
    };
    text.lines().position(starts).map(|at| at + 1)
}

fn read_text(path: &PathBuf) -> Result<String> {
    let size = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    anyhow::ensure!(
        size <= FILE_BYTES_MAX,
        "{} has {size} bytes; a settings file has at most {FILE_BYTES_MAX}",
        path.display()
    );
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// `strong` where it says something, else `weak`, field by field.
pub fn over<T: Serialize + DeserializeOwned>(strong: &T, weak: &T) -> Result<T> {
    let mut fields = toml::Table::try_from(weak)?;
    fields.extend(toml::Table::try_from(strong)?);
    Ok(T::deserialize(fields)?)
}
