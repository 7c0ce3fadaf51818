//! Where this system keeps an application's data, configuration and logs.

use std::path::PathBuf;

use anyhow::{Context, Result};
use etcetera::AppStrategy as _;

#[derive(Debug, Clone)]
pub struct Places {
    pub data_dir: PathBuf,
    pub config_file: PathBuf,
    pub log_dir: PathBuf,
}

impl Places {
    /// Linux: XDG folders; macOS: `~/Library`; Windows: `AppData`.
    pub fn usual() -> Result<Places> {
        let strategy = etcetera::app_strategy::choose_native_strategy(etcetera::AppStrategyArgs {
            top_level_domain: "org".to_owned(),
            author: "llm-router".to_owned(),
            app_name: "llm-router".to_owned(),
        })
        .context("this user has no home folder\nhint: name the folders with --data-dir and --log-dir")?;
        let data_dir = strategy.data_dir();
        let log_dir = strategy.state_dir().unwrap_or_else(|| data_dir.clone()).join("logs");
        Ok(Places { config_file: strategy.config_dir().join("config.toml"), log_dir, data_dir })
    }
}
