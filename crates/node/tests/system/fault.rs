//! A node with the engine that misbehaves, and a model of it.

use std::path::PathBuf;
use std::time::Duration;

use engine_testkit::build::install_engine;
use fixture_hub::Repo;
use model_manifest::Source;
use node::{Config, WatchdogLimits};
use node_api::{GenerateRequest, ModelSettings, ModelState, NodeStatus};
use serde_json::Value;

use crate::support::{Rig, files, manifest, request, rig_with, sha256, within};

pub const MODEL: &str = "org/fault";

pub struct Fault {
    pub rig: Rig,
    pub fingerprint: String,
    /// The directory of engines.
    pub engines: PathBuf,
}

/// `options` is what the engine's options say, see `engines/fault`.
pub async fn fault(options: Value, change: impl FnOnce(&mut Config)) -> Fault {
    let mut engines = PathBuf::new();
    let rig = rig_with(|config| {
        engines = config.engine_dirs[0].clone();
        install_engine("fault", "0.1.0", &engines).unwrap();
        change(config);
    })
    .await;
    let config = br#"{"model_type": "fault", "max_position_embeddings": 4096}"#.to_vec();
    let bytes_of = |name: &str, bytes: Vec<u8>| if name == "config.json" { config.clone() } else { bytes };
    let repo = files()
        .into_iter()
        .fold(Repo::new(MODEL), |repo, (name, _, bytes)| repo.file(name, bytes_of(name, bytes)));
    let source = Source::Hub { repo: MODEL.into(), revision: "main".into(), commit: repo.commit() };
    rig.hub.push(repo);
    let mut manifest = manifest(source);
    manifest.id = MODEL.into();
    manifest.architecture = "fault".into();
    manifest.runtimes = vec!["fault".into()];
    for file in manifest.files.iter_mut().filter(|file| file.name == "config.json") {
        (file.size, file.sha256) = (config.len() as u64, sha256(&config));
    }
    let options = options.as_object().unwrap().clone();
    let settings = ModelSettings { sequences_max: Some(8), options, ..ModelSettings::default() };
    let fingerprint = rig.put(&manifest, settings).await;
    rig.wait_for("ready", ModelState::is_ready).await;
    Fault { rig, fingerprint, engines }
}

/// Limits short enough for a test, long enough for a machine that does other things too.
pub fn short(config: &mut Config) {
    let three = Duration::from_secs(3);
    config.watchdog = WatchdogLimits::new(three, three, Duration::from_secs(6));
}

impl Fault {
    pub fn ask(&self, text: &str) -> GenerateRequest {
        GenerateRequest { model: MODEL.into(), ..request(&self.fingerprint, text) }
    }

    pub async fn status(&self, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        let mut lines = self.rig.link.status().await.unwrap();
        within(what, async {
            loop {
                let status = lines.next().await.expect("the status goes on").unwrap();
                if wanted(&status) {
                    return status;
                }
            }
        })
        .await
    }

    /// Process id of the worker that serves the model.
    pub async fn worker(&self) -> u32 {
        let loaded = self.rig.wait_for("loaded", |s| matches!(s, ModelState::Loaded { .. })).await;
        let ModelState::Loaded { worker, .. } = loaded else { panic!("waited for it") };
        worker
    }
}

/// Whether the process is there; one that has ended and is not reaped counts.
#[cfg(target_os = "linux")]
pub fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
