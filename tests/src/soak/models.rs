//! The models of a soak: of the engine made for tests small and quick, slow and long, slow to load, and two that do not fit
//! together; of an engine of the product the demo model.

use std::sync::Arc;

use clap::ValueEnum;
use fixture_hub::Repo;
use serde_json::{Value, json};

use crate::reference::{MODEL, Prompt, Reference};
use crate::repos;

/// What the nodes have in all: `large` twice does not fit, all the others beside one `large` do.
pub const SIMULATED_DEVICE: &str = "sim:0=1GiB";
const MIB: u64 = 1 << 20;
/// Prompt and answer of the longest request, and room.
const CONTEXT: u32 = 4096;
const SEQUENCES: u32 = 8;

/// Whose workers have the trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SoakEngine {
    /// Made for tests: it can be told to crash and to hang, and has several models
    Fault,
    GptOss,
    LlamaCpp,
}

impl SoakEngine {
    pub fn id(self) -> &'static str {
        match self {
            SoakEngine::Fault => "fault",
            SoakEngine::GptOss => "gpt-oss",
            SoakEngine::LlamaCpp => "llama-cpp",
        }
    }

    /// For trouble of every kind.
    pub fn mixed(self) -> Vec<SoakModel> {
        match self {
            SoakEngine::Fault => [PLAIN, PACED, LATE, LARGE_A, LARGE_B].map(SoakModel::repeating).into(),
            SoakEngine::GptOss => vec![SoakModel::demo("safetensors")],
            SoakEngine::LlamaCpp => vec![SoakModel::demo("gguf")],
        }
    }

    /// For reloads alone.
    pub fn steady(self) -> Vec<SoakModel> {
        match self {
            SoakEngine::Fault => vec![SoakModel::repeating(PACED)],
            SoakEngine::GptOss | SoakEngine::LlamaCpp => self.mixed(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct SoakModel {
    pub id: &'static str,
    /// Of how many requests it gets one, beside the others.
    pub weight: u32,
    pub answers: Answers,
}

/// How an answer is known before the request is sent.
#[derive(Debug, Clone)]
pub enum Answers {
    Repeating(Repeating),
    Recorded { format: &'static str, prompts: Arc<[Prompt]> },
}

#[derive(Debug, Clone, Copy)]
pub struct Repeating {
    id: &'static str,
    /// The answer is the prompt so many times.
    pub repeat: usize,
    tokens_per_second: u32,
    load_ms: u64,
    weights_bytes: u64,
    weight: u32,
}

const PLAIN: Repeating = Repeating {
    id: "soak/plain",
    repeat: 2,
    tokens_per_second: 0,
    load_ms: 0,
    weights_bytes: 16 * MIB,
    weight: 4,
};
const PACED: Repeating =
    Repeating { id: "soak/paced", repeat: 3, tokens_per_second: 200, weight: 4, ..PLAIN };
const LATE: Repeating =
    Repeating { id: "soak/late", repeat: 1, tokens_per_second: 400, load_ms: 1500, weight: 2, ..PLAIN };
const LARGE_A: Repeating =
    Repeating { id: "soak/large-a", weights_bytes: 600 * MIB, load_ms: 200, weight: 1, ..PLAIN };
const LARGE_B: Repeating = Repeating { id: "soak/large-b", ..LARGE_A };

/// How a model's worker can be made to misbehave once: the rule has been served when its file has a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misdeed {
    HangInStep,
    AbortInStep,
    AbortInLoad,
}

impl Misdeed {
    pub const ALL: [Misdeed; 3] = [Misdeed::HangInStep, Misdeed::AbortInStep, Misdeed::AbortInLoad];

    pub fn file_name(self, model: &str) -> String {
        let word = match self {
            Misdeed::HangInStep => "hang-in-step",
            Misdeed::AbortInStep => "abort-in-step",
            Misdeed::AbortInLoad => "abort-in-load",
        };
        format!("{}-{word}", model.replace('/', "-"))
    }

    fn rule(self, file: &std::path::Path) -> Value {
        let (at, act) = match self {
            Misdeed::HangInStep => ("step", "hang"),
            Misdeed::AbortInStep => ("step", "abort"),
            Misdeed::AbortInLoad => ("load", "abort"),
        };
        json!({"at": at, "do": act, "times": {"file": file, "at_most": 1}})
    }
}

impl SoakModel {
    fn repeating(model: Repeating) -> SoakModel {
        SoakModel { id: model.id, weight: model.weight, answers: Answers::Repeating(model) }
    }

    /// The demo model, with the recorded answers that call no tool.
    fn demo(format: &'static str) -> SoakModel {
        let prompts = Reference::read().prompts.into_iter().filter(|p| p.tool_call.is_none());
        let answers = Answers::Recorded { format, prompts: prompts.collect() };
        SoakModel { id: MODEL, weight: 1, answers }
    }

    pub fn repo(&self) -> Repo {
        match &self.answers {
            Answers::Repeating(_) => repos::fault(self.id, CONTEXT, json!({})),
            Answers::Recorded { format: "gguf", .. } => repos::demo_gguf(),
            Answers::Recorded { .. } => repos::demo(),
        }
    }

    /// Body of its registration; its misdeeds look for their files in `dir`.
    pub fn registration(&self, dir: &std::path::Path) -> Value {
        let (format, options) = match &self.answers {
            Answers::Recorded { format, .. } => (*format, json!({})),
            Answers::Repeating(model) => {
                let rules: Vec<Value> =
                    Misdeed::ALL.iter().map(|deed| deed.rule(&dir.join(deed.file_name(self.id)))).collect();
                let options = json!({
                    "faults": rules,
                    "repeat": model.repeat,
                    "tokens_per_second": model.tokens_per_second,
                    "load_ms": model.load_ms,
                    "weights_bytes": model.weights_bytes,
                });
                ("safetensors", options)
            }
        };
        json!({
            "repo": self.id,
            "id": self.id,
            "format": format,
            "settings": {"sequences_max": SEQUENCES, "options": options},
        })
    }
}
