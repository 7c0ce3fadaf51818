//! The vocabulary of a GGUF file: made up for a shape, or that of a checkpoint's `tokenizer.json`.

use serde_json::Value;

use crate::Shape;
use crate::shape::SPECIALS;

/// Kinds of tokens.
pub(super) const NORMAL: i32 = 1;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
const TEMPLATE: &str = "{% for m in messages %}{{ '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' \
     }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|message|>' }}{% endif %}";

/// Byte-level tokens in id order, and what the file says of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) kinds: Vec<i32>,
    pub(super) merges: Vec<[String; 2]>,
    /// llama.cpp's name of the pattern that cuts text before merging.
    pub(super) split: &'static str,
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) padding: u32,
    /// Jinja.
    pub(super) template: String,
}

impl Vocabulary {
    /// Ids beyond the special tokens have rows in the matrices and so need names.
    pub(super) fn of_shape(shape: Shape, size: usize) -> Vocabulary {
        let ordinary = shape.ordinary_tokens() as usize;
        let (mut tokens, merges) = crate::tokenizer::vocabulary(ordinary);
        tokens.extend(SPECIALS.map(str::to_owned));
        fill(&mut tokens, size);
        Vocabulary {
            kinds: (0..tokens.len()).map(|id| if id < ordinary { NORMAL } else { CONTROL }).collect(),
            tokens,
            merges,
            split: "gpt-4o",
            begin: shape.special("<|startoftext|>"),
            end: shape.special("<|return|>"),
            padding: shape.special("<|endoftext|>"),
            template: TEMPLATE.to_owned(),
        }
    }

    /// Nothing where a part is missing that a checkpoint of this project's demo has.
    pub(super) fn of_checkpoint(
        tokenizer: &Value,
        config: &Value,
        template: &str,
        size: usize,
    ) -> Option<Vocabulary> {
        let mut tokens: Vec<String> = Vec::new();
        let mut kinds = Vec::new();
        let mut put = |id: &Value, text: &str, kind: i32| {
            let id = usize::try_from(id.as_u64()?).ok().filter(|id| *id < size)?;
            tokens.resize(tokens.len().max(id + 1), String::new());
            kinds.resize(tokens.len(), NORMAL);
            (tokens[id], kinds[id]) = (text.to_owned(), kind);
            Some(())
        };
        for (text, id) in tokenizer["model"]["vocab"].as_object()? {
            put(id, text, NORMAL)?;
        }
        for added in tokenizer["added_tokens"].as_array()? {
            let kind = if added["special"] == true { CONTROL } else { USER_DEFINED };
            put(&added["id"], added["content"].as_str()?, kind)?;
        }
        let merge = |pair: &Value| {
            let part = |n: usize| pair[n].as_str().map(str::to_owned);
            Some([part(0)?, part(1)?])
        };
        fill(&mut tokens, size);
        kinds.resize(tokens.len(), CONTROL);
        let id = |name: &str| config[name].as_u64().and_then(|id| u32::try_from(id).ok());
        let begin = tokens.iter().position(|token| token == SPECIALS[0])?;
        Some(Vocabulary {
            tokens,
            kinds,
            merges: tokenizer["model"]["merges"].as_array()?.iter().map(merge).collect::<Option<_>>()?,
            split: "gpt-4o",
            begin: u32::try_from(begin).ok()?,
            end: id("eos_token_id")?,
            padding: id("pad_token_id")?,
            template: template.to_owned(),
        })
    }
}

fn fill(tokens: &mut Vec<String>, size: usize) {
    tokens.extend((tokens.len()..size).map(|id| format!("<|unused_{id}|>")));
}
