//! A node that answers every request from memory: it joins, has every model, and says the same letter as often as asked.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream};
use http::Uri;
use node_api::transport::{EventStream, NodeService, dial, serve};
use node_api::{
    ApiError, DesiredModels, DeviceInfo, EngineCommand, EngineReply, FinishReason, GenerateEvent,
    GenerateRequest, HEARTBEAT, Join, ModelCommand, ModelState, ModelStatus, NodeInfo, NodeStatus,
    PROTOCOL_VERSION, ReplicaRole, ReplicaStatus, Token, TokenBytes, TokenizeReply, TokenizeRequest,
};
use tokio::sync::watch;
use tokio_stream::wrappers::IntervalStream;
use tokio_util::sync::CancellationToken;

/// More than the load has at once: the router never has a reason to wait.
const SEQUENCES_MAX: u32 = 4096;
const CONTEXT_LENGTH: u32 = 1 << 17;

struct StandIn {
    /// (id, fingerprint) of what the router wants here.
    models: Mutex<Vec<(String, String)>>,
    changed: watch::Sender<()>,
}

/// Joins the router and serves it from a task of its own.
pub async fn join(router_url: &str, secret: &str) -> Result<()> {
    let router: Uri = router_url.parse().context("the router's address")?;
    let node = NodeInfo {
        id: "stand-in".to_owned(),
        name: "stand-in".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        machine_id: "bench".to_owned(),
        devices: vec![DeviceInfo {
            id: "cpu".to_owned(),
            kind: "cpu".to_owned(),
            name: "memory".to_owned(),
            memory_total: 1 << 34,
            driver: None,
        }],
    };
    let dialled = dial(&router, secret, &Join { protocol_version: PROTOCOL_VERSION, node }).await?;
    let service = StandIn { models: Mutex::default(), changed: watch::Sender::new(()) };
    let service = StandInService(Arc::new(service));
    tokio::spawn(async move {
        if let Err(error) = serve(dialled.io, Arc::new(service), CancellationToken::new()).await {
            eprintln!("the stand-in lost the router: {error}");
        }
    });
    Ok(())
}

impl StandIn {
    fn status(models: &[(String, String)], sequence: u64) -> NodeStatus {
        let model = |(id, fingerprint): &(String, String)| ModelStatus {
            id: id.clone(),
            fingerprint: fingerprint.clone(),
            state: ModelState::Loaded {
                engine: "stand-in".to_owned(),
                engine_version: "1.0.0".to_owned(),
                device: "cpu".to_owned(),
                context_length: CONTEXT_LENGTH,
                sequences_max: SEQUENCES_MAX,
                worker: 1,
            },
            replicas: vec![ReplicaStatus {
                worker: 1,
                role: ReplicaRole::Serving,
                engine: "stand-in".to_owned(),
                engine_version: "1.0.0".to_owned(),
                library_sha256: String::new(),
                devices: vec!["cpu".to_owned()],
                context_length: CONTEXT_LENGTH,
                sequences_max: SEQUENCES_MAX,
                requests_running: 0,
                requests_total: 0,
                loaded_at: 0,
                last_used: 0,
                memory: Vec::new(),
                kv_bytes_used: 0,
                kv_bytes_total: 0,
            }],
            ..ModelStatus::default()
        };
        NodeStatus { sequence, models: models.iter().map(model).collect(), ..NodeStatus::default() }
    }
}

fn token() -> GenerateEvent {
    GenerateEvent::Token(Token {
        id: u32::from(b'a'),
        bytes: TokenBytes::from(b"a".to_vec()),
        control: false,
        logprobs: Vec::new(),
    })
}

fn unknown(what: &str) -> ApiError {
    ApiError {
        status: 501,
        code: "not_built".to_owned(),
        message: format!("the stand-in has no {what}"),
        ..ApiError::default()
    }
}

impl NodeService for StandInService {
    fn status(&self) -> EventStream<NodeStatus> {
        let inner = Arc::clone(&self.0);
        let changed = tokio_stream::wrappers::WatchStream::new(self.0.changed.subscribe());
        let beats = IntervalStream::new(tokio::time::interval(HEARTBEAT / 2)).map(|_| ());
        let lines = stream::select(changed, beats).enumerate().map(move |(number, ())| {
            let models = inner.models.lock().unwrap_or_else(PoisonError::into_inner);
            StandIn::status(&models, number as u64 + 1)
        });
        Box::pin(lines)
    }

    async fn put_models(&self, models: DesiredModels) -> Result<(), ApiError> {
        let wanted = models.models.into_iter().map(|m| (m.manifest.id, m.fingerprint)).collect();
        *self.0.models.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        self.0.changed.send_replace(());
        Ok(())
    }

    async fn generate(&self, request: GenerateRequest) -> Result<EventStream<GenerateEvent>, ApiError> {
        let tokens = request.sampling.tokens_max;
        let started = GenerateEvent::Started {
            prompt_tokens: 8,
            cached_tokens: 0,
            engine: "stand-in".to_owned(),
            engine_version: "1.0.0".to_owned(),
            end_tokens: Vec::new(),
        };
        let finished = GenerateEvent::Finished { reason: FinishReason::Length, completion_tokens: tokens };
        let all = stream::iter([started]).chain(stream::iter((0..tokens).map(|_| token())));
        Ok(Box::pin(all.chain(stream::iter([finished]))))
    }

    async fn tokenize(&self, _: TokenizeRequest) -> Result<TokenizeReply, ApiError> {
        Err(unknown("tokenizer"))
    }

    async fn engines(&self, _: EngineCommand) -> Result<EngineReply, ApiError> {
        Err(unknown("engines"))
    }

    async fn model(&self, _: ModelCommand) -> Result<ModelStatus, ApiError> {
        Err(unknown("command for models"))
    }
}

/// Shared with the streams it gives out.
struct StandInService(Arc<StandIn>);
