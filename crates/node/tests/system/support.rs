//! The router the tests play, a node with folders of its own, and a small model.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fixture_hub::{FixtureHub, Repo};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use model_manifest::{FileRole, Format, Manifest, ManifestFile, Source};
use model_store::HubConfig;
use node::{Config, RouterAddress, Running, WorkerProgram};
use node_api::transport::{Lines, LocalRouter, NodeLink, check_upgrade, error_response, switching_protocols};
use node_api::*;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub const DEADLINE: Duration = Duration::from_secs(60);
const SECRET: &str = "s3cret";

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub struct FakeRouter {
    pub url: String,
    pub refuses: Arc<AtomicBool>,
    sender: mpsc::Sender<(Join, NodeLink)>,
    joined: mpsc::Receiver<(Join, NodeLink)>,
}

/// How a node comes to the router of the test.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    Dial,
    Local,
}

pub const WAYS: [Way; 2] = [Way::Dial, Way::Local];

/// The same router for a node that takes it for one of its own process.
#[derive(Debug)]
struct Local {
    sender: mpsc::Sender<(Join, NodeLink)>,
    refuses: Arc<AtomicBool>,
}

impl LocalRouter for Local {
    fn join(&self, node: NodeInfo, link: NodeLink) -> Result<(), ApiError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(refusal());
        }
        self.sender.try_send((Join { protocol_version: PROTOCOL_VERSION, node }, link)).unwrap();
        Ok(())
    }
}

fn refusal() -> ApiError {
    ApiError {
        status: 403,
        code: "gpu_required".into(),
        message: "the node has no GPU".into(),
        hint: Some("start the router with --allow-cpu".into()),
        ..ApiError::default()
    }
}

impl FakeRouter {
    pub async fn start() -> FakeRouter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let refuses = Arc::new(AtomicBool::new(false));
        let (sender, joined) = mpsc::channel(8);
        let (refusing, taken) = (Arc::clone(&refuses), sender.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tcp.set_nodelay(true).unwrap();
                let (sender, refusing) = (taken.clone(), Arc::clone(&refusing));
                let service = service_fn(move |request| take(request, sender.clone(), Arc::clone(&refusing)));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(tcp), service).with_upgrades());
            }
        });
        FakeRouter { url, refuses, sender, joined }
    }

    pub fn address(&self, way: Way) -> RouterAddress {
        match way {
            Way::Dial => RouterAddress::Url { url: self.url.clone(), join_secret: SECRET.to_owned() },
            Way::Local => RouterAddress::Local(Arc::new(Local {
                sender: self.sender.clone(),
                refuses: Arc::clone(&self.refuses),
            })),
        }
    }

    pub async fn join(&mut self) -> (Join, NodeLink) {
        within("a node joins", self.joined.recv()).await.unwrap()
    }
}

async fn take(
    mut request: Request<Incoming>,
    joined: mpsc::Sender<(Join, NodeLink)>,
    refuses: Arc<AtomicBool>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Err(error) = check_upgrade(request.headers()) {
        return Ok(error_response::<Full<Bytes>>(&error));
    }
    if refuses.load(Ordering::Relaxed) {
        return Ok(error_response::<Full<Bytes>>(&refusal()));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let join = serde_json::from_slice(&body).unwrap();
    tokio::spawn(async move {
        let link = NodeLink::open(upgrade.await.unwrap()).await.unwrap();
        // The test may have ended.
        let _ = joined.send((join, link)).await;
    });
    Ok(switching_protocols())
}

/// A node that is connected to a router of the test's.
pub struct Rig {
    pub router: FakeRouter,
    pub link: NodeLink,
    pub join: Join,
    pub node: Running,
    pub end: CancellationToken,
    pub hub: FixtureHub,
    pub _folders: TempDir,
}

pub fn config(folders: &Path, hub_url: &str, router: RouterAddress) -> Config {
    engine_testkit::build::engine_dir("echo");
    let program = WorkerProgram { executable: engine_testkit::build::worker_binary(), arguments: Vec::new() };
    let hub = HubConfig::new(hub_url.parse().unwrap(), folders.join("cache"));
    let mut config = Config::new(folders.join("data"), hub, program);
    config.engine_dirs = vec![echo_only(folders)];
    config.devices = "cpu".parse().unwrap();
    config.routers = vec![router];
    config.name = Some("rig".to_owned());
    config
}

/// A folder with the echo engine alone, whatever else has been built beside it.
fn echo_only(folders: &Path) -> PathBuf {
    let (from, to) = (engine_testkit::build::engine_dir("echo"), folders.join("engines/echo"));
    if !to.exists() {
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    folders.join("engines")
}

pub async fn rig() -> Rig {
    rig_with(|_| {}).await
}

pub async fn rig_with(change: impl FnOnce(&mut Config)) -> Rig {
    rig_by(Way::Dial, change).await
}

pub async fn rig_by(way: Way, change: impl FnOnce(&mut Config)) -> Rig {
    println!("{way:?}");
    let folders = tempfile::tempdir().unwrap();
    let repo =
        files().into_iter().fold(Repo::new("org/echo"), |repo, (name, _, bytes)| repo.file(name, bytes));
    let hub = FixtureHub::start([repo]).await.unwrap();
    let mut router = FakeRouter::start().await;
    let mut config = config(folders.path(), hub.url(), router.address(way));
    change(&mut config);
    let end = CancellationToken::new();
    let node = node::start(config, end.clone()).await.unwrap();
    let (join, link) = router.join().await;
    Rig { router, link, join, node, end, hub, _folders: folders }
}

impl Rig {
    /// Waits until the model is as `wanted` says, from a status stream of its own.
    pub async fn wait_for(&self, what: &str, wanted: impl Fn(&ModelState) -> bool) -> ModelState {
        wait_for(&self.link, what, wanted).await
    }

    /// Waits until the node is as `wanted` says, from a status stream of its own.
    pub async fn until(&self, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        until(&self.link, what, wanted).await
    }

    pub async fn put(&self, manifest: &Manifest, settings: ModelSettings) -> String {
        let fingerprint = manifest.fingerprint();
        let model = DesiredModel { fingerprint: fingerprint.clone(), manifest: manifest.clone(), settings };
        self.link.put_models(&DesiredModels { models: vec![model] }).await.unwrap();
        fingerprint
    }

    /// Puts the echo model and waits until it is ready.
    pub async fn ready(&self) -> String {
        let fingerprint = self.put(&self.manifest(), ModelSettings::default()).await;
        self.wait_for("ready", ModelState::is_ready).await;
        fingerprint
    }

    pub async fn generate(&self, fingerprint: &str, text: &str) -> Lines<GenerateEvent> {
        self.link.generate(&request(fingerprint, text)).await.unwrap()
    }

    pub fn manifest(&self) -> Manifest {
        let repo =
            files().into_iter().fold(Repo::new("org/echo"), |repo, (name, _, bytes)| repo.file(name, bytes));
        manifest(Source::Hub { repo: "org/echo".into(), revision: "main".into(), commit: repo.commit() })
    }
}

pub async fn until(link: &NodeLink, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
    let mut lines = link.status().await.unwrap();
    let mut last = None;
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            let status = lines.next().await.expect("the status goes on").unwrap();
            if wanted(&status) {
                return status;
            }
            last = Some(status);
        }
    });
    found.await.unwrap_or_else(|_| panic!("not in time: {what}; it is {last:?}"))
}

