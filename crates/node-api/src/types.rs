//! The messages of the contract.

use base64::Engine as _;
use model_manifest::Manifest;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Sent by a node that wants to join.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Join {
    pub protocol_version: u32,
    pub node: NodeInfo,
}

/// Who a node is and what it has. Does not change while it is connected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    /// Kept in the node's data folder; the same after a restart.
    pub id: String,
    /// For people: the host name unless configured.
    pub name: String,
    /// Of the `llm-router` binary.
    pub version: String,
    /// `linux`, `macos`, `windows`.
    pub os: String,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// Identifies the machine, so that local folders are only offered to nodes on the router's own.
    pub machine_id: String,
    /// Devices the node serves with. Empty or only `cpu`: refused unless the router allows the CPU.
    pub devices: Vec<DeviceInfo>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceInfo {
    /// `cuda:0`, `metal:0`, `cpu`.
    pub id: String,
    /// `cuda`, `metal`, `vulkan`, `d3d12`, `cpu`.
    pub kind: String,
    /// As the vendor calls it.
    pub name: String,
    /// Bytes; of a device that shares the machine's memory: what it may use of it.
    pub memory_total: u64,
    /// Driver name and version where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

/// A plugin the node has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineSummary {
    pub id: String,
    pub version: String,
    /// Of the engine ABI, `1.0`.
    #[serde(default)]
    pub abi_version: String,
    pub runtimes: Vec<String>,
    pub architectures: Vec<String>,
    pub formats: Vec<String>,
    /// Device kinds it can use.
    pub devices: Vec<String>,
    pub capabilities: Vec<String>,
    /// sha256 of the library that workers open, lower-case hex.
    pub sha256: String,
    #[serde(flatten)]
    pub state: EngineState,
    /// Models it was to take over from another version, and did not: the other version stayed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_trials: Vec<FailedTrial>,
}

/// A version of an engine that failed with a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailedTrial {
    pub model: String,
    pub reason: String,
    /// Seconds since 1970.
    pub at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EngineState {
    Available,
    /// By an operator; it gets no models until it is enabled.
    Disabled,
    /// Found, and not used: another ABI, a broken manifest, …
    Refused {
        reason: String,
    },
}

/// One line of `GET /v1/status`: the whole state, so a reader needs only the last line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Rises by one a line.
    pub sequence: u64,
    pub models: Vec<ModelStatus>,
    /// Those found now; they come and go while the node runs.
    #[serde(default)]
    pub engines: Vec<EngineSummary>,
    pub memory: MemoryStatus,
    #[serde(default)]
    pub alerts: Vec<Alert>,
    #[serde(default)]
    pub counters: Counters,
    /// Requests running on the node.
    pub requests_running: u32,
    pub requests_waiting: u32,
    /// The node is ending: it takes no new requests.
    #[serde(default)]
    pub draining: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryStatus {
    /// Bytes.
    pub ram_total: u64,
    pub ram_available: u64,
    pub devices: Vec<DeviceMemory>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceMemory {
    pub device: String,
    /// Bytes.
    pub total: u64,
    pub used: u64,
    /// Bytes that loaded models were granted, whether they use them yet or not.
    #[serde(default)]
    pub reserved: u64,
}

/// Something an operator should look at; it goes when its cause does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alert {
    /// Stable, snake_case: `memory_high`, `over_budget`.
    pub code: String,
    /// What it is about: a device, an engine, a model.
    pub subject: String,
    pub message: String,
    /// Seconds since 1970.
    pub since: i64,
}

/// What has happened on a node since it started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Counters {
    pub worker_starts: u64,
    /// Ended by itself while it had something to do.
    pub worker_crashes: u64,
    /// Killed because nothing moved.
    pub worker_hangs: u64,
    /// Killed for taking more memory than it was granted.
    pub worker_overruns: u64,
    pub loads: u64,
    pub load_failures: u64,
    pub reloads: u64,
    /// A new version failed its trial or its load.
    pub reload_failures: u64,
    /// Reloads during which requests had to wait, because two copies did not fit.
    pub reload_pauses: u64,
    /// Sum of those waits, milliseconds.
    pub reload_pause_ms: u64,
    /// Idle models that left to make room.
    pub evictions: u64,
    /// Idle models that left because their time was over.
    pub expiries: u64,
    pub requests: u64,
    /// Requests whose caller went away.
    pub requests_cancelled: u64,
    /// Requests that were on a worker at its death, before anything of them was sent and after.
    pub requests_interrupted: u64,
}

