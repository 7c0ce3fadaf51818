//! The tokenizer of a `tokenizer.json`: text to ids as Hugging Face's library has them, and ids to bytes.
//!
//! The stages are those of the `tokenizers` crate (added tokens out of the raw text, normalizer, added tokens out of
//! the normalized text, pre-tokenizer, model). Only the two added-token stages are our own, because they have to know
//! the literal ranges: text in a literal range is ordinary text whatever it spells, and merges with the ordinary text
//! around it as if there were no border.

mod added;
mod file;
mod pieces;

use std::{ops::Range, path::Path};

use tokenizers::{
    Model as _, ModelWrapper, NormalizedString, Normalizer as _, NormalizerWrapper, OffsetReferential,
    OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, Token,
};

use crate::{Piece, Status, Tokenize, reason};
use added::{AddedTokens, Found, Stage};
use pieces::Pieces;

/// 128 MiB: four times the largest published `tokenizer.json`.
pub const TOKENIZER_BYTES_MAX: u64 = 128 << 20;
/// Ids of a vocabulary: eight times the largest published one.
pub const VOCABULARY_MAX: u32 = 1 << 21;
/// 16 MiB: more text than the longest context holds.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// How deep a spelling of control tokens that the model itself knows is taken apart; see [`Tokenizer::ordinary`].
const SPELLING_DEPTH_MAX: u32 = 8;

type StageError = Box<dyn std::error::Error + Send + Sync>;

/// A loaded `tokenizer.json`.
pub struct Tokenizer {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: ModelWrapper,
    added: AddedTokens,
    pieces: Pieces,
    /// The model's own "unknown" token, the one reserved token that ordinary text may turn into.
    unknown: Option<u32>,
}

impl Tokenizer {
    /// Reads and checks a `tokenizer.json`.
    ///
    /// # Errors
    /// `LOAD_FAILED` `file_unreadable`, `MODEL_CORRUPT` `file_corrupt`, or `UNSUPPORTED` `unsupported_model` for a
    /// vocabulary without a way back to bytes; each names the file.
    pub fn from_file(path: &Path) -> Result<Tokenizer, Status> {
        file::read(path).and_then(|bytes| Tokenizer::from_bytes(&bytes, &path.display().to_string()))
    }

    /// The same from bytes in memory; `name` is what messages call them.
    ///
    /// # Errors
    /// As [`Tokenizer::from_file`].
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Tokenizer, Status> {
        file::parse(bytes, name)
    }

    /// One past the highest id.
    pub fn vocabulary_size(&self) -> u32 {
        self.pieces.len()
    }

