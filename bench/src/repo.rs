//! The model that is served: an echo model on a hub of this process's own.

use fixture_hub::Repo;
use model_manifest::{FileRole, Format, Manifest, ManifestFile, Source};
use serde_json::json;
use sha2::{Digest as _, Sha256};

pub const REPO: &str = "bench/echo";
/// Longer than any sequence here.
pub const CONTEXT: u32 = 1 << 17;

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}[assistant] {% endif %}";
/// Nothing reads it: echo has one token for each byte.
const TOKENIZER: &str =
    r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}"#;

fn files() -> Vec<(&'static str, FileRole, Vec<u8>)> {
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header.as_bytes());
    weights.extend_from_slice(&1f32.to_le_bytes());
    let config = json!({"model_type": "echo", "max_position_embeddings": CONTEXT}).to_string();
    vec![
        ("config.json", FileRole::Config, config.into_bytes()),
        ("model.safetensors", FileRole::Weights, weights),
        ("tokenizer.json", FileRole::Tokenizer, TOKENIZER.as_bytes().to_vec()),
    ]
}

/// As the hub has it, with a chat template.
pub fn repo() -> Repo {
    let config = json!({"chat_template": TEMPLATE}).to_string();
    files()
        .into_iter()
        .fold(Repo::new(REPO), |repo, (name, _, bytes)| repo.file(name, bytes))
        .file("tokenizer_config.json", config)
}

/// As a router would register it under `id`.
pub fn manifest(id: &str) -> Manifest {
    let source = Source::Hub { repo: REPO.to_owned(), revision: "main".to_owned(), commit: repo().commit() };
    let file = |(name, role, bytes): (&str, FileRole, Vec<u8>)| ManifestFile {
        name: name.to_owned(),
        role,
        size: bytes.len() as u64,
        sha256: Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect(),
        git_oid: None,
        repo_path: None,
        repo: None,
        optional: false,
        runtimes: Vec::new(),
    };
    Manifest {
        id: id.to_owned(),
        source,
        format: Format::Safetensors,
        architecture: "echo".to_owned(),
        runtimes: vec!["echo".to_owned()],
        primary: "model.safetensors".to_owned(),
        files: files().into_iter().map(file).collect(),
        context_length_max: Some(CONTEXT),
        embeds: false,
        embedding_size: None,
    }
}
