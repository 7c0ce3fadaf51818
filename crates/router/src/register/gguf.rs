//! What the router keeps of the header of a GGUF file, in the form of the files that other repositories have for it.

use std::collections::BTreeMap;

use chat::ControlTokens;
use model_formats::gguf::{GgufModel, SpecialToken};
use serde_json::{Value as Json, json};

use crate::cluster::TOKENIZER_CONFIG;

/// Raised whenever more of a header is kept, here or in the manifest, or something else: models that were registered before
/// are read again (`reread.rs`).
pub const HEADER_VERSION: i64 = 1;

/// Texts by the name of the file they would be.
pub fn texts(gguf: &GgufModel) -> BTreeMap<String, String> {
    const PLAIN: &str = "";
    let mut config: serde_json::Map<String, Json> =
        gguf.special_tokens.iter().map(|(token, text)| (token.variable().to_owned(), json!(text))).collect();
    let named = |(name, template): (&String, &String)| {
        let name = if name == PLAIN { "default" } else { name };
        json!({"name": name, "template": template})
    };
    let templates = match (gguf.chat_templates.get(PLAIN), gguf.chat_templates.len()) {
        (_, 0) => Json::Null,
        (Some(only), 1) => json!(only),
        _ => gguf.chat_templates.iter().map(named).collect(),
    };
    config.insert("chat_template".to_owned(), templates);
    // Of a token that is none of them the spelling would be ordinary text.
    let spelled = gguf
        .special_tokens
        .get(&SpecialToken::Begin)
        .is_some_and(|begin| gguf.control_tokens.contains(begin) || gguf.added_tokens.contains(begin));
    config.insert("add_bos_token".to_owned(), json!(gguf.begins && spelled));
    BTreeMap::from([(TOKENIZER_CONFIG.to_owned(), Json::Object(config).to_string())])
}

pub fn control_tokens(gguf: &GgufModel) -> ControlTokens {
    ControlTokens::of_vocabulary(gguf.control_tokens.iter().cloned(), gguf.added_tokens.iter().cloned())
}