    /// The id of a token by its exact spelling in the file (`<|return|>`), added tokens first.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        self.added.id(spelling).or_else(|| self.model.token_to_id(spelling))
    }

    fn run(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, StageError> {
        let mut splits = PreTokenizedString::from(text);
        splits.split(|_, part| Ok(self.take_added(part, Stage::Raw, literal)))?;
        splits.split(|_, mut part| {
            if let Some(normalizer) = &self.normalizer {
                normalizer.normalize(&mut part)?;
            }
            Ok(self.take_added(part, Stage::Normalized, literal))
        })?;
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut splits)?;
        }
        splits.tokenize(|part| self.ordinary(part.get(), 0))?;
        let mut ids = Vec::with_capacity(text.len() / 3);
        for (_, _, tokens) in splits.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|t| t.id));
        }
        Ok(ids)
    }

    /// Cuts the added tokens of one stage out of a part of the text.
    fn take_added(
        &self,
        part: NormalizedString,
        stage: Stage,
        literal: &[Range<usize>],
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        // Where a range of the part lies in the text that was submitted, which is what literal ranges count in.
        let is_literal = |range: Range<usize>| {
            if literal.is_empty() {
                return false;
            }
            let Some(slice) = part.slice(tokenizers::tokenizer::normalizer::Range::Normalized(range)) else {
                return true;
            };
            let (start, end) = slice.offsets_original();
            let first = literal.partition_point(|l| l.end <= start);
            literal.get(first).is_some_and(|l| l.start < end)
        };
        let found = self.added.find(part.get(), stage, is_literal);
        if found.is_empty() {
            return vec![(part, None)];
        }
        let slice = |range: Range<usize>| {
            part.slice(tokenizers::tokenizer::normalizer::Range::Normalized(range))
                .expect("the borders are borders of matches, which lie between characters")
        };
        let mut out = Vec::with_capacity(found.len() * 2 + 1);
        let mut at = 0;
        for Found { id, range } in found {
            if at < range.start {
                out.push((slice(at..range.start), None));
            }
            let token = slice(range.clone());
            let value = token.get().to_owned();
            let length = value.len();
            out.push((token, Some(vec![Token::new(id, value, (0, length))])));
            at = range.end;
        }
        if at < part.get().len() {
            out.push((slice(at..part.get().len()), None));
        }
        out
    }

    /// Tokens of ordinary text, none of them reserved: some models (unigram) have the spellings of their control tokens in
    /// the vocabulary and would find them. Such a spelling is encoded in two parts.
    fn ordinary(&self, text: &str, depth: u32) -> Result<Vec<Token>, StageError> {
        let tokens = self.model.tokenize(text)?;
        let is_reserved = |t: &Token| self.added.is_reserved(t.id) && Some(t.id) != self.unknown;
        if !tokens.iter().any(is_reserved) {
            return Ok(tokens);
        }
        let mut out = Vec::with_capacity(tokens.len() + 1);
        for token in tokens {
            if !is_reserved(&token) {
                out.push(token);
                continue;
            }
            let spelling = text.get(token.offsets.0..token.offsets.1).unwrap_or(&token.value);
            let Some((second, _)) = spelling.char_indices().nth(1).filter(|_| depth < SPELLING_DEPTH_MAX)
            else {
                return Err(format!(
                    "the text {spelling:?} is a control token and cannot be written otherwise"
                )
                .into());
            };
            let (head, tail) = spelling.split_at(second);
            out.extend(self.ordinary(head, depth + 1)?);
            out.extend(self.ordinary(tail, depth + 1)?);
        }
        Ok(out)
    }
}

impl Tokenize for Tokenizer {
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        if text.len() > TEXT_BYTES_MAX {
            let message = format!("the text has {} bytes, more than {TEXT_BYTES_MAX}", text.len());
            return Err(Status::unsupported(reason::INVALID_PROMPT, message)
                .with_param("text")
                .with_numbers(text.len() as u64, TEXT_BYTES_MAX as u64));
        }
        check_literal(text, literal)?;
        // An empty range holds no byte; without it the search below may go by range ends alone.
        let literal: Vec<Range<usize>> = literal.iter().filter(|l| !l.is_empty()).cloned().collect();
        self.run(text, &literal).map_err(|e| {
            Status::unsupported(reason::INVALID_PROMPT, format!("the text cannot be tokenized: {e}"))
                .with_param("text")
        })
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        self.pieces.get(id)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary_size", &self.vocabulary_size()).finish_non_exhaustive()
    }
}

/// Ranges must lie in the text, between characters, in order and apart.
fn check_literal(text: &str, literal: &[Range<usize>]) -> Result<(), Status> {
    let mut before = 0;
    for range in literal {
        let sound = range.start >= before
            && range.start <= range.end
            && text.is_char_boundary(range.start)
            && text.is_char_boundary(range.end);
        if !sound {
            return Err(Status::unsupported(
                reason::INVALID_PROMPT,
                format!(
                    "literal range {}..{} is not a range of characters of the {} bytes of text, after byte {before}",
                    range.start,
                    range.end,
                    text.len()
                ),
            )
            .with_param("literal"));
        }
        before = range.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
