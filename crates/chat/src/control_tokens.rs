//! The spellings of a model's control tokens, read from its `tokenizer.json`.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

/// Largest `tokenizer.json` that is read; the largest published ones have 40 MB.
const TOKENIZER_BYTES_MAX: usize = 256 << 20;
/// More control tokens than this are refused; the vocabularies with the most have some thousands.
const TOKENS_MAX: usize = 65_536;
/// A spelling longer than this is refused.
const SPELLING_BYTES_MAX: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum ControlTokensError {
    #[error("tokenizer.json has {bytes} bytes, more than {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error("tokenizer.json is not a tokenizer")]
    Json(#[from] serde_json::Error),
    #[error("tokenizer.json has {count} control tokens, more than {max}")]
    TooMany { count: usize, max: usize },
    #[error("control token {id} of tokenizer.json is spelled with {bytes} bytes, more than {max}")]
    LongSpelling { id: u64, bytes: usize, max: usize },
}

/// The spellings, without doubles, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlTokens {
    spellings: Vec<String>,
    #[serde(default)]
    markers: Vec<String>,
}

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    #[serde(default)]
    id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

fn is_marker(spelling: &str) -> bool {
    let within = |open, close| spelling.starts_with(open) && spelling.ends_with(close);
    within('<', '>') || within('[', ']')
}

impl ControlTokens {
    /// The added tokens that are marked `special`, and beside them the markers: added tokens in angle or square brackets
    /// that a vocabulary does not call special (`<think>`, `<tool_call>`). Engines keep both out of literal text.
    pub fn from_tokenizer_json(bytes: &[u8]) -> Result<ControlTokens, ControlTokensError> {
        if bytes.len() > TOKENIZER_BYTES_MAX {
            return Err(ControlTokensError::TooLarge { bytes: bytes.len(), max: TOKENIZER_BYTES_MAX });
        }
        let parsed: TokenizerJson = serde_json::from_slice(bytes)?;
        let (special, others): (Vec<AddedToken>, Vec<AddedToken>) =
            parsed.added_tokens.into_iter().partition(|t| t.special);
        let markers: Vec<AddedToken> = others.into_iter().filter(|t| is_marker(&t.content)).collect();
        let count = special.len() + markers.len();
        if count > TOKENS_MAX {
            return Err(ControlTokensError::TooMany { count, max: TOKENS_MAX });
        }
        if let Some(long) = special.iter().chain(&markers).find(|t| t.content.len() > SPELLING_BYTES_MAX) {
            return Err(ControlTokensError::LongSpelling {
                id: long.id,
                bytes: long.content.len(),
                max: SPELLING_BYTES_MAX,
            });
        }
        let texts = |tokens: Vec<AddedToken>| tokens.into_iter().map(|t| t.content);
        Ok(ControlTokens::new(texts(special), texts(markers)))
    }

    /// Of a vocabulary that tells control tokens and added ones apart: the markers among the latter are kept.
    pub fn of_vocabulary(
        control: impl IntoIterator<Item = String>,
        added: impl IntoIterator<Item = String>,
    ) -> ControlTokens {
        ControlTokens::new(control, added.into_iter().filter(|spelling| is_marker(spelling)))
    }

    pub fn new(
        spellings: impl IntoIterator<Item = String>,
        markers: impl IntoIterator<Item = String>,
    ) -> ControlTokens {
        let mut seen = HashSet::new();
        let mut unseen = |s: &String| !s.is_empty() && seen.insert(s.clone());
        let spellings = spellings.into_iter().filter(&mut unseen).collect();
        let markers = markers.into_iter().filter(&mut unseen).collect();
        ControlTokens { spellings, markers }
    }

    /// Of the control tokens.
    pub fn spellings(&self) -> &[String] {
        &self.spellings
    }

    pub fn markers(&self) -> &[String] {
        &self.markers
    }
}

/// Finds spellings in text, leftmost first and of those the longest, as tokenizers do.
pub(crate) struct Finder<'a> {
    /// By first byte, longest first.
    by_first_byte: HashMap<u8, Vec<&'a str>>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(spellings: impl IntoIterator<Item = &'a str>) -> Finder<'a> {
        let mut by_first_byte: HashMap<u8, Vec<&'a str>> = HashMap::new();
        for spelling in spellings {
            if let Some(&first) = spelling.as_bytes().first() {
                by_first_byte.entry(first).or_default().push(spelling);
            }
        }
        for group in by_first_byte.values_mut() {
            group.sort_by_key(|s| std::cmp::Reverse(s.len()));
        }
        Finder { by_first_byte }
    }

    /// The longest spelling that starts exactly at byte `at` of `text`.
    pub(crate) fn at(&self, text: &str, at: usize) -> Option<&'a str> {
        let rest = &text.as_bytes()[at..];
        let group = self.by_first_byte.get(rest.first()?)?;
        group.iter().copied().find(|s| rest.starts_with(s.as_bytes()))
    }

    /// (byte offset, spelling), in order, not overlapping.
    pub(crate) fn find_all<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, &'a str)> + 't {
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < text.len() {
                if let Some(spelling) = self.at(text, at) {
                    let start = at;
                    at += spelling.len();
                    return Some((start, spelling));
                }
                at += 1;
            }
            None
        })
    }
}

#[cfg(test)]
mod tests;
