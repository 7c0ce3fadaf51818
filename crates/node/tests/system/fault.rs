//! A node with the engine that misbehaves, and a model of it.

use std::path::PathBuf;
use std::time::Duration;

use engine_testkit::build::install_engine;
use fixture_hub::Repo;
use model_manifest::{Manifest, Source};
use node::{Config, WatchdogLimits};
use node_api::{GenerateRequest, ModelSettings, ModelState, NodeStatus};
use serde_json::Value;

use crate::support::{Reply, Rig, collect, files, manifest, request, rig_with, sha256, within};

pub const MODEL: &str = "org/fault";

pub struct Fault {
    pub rig: Rig,
    pub manifest: Manifest,
    pub fingerprint: String,
    /// The directory of engines.
    pub engines: PathBuf,
}

/// `options` is what the engine's options say, see `engines/fault`.
pub async fn fault(options: Value, change: impl FnOnce(&mut Config)) -> Fault {
    let options = options.as_object().unwrap().clone();
    let settings = ModelSettings { sequences_max: Some(8), options, ..ModelSettings::default() };
    fault_with(settings, change).await
}

/// The same with these settings of the model.
pub async fn fault_with(settings: ModelSettings, change: impl FnOnce(&mut Config)) -> Fault {
    let mut engines = PathBuf::new();
    let rig = rig_with(|config| {
        engines = config.engine_dirs[0].clone();
        install_engine("fault", "0.1.0", &engines).unwrap();
        change(config);
    })
    .await;
    let manifest = fault_model(&rig, MODEL);
    let fingerprint = rig.put(&manifest, settings).await;
    rig.wait_for("ready", ModelState::is_ready).await;
    Fault { rig, manifest, fingerprint, engines }
}

/// A model of the engine that misbehaves; its files are on the hub.
pub fn fault_model(rig: &Rig, id: &str) -> Manifest {
    let config = br#"{"model_type": "fault", "max_position_embeddings": 4096}"#.to_vec();
    let bytes_of = |name: &str, bytes: Vec<u8>| if name == "config.json" { config.clone() } else { bytes };
    let repo = files()
        .into_iter()
        .fold(Repo::new(id), |repo, (name, _, bytes)| repo.file(name, bytes_of(name, bytes)));
    let source = Source::Hub { repo: id.into(), revision: "main".into(), commit: repo.commit() };
    rig.hub.push(repo);
    let mut manifest = manifest(source);
    manifest.id = id.into();
    manifest.architecture = "fault".into();
    manifest.runtimes = vec!["fault".into()];
    for file in manifest.files.iter_mut().filter(|file| file.name == "config.json") {
        (file.size, file.sha256) = (config.len() as u64, sha256(&config));
    }
    manifest
}

/// Limits short enough for a test, long enough for a machine that does other things too.
pub fn short(config: &mut Config) {
    let three = Duration::from_secs(3);
    config.watchdog = WatchdogLimits::new(three, three, Duration::from_secs(6));
}

impl Fault {
    pub fn request(&self, text: &str) -> GenerateRequest {
        GenerateRequest { model: MODEL.into(), ..request(&self.fingerprint, text) }
    }

    pub async fn ask(&self, text: &str) -> Reply {
        self.send(&self.request(text)).await
    }

    pub async fn send(&self, request: &GenerateRequest) -> Reply {
        collect(within("the stream", self.rig.link.generate(request)).await.unwrap()).await
    }

    pub async fn until(&self, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        self.rig.until(what, wanted).await
    }

    /// Process id of the worker that serves the model.
    pub async fn worker(&self) -> u32 {
        let loaded = self.rig.wait_for("loaded", |s| matches!(s, ModelState::Loaded { .. })).await;
        let ModelState::Loaded { worker, .. } = loaded else { panic!("waited for it") };
        worker
    }
}