/// The same for the state of the first model.
pub async fn wait_for(link: &NodeLink, what: &str, wanted: impl Fn(&ModelState) -> bool) -> ModelState {
    let status = until(link, what, |s| s.models.first().is_some_and(|model| wanted(&model.state))).await;
    status.models[0].state.clone()
}

/// The workers that serve the first model.
pub fn serving(status: &NodeStatus) -> Vec<u32> {
    let replicas = status.models[0].replicas.iter();
    replicas.filter(|r| r.role == ReplicaRole::Serving).map(|r| r.worker).collect()
}

/// Whether the process is there; one that has ended and is not reaped counts.
#[cfg(unix)]
pub fn is_there(pid: u32) -> bool {
    std::process::Command::new("kill").args(["-0", &pid.to_string()]).output().unwrap().status.success()
}

#[cfg(unix)]
pub fn signal(signal: &str, pid: u32) {
    assert!(std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

pub fn request(fingerprint: &str, text: &str) -> GenerateRequest {
    GenerateRequest {
        request_id: "req-1".into(),
        model: "org/echo".into(),
        fingerprint: fingerprint.into(),
        prompt: Prompt::Text { text: text.into(), literal: Vec::new() },
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        embed: false,
        worker_deaths: 0,
        cache_salt: 0,
        affinity: 0,
    }
}

/// The files of the echo model: its configuration, and weights that only have to be fetched.
pub fn files() -> Vec<(&'static str, FileRole, Vec<u8>)> {
    let config = br#"{"model_type": "echo", "max_position_embeddings": 1048576}"#.to_vec();
    let mut weights = vec![2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'];
    weights.resize(300_000, 7);
    vec![
        ("config.json", FileRole::Config, config),
        ("model.safetensors", FileRole::Weights, weights),
        ("tokenizer.json", FileRole::Tokenizer, b"{}".to_vec()),
    ]
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

pub fn manifest(source: Source) -> Manifest {
    let file = |(name, role, bytes): (&str, FileRole, Vec<u8>)| ManifestFile {
        name: name.into(),
        role,
        size: bytes.len() as u64,
        sha256: sha256(&bytes),
        git_oid: None,
        repo_path: None,
        repo: None,
        optional: false,
        runtimes: Vec::new(),
    };
    Manifest {
        id: "org/echo".into(),
        source,
        format: Format::Safetensors,
        architecture: "echo".into(),
        runtimes: vec!["echo".into()],
        primary: "model.safetensors".into(),
        files: files().into_iter().map(file).collect(),
        context_length_max: Some(1 << 20),
        embeds: false,
        embedding_size: None,
    }
}

/// What came, taken apart.
#[derive(Debug, Default)]
pub struct Reply {
    pub loading: usize,
    pub prompt_tokens: u32,
    pub text: String,
    pub embedding: Vec<f32>,
    pub finished: Option<FinishReason>,
    pub failed: Option<ApiError>,
}

pub async fn collect(mut lines: Lines<GenerateEvent>) -> Reply {
    let mut reply = Reply::default();
    let mut bytes = Vec::new();
    while let Some(event) = within("the next event", lines.next()).await {
        match event.unwrap() {
            GenerateEvent::Loading { .. } => reply.loading += 1,
            GenerateEvent::Alive => {}
            GenerateEvent::Started { prompt_tokens, .. } => reply.prompt_tokens = prompt_tokens,
            GenerateEvent::Token(token) if token.control => {}
            GenerateEvent::Token(token) => bytes.extend(token.bytes.to_vec()),
            GenerateEvent::Embedding(embedding) => reply.embedding = embedding.numbers,
            GenerateEvent::Finished { reason, .. } => reply.finished = Some(reason),
            GenerateEvent::Failed(error) => reply.failed = Some(error),
        }
    }
    reply.text = String::from_utf8(bytes).unwrap();
    reply
}
