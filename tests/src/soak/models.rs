//! The models of a soak: small and quick, slow and long, slow to load, and two that do not fit together.

use fixture_hub::Repo;
use serde_json::{Value, json};

use crate::repos;

/// What the nodes have in all: `large` twice does not fit, all the others beside one `large` do.
pub const SIMULATED_DEVICE: &str = "sim:0=1GiB";
const MIB: u64 = 1 << 20;
/// Prompt and answer of the longest request, and room.
const CONTEXT: u32 = 4096;
const SEQUENCES: u32 = 8;

#[derive(Debug, Clone)]
pub struct SoakModel {
    pub id: &'static str,
    /// The answer is the prompt so many times.
    pub repeat: usize,
    pub tokens_per_second: u32,
    load_ms: u64,
    weights_bytes: u64,
    /// Of how many requests it gets one, beside the others.
    pub weight: u32,
}

const PLAIN: SoakModel = SoakModel {
    id: "soak/plain",
    repeat: 2,
    tokens_per_second: 0,
    load_ms: 0,
    weights_bytes: 16 * MIB,
    weight: 4,
};
const PACED: SoakModel =
    SoakModel { id: "soak/paced", repeat: 3, tokens_per_second: 200, weight: 4, ..PLAIN };
const LATE: SoakModel =
    SoakModel { id: "soak/late", repeat: 1, tokens_per_second: 400, load_ms: 1500, weight: 2, ..PLAIN };
const LARGE_A: SoakModel =
    SoakModel { id: "soak/large-a", weights_bytes: 600 * MIB, load_ms: 200, weight: 1, ..PLAIN };
const LARGE_B: SoakModel = SoakModel { id: "soak/large-b", ..LARGE_A };

pub fn mixed() -> Vec<SoakModel> {
    vec![PLAIN, PACED, LATE, LARGE_A, LARGE_B]
}

pub fn steady() -> Vec<SoakModel> {
    vec![PACED]
}

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
    pub fn repo(&self) -> Repo {
        repos::fault(self.id, CONTEXT, json!({}))
    }

    /// Body of its registration; its misdeeds look for their files in `dir`.
    pub fn registration(&self, dir: &std::path::Path) -> Value {
        let rules: Vec<Value> =
            Misdeed::ALL.iter().map(|misdeed| misdeed.rule(&dir.join(misdeed.file_name(self.id)))).collect();
        json!({
            "repo": self.id,
            "format": "safetensors",
            "settings": {
                "sequences_max": SEQUENCES,
                "options": {
                    "faults": rules,
                    "repeat": self.repeat,
                    "tokens_per_second": self.tokens_per_second,
                    "load_ms": self.load_ms,
                    "weights_bytes": self.weights_bytes,
                },
            },
        })
    }
}
