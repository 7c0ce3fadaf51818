//! A router on port 0 with its hub, and a node that says what the test wants.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fixture_hub::{FixtureHub, Repo};
use futures_util::StreamExt as _;
use node_api::transport::{DialError, EventStream, NodeService, dial, local, serve};
use node_api::*;
use reqwest::StatusCode;
use router::{Config, Running};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{UnboundedReceiverStream, WatchStream};
use tokio_util::sync::CancellationToken;

/// For anything the tests wait for.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for: {what}"),
    }
}

pub fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo-model")
}

/// The smallest repository that can be registered.
pub fn tiny_repo(id: &str) -> Repo {
    Repo::new(id)
        .file("config.json", r#"{"model_type": "echo", "max_position_embeddings": 64}"#)
        .file("tokenizer.json", r#"{"added_tokens": [{"id": 1, "content": "<|end|>", "special": true}]}"#)
        .file("model.safetensors", "weights")
}

pub struct World {
    pub hub: FixtureHub,
    pub router: Option<Running>,
    pub shutdown: CancellationToken,
    pub config: Config,
    pub client: reqwest::Client,
    pub url: String,
    pub secret: String,
    _dir: TempDir,
}

impl World {
    pub async fn new() -> World {
        World::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> World {
        let hub = FixtureHub::start([tiny_repo("org/tiny"), tiny_repo("org/other")]).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        config.listen = "127.0.0.1:0".parse().unwrap();
        config.allow_cpu = true;
        config.template_worker = Some(env!("CARGO_BIN_EXE_router-template-worker").into());
        config.hub.endpoint = hub.url().parse().unwrap();
        config.hub.retry.attempts = 1;
        config.limits.drain = Duration::from_millis(500);
        change(&mut config);
        let shutdown = CancellationToken::new();
        let router = router::start(config.clone(), shutdown.clone()).await.unwrap();
        World {
            hub,
            url: router.url(),
            secret: router.join_secret.clone(),
            router: Some(router),
            shutdown,
            config,
            client: reqwest::Client::new(),
            _dir: dir,
        }
    }

    /// A router, a ready model `org/tiny`, and the node that has it.
    pub async fn ready() -> (World, FakeNode) {
        let world = World::new().await;
        world.register("org/tiny").await;
        let node = FakeNode::join(&world, "node-1").await;
        world.wait_for_state("org/tiny", "ready").await;
        (world, node)
    }

    /// The same with the demo model, whose replies are harmony.
    pub async fn ready_harmony() -> (World, FakeNode) {
        let world = World::new().await;
        world.hub.push(Repo::from_dir("org/demo", &demo_model()).unwrap());
        world.register("org/demo").await;
        let node = FakeNode::join(&world, "node-1").await;
        world.wait_for_state("org/demo", "ready").await;
        (world, node)
    }

    /// Ends the router and starts one with the same folder.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.shutdown = CancellationToken::new();
        let router = router::start(self.config.clone(), self.shutdown.clone()).await.unwrap();
        self.url = router.url();
        self.router = Some(router);
    }

    pub async fn stop(&mut self) {
        self.shutdown.cancel();
        if let Some(router) = self.router.take() {
            in_time("the router's end", router.wait()).await;
        }
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.client.get(format!("{}{path}", self.url)).send().await.unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.send(path, body).await).await
    }

    pub async fn send(&self, path: &str, body: &Value) -> reqwest::Response {
        in_time(path, self.client.post(format!("{}{path}", self.url)).json(body).send()).await.unwrap()
    }

    pub async fn register(&self, repo: &str) -> Value {
        let (status, body) = self.post("/api/models", &json!({"repo": repo})).await;
        assert_eq!(status, 201, "{body}");
        body
    }

    /// Polls the API until a model has a state.
    pub async fn wait_for_state(&self, id: &str, state: &str) -> Value {
        in_time(&format!("{id} to be {state}"), async {
            loop {
                let (_, model) = self.get(&format!("/api/models/{id}")).await;
                if model["state"] == state {
                    return model;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Has the first node end in order, and waits until the router has heard of it.
    pub async fn drain(&self, node: &FakeNode) {
        node.drain();
        in_time("the node to drain", async {
            while self.get("/api/nodes").await.1["nodes"][0]["state"] != "draining" {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub async fn wait_for_nodes(&self, count: usize) {
        in_time(&format!("{count} nodes"), async {
            while self.get("/api/nodes").await.1["nodes"].as_array().unwrap().len() != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

pub async fn answer(response: reqwest::Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = in_time("the body", response.text()).await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

pub fn join_as(id: &str) -> Join {
    Join {
        protocol_version: PROTOCOL_VERSION,
        node: NodeInfo {
            id: id.into(),
            name: format!("{id}-name"),
            version: "0.1.0".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
            machine_id: "machine-1".into(),
            devices: vec![DeviceInfo {
                id: "cpu".into(),
                kind: "cpu".into(),
                name: "CPU".into(),
                memory_total: 1 << 30,
                driver: None,
            }],
        },
    }
}

/// The engines the node tells of in its status.
pub fn engines() -> Vec<EngineSummary> {
    vec![EngineSummary {
        id: "echo".into(),
        version: "1.0.0".into(),
        abi_version: "1.0".into(),
        runtimes: vec!["echo".into()],
        architectures: vec!["echo".into()],
        formats: vec!["safetensors".into()],
        devices: vec!["cpu".into()],
        capabilities: vec!["embeddings".into(), "constraint".into()],
        sha256: "0".repeat(64),
        state: EngineState::Available,
        failed_trials: Vec::new(),
    }]
}

/// A worker with a model, on a device of a thousand bytes.
pub fn replica() -> ReplicaStatus {
    ReplicaStatus {
        worker: 4711,
        role: ReplicaRole::Serving,
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        library_sha256: "0".repeat(64),
        devices: vec!["cuda:0".into()],
        context_length: 64,
        sequences_max: 4,
        requests_running: 1,
        requests_total: 5,
        loaded_at: 100,
        last_used: 200,
        memory: vec![ReplicaMemory {
            device: "cuda:0".into(),
            estimated: 400,
            granted: 450,
            used: 500,
            mapped: 7,
        }],
        kv_bytes_used: 50,
        kv_bytes_total: 100,
    }
}

/// What the node does with a request.
pub enum Reply {
    Events(Vec<GenerateEvent>),
    Refuse(ApiError),
    /// The test sends the events itself.
    Manual,
}

/// A request that reached the node.
pub struct Call {
    pub request: GenerateRequest,
    /// Of a manual reply.
    pub events: mpsc::UnboundedSender<GenerateEvent>,
    /// Cancelled when the router drops the stream.
    pub dropped: CancellationToken,
}

struct Service {
    status: watch::Sender<NodeStatus>,
    desired: watch::Sender<Option<DesiredModels>>,
    /// What a model the router wants is at first.
    initial: ModelState,
    replies: Mutex<VecDeque<Reply>>,
    engine_commands: Mutex<Vec<EngineCommand>>,
    /// Commands for engines get no answer while it is set; cancelled when one came.
    engine_hold: Mutex<Option<CancellationToken>>,
    engine_replies: Mutex<VecDeque<Result<EngineReply, ApiError>>>,
    model_commands: Mutex<Vec<ModelCommand>>,
    calls: mpsc::UnboundedSender<Call>,
    /// Closes the connection in order.
    leave: CancellationToken,
}

pub struct FakeNode {
    service: Arc<Service>,
    calls: tokio::sync::Mutex<mpsc::UnboundedReceiver<Call>>,
    /// Cuts the connection.
    end: CancellationToken,
}

pub fn ready() -> ModelState {
    ModelState::Ready { engine: "echo".into(), engine_version: "1.0.0".into(), device: "cpu".into() }
}

impl FakeNode {
    pub async fn join(world: &World, id: &str) -> FakeNode {
        FakeNode::join_with(world, join_as(id), ready()).await
    }

    pub async fn join_with(world: &World, join: Join, initial: ModelState) -> FakeNode {
        let dialled =
            in_time("joining", dial(&world.url.parse().unwrap(), &world.secret, &join)).await.unwrap();
        FakeNode::serve(initial, |service, close| async { drop(serve(dialled.io, service, close).await) })
    }

    /// As a node of the router's own process.
    pub fn join_local(world: &World, join: Join, initial: ModelState) -> Result<FakeNode, ApiError> {
        let router = world.router.as_ref().unwrap().local();
        let mut joined = Ok(());
        let node = FakeNode::serve(initial, |service, close| {
            let (link, serving) = local(service, close);
            joined = router.join(join.node, link);
            serving.run()
        });
        joined.map(|()| node)
    }

    /// A node with one link, which `serve` serves until it is closed.
    fn serve<F: Future<Output = ()> + Send + 'static>(
        initial: ModelState,
        serve: impl FnOnce(Arc<Service>, CancellationToken) -> F,
    ) -> FakeNode {
        let (calls_sender, calls) = mpsc::unbounded_channel();
        let status = NodeStatus { engines: engines(), ..NodeStatus::default() };
        let service = Arc::new(Service {
            status: watch::Sender::new(status),
            desired: watch::Sender::new(None),
            initial,
            replies: Mutex::new(VecDeque::new()),
            engine_commands: Mutex::default(),
            engine_hold: Mutex::default(),
            engine_replies: Mutex::default(),
            model_commands: Mutex::default(),
            calls: calls_sender,
            leave: CancellationToken::new(),
        });
        let end = CancellationToken::new();
        let (serving, cut) = (serve(Arc::clone(&service), service.leave.clone()), end.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = serving => {}
                // The connection is dropped: as abrupt as a node that is killed.
                () = cut.cancelled() => {}
            }
        });
        FakeNode { service, calls: tokio::sync::Mutex::new(calls), end }
    }

    pub async fn try_join(world: &World, secret: &str, join: &Join) -> Result<(), DialError> {
        in_time("joining", dial(&world.url.parse().unwrap(), secret, join)).await.map(drop)
    }

    pub fn reply(&self, reply: Reply) {
        self.service.replies.lock().unwrap().push_back(reply);
    }

    pub fn reply_events(&self, events: Vec<GenerateEvent>) {
        self.reply(Reply::Events(events));
    }

    /// The next request that came.
    pub async fn call(&self) -> Call {
        in_time("a request on the node", async { self.calls.lock().await.recv().await.unwrap() }).await
    }

    pub fn set_state(&self, model: &str, state: ModelState) {
        self.service.status.send_modify(|status| {
            status.sequence += 1;
            status.models.iter_mut().filter(|m| m.id == model).for_each(|m| m.state = state.clone());
        });
    }

    /// What it answers to the next command for its engines.
    pub fn engine_reply(&self, reply: Result<EngineReply, ApiError>) {
        self.service.engine_replies.lock().unwrap().push_back(reply);
    }

    /// Answers no command for its engines from now on; the token tells that one came.
    pub fn hold_engine_commands(&self) -> CancellationToken {
        self.service.engine_hold.lock().unwrap().insert(CancellationToken::new()).clone()
    }

    /// Commands that came, oldest first; they are forgotten here.
    pub fn engine_commands(&self) -> Vec<EngineCommand> {
        std::mem::take(&mut *self.service.engine_commands.lock().unwrap())
    }

    pub fn model_commands(&self) -> Vec<ModelCommand> {
        std::mem::take(&mut *self.service.model_commands.lock().unwrap())
    }

    /// Tells another state from now on.
    pub fn change(&self, change: impl FnOnce(&mut NodeStatus)) {
        self.service.status.send_modify(|status| {
            status.sequence += 1;
            change(status);
        });
    }

    pub fn drain(&self) {
        self.change(|status| status.draining = true);
    }

    /// Ends as a node does that was asked to: no status any more, and the connection closes after the last answer.
    pub fn leave(&self) {
        self.service.leave.cancel();
    }

    pub fn kill(&self) {
        self.end.cancel();
    }

    /// Waits until the router wants what `wanted` accepts.
    pub async fn desired(&self, wanted: impl Fn(&DesiredModels) -> bool) -> DesiredModels {
        let mut desired = self.service.desired.subscribe();
        let found = in_time("the router's wish", desired.wait_for(|d| d.as_ref().is_some_and(&wanted)))
            .await
            .unwrap();
        found.clone().unwrap()
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl NodeService for Service {
    fn status(&self) -> EventStream<NodeStatus> {
        let left = self.leave.clone().cancelled_owned();
        Box::pin(WatchStream::new(self.status.subscribe()).take_until(left))
    }

    async fn put_models(&self, models: DesiredModels) -> Result<(), ApiError> {
        self.status.send_modify(|status| {
            status.sequence += 1;
            let old = std::mem::take(&mut status.models);
            let state = |d: &DesiredModel| {
                old.iter()
                    .find(|m| m.id == d.manifest.id && m.fingerprint == d.fingerprint)
                    .map(|m| m.state.clone())
            };
            status.models = models
                .models
                .iter()
                .map(|d| ModelStatus {
                    id: d.manifest.id.clone(),
                    fingerprint: d.fingerprint.clone(),
                    state: state(d).unwrap_or_else(|| self.initial.clone()),
                    ..ModelStatus::default()
                })
                .collect();
        });
        self.desired.send_replace(Some(models));
        Ok(())
    }

    async fn generate(&self, request: GenerateRequest) -> Result<EventStream<GenerateEvent>, ApiError> {
        let reply = self
            .replies
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| Reply::Events(words(&["hello", " you"])));
        let (events, receiver) = mpsc::unbounded_channel();
        let dropped = CancellationToken::new();
        let guard = dropped.clone().drop_guard();
        let scripted = match reply {
            Reply::Refuse(error) => {
                let _ = self.calls.send(Call { request, events, dropped });
                return Err(error);
            }
            Reply::Events(scripted) => scripted,
            Reply::Manual => {
                let _ = self.calls.send(Call { request, events, dropped });
                let stream = UnboundedReceiverStream::new(receiver).map(move |event| {
                    let _held = &guard;
                    event
                });
                return Ok(Box::pin(stream));
            }
        };
        let _ = self.calls.send(Call { request, events, dropped });
        Ok(Box::pin(futures_util::stream::iter(scripted)))
    }

    async fn tokenize(&self, request: TokenizeRequest) -> Result<TokenizeReply, ApiError> {
        Ok(TokenizeReply { ids: request.text.bytes().map(u32::from).collect() })
    }

    async fn engines(&self, command: EngineCommand) -> Result<EngineReply, ApiError> {
        self.engine_commands.lock().unwrap().push(command);
        let held = self.engine_hold.lock().unwrap().clone();
        if let Some(came) = held {
            came.cancel();
            std::future::pending::<()>().await;
        }
        let scripted = self.engine_replies.lock().unwrap().pop_front();
        scripted.unwrap_or_else(|| Ok(EngineReply { engines: engines(), handovers: Vec::new() }))
    }

    async fn model(&self, command: ModelCommand) -> Result<ModelStatus, ApiError> {
        let status = self.status.borrow().models.iter().find(|m| m.id == command.model).cloned();
        self.model_commands.lock().unwrap().push(command);
        status.ok_or_else(|| refusal(503, "model_not_here", true))
    }
}

pub fn started() -> GenerateEvent {
    GenerateEvent::Started {
        prompt_tokens: 7,
        cached_tokens: 3,
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        end_tokens: vec![1],
    }
}

pub fn text(text: &str) -> GenerateEvent {
    bytes(text.as_bytes())
}

pub fn bytes(bytes: &[u8]) -> GenerateEvent {
    GenerateEvent::Token(Token { id: 9, bytes: bytes.to_vec().into(), control: false, logprobs: Vec::new() })
}

pub fn control(spelling: &str) -> GenerateEvent {
    let bytes = spelling.as_bytes().to_vec().into();
    GenerateEvent::Token(Token { id: 1, bytes, control: true, logprobs: Vec::new() })
}

pub fn finished(reason: FinishReason, completion_tokens: u32) -> GenerateEvent {
    GenerateEvent::Finished { reason, completion_tokens }
}

pub fn failed(status: u16, code: &str, retry: bool) -> GenerateEvent {
    GenerateEvent::Failed(refusal(status, code, retry))
}

pub fn refusal(status: u16, code: &str, retry: bool) -> ApiError {
    ApiError {
        status,
        code: code.into(),
        message: format!("it was {code}"),
        hint: Some("do something".into()),
        retry,
        ..ApiError::default()
    }
}

/// A whole reply to an input of so many tokens.
pub fn embedded(prompt_tokens: u32, numbers: &[f32]) -> Vec<GenerateEvent> {
    let GenerateEvent::Started { engine, engine_version, end_tokens, .. } = started() else { unreachable!() };
    vec![
        GenerateEvent::Started { prompt_tokens, cached_tokens: 0, engine, engine_version, end_tokens },
        GenerateEvent::Embedding(Embedding { numbers: numbers.to_vec() }),
        finished(FinishReason::Stop, 0),
    ]
}

/// A whole reply of plain words.
pub fn words(words: &[&str]) -> Vec<GenerateEvent> {
    let tokens = words.iter().map(|w| text(w));
    let count = words.len() as u32 + 1;
    [started()]
        .into_iter()
        .chain(tokens)
        .chain([control("<|end|>"), finished(FinishReason::Stop, count)])
        .collect()
}

/// The data of a stream, in order; `Err` holds what is neither data nor comment. Comments are given apart.
pub struct Events {
    pub data: Vec<String>,
    pub comments: Vec<String>,
}

impl Events {
    pub async fn read(response: reqwest::Response) -> Events {
        assert_eq!(response.status(), 200);
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        let text = in_time("the stream's end", response.text()).await.unwrap();
        Events::parse(&text)
    }

    pub fn parse(text: &str) -> Events {
        let mut events = Events { data: Vec::new(), comments: Vec::new() };
        for block in text.split_terminator("\n\n") {
            match (block.strip_prefix("data: "), block.strip_prefix(": ")) {
                (Some(data), _) => events.data.push(data.to_owned()),
                (_, Some(comment)) => events.comments.push(comment.to_owned()),
                _ => panic!("not an event: {block:?}"),
            }
        }
        events
    }

    /// The JSON of all events before `[DONE]`, which has to be there.
    pub fn chunks(&self) -> Vec<Value> {
        let (last, chunks) = self.data.split_last().unwrap();
        assert_eq!(last, "[DONE]");
        chunks.iter().map(|c| serde_json::from_str(c).unwrap()).collect()
    }
}