/// A registered model as one node sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelStatus {
    pub id: String,
    /// Of the manifest this is about.
    pub fingerprint: String,
    #[serde(flatten)]
    pub state: ModelState,
    /// Optional files that are not there, and why. The model works without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Its workers, the one that gets new requests first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaStatus>,
    /// Engines here that could run it, the chosen one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// Requests on this node that have no worker yet.
    #[serde(default)]
    pub requests_waiting: u32,
}

/// A model in a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaStatus {
    /// Process id.
    pub worker: u32,
    pub role: ReplicaRole,
    pub engine: String,
    pub engine_version: String,
    /// Of the library this worker opened, lower-case hex.
    pub library_sha256: String,
    pub devices: Vec<String>,
    /// Tokens.
    pub context_length: u32,
    pub sequences_max: u32,
    pub requests_running: u32,
    /// Since it was loaded.
    pub requests_total: u64,
    /// Seconds since 1970.
    pub loaded_at: i64,
    /// Seconds since 1970; 0: not yet.
    pub last_used: i64,
    pub memory: Vec<ReplicaMemory>,
    /// Bytes, as the engine counts them.
    pub kv_bytes_used: u64,
    pub kv_bytes_total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaRole {
    /// Loads, or proves itself.
    Starting,
    /// Gets new requests.
    Serving,
    /// Finishes what it has, then leaves.
    Draining,
}

/// What a worker takes on a device, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaMemory {
    pub device: String,
    /// As the engine said before the load, for the context and the sequences it was loaded with.
    pub estimated: u64,
    /// Its budget.
    pub granted: u64,
    /// Its own, as the system or the driver sees it.
    pub used: u64,
    /// Pages of mapped files, which the system can take back.
    #[serde(default)]
    pub mapped: u64,
}

/// An engine that could run a model, and what is known of how well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Candidate {
    pub engine: String,
    pub engine_version: String,
    pub device: String,
    /// Why it is where it is in the list: `set by the operator`, `best score`, `newest version`, `failed its trial`, …
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<Score>,
}

/// What one engine reached with one model on one device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Score {
    /// Tokens per second of one sequence.
    pub tokens_per_second: f64,
    pub first_token_ms: f64,
    /// Bytes.
    pub memory: u64,
    /// Seconds since 1970.
    pub measured_at: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ModelState {
    /// Not looked at yet, or waiting for another download.
    #[default]
    Waiting,
    Downloading {
        bytes_done: u64,
        bytes_total: u64,
        /// The files being fetched now.
        files: Vec<String>,
    },
    Verifying {
        bytes_done: u64,
        bytes_total: u64,
    },
    /// Verified and runnable here; the first request loads it.
    Ready {
        engine: String,
        engine_version: String,
        device: String,
    },
    Loading {
        engine: String,
        engine_version: String,
        device: String,
        /// 0 to 1.
        progress: f32,
    },
    /// In a worker.
    Loaded {
        engine: String,
        engine_version: String,
        device: String,
        /// Tokens.
        context_length: u32,
        sequences_max: u32,
        /// Process id of the worker.
        worker: u32,
    },
    /// This node cannot run it: which engine, device or architecture is missing.
    Unsupported {
        reason: String,
    },
    /// It could run here and does not: what failed and what to do.
    Failed {
        reason: String,
        /// The node tries again by itself.
        retrying: bool,
    },
}

impl ModelState {
    /// A request may be sent: it is in a worker, or the request itself brings that about.
    pub fn is_ready(&self) -> bool {
        matches!(self, ModelState::Ready { .. } | ModelState::Loading { .. } | ModelState::Loaded { .. })
    }
}

