//! The echo engine through a node process and its worker process.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use fixture_hub::FixtureHub;
use model_manifest::Manifest;
use node_api::transport::NodeLink;
use node_api::{
    DesiredModel, DesiredModels, GenerateEvent, GenerateRequest, ModelSettings, ModelState, Prompt, Sampling,
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::link::Joining;
use super::streams::Arrivals;
use super::{STREAMS, Speed, now};
use crate::process::{Process, llm_router};
use crate::{Common, repo};

pub const PROMPT: &str = "hello";
/// For the node to join, and again for a model to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// For one round; it takes two seconds.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// A node with the model twice: at full speed and paced.
pub struct Host {
    link: NodeLink,
    full: Manifest,
    paced: Manifest,
    node: Process,
    _hub: FixtureHub,
    _folder: TempDir,
}

impl Host {
    pub async fn start(common: &Common) -> Result<Host> {
        let folder = tempfile::tempdir()?;
        let hub = FixtureHub::start([repo::repo()]).await.context("the hub does not listen")?;
        let mut joining = Joining::listen().await?;
        let secret = folder.path().join("join-secret");
        std::fs::write(&secret, "bench-join-secret")?;
        let mut command = llm_router(&common.bin_dir, folder.path(), hub.url())?;
        command.arg("--data-dir").arg(folder.path().join("node"));
        command.args(["node", "--device", "cpu", "--exit-with-stdin", "--router", &joining.url]);
        command.arg("--join-secret-file").arg(&secret);
        command.arg("--engines-dir").arg(std::path::absolute(common.bin_dir.join("engines"))?);
        let node = Process::start(command, folder.path(), "node")?;
        let Ok(Some(link)) = timeout(READY_TIMEOUT, joining.next()).await else {
            bail!("the node did not join in {} s; it logged:\n{}", READY_TIMEOUT.as_secs(), node.log());
        };
        let (full, paced) = (repo::manifest("bench/full"), repo::manifest("bench/paced"));
        let host = Host { link, full, paced, node, _hub: hub, _folder: folder };
        let models = vec![desired(&host.full, Speed::Full), desired(&host.paced, Speed::Paced)];
        host.link.put_models(&DesiredModels { models }).await?;
        match timeout(READY_TIMEOUT, host.until_ready()).await {
            Ok(ready) => ready?,
            Err(_) => bail!("the models were not ready in time; the node logged:\n{}", host.node.log()),
        }
        Ok(host)
    }

    async fn until_ready(&self) -> Result<()> {
        let mut lines = self.link.status().await?;
        while let Some(status) = lines.next().await {
            let models = status?.models;
            if models.len() == 2 && models.iter().all(|m| m.state.is_ready()) {
                return Ok(());
            }
            let hopeless = models.iter().find(|m| {
                matches!(m.state, ModelState::Unsupported { .. } | ModelState::Failed { retrying: false, .. })
            });
            if let Some(model) = hopeless {
                bail!("the node cannot run echo: {:?}; it logged:\n{}", model.state, self.node.log());
            }
        }
        bail!("the node's status ended; it logged:\n{}", self.node.log())
    }

    /// Runs `streams` sequences to their end and takes the time of each token.
    pub async fn run(&self, speed: Speed, streams: u32) -> Result<Arrivals> {
        let manifest = match speed {
            Speed::Full => &self.full,
            Speed::Paced => &self.paced,
        };
        let tokens = speed.tokens(streams);
        let mut running = JoinSet::new();
        for number in 0..streams {
            let request = GenerateRequest {
                request_id: format!("bench-{number}"),
                model: manifest.id.clone(),
                fingerprint: manifest.fingerprint(),
                prompt: Prompt::Tokens(PROMPT.bytes().map(u32::from).collect()),
                sampling: Sampling {
                    temperature: 0.0,
                    tokens_max: tokens,
                    tokens_min: tokens,
                    ..Sampling::default()
                },
                embed: false,
                worker_deaths: 0,
                cache_salt: 0,
                affinity: Default::default(),
            };
            let link = self.link.clone();
            running.spawn(async move { one(&link, &request, tokens).await });
        }
        let all = async {
            let mut arrivals = Arrivals::default();
            while let Some(one) = running.join_next().await {
                arrivals.sequences.push(one??);
            }
            anyhow::Ok(arrivals)
        };
        match timeout(ROUND_TIMEOUT, all).await {
            Ok(arrivals) => arrivals.with_context(|| format!("the node logged:\n{}", self.node.log())),
            Err(_) => bail!(
                "a round took over {} s; the node logged:\n{}",
                ROUND_TIMEOUT.as_secs(),
                self.node.log()
            ),
        }
    }
}

async fn one(link: &NodeLink, request: &GenerateRequest, tokens: u32) -> Result<Vec<u64>> {
    let mut arrivals = Vec::with_capacity(tokens as usize);
    let mut lines = link.generate(request).await?;
    while let Some(event) = lines.next().await {
        match event? {
            GenerateEvent::Token(_) => arrivals.push(now()),
            GenerateEvent::Loading { .. } | GenerateEvent::Started { .. } | GenerateEvent::Alive => {}
            GenerateEvent::Finished { .. } if arrivals.len() == tokens as usize => return Ok(arrivals),
            GenerateEvent::Finished { reason, .. } => {
                bail!("a sequence ended with {reason:?} after {} of {tokens} tokens", arrivals.len())
            }
            GenerateEvent::Failed(error) => return Err(anyhow!(error).context("a sequence failed")),
            GenerateEvent::Embedding(_) => bail!("the node answered a sequence with an embedding"),
        }
    }
    bail!("the node's answer ended after {} of {tokens} tokens", arrivals.len())
}

fn desired(manifest: &Manifest, speed: Speed) -> DesiredModel {
    DesiredModel {
        fingerprint: manifest.fingerprint(),
        manifest: manifest.clone(),
        settings: ModelSettings {
            context_length: Some(repo::CONTEXT),
            sequences_max: STREAMS.iter().copied().max(),
            options: speed.options(),
            ..ModelSettings::default()
        },
    }
}
