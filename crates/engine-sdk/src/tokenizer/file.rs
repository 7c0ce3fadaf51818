//! Reads `tokenizer.json`. The file is as hostile as any other of a model: it has limits and cannot panic.

use std::{io::Read as _, panic::AssertUnwindSafe, path::Path};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokenizers::{ModelWrapper, NormalizedString, Normalizer as _, NormalizerWrapper, PreTokenizerWrapper};

use super::{
    AddedTokens, TOKENIZER_BYTES_MAX, Tokenizer, VOCABULARY_MAX,
    added::AddedToken,
    pieces::{Form, Pieces},
};
use crate::{Status, reason};

/// The parts of the file that matter here. Post-processor, truncation and padding do not: nothing is added to a prompt.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Option<NormalizerWrapper>,
    #[serde(default)]
    pre_tokenizer: Option<Value>,
    #[serde(default)]
    decoder: Option<Value>,
    /// Nearly all of the file, so it is parsed once, straight into what it becomes.
    #[serde(borrow)]
    model: &'a RawValue,
}

/// What a model says of its bytes and of what it does not know.
#[derive(Default, Deserialize)]
pub(super) struct ModelFlags {
    #[serde(default)]
    pub byte_fallback: Option<bool>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u32>,
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Status> {
    let unreadable = |e: std::io::Error| {
        Status::load_failed(reason::FILE_UNREADABLE, format!("{} cannot be read: {e}", path.display()))
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(TOKENIZER_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

pub(super) fn parse(bytes: &[u8], name: &str) -> Result<Tokenizer, Status> {
    let corrupt =
        |why: String| Status::model_corrupt(reason::FILE_CORRUPT, format!("{name} is not usable: {why}"));
    if bytes.len() as u64 > TOKENIZER_BYTES_MAX {
        return Err(corrupt(format!("it has more than {TOKENIZER_BYTES_MAX} bytes")));
    }
    let file: File<'_> = serde_json::from_slice(bytes).map_err(|e| corrupt(e.to_string()))?;
    let flags: ModelFlags =
        serde_json::from_str(file.model.get()).map_err(|e| corrupt(format!("its model: {e}")))?;
    let form = Form::of(file.decoder.as_ref(), file.pre_tokenizer.as_ref(), &flags).map_err(|why| {
        Status::unsupported(
            reason::UNSUPPORTED_MODEL,
            format!("the tokenizer in {name} cannot be used: {why}"),
        )
    })?;
    let (model, pre_tokenizer) = build(file.model, file.pre_tokenizer)
        .map_err(|why| corrupt(format!("the tokenizers library says: {why}")))?;
    let added = AddedTokens::new(file.added_tokens, |text| normalize(file.normalizer.as_ref(), text))
        .map_err(corrupt)?;
    let pieces = pieces(&model, &added, form).map_err(corrupt)?;
    let by_name = |name: &str| added.id(name).or_else(|| tokenizers::Model::token_to_id(&model, name));
    let unknown = flags.unk_id.or_else(|| flags.unk_token.as_deref().and_then(by_name));
    Ok(Tokenizer { normalizer: file.normalizer, pre_tokenizer, model, added, pieces, unknown })
}

/// The library's own parsers. They were written for files of friends: a panic in one is a verdict on the file.
fn build(
    model: &RawValue,
    pre_tokenizer: Option<Value>,
) -> Result<(ModelWrapper, Option<PreTokenizerWrapper>), String> {
    let parts = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let model: ModelWrapper = serde_json::from_str(model.get())?;
        let pre_tokenizer: Option<PreTokenizerWrapper> =
            pre_tokenizer.map(serde_json::from_value).transpose()?;
        Ok::<_, serde_json::Error>((model, pre_tokenizer))
    }));
    match parts {
        Ok(parts) => parts.map_err(|e| e.to_string()),
        Err(_) => Err("it panicked".to_owned()),
    }
}

fn normalize(normalizer: Option<&NormalizerWrapper>, text: &str) -> Result<String, String> {
    let Some(normalizer) = normalizer else { return Ok(text.to_owned()) };
    let mut normalized = NormalizedString::from(text);
    normalizer
        .normalize(&mut normalized)
        .map_err(|e| format!("added token {text:?} cannot be normalized: {e}"))?;
    Ok(normalized.get().to_owned())
}

fn pieces(model: &ModelWrapper, added: &AddedTokens, form: Form) -> Result<Pieces, String> {
    let vocabulary = tokenizers::Model::get_vocab(model);
    let last = vocabulary.values().copied().chain(added.iter().map(|t| t.id)).max();
    let Some(last) = last else { return Err("its vocabulary is empty".to_owned()) };
    if last >= VOCABULARY_MAX {
        return Err(format!("token id {last} is over the limit of {VOCABULARY_MAX} ids"));
    }
    let mut tokens: Vec<(u32, Vec<u8>, bool)> = Vec::with_capacity(vocabulary.len());
    for (piece, id) in vocabulary {
        tokens.push((id, form.bytes(&piece), false));
    }
    tokens.sort_by_key(|t| t.0);
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("two tokens have the id {}", pair[0].0));
    }
    // Added tokens are spelled as they are, also where the model has the same id.
    tokens.extend(added.iter().map(|t| (t.id, t.content.clone().into_bytes(), t.special)));
    Pieces::new(last + 1, tokens)
}