/// What the router wants on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DesiredModels {
    pub models: Vec<DesiredModel>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DesiredModel {
    pub fingerprint: String,
    pub manifest: Manifest,
    #[serde(default)]
    pub settings: ModelSettings,
}

/// What the operator set for a model; `None` is the node's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelSettings {
    /// Longest sequence, prompt and answer, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
    /// How many sequences run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences_max: Option<u32>,
    /// The engine to use where several can: `llama-cpp`, or one version of it, `llama-cpp@1.2.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Devices to use, of those a node serves with; none: the best.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Workers on each node, where memory allows; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Seconds without a request after which it leaves memory; 0: at once, negative: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<i64>,
    /// Engine-specific options.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schema(value_type = Object)]
    pub options: serde_json::Map<String, serde_json::Value>,
}

/// Bytes `start..end` of a text in which spellings of control tokens stay text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiteralRange {
    pub start: u32,
    pub end: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// The caller's `x-request-id`.
    pub request_id: String,
    pub model: String,
    /// The manifest the router means; another one on the node is a 503.
    pub fingerprint: String,
    pub prompt: Prompt,
    pub sampling: Sampling,
    /// The prompt's embedding is wanted and no answer: `sampling` says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embed: bool,
    /// Workers that died with this request on them before anything of it was sent. One that has seen a death is let on a
    /// worker only when no other such request is on it, until its first token: the next death names the culprit.
    #[serde(default)]
    pub worker_deaths: u32,
    /// Prompts are found in a cache only by requests with the same value: one for each caller.
    #[serde(default)]
    pub cache_salt: u64,
    /// The same for requests whose prompts begin alike, so that a node with several workers of a model gives them to one of
    /// them while it has room; 0: nothing is won by that.
    #[serde(default)]
    pub affinity: u64,
}

/// What an operator asks of a node's engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum EngineCommand {
    /// Look at the engine folders again and hand over to what is new. `engine`: give the models of this one new workers
    /// even where its version is the same; `None`: only where something changed.
    Reload {
        #[serde(default)]
        engine: Option<String>,
    },
    Disable {
        engine: String,
        /// `None`: every version.
        #[serde(default)]
        version: Option<String>,
    },
    Enable {
        engine: String,
        #[serde(default)]
        version: Option<String>,
    },
}

/// What came of an [`EngineCommand`], when all of it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineReply {
    pub engines: Vec<EngineSummary>,
    pub handovers: Vec<Handover>,
}

/// One model's change from one worker to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Handover {
    pub model: String,
    /// `echo 0.1.0`
    pub from: String,
    pub to: String,
    /// The new one serves; otherwise the old one still does.
    pub done: bool,
    /// Why it is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long new requests had to wait, milliseconds; 0: they did not.
    pub pause_ms: u64,
}

/// What an operator asks of one model on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCommand {
    pub model: String,
    pub fingerprint: String,
    pub action: ModelAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAction {
    /// Into a worker, as a request would bring it.
    Load,
    /// Out of its workers once they are idle; it stays ready.
    Unload,
    /// It is about to be wanted no more: then the files that this node brought leave the shared cache.
    Remove,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    Text {
        text: String,
        #[serde(default)]
        literal: Vec<LiteralRange>,
    },
    Tokens(Vec<u32>),
}

/// The same fields and meanings as the engine ABI's sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    pub min_p: f32,
    /// `None`: the node draws one.
    pub seed: Option<u64>,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    /// 0: up to the end of the context.
    pub tokens_max: u32,
    pub tokens_min: u32,
    pub stop: Vec<String>,
    pub stop_tokens: Vec<u32>,
    pub ignore_end_tokens: bool,
    pub logprobs: Option<u32>,
    /// The answer begins with one of these; none: with anything. Spellings of control tokens stand for the tokens.
    pub begin_with: Vec<String>,
    /// Only for an engine with the capability `constraint`: others do not know the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
}

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "text", rename_all = "snake_case")]
pub enum Constraint {
    /// A JSON text that fits this JSON Schema.
    JsonSchema(String),
    /// A text that fits this grammar, in which `<|name|>` is a control token.
    Lark(String),
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            tokens_max: 0,
            tokens_min: 0,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end_tokens: false,
            logprobs: None,
            begin_with: Vec::new(),
            constraint: None,
        }
    }
}

