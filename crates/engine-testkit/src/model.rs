//! Model folders for tests.

use std::path::Path;

use anyhow::{Context as _, Result};
use engine_protocol::Model;
use model_formats::gguf::{GgufModel, Metadata};

/// Writes the model that the echo engines run, with a context of so many tokens.
pub fn write_echo_model(dir: &Path, context_length: u32) -> Result<()> {
    let config = serde_json::json!({ "model_type": "echo", "max_position_embeddings": context_length });
    std::fs::write(dir.join("config.json"), config.to_string())
        .with_context(|| format!("cannot write to {}", dir.display()))
}

/// Writes a model of the engine that misbehaves; `fault` is what its own documentation says.
pub fn write_fault_model(dir: &Path, context_length: u32, fault: &serde_json::Value) -> Result<()> {
    let config = serde_json::json!({
        "model_type": "fault", "max_position_embeddings": context_length, "fault": fault,
    });
    std::fs::write(dir.join("config.json"), config.to_string())
        .with_context(|| format!("cannot write to {}", dir.display()))
}

/// Describes a folder as the node would: every file in it, its architecture from `config.json`, or from a GGUF file where
/// one is in it.
pub fn describe(dir: &Path, runtime: &str) -> Result<Model> {
    let dir = std::path::absolute(dir)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir)? {
        let path = entry?.path();
        if path.is_file() {
            let name = path.file_name().and_then(|n| n.to_str()).context("a file name that is not UTF-8")?;
            files.push((name.to_owned(), path.to_str().context("a path that is not UTF-8")?.to_owned()));
        }
    }
    files.sort();
    let named = |wanted: &dyn Fn(&str) -> bool| files.iter().map(|(n, _)| n).find(|n| wanted(n)).cloned();
    let gguf = named(&|n| n.ends_with(".gguf"));
    let (format, architecture) = match &gguf {
        Some(name) => ("gguf", gguf_architecture(&dir.join(name))?),
        None => ("safetensors", config_architecture(&dir)?),
    };
    let primary = gguf
        .or_else(|| named(&|n| n.ends_with(".safetensors.index.json")))
        .or_else(|| named(&|n| n.ends_with(".safetensors")))
        .unwrap_or_else(|| "config.json".to_owned());
    Ok(Model {
        id: format!("test/{}", dir.file_name().and_then(|n| n.to_str()).unwrap_or("model")),
        format: format.to_owned(),
        architecture,
        runtime: runtime.to_owned(),
        model_dir: dir.to_str().context("a path that is not UTF-8")?.to_owned(),
        primary,
        files,
    })
}

fn config_architecture(dir: &Path) -> Result<String> {
    let config = dir.join("config.json");
    let text = std::fs::read(&config).with_context(|| format!("cannot read {}", config.display()))?;
    let json: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", config.display()))?;
    Ok(json["model_type"].as_str().context("config.json has no model_type")?.to_owned())
}

fn gguf_architecture(path: &Path) -> Result<String> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {file}"))?;
    let metadata = Metadata::parse(&file, &bytes, bytes.len() as u64)?;
    Ok(GgufModel::of(&file, &metadata)?.architecture)
}
