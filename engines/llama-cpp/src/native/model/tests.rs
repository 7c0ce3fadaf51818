use model_formats::gguf::{GgufModel, Metadata};

use super::*;

/// Ways to cut that llama.cpp begins texts of, and ways that it does not.
const SPLITS: [&str; 29] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "chameleon",
    "gemma4",
    "granite-embed-multi-311m",
    "default",
    "deepseek-llm",
    "deepseek-v3",
    "falcon",
    "gpt-2",
    "jina-v1-en",
    "command-r",
    "qwen2",
    "qwen35",
    "glm4",
    "smollm",
    "exaone4",
    "gpt-4o",
    "hunyuan",
    "kimi-k2",
    "minimax-m2",
];

/// The router begins a completion by what the header says. llama.cpp is asked whether it would.
#[test]
fn texts_begin_as_llama_cpp_has_them_begin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut report = |_, _| true;
    let mut progress = Progress::new(&mut report);
    let parameters = LoadParameters { devices: Vec::new(), mmap: true, repack: false };
    let of_bytes = SPLITS.map(|split| ("gpt2", split));
    for (vocabulary, split) in of_bytes.into_iter().chain([("llama", "default"), ("gemma4", "default")]) {
        for said in [None, Some(false), Some(true)] {
            gpt_oss_synth::write_vocabulary_gguf((vocabulary, split), said, 1, &path).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let metadata = Metadata::parse("m.gguf", &bytes, bytes.len() as u64).unwrap();
            let ours = GgufModel::of("m.gguf", &metadata).unwrap().begins;
            let model = LoadedModel::load("m", std::slice::from_ref(&path), &parameters, 1, &mut progress);
            assert_eq!(ours, model.unwrap().begins(), "{vocabulary} {split} {said:?}");
        }
    }
}
