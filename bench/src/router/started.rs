//! The router under test: its process, the model it serves, and the requests it gets.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use fixture_hub::FixtureHub;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::connection::{Connection, post};
use super::{STREAM_TOKENS, Scenario, stand_in};
use crate::affinity::Cores;
use crate::process::{Process, llm_router};
use crate::register::register;
use crate::{Common, repo};

/// In the body of a request that wants a stream, and in no other.
pub const STREAMED: &str = r#""stream":true"#;

pub struct Router {
    pub address: SocketAddr,
    pub process: Process,
    _hub: FixtureHub,
    _folder: TempDir,
}

impl Router {
    /// On its core, with the stand-in joined and the model registered and ready.
    pub async fn start(common: &Common, cores: Cores, log: Option<&str>) -> Result<Router> {
        let folder = tempfile::tempdir()?;
        let hub = FixtureHub::start([repo::repo()]).await.context("the hub does not listen")?;
        let secret = folder.path().join("join-secret");
        std::fs::write(&secret, "bench-join-secret")?;
        let mut command = llm_router(&common.bin_dir, folder.path(), hub.url())?;
        if let Some(log) = log {
            command.env("LLM_ROUTER_LOG", log);
        }
        command.arg("--json").arg("--data-dir").arg(folder.path().join("router"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--allow-cpu", "--exit-with-stdin"]);
        command.arg("--join-secret-file").arg(&secret);
        let mut process = cores.start_measured(command, folder.path(), "router")?;
        let line: Value = serde_json::from_str(&process.first_line().await?)?;
        let url = line["url"].as_str().context("the router did not say its address")?.to_owned();
        let address = url.trim_start_matches("http://").parse().context("the router's address")?;
        stand_in::join(&url, "bench-join-secret").await?;
        let router = Router { address, process, _hub: hub, _folder: folder };
        let mut connection = Connection::open(address).await?;
        register(&mut connection, None, "loaded").await.with_context(|| router.log())?;
        Ok(router)
    }

    pub fn log(&self) -> String {
        format!("the router logged:\n{}", last_lines(&self.process.log()))
    }
}

/// A log has a line for each request.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The bytes that a scenario sends again and again.
pub fn request(scenario: Scenario) -> Bytes {
    const PROMPT: &str = "The lighthouse keeper climbed the stairs for the last time and";
    let model = repo::REPO;
    let bytes = match scenario {
        Scenario::Whole | Scenario::OneConnection | Scenario::Open => {
            post("/v1/completions", &json!({"model": model, "prompt": PROMPT, "max_tokens": 1}).to_string())
        }
        Scenario::Chat => {
            let messages = json!([{"role": "user", "content": PROMPT}]);
            let body = json!({"model": model, "messages": messages, "max_tokens": 1});
            post("/v1/chat/completions", &body.to_string())
        }
        Scenario::Streamed => {
            let body = json!({"model": model, "prompt": PROMPT, "max_tokens": STREAM_TOKENS, "stream": true});
            post("/v1/completions", &body.to_string())
        }
    };
    bytes.into()
}
