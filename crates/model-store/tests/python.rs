//! The hub's own Python client: it downloads from the fixture hub, and each of us reads what the other cached.
//!
//! Needs a Python with `huggingface_hub`: `LLM_ROUTER_TEST_PYTHON`, else the one that the test command installs into the
//! build folder. Without it these tests say so and pass, unless `REQUIRE_CLIENTS=1`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fixture_hub::{Fault, FixtureHub, Options, Origin, Repo};
use model_manifest::{Manifest, Request, Rules};
use model_store::{HubClient, HubConfig, Progress, Store, StoreConfig, register_hub};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use url::Url;

const ID: &str = "openai/model";
/// Python starts, imports and downloads a few hundred kilobytes; a machine with other work needs its time.
const DEADLINE: Duration = Duration::from_secs(120);

fn python() -> Option<PathBuf> {
    let in_venv = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/venv").join(in_venv);
    let named = std::env::var_os("LLM_ROUTER_TEST_PYTHON").map(PathBuf::from);
    let found = named.or_else(|| installed.exists().then_some(installed));
    if found.is_none() {
        let required = std::env::var("REQUIRE_CLIENTS").is_ok_and(|v| v == "1");
        assert!(!required, "REQUIRE_CLIENTS=1 and no Python with huggingface_hub; run `cargo xtask test`");
        println!("skipped: no Python with huggingface_hub; `cargo xtask test` installs one");
    }
    found
}

struct World {
    hub: FixtureHub,
    dir: tempfile::TempDir,
    python: PathBuf,
}

