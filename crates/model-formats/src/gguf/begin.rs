//! Whether a text begins with the beginning token, as llama.cpp has it: what a file says, or what its kind of vocabulary does.

use super::{Metadata, Value};

pub(super) const MODEL: &str = "tokenizer.ggml.model";
const SPLIT: &str = "tokenizer.ggml.pre";
const SAID: &str = "tokenizer.ggml.add_bos_token";
/// Byte-level vocabularies, which differ in how a text is cut before it is merged.
const BYTE_LEVEL: [&str; 3] = ["gpt2", "hybriddna", "whitespace"];
/// Of these vocabularies, and of these ways to cut, texts begin with it where the file does not say.
const VOCABULARIES: [&str; 2] = ["llama", "bert"];
const SPLITS: [&str; 11] = [
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
];
/// Texts of these do whatever the file says: early files say that they do not, and are wrong.
const ALWAYS: [&str; 2] = ["gemma4", "granite-embed-multi-311m"];

pub(super) fn begins(metadata: &Metadata<'_>) -> bool {
    let text = |key: &str| match metadata.values.get(key) {
        Some(Value::Text(text)) => *text,
        _ => "",
    };
    let (vocabulary, split) = (text(MODEL), text(SPLIT));
    let byte_level = BYTE_LEVEL.contains(&vocabulary);
    if vocabulary == "gemma4" || (byte_level && ALWAYS.contains(&split)) {
        return true;
    }
    match metadata.values.get(SAID) {
        Some(Value::Bool(said)) => *said,
        _ => VOCABULARIES.contains(&vocabulary) || (byte_level && SPLITS.contains(&split)),
    }
}
