//! One file for each command, and what they share.

pub mod chat;
pub mod doctor;
pub mod engines;
pub mod models;
pub mod node;
pub mod nodes;
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
        telemetry::init(&telemetry::Config {
            filter: self.common.log.clone(),
            format: match self.common.log_format {
                Some(LogFormat::Json) => telemetry::Format::Json,
                Some(LogFormat::Text) | None => telemetry::Format::Text,
            },
            files: Some((self.log_dir.clone(), name.to_owned())),
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
