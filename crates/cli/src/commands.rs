//! One file for each command, and what they share.

pub mod bench;
pub mod chat;
pub mod doctor;
pub mod engines;
pub mod models;
pub mod node;
pub mod nodes;
pub mod selftest;
pub mod serve;
pub mod up;

use std::path::PathBuf;

use anyhow::Result;

use crate::client::Client;
use crate::instance;
use crate::places::Places;
use crate::settings::{
    ClientSettings, CommonSettings, ConfigFile, ConfigPlace, HubSettings, JoinSettings, LogFormat, over,
};

/// A time as people write it, in seconds; `forever` is negative.
pub fn keep_alive(text: &str) -> Result<i64, String> {
    if text == "forever" {
        return Ok(-1);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err("the units are s, m, h and d".to_owned()),
    };
    let number: i64 = digits.parse().map_err(|_| "it looks like 90s, 10m, 2h or forever".to_owned())?;
    match number.checked_mul(unit) {
        Some(seconds) if seconds >= 0 => Ok(seconds),
        _ => Err("it must be between 0 and forever".to_owned()),
    }
}

/// Where a router listens unless told otherwise, as an address for clients.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8411";

/// What every command starts from: the settings file, the folders, the form of the answer.
pub struct Context {
    pub file: ConfigFile,
    pub config_file: PathBuf,
    pub data_dir: PathBuf,
    pub log_dir: PathBuf,
    pub json: bool,
    common: CommonSettings,
}

impl Context {
    pub fn new(place: &ConfigPlace, flags: &CommonSettings, json: bool) -> Result<Context> {
        let places = Places::usual();
        let usual = places.as_ref().map(|p| p.config_file.clone()).unwrap_or_default();
        let file = ConfigFile::read(place, &usual)?;
        let common = over(flags, &file.common()?)?;
        let folder = |chosen: &Option<PathBuf>, usual: fn(&Places) -> &PathBuf| match (chosen, &places) {
            (Some(dir), _) => Ok(std::path::absolute(dir)?),
            (None, Ok(places)) => Ok(usual(places).clone()),
            (None, Err(e)) => Err(anyhow::anyhow!("{e:#}")),
        };
        let data_dir = folder(&common.data_dir, |p| &p.data_dir)?;
        // Whoever moves the data means the logs too, unless the logs have a place of their own.
        let log_dir = match (&common.log_dir, &common.data_dir) {
            (None, Some(_)) => data_dir.join("logs"),
            _ => folder(&common.log_dir, |p| &p.log_dir)?,
        };
        let config_file = place.config.clone().unwrap_or(usual);
        Ok(Context { file, config_file, data_dir, log_dir, json, common })
    }

    /// Logging of a long-running command, `name` being the first part of the log files' names.
    pub fn start_log(&self, name: &str) -> Result<()> {
        let usual = telemetry::Bounds::default();
        telemetry::init(&telemetry::Config {
            filter: self.common.log.clone(),
            format: match self.common.log_format {
                Some(LogFormat::Json) => telemetry::Format::Json,
                Some(LogFormat::Text) | None => telemetry::Format::Text,
            },
            files: Some((self.log_dir.clone(), name.to_owned())),
            bounds: telemetry::Bounds {
                bytes_max: self.common.log_file_bytes.unwrap_or(usual.bytes_max),
                files_max: self.common.log_files.unwrap_or(usual.files_max),
                ..usual
            },
        })?;
        Ok(())
    }

    /// The router a client command speaks to: named, else the one running here, else the usual address.
    pub fn router_url(&self, flags: &ClientSettings) -> Result<String> {
        let chosen = over(flags, &self.file.client)?.url;
        Ok(chosen
            .or_else(|| instance::running(&self.data_dir).map(|i| i.url))
            .unwrap_or_else(|| DEFAULT_URL.to_owned()))
    }

    pub fn client(&self, flags: &ClientSettings) -> Result<Client> {
        Client::new(&self.router_url(flags)?)
    }

    /// For commands that wait until nodes have loaded models.
    pub fn patient_client(&self, flags: &ClientSettings) -> Result<Client> {
        Client::patient(&self.router_url(flags)?)
    }

    /// The hub as flags, environment and file say.
    pub fn hub(&self, flags: &HubSettings) -> Result<model_store::HubConfig> {
        let settings = over(flags, &self.file.hub)?;
        let config = model_store::HubConfig::from_env(
            |name| match name {
                "HF_ENDPOINT" => settings.endpoint.as_ref().map(Into::into),
                "HF_HUB_CACHE" => settings.cache.as_ref().map(Into::into),
                "HF_TOKEN_PATH" => settings.token_file.as_ref().map(Into::into),
                _ => std::env::var_os(name),
            },
            std::env::home_dir(),
        )?;
        Ok(config)
    }

    pub fn join_secret_file(&self, flags: &JoinSettings) -> Result<PathBuf> {
        let settings = over(flags, &self.file.join)?;
        Ok(settings.secret_file.unwrap_or_else(|| self.data_dir.join("join-secret")))
    }
}

#[cfg(test)]
mod tests {
    use super::keep_alive;

    #[test]
    fn times_have_units_and_bounds() {
        let cases =
            [("0", 0), ("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400), ("forever", -1)];
        for (text, expected) in cases {
            assert_eq!(keep_alive(text), Ok(expected), "{text}");
        }
        for text in ["", "m", "-1", "-5m", "1.5h", "10w", "9223372036854775807h", "1m30s", "never"] {
            assert!(keep_alive(text).is_err(), "{text}");
        }
    }
}
