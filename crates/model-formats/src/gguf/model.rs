//! What the metadata of a GGUF file says of the model.

use std::collections::BTreeMap;

use super::{GgufError, Metadata, Value, begin};

/// The parts that decide how a model is run and spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufModel {
    /// `general.architecture`, such as `llama`.
    pub architecture: String,
    /// `{architecture}.context_length`, in tokens.
    pub context_length: Option<u32>,
    /// `tokenizer.chat_template`, and those with names, `tokenizer.chat_template.{name}`, whose name for the plain one is
    /// empty.
    pub chat_templates: BTreeMap<String, String>,
    /// Spellings of the tokens of type `control`.
    pub control_tokens: Vec<String>,
    /// Spellings of the tokens of type `user defined`, which stand beside the vocabulary as control tokens do.
    pub added_tokens: Vec<String>,
    /// Texts of the tokens that templates ask for.
    pub special_tokens: BTreeMap<SpecialToken, String>,
    /// A text begins with [`SpecialToken::Begin`], where nothing else says how it begins: `tokenizer.ggml.add_bos_token`, or
    /// what llama.cpp does for such a vocabulary.
    pub begins: bool,
    /// `{architecture}.pooling_type` is there and not 0: the model was made for embeddings.
    pub pools: bool,
    /// `{architecture}.embedding_length_out`, or `.embedding_length` where a model gives what it works with: numbers of an embedding.
    pub embedding_size: Option<u32>,
    /// This file's place, from 0, among how many, when the model is split.
    pub split: Option<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecialToken {
    Begin,
    End,
    Unknown,
    Padding,
    Separator,
}

impl SpecialToken {
    const ALL: [SpecialToken; 5] = [
        SpecialToken::Begin,
        SpecialToken::End,
        SpecialToken::Unknown,
        SpecialToken::Padding,
        SpecialToken::Separator,
    ];

    /// Its name in a chat template.
    pub fn variable(self) -> &'static str {
        match self {
            SpecialToken::Begin => "bos_token",
            SpecialToken::End => "eos_token",
            SpecialToken::Unknown => "unk_token",
            SpecialToken::Padding => "pad_token",
            SpecialToken::Separator => "sep_token",
        }
    }

    /// The metadata with its id.
    fn key(self) -> &'static str {
        match self {
            SpecialToken::Begin => "tokenizer.ggml.bos_token_id",
            SpecialToken::End => "tokenizer.ggml.eos_token_id",
            SpecialToken::Unknown => "tokenizer.ggml.unknown_token_id",
            SpecialToken::Padding => "tokenizer.ggml.padding_token_id",
            SpecialToken::Separator => "tokenizer.ggml.seperator_token_id",
        }
    }
}

const ARCHITECTURE: &str = "general.architecture";
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Of each token, what it is.
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
const ARCHITECTURE_BYTES_MAX: usize = 128;

impl GgufModel {
    /// # Errors
    /// [`GgufError::Field`] for an architecture that is missing, and for what is there and of another type than it has to
    /// be.
    pub fn of(file: &str, metadata: &Metadata<'_>) -> Result<GgufModel, GgufError> {
        let fields = Fields { file, metadata };
        let architecture = fields.text(ARCHITECTURE)?.unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if architecture.is_empty()
            || architecture.len() > ARCHITECTURE_BYTES_MAX
            || !architecture.chars().all(plain)
        {
            return Err(fields.error(ARCHITECTURE, "does not say what the model is"));
        }
        let mut chat_templates = BTreeMap::new();
        for key in metadata.values.keys() {
            let name = match key.strip_prefix(CHAT_TEMPLATE) {
                Some("") => "",
                // `tokenizer.chat_templates` lists the names.
                Some(rest) if rest.starts_with('.') => &rest[1..],
                _ => continue,
            };
            chat_templates.extend(fields.text(key)?.map(|text| (name.to_owned(), text.to_owned())));
        }
        let mut special_tokens = BTreeMap::new();
        let (mut control_tokens, mut added_tokens) = (Vec::new(), Vec::new());
        if let Some(Value::Array(tokens)) = metadata.values.get(TOKENS) {
            // Some files have -1 or a number behind the vocabulary for a token there is none of; llama.cpp ignores it too.
            let text = |token: &SpecialToken| match metadata.values.get(token.key()) {
                Some(Value::Unsigned(id)) => tokens.text(*id),
                Some(Value::Signed(id)) => tokens.text(u64::try_from(*id).ok()?),
                Some(_) => None,
                None => tokens.text(fields.usual_id(*token)?),
            };
            let found =
                SpecialToken::ALL.into_iter().filter_map(|token| Some((token, text(&token)?.to_owned())));
            special_tokens.extend(found);
            let types = match metadata.values.get(TOKEN_TYPES) {
                Some(Value::Array(types)) => types.integers(),
                _ => Vec::new(),
            };
            for (text, kind) in tokens.texts().zip(types) {
                match (text, kind) {
                    (Some(text), CONTROL) => control_tokens.push(text.to_owned()),
                    (Some(text), USER_DEFINED) => added_tokens.push(text.to_owned()),
                    _ => {}
                }
            }
        }
        let of_model = |name: &str| format!("{architecture}.{name}");
        let split = match fields.number("split.count")?.unwrap_or(0) {
            0 | 1 => None,
            count => {
                let number = fields.number("split.no")?.filter(|number| *number < count);
                Some((number.ok_or_else(|| fields.error("split.no", "is no place in the split"))?, count))
            }
        };
        let embedding_size = match fields.number(&of_model("embedding_length_out"))? {
            Some(size) if size > 0 => Some(size),
            _ => fields.number(&of_model("embedding_length"))?.filter(|size| *size > 0),
        };
        Ok(GgufModel {
            architecture: architecture.to_owned(),
            context_length: fields.number(&of_model("context_length"))?.filter(|length| *length > 0),
            chat_templates,
            control_tokens,
            added_tokens,
            special_tokens,
            begins: begin::begins(metadata),
            pools: fields.number(&of_model("pooling_type"))?.is_some_and(|kind| kind != 0),
            embedding_size,
            split,
        })
    }
}

struct Fields<'f, 'a> {
    file: &'f str,
    metadata: &'f Metadata<'a>,
}

impl<'a> Fields<'_, 'a> {
    fn error(&self, key: &str, problem: &str) -> GgufError {
        GgufError::Field { file: self.file.to_owned(), key: key.to_owned(), problem: problem.to_owned() }
    }

    /// Of a vocabulary whose beginning every file has in the same place, and some do not say.
    fn usual_id(&self, token: SpecialToken) -> Option<u64> {
        let usual = self.metadata.values.get(begin::MODEL) == Some(&Value::Text("llama"));
        (usual && token == SpecialToken::Begin).then_some(1)
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        match self.metadata.values.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "is not a text")),
        }
    }

    /// Writers disagree about widths and signs.
    fn number(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let number = match self.metadata.values.get(key) {
            None => return Ok(None),
            Some(Value::Unsigned(number)) => u32::try_from(*number).ok(),
            Some(Value::Signed(number)) => u32::try_from(*number).ok(),
            Some(_) => None,
        };
        number.map(Some).ok_or_else(|| self.error(key, "is not a whole number below 2^32"))
    }
}
