//! Repositories for the hub: the demo model, echo models, and broken ones.

use fixture_hub::Repo;
use gpt_oss_synth::{Dense, convert_gguf};
use serde_json::{Value, json};

use crate::reference::MODEL;

pub const ECHO: &str = "acme/echo";
/// The file of [`demo_gguf`].
pub const DEMO_GGUF: &str = "demo-model-BF16.gguf";

pub fn demo() -> Repo {
    let dir = engine_testkit::build::workspace_root().join("assets/demo-model");
    Repo::from_dir(MODEL, &dir).expect("the demo model is in the tree")
}

/// The demo model as one GGUF file, [`DEMO_GGUF`].
pub fn demo_gguf() -> Repo {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join(DEMO_GGUF);
    let checkpoint = engine_testkit::build::workspace_root().join("assets/demo-model");
    convert_gguf(&checkpoint, Dense::Bf16, &path, |_, _| {}).expect("the demo model is in the tree");
    Repo::new(MODEL).file(DEMO_GGUF, std::fs::read(&path).expect("just written"))
}

/// A tokenizer that nothing reads: echo has one token for each byte.
const TOKENIZER: &str =
    r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}"#;
/// Of another construction than the demo model's: no system part, brackets for roles.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}[assistant] {% endif %}";

/// A model of the echo engine, with a chat template of its own.
pub fn echo(id: &str) -> Repo {
    Repo::new(id)
        .file("config.json", json!({"model_type": "echo", "max_position_embeddings": 512}).to_string())
        .file("tokenizer.json", TOKENIZER)
        .file("tokenizer_config.json", json!({"chat_template": TEMPLATE}).to_string())
        .file("model.safetensors", weights())
}

/// A model of the engine that misbehaves: `fault` is what its `config.json` says of it.
pub fn fault(id: &str, context_length: u32, fault: Value) -> Repo {
    let config = json!({"model_type": "fault", "max_position_embeddings": context_length, "fault": fault});
    echo(id).without("config.json").file("config.json", config.to_string())
}

/// One tensor of one number.
pub fn weights() -> Vec<u8> {
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&1f32.to_le_bytes());
    bytes
}