/// One line of the answer to `POST /v1/generate` and `POST /v1/embed`. Read in `event.rs`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum GenerateEvent {
    /// The model is on its way into a worker; 0 to 1. Comes again while it goes on, so the router can keep its client.
    Loading {
        progress: f32,
    },
    /// There is nothing to say, and the node still cares for the request. Comes after [`crate::ALIVE_INTERVAL`] without
    /// another event, so that a request the node lost is noticed in seconds and not when a client gives up.
    Alive,
    /// The sequence runs.
    Started {
        prompt_tokens: u32,
        cached_tokens: u32,
        engine: String,
        engine_version: String,
        /// Ids that end a reply.
        end_tokens: Vec<u32>,
    },
    Token(Token),
    /// What a request with [`GenerateRequest::embed`] comes to, before it is finished.
    Embedding(Embedding),
    Finished {
        reason: FinishReason,
        completion_tokens: u32,
    },
    /// Nothing comes after it.
    Failed(ApiError),
}

/// Of length 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Embedding {
    #[serde(with = "crate::numbers")]
    pub numbers: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "TokenLine")]
pub struct Token {
    pub id: u32,
    #[serde(flatten)]
    pub bytes: TokenBytes,
    /// A control token (`<|channel|>`): not text, `bytes` is its spelling.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
    /// The chosen token first, then the most likely, best first. Empty unless asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
}

/// A token as it is read: a flattened struct would be collected first and read then.
#[derive(Deserialize)]
struct TokenLine {
    id: u32,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    base64: Option<String>,
    #[serde(default)]
    control: bool,
    #[serde(default)]
    logprobs: Vec<TokenLogprob>,
}

impl From<TokenLine> for Token {
    fn from(line: TokenLine) -> Token {
        let bytes = TokenBytes { text: line.text, base64: line.base64 };
        Token { id: line.id, bytes, control: line.control, logprobs: line.logprobs }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub id: u32,
    /// Natural logarithm. Minus infinity (a token that cannot come) is `f32::MIN` on the wire: JSON has none.
    #[serde(serialize_with = "finite")]
    pub logprob: f32,
    #[serde(flatten)]
    pub bytes: TokenBytes,
}

fn finite<S: serde::Serializer>(logprob: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    let finite = if logprob.is_nan() { f32::MIN } else { logprob.clamp(f32::MIN, f32::MAX) };
    serializer.serialize_f32(finite)
}

/// A token's bytes: as text where they are whole UTF-8, else in base64. One of the two is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBytes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl TokenBytes {
    pub fn to_vec(&self) -> Vec<u8> {
        match (&self.text, &self.base64) {
            (Some(text), _) => text.clone().into_bytes(),
            // What is no base64 cannot come from our node; as an empty token it harms nothing.
            (None, Some(b)) => base64::engine::general_purpose::STANDARD.decode(b).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }
}

impl From<Vec<u8>> for TokenBytes {
    fn from(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => TokenBytes { text: Some(text), base64: None },
            Err(e) => TokenBytes {
                text: None,
                base64: Some(base64::engine::general_purpose::STANDARD.encode(e.as_bytes())),
            },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    pub model: String,
    pub fingerprint: String,
    pub text: String,
    #[serde(default)]
    pub literal: Vec<LiteralRange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizeReply {
    pub ids: Vec<u32>,
}

/// An error on its way to the caller. The log has its own words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status the router answers with.
    pub status: u16,
    /// Stable, snake_case.
    pub code: String,
    /// Names the thing and the numbers.
    pub message: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Which field of the request it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// Where two numbers explain it (bytes, tokens): needed, available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<(u64, u64)>,
    /// The same request may go through on another node or later.
    #[serde(default)]
    pub retry: bool,
    /// A worker died with this request on it.
    #[serde(default)]
    pub worker_died: bool,
}
