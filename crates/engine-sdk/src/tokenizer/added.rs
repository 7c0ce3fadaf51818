//! Added tokens: which of them a text spells, and where.

use std::{collections::HashMap, ops::Range};

use regex::Regex;
use serde::Deserialize;

/// An entry of `added_tokens` of `tokenizer.json`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    /// Only where no letter, digit or underscore touches it.
    #[serde(default)]
    pub single_word: bool,
    /// Takes the white space before it along.
    #[serde(default)]
    pub lstrip: bool,
    /// Takes the white space after it along.
    #[serde(default)]
    pub rstrip: bool,
    /// Looked for after normalization.
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub special: bool,
}

impl AddedToken {
    /// Whether text of a user must never become this token. Besides the special ones these are markers that a file does
    /// not call special (`<tool_call>`, `<think>`, `[INST]`); what is left are ordinary additions such as runs of spaces.
    fn is_reserved(&self) -> bool {
        let marker = |open, close| self.content.starts_with(open) && self.content.ends_with(close);
        self.special || marker('<', '>') || marker('[', ']')
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before normalization.
    Raw,
    /// After it.
    Normalized,
}

/// An added token in a text; `range` includes the white space it takes along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub id: u32,
    pub range: Range<usize>,
}

/// All added tokens of a tokenizer.
#[derive(Debug)]
pub(super) struct AddedTokens {
    tokens: Vec<AddedToken>,
    by_content: HashMap<String, usize>,
    by_id: HashMap<u32, usize>,
    raw: Option<Matcher>,
    normalized: Option<Matcher>,
}

#[derive(Debug)]
struct Matcher {
    /// The spellings as alternatives, longest first: the leftmost match is then the longest one there.
    pattern: Regex,
    by_spelling: HashMap<String, usize>,
}

impl AddedTokens {
    /// `normalize` is the normalizer of the tokenizer, for the tokens that are looked for in its output.
    pub fn new(
        tokens: Vec<AddedToken>,
        normalize: impl Fn(&str) -> Result<String, String>,
    ) -> Result<AddedTokens, String> {
        let mut by_content = HashMap::with_capacity(tokens.len());
        let mut by_id = HashMap::with_capacity(tokens.len());
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (at, token) in tokens.iter().enumerate() {
            if token.content.is_empty() {
                return Err(format!("added token {} has no content", token.id));
            }
            if by_content.insert(token.content.clone(), at).is_some() {
                return Err(format!("added token {:?} is there twice", token.content));
            }
            if by_id.insert(token.id, at).is_some() {
                return Err(format!("two added tokens have the id {}", token.id));
            }
            if token.normalized {
                normalized.push((normalize(&token.content)?, at));
            } else {
                raw.push((token.content.clone(), at));
            }
        }
        let (raw, normalized) = (Matcher::new(raw)?, Matcher::new(normalized)?);
        Ok(AddedTokens { tokens, by_content, by_id, raw, normalized })
    }

    pub fn id(&self, content: &str) -> Option<u32> {
        self.by_content.get(content).map(|&at| self.tokens[at].id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.tokens.iter()
    }

    /// Whether an id is one that ordinary text must not become.
    pub fn is_reserved(&self, id: u32) -> bool {
        self.by_id.get(&id).is_some_and(|&at| self.tokens[at].is_reserved())
    }

    /// The tokens of a stage in `text`, in order, not overlapping. `is_literal` says of a range of `text` whether any of
    /// it is literal; reserved tokens are not found there, and take no literal white space along.
    pub fn find(&self, text: &str, stage: Stage, is_literal: impl Fn(Range<usize>) -> bool) -> Vec<Found> {
        let matcher = match stage {
            Stage::Raw => &self.raw,
            Stage::Normalized => &self.normalized,
        };
        let Some(matcher) = matcher else { return Vec::new() };
        let mut out: Vec<Found> = Vec::new();
        let (mut from, mut taken) = (0, 0);
        while let Some((at, mut range)) = matcher.find_at(text, from) {
            let mut token = &self.tokens[at];
            if token.is_reserved() && is_literal(range.clone()) {
                // A shorter spelling that begins at the same place may still lie outside.
                match matcher
                    .shorter_at(text, range.clone())
                    .find(|(at, r)| !self.tokens[*at].is_reserved() || !is_literal(r.clone()))
                {
                    Some((at, shorter)) => (token, range) = (&self.tokens[at], shorter),
                    None => {
                        from = range.start + text[range.start..].chars().next().map_or(1, char::len_utf8);
                        continue;
                    }
                }
            }
            from = range.end;
            if token.single_word && !stands_alone(text, &range) {
                continue;
            }
            if token.lstrip {
                let blanks = text[taken..range.start].trim_end().len();
                range.start = not_literal_from(text, taken + blanks..range.start, &is_literal);
            }
            if token.rstrip {
                let rest = &text[range.end..];
                let blanks = rest.len() - rest.trim_start().len();
                range.end = not_literal_until(text, range.end..range.end + blanks, &is_literal);
                from = range.end;
            }
            taken = range.end;
            out.push(Found { id: token.id, range });
        }
        out
    }
}

impl Matcher {
    fn new(mut spellings: Vec<(String, usize)>) -> Result<Option<Matcher>, String> {
        spellings.retain(|(spelling, _)| !spelling.is_empty());
        if spellings.is_empty() {
            return Ok(None);
        }
        spellings.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        let alternatives: Vec<String> =
            spellings.iter().map(|(spelling, _)| regex::escape(spelling)).collect();
        let pattern =
            Regex::new(&alternatives.join("|")).map_err(|e| format!("too many added tokens: {e}"))?;
        Ok(Some(Matcher { pattern, by_spelling: spellings.into_iter().collect() }))
    }

    fn find_at(&self, text: &str, from: usize) -> Option<(usize, Range<usize>)> {
        if from > text.len() {
            return None;
        }
        let found = self.pattern.find_at(text, from)?;
        Some((*self.by_spelling.get(found.as_str())?, found.range()))
    }

    /// The spellings that begin where `longest` does and are shorter, longest first.
    fn shorter_at(&self, text: &str, longest: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let ends = text[longest.clone()].char_indices().skip(1).map(|(i, _)| i).collect::<Vec<_>>();
        ends.into_iter().rev().filter_map(move |length| {
            let range = longest.start..longest.start + length;
            self.by_spelling.get(&text[range.clone()]).map(|&at| (at, range))
        })
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    !text[..range.start].chars().next_back().is_some_and(is_word)
        && !text[range.end..].chars().next().is_some_and(is_word)
}

/// Where the part of `blanks` that may be taken along from its right end begins.
fn not_literal_from(text: &str, blanks: Range<usize>, is_literal: &impl Fn(Range<usize>) -> bool) -> usize {
    let mut start = blanks.end;
    for (i, c) in text[blanks.clone()].char_indices().rev() {
        let at = blanks.start + i;
        if is_literal(at..at + c.len_utf8()) {
            break;
        }
        start = at;
    }
    start
}

/// Where the part of `blanks` that may be taken along from its left end ends.
fn not_literal_until(text: &str, blanks: Range<usize>, is_literal: &impl Fn(Range<usize>) -> bool) -> usize {
    for (i, c) in text[blanks.clone()].char_indices() {
        let at = blanks.start + i;
        if is_literal(at..at + c.len_utf8()) {
            return at;
        }
    }
    blanks.end
}
