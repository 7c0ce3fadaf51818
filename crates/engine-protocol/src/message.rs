//! The messages themselves. Field meanings are those of `include/engine/llmr_engine.h`.

use serde::{Deserialize, Serialize};

/// Number of a sequence, chosen by the node, never used twice in one worker.
pub type SequenceId = u64;
/// Number of a request from node to worker that has exactly one answer, chosen by the node.
pub type CallId = u64;

/// From the node to its worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// First message after hello: open the plugin. Answered by [`ToNode::Opened`] or [`ToNode::Failed`] (call 0).
    Open(Open),
    /// Answered by [`ToNode::Estimated`] or `Failed`.
    Estimate { call: CallId, model: Model, settings: Settings },
    /// Load the one model. [`ToNode::Progress`] while it goes on, then [`ToNode::Loaded`] or `Failed`.
    Load { call: CallId, model: Model, settings: Settings, budget: Vec<DeviceBytes> },
    /// Answered by [`ToNode::Tokenized`] or `Failed`.
    Tokenize { call: CallId, text: String, literal: Vec<LiteralRange> },
    /// Start a sequence. Answered by events of that sequence, the first of them `Started` or `Failed`.
    Submit(Box<Submit>),
    /// Stop a sequence; its last event is `Finished { reason: Cancelled }` unless it ended before.
    Cancel { sequence: SequenceId },
    /// Answered by [`ToNode::Stats`].
    Stats { call: CallId },
    /// End: no new sequences; running ones are cancelled, the model is unloaded, the process exits with 0.
    Shutdown,
}

impl ToWorker {
    /// Bytes of its prompt or text, which is where a message can be large.
    pub fn text_bytes(&self) -> usize {
        match self {
            ToWorker::Tokenize { text, .. } => text.len(),
            ToWorker::Submit(submit) => match &submit.prompt {
                Prompt::Text { text, .. } => text.len(),
                Prompt::Tokens(ids) => ids.len() * size_of::<u32>(),
            },
            _ => 0,
        }
    }
}

/// From a worker to its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToNode {
    Opened(EngineInfo),
    Estimated {
        call: CallId,
        estimate: Estimate,
    },
    /// `total` 0: unknown. Each one is a sign of life for the watchdogs, whether `done` rose or not.
    Progress {
        phase: Phase,
        done: u64,
        total: u64,
    },
    Loaded {
        call: CallId,
        loaded: Loaded,
    },
    Tokenized {
        call: CallId,
        ids: Vec<u32>,
    },
    Stats {
        call: CallId,
        stats: Stats,
    },
    /// The call failed (call 0: opening the plugin).
    Failed {
        call: CallId,
        status: Status,
    },
    /// All events of one step, in the order they happened.
    Events(Vec<Event>),
    /// A step failed as a whole: every running sequence has ended with this status.
    StepFailed {
        status: Status,
    },
    /// A line the engine logged through the ABI, with the sequence it was about (0: none).
    Log {
        level: LogLevel,
        message: String,
        sequence: SequenceId,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Load,
    /// Also between steps, while they give no events; `done` counts from 0 in every step.
    Step,
    /// A long text between two steps, to be tokenized or submitted. Nothing more is said until that is done.
    Call,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Absolute path of the shared library.
    pub library: String,
    /// From the manifest beside it; the plugin's own words must agree.
    pub engine_id: String,
    pub engine_version: String,
    pub log_level: LogLevel,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    pub id: String,
    pub version: String,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub devices: Vec<Device>,
}

/// A device as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub id: String,
    /// `cpu`, `cuda`, `metal`, `vulkan`, `d3d12`.
    pub kind: String,
    pub name: String,
    /// Bytes; 0 where the engine cannot tell.
    pub memory_total: u64,
    pub memory_free: u64,
}

/// A verified local model; see `model_manifest::ModelDescriptor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub id: String,
    pub format: String,
    pub architecture: String,
    pub runtime: String,
    pub model_dir: String,
    pub primary: String,
    /// (name, absolute path).
    pub files: Vec<(String, String)>,
}

/// How to load it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Device ids to use; empty: the engine's first.
    pub devices: Vec<String>,
    /// Longest sequence, prompt and answer, in tokens; 0: the model's own maximum.
    pub context_length: u32,
    /// How many sequences may run at once; 0: the engine's default.
    pub sequences_max: u32,
    /// Tokens in one step at most; 0: the engine's default.
    pub batch_tokens_max: u32,
    /// CPU threads; 0: as many as there are physical cores.
    pub threads: u32,
    /// Engine-specific options as a JSON object; empty: none. Unknown keys are refused by the engine.
    pub options_json: String,
}

