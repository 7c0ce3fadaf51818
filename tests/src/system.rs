//! A hub, a router and a node as a user would start them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixture_hub::{FixtureHub, Options, Repo};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::runs;
use crate::reference::DATE;
use crate::{Api, Process, until};

/// Takes nodes that have no GPU.
const ALLOW_CPU: &str = "--allow-cpu";

pub struct System {
    pub api: Api,
    pub hub: FixtureHub,
    pub router: Option<Process>,
    pub node: Option<Process>,
    /// Those started with [`System::start_node_as`], by name.
    pub nodes: BTreeMap<String, Process>,
    pub url: String,
    dir: TempDir,
}

/// A node beside the usual one.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    pub name: String,
    pub devices: Vec<String>,
    pub engines_dir: PathBuf,
    /// Environment variables of the product.
    pub settings: Vec<(String, String)>,
}

impl System {
    /// Hub, router and node on the CPU, the node connected.
    pub async fn start(repos: Vec<Repo>) -> System {
        let mut system = System::without_node(repos).await;
        system.start_node().await;
        system
    }

    /// Hub and a router that takes nodes without a GPU.
    pub async fn without_node(repos: Vec<Repo>) -> System {
        System::with_router(repos, &[ALLOW_CPU]).await
    }

    /// Hub and a router that is told these words besides what every test needs.
    pub async fn with_router(repos: Vec<Repo>, words: &[&str]) -> System {
        // Built before anything waits: the engines that the node is to find, and the binary.
        for engine in ["echo", "fault", "gpt-oss"] {
            engine_testkit::build::engine_dir(engine);
        }
        let dir = tempfile::tempdir().expect("a temporary folder");
        let hub = FixtureHub::start_with(Options::default(), repos).await.expect("the hub listens");
        let mut system = System {
            api: Api::new("http://127.0.0.1:1"),
            hub,
            router: None,
            node: None,
            nodes: BTreeMap::new(),
            url: String::new(),
            dir,
        };
        system.start_router_as("127.0.0.1:0", words).await;
        system
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn router_data(&self) -> PathBuf {
        self.dir.path().join("router")
    }

    /// The binary with nothing of this machine's own settings, and this system's hub.
    pub fn command(&self) -> Command {
        command(self.dir.path(), self.hub.url())
    }

    pub async fn start_router(&mut self, listen: &str) {
        self.start_router_as(listen, &[ALLOW_CPU]).await;
    }

    async fn start_router_as(&mut self, listen: &str, words: &[&str]) {
        let mut command = self.command();
        command.arg("--json").arg("--data-dir").arg(self.router_data());
        command
            .args(["serve", "--listen", listen, "--template-clock", DATE, "--exit-with-stdin"])
            .args(words);
        let mut router = Process::start(command, self.dir.path(), "router");
        let line: Value = serde_json::from_str(&router.first_line().await).expect("the router says JSON");
        self.url = line["url"].as_str().expect("the router says its address").to_owned();
        self.api = Api::new(&self.url);
        self.router = Some(router);
    }

    pub async fn start_node(&mut self) {
        let mut command = self.command();
        command.arg("--data-dir").arg(self.dir.path().join("node"));
        command.args(["node", "--router", &self.url, "--device", "cpu", "--exit-with-stdin"]);
        command.arg("--join-secret-file").arg(self.router_data().join("join-secret"));
        command.arg("--engines-dir").arg(engine_testkit::build::engines_dir());
        self.node = Some(Process::start(command, self.dir.path(), "node"));
        self.until_nodes(1).await;
    }

    /// Starts a node of this name, its data in a folder of its own; does not wait for it.
    pub fn start_node_as(&mut self, spec: &NodeSpec) {
        let command = self.node_command(spec);
        self.nodes.insert(spec.name.clone(), Process::start(command, self.dir.path(), &spec.name));
    }

    /// What starts this node.
    pub fn node_command(&self, spec: &NodeSpec) -> Command {
        let mut command = self.command();
        command.arg("--data-dir").arg(self.dir.path().join(&spec.name));
        command.args(["node", "--router", &self.url, "--exit-with-stdin", "--name", &spec.name]);
        command.arg("--device").arg(spec.devices.join(","));
        command.arg("--join-secret-file").arg(self.router_data().join("join-secret"));
        command.arg("--engines-dir").arg(&spec.engines_dir);
        command.envs(spec.settings.iter().map(|(name, value)| (name, value)));
        command
    }

    pub async fn until_nodes(&self, count: usize) {
        until(&format!("{count} connected nodes"), || async {
            let nodes = self.api.get("/api/nodes").await.ok();
            let connected = nodes["nodes"]
                .as_array()
                .is_some_and(|all| all.iter().filter(|n| n["state"] == "connected").count() == count);
            let log: String = self.node.iter().chain(self.nodes.values()).map(Process::log).collect();
            if connected { Ok(()) } else { Err(format!("{nodes}\n{log}")) }
        })
        .await;
    }

    /// Registers a repository and waits until it is ready.
    pub async fn add(&self, repo: &str) -> Value {
        self.api.register(&json!({"repo": repo, "format": "safetensors"})).await.ok();
        self.api.until_ready(repo).await
    }

    /// Process id of a worker that runs. What the nodes report may be a moment old, and one of it dead.
    pub async fn worker(&self) -> u32 {
        until("a worker that runs", || async {
            let workers = self.workers().await;
            workers.iter().copied().find(|pid| runs(*pid)).ok_or(format!("{workers:?}"))
        })
        .await
    }

    /// Process ids of the workers that the nodes report.
    pub async fn workers(&self) -> Vec<u32> {
        let models = self.api.get("/api/models").await.ok();
        let nodes =
            models["models"].as_array().into_iter().flatten().filter_map(|m| m["nodes"].as_array()).flatten();
        nodes.filter_map(|n| n["worker"].as_u64()).filter_map(|pid| u32::try_from(pid).ok()).collect()
    }
}

/// `llm-router` with this hub and folders below `dir`.
pub fn command(dir: &Path, hub_url: &str) -> Command {
    let mut command = Command::new(engine_testkit::build::router_binary());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("LLM_ROUTER_") || text.starts_with("HF_") {
            command.env_remove(&name);
        }
    }
    let config = dir.join("config.toml");
    std::fs::write(&config, "").expect("the test's folder is writable");
    command
        .current_dir(dir)
        .env("HF_ENDPOINT", hub_url)
        .env("HF_HOME", dir.join("hub-cache"))
        .env("LLM_ROUTER_CONFIG", config);
    command
}
