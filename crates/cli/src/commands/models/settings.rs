//! `llm-router models set`, and settings out of flags.

use std::process::ExitCode;

use admin_api::{ModelDetails, UpdateModel};
use anyhow::{Result, bail};
use node_api::ModelSettings;

use super::Context;
use crate::arguments::{ModelSettingFlags, SetArguments, SettingName};
use crate::output;

pub async fn set(context: &Context, arguments: &SetArguments) -> Result<ExitCode> {
    let client = context.client(&arguments.client)?;
    let path = ["api", "models", &arguments.id];
    let before: ModelDetails = client.get(&path).await?;
    let mut settings = before.model.settings.clone();
    apply(&mut settings, &arguments.settings, &arguments.unset);
    if settings == before.model.settings {
        bail!(
            "nothing to change is named, or it is set so already\nhint: `llm-router models set --help` lists the settings"
        );
    }
    let after: ModelDetails = client.patch(&path, &UpdateModel { settings }).await?;
    if context.json {
        output::print_json(&after)?;
    } else {
        println!("{}: {}", after.model.id, words(&after.model.settings));
    }
    Ok(ExitCode::SUCCESS)
}

/// A flag is stronger than `--unset` of the same setting: it is the newer wish of the two.
pub fn apply(settings: &mut ModelSettings, flags: &ModelSettingFlags, unset: &[SettingName]) {
    for name in unset {
        match name {
            SettingName::ContextLength => settings.context_length = None,
            SettingName::SequencesMax => settings.sequences_max = None,
            SettingName::Engine => settings.engine = None,
            SettingName::Device => settings.devices.clear(),
            SettingName::Replicas => settings.replicas = None,
            SettingName::KeepAlive => settings.keep_alive_seconds = None,
        }
    }
    let flags = flags.clone();
    settings.context_length = flags.context_length.or(settings.context_length);
    settings.sequences_max = flags.sequences_max.or(settings.sequences_max);
    settings.engine = flags.engine.or(settings.engine.take());
    settings.devices = flags.devices.unwrap_or_else(|| std::mem::take(&mut settings.devices));
    settings.replicas = flags.replicas.or(settings.replicas);
    settings.keep_alive_seconds = flags.keep_alive.or(settings.keep_alive_seconds);
}

/// What is set, for people; the rest has its default.
pub fn words(settings: &ModelSettings) -> String {
    let keep_alive = |seconds: i64| match seconds {
        ..0 => "stays in memory".to_owned(),
        0 => "leaves memory after each request".to_owned(),
        seconds => format!("leaves memory after {} idle", output::ago(0, seconds)),
    };
    let devices = (!settings.devices.is_empty()).then(|| format!("on {}", settings.devices.join(", ")));
    let all = [
        settings.context_length.map(|n| format!("context of {n} tokens")),
        settings.sequences_max.map(|n| format!("{n} sequences at once")),
        settings.engine.as_ref().map(|engine| format!("engine {engine}")),
        devices,
        settings.replicas.map(|n| format!("{n} workers on each node")),
        settings.keep_alive_seconds.map(keep_alive),
    ];
    let set: Vec<String> = all.into_iter().flatten().collect();
    if set.is_empty() { "every setting has its default".to_owned() } else { set.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays_and_what_is_unset_has_its_default_again() {
        let mut settings = ModelSettings {
            context_length: Some(100),
            engine: Some("echo".into()),
            devices: vec!["cuda:0".into()],
            keep_alive_seconds: Some(-1),
            ..ModelSettings::default()
        };
        let flags =
            ModelSettingFlags { replicas: Some(2), keep_alive: Some(60), ..ModelSettingFlags::default() };
        apply(&mut settings, &flags, &[SettingName::Engine, SettingName::Device, SettingName::KeepAlive]);
        let expected = ModelSettings {
            context_length: Some(100),
            replicas: Some(2),
            keep_alive_seconds: Some(60),
            ..ModelSettings::default()
        };
        assert_eq!(settings, expected);
        assert_eq!(
            words(&settings),
            "context of 100 tokens; 2 workers on each node; leaves memory after 60 s idle"
        );
        assert_eq!(words(&ModelSettings::default()), "every setting has its default");
    }
}
