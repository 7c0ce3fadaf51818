//! A hub, a store with folders of its own, and the manifest of a small model.

use std::path::PathBuf;
use std::time::Duration;

use fixture_hub::{FixtureHub, Repo};
use model_manifest::{Manifest, Request, Rules};
use model_store::{
    HubClient, HubConfig, LocalModel, Progress, RetryPolicy, Store, StoreConfig, StoreError, Token,
    register_hub,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use url::Url;

pub const ID: &str = "openai/model";
pub const SHARD: &str = "model-00001-of-00001.safetensors";
/// No test waits longer for anything.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct World {
    pub hub: FixtureHub,
    pub dir: tempfile::TempDir,
}

/// Bytes that differ at every place, `len` of them.
pub fn bytes(len: usize) -> Vec<u8> {
    let mut state: u32 = 12_345;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

pub fn model() -> Repo {
    Repo::new(ID)
        .file("config.json", r#"{"model_type": "gpt_oss"}"#)
        .file("tokenizer.json", "{}")
        .file(
            "model.safetensors.index.json",
            format!(r#"{{"weight_map": {{"a": "model-00000-of-00001.safetensors", "b": "{SHARD}"}}}}"#),
        )
        .file("model-00000-of-00001.safetensors", bytes(1000))
        .file(SHARD, bytes(300_000))
        .file("metal/model.bin", bytes(5000))
        .file("original/model.safetensors", bytes(10))
}

impl World {
    pub async fn new(repo: Repo) -> World {
        World { hub: FixtureHub::start([repo]).await.unwrap(), dir: tempfile::tempdir().unwrap() }
    }

    pub fn hub_config(&self, token: Option<&str>) -> HubConfig {
        let mut config = HubConfig::new(Url::parse(self.hub.url()).unwrap(), self.cache());
        config.token = token.and_then(|token| Token::new(token, "test").unwrap());
        config.retry = RetryPolicy {
            attempts: 4,
            pause: Duration::from_millis(1),
            pause_max: Duration::from_millis(5),
            wait_max: Duration::from_secs(2),
        };
        config
    }

    pub fn client(&self) -> HubClient {
        HubClient::new(&self.hub_config(None)).unwrap()
    }

    pub fn cache(&self) -> PathBuf {
        self.dir.path().join("hub")
    }

    pub fn store(&self) -> Store {
        self.store_with(|_| ())
    }

    pub fn store_with(&self, change: impl FnOnce(&mut StoreConfig)) -> Store {
        let mut config = StoreConfig::new(self.cache(), self.dir.path().join("state"));
        change(&mut config);
        Store::open(&config, self.client()).unwrap()
    }

    pub async fn manifest(&self) -> Manifest {
        let request = Request::default();
        register_hub(&self.client(), ID, "main", &request, &Rules::default()).await.unwrap().manifest
    }

    /// On a machine that runs gpt-oss on the CPU.
    pub async fn ensure(&self, store: &Store, manifest: &Manifest) -> Result<LocalModel, StoreError> {
        ensure_for(store, manifest, "gpt-oss/cpu").await
    }

    pub fn blob(&self, name: &str) -> PathBuf {
        self.cache().join("models--openai--model/blobs").join(name)
    }

    /// `Range` headers of the requests for a file's bytes, in order.
    pub fn ranges(&self, path_end: &str) -> Vec<Option<String>> {
        let requests = self.hub.requests().into_iter();
        requests
            .filter(|r| r.target.contains("/blobs/") && r.target.contains(path_end))
            .map(|r| r.range)
            .collect()
    }
}

pub async fn ensure_for(store: &Store, manifest: &Manifest, runtime: &str) -> Result<LocalModel, StoreError> {
    let progress = watch::Sender::new(Progress::default());
    let runtimes = [runtime.to_owned()];
    let cancel = CancellationToken::new();
    tokio::time::timeout(DEADLINE, store.ensure(manifest, &runtimes, &progress, &cancel)).await.unwrap()
}

pub async fn check(store: &Store, manifest: &Manifest) -> Result<LocalModel, StoreError> {
    let runtimes = ["gpt-oss/cpu".to_owned()];
    tokio::time::timeout(DEADLINE, store.check(manifest, &runtimes, &CancellationToken::new())).await.unwrap()
}