/// What a model needs on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNeed {
    pub device: String,
    /// Bytes of weights that become private memory of the worker.
    pub weights: u64,
    /// Bytes of weights that stay pages of mapped files.
    pub weights_mapped: u64,
    /// Bytes allocated once, whatever runs.
    pub workspace: u64,
    /// Bytes for every sequence, besides its KV.
    pub per_sequence: u64,
    /// Bytes of KV for every token of context of one sequence.
    pub kv_per_token: u64,
    /// Bytes of KV of one sequence that do not grow with its length (sliding windows).
    pub kv_fixed: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    pub devices: Vec<DeviceNeed>,
    /// The longest context the model allows, in tokens.
    pub context_length_max: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBytes {
    pub device: String,
    pub bytes: u64,
}

/// What a load ended in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    pub context_length: u32,
    pub sequences_max: u32,
    pub vocabulary_size: u32,
    /// Ids that end a reply.
    pub end_tokens: Vec<u32>,
    /// Numbers of an embedding; 0: the model has none.
    pub embedding_size: u32,
    /// It gives embeddings and no answers.
    pub embeds_only: bool,
}

/// Bytes `start..end` of a prompt in which spellings of control tokens stay text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiteralRange {
    pub start: u32,
    pub end: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    pub sequence: SequenceId,
    /// The caller's `x-request-id`, for log lines.
    pub request_id: String,
    pub prompt: Prompt,
    pub task: Task,
    /// KV of prompts is shared by sequences with the same value only.
    pub cache_salt: u64,
}

/// What is to come of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// An answer, its tokens chosen so.
    Generate(Box<Sampling>),
    /// Its embedding.
    Embed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    Text { text: String, literal: Vec<LiteralRange> },
    Tokens(Vec<u32>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub top_k: u32,
    /// 0: off.
    pub min_p: f32,
    pub seed: u64,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 1: off.
    pub repetition_penalty: f32,
    /// Added to the logit of a token before everything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens of the answer at most; 0: up to the context's end.
    pub tokens_max: u32,
    /// End tokens are not chosen before this many tokens.
    pub tokens_min: u32,
    /// The sequence ends when its text contains one of these.
    pub stop: Vec<String>,
    /// Ends besides the model's own.
    pub stop_tokens: Vec<u32>,
    pub ignore_end_tokens: bool,
    /// None: no logprobs; Some(n): of the chosen token and the n most likely (0 to 20).
    pub logprobs: Option<u32>,
    /// The answer begins with one of these; none: with anything. Spellings of control tokens stand for the tokens.
    pub begin_with: Vec<String>,
    /// None: the answer may be anything.
    pub constraint: Option<Constraint>,
}

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Constraint {
    /// A JSON text that fits this JSON Schema.
    JsonSchema(String),
    /// A text that fits this grammar.
    Lark(String),
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub sequence: SequenceId,
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// The sequence was admitted; its prompt has this many tokens, of which so many were found in the cache.
    Started {
        prompt_tokens: u32,
        cached_tokens: u32,
    },
    Token(Token),
    /// Of length 1; as many numbers as [`Loaded::embedding_size`] says.
    Embedding(Vec<f32>),
    Finished {
        reason: FinishReason,
        completion_tokens: u32,
    },
    /// This sequence alone failed.
    Failed {
        status: Status,
    },
}

/// One generated token, end tokens included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Token {
    pub id: u32,
    /// The token's bytes; may be part of a UTF-8 character. Of a control token: its spelling.
    #[serde(with = "serde_bytes_vec")]
    pub bytes: Vec<u8>,
    /// A control token (`<|channel|>`), which is not text.
    pub control: bool,
    /// Natural logarithm of the probability, of the chosen token first, then the most likely, best first.
    pub logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    #[serde(with = "serde_bytes_vec")]
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `tokens_max` or the context's end.
    Length,
    Cancelled,
}

/// The ten codes of the ABI, with the engine's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub code: StatusCode,
    /// Stable, snake_case: `context_length_exceeded`, `kv_full`.
    pub reason: String,
    pub message: String,
    /// Where numbers explain it (bytes, tokens); 0 and 0 where none do.
    pub needed: u64,
    pub available: u64,
    /// The field of the request or of the settings that was refused.
    pub param: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StatusCode {
    Ok = 0,
    OomVram = 1,
    OomRam = 2,
    ModelCorrupt = 3,
    Timeout = 4,
    Cancelled = 5,
    Unsupported = 6,
    Internal = 7,
    AbiMismatch = 8,
    LoadFailed = 9,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub sequences_running: u32,
    pub sequences_waiting: u32,
    pub steps: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Largest number of sequences that shared one step.
    pub batch_sequences_max: u32,
    /// Bytes in use, per device.
    pub memory: Vec<DeviceBytes>,
    pub kv_bytes_used: u64,
    pub kv_bytes_total: u64,
    /// Engine-specific, a JSON object.
    pub details_json: String,
}

/// Byte vectors as byte strings, not as lists of numbers.
mod serde_bytes_vec {
    use serde::{Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, v: &[u8]) -> Result<Vec<u8>, E> {
                Ok(v.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, v: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(v)
            }
        }
        d.deserialize_byte_buf(Bytes)
    }
}
