//! The processes of a soak: a hub, a router and nodes with engines of their own, and what is asked of them.

use std::path::PathBuf;

use engine_testkit::build::{engine_dir, engines_dir, install_engine};
use serde_json::{Value, json};

use crate::process::{self, Usage};
use crate::soak::models::{Misdeed, SIMULATED_DEVICE, SoakEngine, SoakModel};
use crate::soak::watch::Held;
use crate::system::NodeSpec;
use crate::{System, until};

/// Lines of a node's log that are shown with a failure.
const TAIL_LINES: usize = 40;
pub const FIRST_VERSION: &str = "0.1.0";

pub struct Scene {
    pub system: System,
    pub engine: SoakEngine,
    pub models: Vec<SoakModel>,
    nodes: usize,
    pub engines_dir: PathBuf,
    misdeeds_dir: PathBuf,
}

impl Scene {
    pub async fn start(engine: SoakEngine, models: Vec<SoakModel>, nodes: usize) -> Scene {
        let repos = models.iter().map(SoakModel::repo).collect();
        let system = System::without_node(repos).await;
        let engines_dir = if engine == SoakEngine::Fault {
            let dir = system.dir().join("engines");
            install_engine(engine.id(), FIRST_VERSION, &dir).expect("the engine can be installed");
            dir
        } else {
            engine_dir(engine.id());
            engines_dir()
        };
        let misdeeds_dir = system.dir().join("misdeeds");
        std::fs::create_dir_all(&misdeeds_dir).expect("the run's folder is writable");
        let mut scene = Scene { system, engine, models, nodes, engines_dir, misdeeds_dir };
        for model in &scene.models {
            for misdeed in Misdeed::ALL {
                // Served already: nothing happens before it is asked for.
                let file = scene.misdeeds_dir.join(misdeed.file_name(model.id));
                std::fs::write(file, "x").expect("the run's folder is writable");
            }
        }
        for node in 0..nodes {
            scene.start_node(node).await;
        }
        scene.system.until_nodes(nodes).await;
        for model in &scene.models {
            scene.system.api.register(&model.registration(&scene.misdeeds_dir)).await.ok();
        }
        for model in &scene.models {
            scene.system.api.until_ready(model.id).await;
        }
        scene
    }

    pub fn http(&self) -> reqwest::Client {
        self.system.api.http().clone()
    }

    pub fn url(&self) -> String {
        self.system.url.clone()
    }

    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// Short limits: a hang is to be found within the run.
    pub async fn start_node(&mut self, number: usize) {
        let spec = NodeSpec {
            name: format!("node-{number}"),
            devices: vec!["cpu".to_owned(), "sim:0".to_owned()],
            engines_dir: self.engines_dir.clone(),
            settings: [
                ("LLM_ROUTER_SIMULATED_DEVICES", SIMULATED_DEVICE),
                ("LLM_ROUTER_WATCHDOG_PROGRESS_SECONDS", "6"),
                ("LLM_ROUTER_WATCHDOG_DECODE_SECONDS", "4"),
                ("LLM_ROUTER_MINIMUM_STAY_SECONDS", "2"),
                ("LLM_ROUTER_NODE_DRAIN_SECONDS", "5"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        };
        self.system.start_node_as(&spec);
    }

    /// One request to every model, so that what is made once is made.
    pub async fn warm_up(&self) {
        for model in &self.models {
            let body = json!({"model": model.id, "prompt": "warm", "max_tokens": 100, "temperature": 0});
            until(&format!("an answer of {}", model.id), || async {
                let answer = self.system.api.post("/v1/completions", &body).await;
                if answer.status == 200 { Ok(()) } else { Err(answer.body.to_string()) }
            })
            .await;
        }
    }

    /// All nodes there, every engine enabled, every model answering, no request under way.
    pub async fn calm_down(&self) {
        self.system.until_nodes(self.nodes).await;
        self.warm_up().await;
        until("no request under way", || async {
            let nodes = self.system.api.get("/api/nodes").await.ok();
            let busy = nodes["nodes"].as_array().into_iter().flatten().any(|node| {
                node["requests_running"].as_u64().unwrap_or(0)
                    + node["requests_waiting"].as_u64().unwrap_or(0)
                    > 0
            });
            if busy { Err(nodes.to_string()) } else { Ok(()) }
        })
        .await;
    }

    pub async fn watch(&self) -> Held {
        let router =
            self.system.router.as_ref().map(|router| process::usage(router.pid())).unwrap_or_default();
        let nodes = self.system.nodes.values().map(|node| process::usage(node.pid()));
        Held {
            router,
            nodes: nodes.fold(Usage::default(), std::ops::Add::add),
            workers: self.workers().await.len(),
        }
    }

    /// Process ids of all workers with a model, in order.
    pub async fn workers(&self) -> Vec<u32> {
        let loaded = self.system.api.get("/api/ps").await;
        let all = loaded.body["models"].as_array().into_iter().flatten();
        let pids = all.filter_map(|m| m["worker"].as_u64()).filter_map(|pid| u32::try_from(pid).ok());
        let mut pids: Vec<u32> = pids.filter(|pid| process::runs(*pid)).collect();
        pids.sort_unstable();
        pids
    }

    /// The next worker of this model that comes to the place does it, once.
    pub fn ask_for(&self, misdeed: Misdeed, model: &str) {
        // Not there: it was asked for before and has not come about.
        let _ = std::fs::remove_file(self.misdeeds_dir.join(misdeed.file_name(model)));
    }

    pub async fn command(&self, path: &str, body: &Value) -> Result<Value, String> {
        let answer = self.system.api.post(path, body).await;
        if answer.status == 200 {
            Ok(answer.body)
        } else {
            Err(format!("{path}: {} {}", answer.status, answer.body))
        }
    }

    pub fn log_tails(&self) -> String {
        let tail = |(name, node): (&String, &crate::Process)| {
            let log = node.log();
            let lines: Vec<&str> = log.lines().collect();
            format!("{name}:\n{}\n", lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
        };
        self.system.nodes.iter().map(tail).collect()
    }
}