fn model() -> Repo {
    let weights: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    Repo::new(ID)
        .file("config.json", r#"{"model_type": "gpt_oss"}"#)
        .file("tokenizer.json", "{}")
        .file("model.safetensors", weights)
        .file("metal/model.bin", vec![7; 5000])
}

impl World {
    async fn new(repo: Repo) -> Option<World> {
        let python = python()?;
        // Small pages, so that the client has to follow the links between them.
        let options = Options { page_files_max: 2, ..Options::default() };
        let hub = FixtureHub::start_with(options, [repo]).await.unwrap();
        Some(World { hub, dir: tempfile::tempdir().unwrap(), python })
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("home").join("hub")
    }

    fn client(&self) -> HubClient {
        HubClient::new(&HubConfig::new(Url::parse(self.hub.url()).unwrap(), self.cache())).unwrap()
    }

    fn store(&self) -> Store {
        Store::open(&StoreConfig::new(self.cache(), self.dir.path().join("state")), self.client()).unwrap()
    }

    async fn manifest(&self) -> Manifest {
        let request = Request::default();
        register_hub(&self.client(), ID, "main", &request, &Rules::default()).await.unwrap().manifest
    }

    async fn ensure(&self, manifest: &Manifest) -> model_store::LocalModel {
        let progress = watch::Sender::new(Progress::default());
        let runtimes = ["gpt-oss/metal".to_owned()];
        let cancel = CancellationToken::new();
        self.store().ensure(manifest, &runtimes, &progress, &cancel).await.unwrap()
    }

    /// Runs a script that has `huggingface_hub` and `repo`, and returns what it prints.
    async fn python(&self, script: &str, variables: &[(&str, &str)]) -> String {
        let script = format!("import os, huggingface_hub as hf\nrepo = {ID:?}\n{script}");
        let mut command = tokio::process::Command::new(&self.python);
        command
            .args(["-c", &script])
            .env("HF_ENDPOINT", self.hub.url())
            .env("HF_HOME", self.dir.path().join("home"))
            .env("HF_HUB_DISABLE_TELEMETRY", "1")
            .env("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("HF_TOKEN")
            .env_remove("HF_HUB_CACHE")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output =
            tokio::time::timeout(DEADLINE, command.output()).await.expect("Python ends in time").unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

#[tokio::test]
async fn the_python_client_downloads_from_the_fixture_hub_and_we_read_its_cache() {
    let Some(world) = World::new(model()).await else { return };
    let folder = world.python("print(hf.snapshot_download(repo))", &[]).await;
    assert_eq!(std::fs::read(Path::new(&folder).join("metal/model.bin")).unwrap(), vec![7; 5000]);
    let manifest = world.manifest().await;
    world.hub.forget_requests();
    let local = world.ensure(&manifest).await;
    assert_eq!(local.model_dir, Path::new(&folder));
    assert_eq!(local.files.len(), 4);
    assert_eq!(world.hub.requests().len(), 0, "everything was there");
}

#[tokio::test]
async fn the_python_client_reads_our_cache_offline() {
    let Some(world) = World::new(model()).await else { return };
    let manifest = world.manifest().await;
    let local = world.ensure(&manifest).await;
    world.hub.forget_requests();
    let script =
        "print(hf.snapshot_download(repo))\nprint(open(hf.hf_hub_download(repo, 'config.json')).read())";
    let printed = world.python(script, &[("HF_HUB_OFFLINE", "1")]).await;
    let (folder, config) = printed.split_once('\n').unwrap();
    assert_eq!(
        (Path::new(folder.trim()), config),
        (local.model_dir.as_path(), r#"{"model_type": "gpt_oss"}"#)
    );
    assert_eq!(world.hub.requests().len(), 0);
}

#[tokio::test]
async fn the_python_client_online_finds_nothing_left_to_fetch_after_us() {
    let Some(world) = World::new(model()).await else { return };
    let manifest = world.manifest().await;
    world.ensure(&manifest).await;
    world.hub.forget_requests();
    world.python("hf.snapshot_download(repo)", &[]).await;
    let requests = world.hub.requests();
    assert!(requests.iter().all(|r| r.origin == Origin::Hub), "no large file was fetched again");
}

#[tokio::test]
async fn both_fetch_into_one_cache_at_the_same_time() {
    let Some(world) = World::new(model()).await else { return };
    let manifest = world.manifest().await;
    let slow = Fault::Slow { piece_bytes: 20_000, pause: Duration::from_millis(50) };
    world.hub.fault("model.safetensors", slow, 2);
    let python = world.python("print(hf.snapshot_download(repo))", &[]);
    let (folder, local) = tokio::join!(python, world.ensure(&manifest));
    assert_eq!(local.model_dir, Path::new(&folder));
    let check =
        world.store().check(&manifest, &["gpt-oss/metal".to_owned()], &CancellationToken::new()).await;
    assert_eq!(check.unwrap().files.len(), 4);
}

#[tokio::test]
async fn the_python_client_understands_the_refusals() {
    let Some(world) = World::new(model()).await else { return };
    world.hub.push(Repo::new("org/gated").gated().file("config.json", "{}"));
    world.hub.push(Repo::new("org/private").private().file("config.json", "{}"));
    world.hub.allow_token("hf_good");
    let script = r#"
def name(call):
    try:
        return "ok " + str(call())
    except Exception as e:
        return type(e).__name__
print(name(lambda: hf.hf_hub_download("org/gated", "config.json")))
print(name(lambda: hf.hf_hub_download("org/private", "config.json")))
print(name(lambda: hf.hf_hub_download("org/absent", "config.json")))
print(name(lambda: hf.hf_hub_download(repo, "absent.json")))
print(name(lambda: hf.hf_hub_download(repo, "config.json", revision="absent")))
print(name(lambda: len(hf.HfApi().model_info("org/private", token="hf_good").siblings)))
print(name(lambda: sorted(hf.list_repo_files(repo))))
print(name(lambda: sorted(e.path for e in hf.HfApi().list_repo_tree(repo, recursive=True))))
meta = hf.get_hf_file_metadata(hf.hf_hub_url(repo, "model.safetensors"))
print(meta.size, len(meta.etag), len(meta.commit_hash))
"#;
    let printed = world.python(script, &[]).await;
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    let files = "'config.json', 'metal/model.bin', 'model.safetensors', 'tokenizer.json'";
    assert_eq!(
        lines,
        [
            "GatedRepoError",
            "RepositoryNotFoundError",
            "RepositoryNotFoundError",
            "RemoteEntryNotFoundError",
            "RevisionNotFoundError",
            "ok 1",
            &format!("ok [{files}]"),
            &format!("ok ['config.json', 'metal', {}]", &files["'config.json', ".len()..]),
            "300000 64 40",
        ]
    );
}
