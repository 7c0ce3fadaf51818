//! What llama.cpp's tables of a vocabulary take, and those of this engine beside them.

use model_formats::gguf::{Metadata, Value};

/// Of each token: an entry in the table by id, one in that by text, its bytes as they are written out, and the entry here.
const TOKEN_BYTES: u64 = 280;
/// Of each merge: an entry of two texts and its rank.
const MERGE_BYTES: u64 = 112;
/// Texts up to this length lie in their entries; longer ones elsewhere, once in each table.
const SHORT_BYTES: usize = 15;
const TABLES: u64 = 4;
/// What an allocation takes besides its bytes.
const ALLOCATION_BYTES: u64 = 16;
/// Other kinds of vocabularies have tables of their own, for each byte of the head so many.
const GROWTH_OF_OTHERS: u64 = 6;

/// `head_bytes`: of the file's metadata.
pub(super) fn bytes(metadata: &Metadata<'_>, head_bytes: u64) -> u64 {
    let list = |key: &str| match metadata.values.get(key) {
        Some(Value::Array(list)) => Some(*list),
        _ => None,
    };
    let tokens = list("tokenizer.ggml.tokens");
    let long: u64 = (tokens.into_iter().flat_map(|tokens| tokens.texts()).flatten())
        .filter(|text| text.len() > SHORT_BYTES)
        .map(|text| text.len() as u64 + ALLOCATION_BYTES)
        .sum();
    let count = |list: Option<model_formats::gguf::Array<'_>>| list.map_or(0, |list| list.len());
    let tables =
        count(tokens) * TOKEN_BYTES + count(list("tokenizer.ggml.merges")) * MERGE_BYTES + TABLES * long;
    match metadata.values.get("tokenizer.ggml.model") {
        Some(Value::Text("gpt2" | "llama")) => tables,
        _ => tables.max(head_bytes.saturating_mul(GROWTH_OF_OTHERS)),
    }
}
