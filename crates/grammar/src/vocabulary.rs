//! The tokens of a model as a tree, and an answer that is followed through a grammar.

use std::sync::Arc;

use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    earley::SlicedBiasComputer,
    toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};

use crate::{GRAMMAR_BYTES_MAX, GrammarError, Kind, limits, prepared};

/// Bytes of a token that counts: the tree of the library is at most 1,024 deep, and no vocabulary needs longer ones to spell
/// a text.
const TOKEN_BYTES_MAX: usize = 512;
/// Nodes of the tree, which are no more than bytes in all tokens.
const TREE_NODES_MAX: usize = (4 << 20) - 1;
/// Ids that the tree has room for.
const IDS_MAX: u32 = (1 << 24) - 1;

/// A set of token ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenSet {
    /// Id `i` is bit `i % 32` of word `i / 32`.
    words: Vec<u32>,
}

impl TokenSet {
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

impl FromIterator<u32> for TokenSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> TokenSet {
        let mut words = Vec::new();
        for id in ids {
            let at = id as usize / 32;
            if at >= words.len() {
                words.resize(at + 1, 0);
            }
            words[at] |= 1 << (id % 32);
        }
        TokenSet { words }
    }
}

/// The tokens of a model, made ready once. Of 200,019 tokens it takes 0.35 s; a token of an answer then takes 10 to 13 us, one
/// of a hundred 50 to 160 us (tokens of a `tokenizer.json`, with the library at `opt-level` 1, on 2 cores of an EPYC of Zen 4).
pub struct Vocabulary {
    factory: ParserFactory,
    has_ends: bool,
}

impl Vocabulary {
    /// `piece` says what an id below `size` stands for, and whether it is a control token; `ends` are the ids that end an
    /// answer.
    ///
    /// # Errors
    /// The vocabulary is larger than the library takes.
    pub fn new<'a>(
        size: u32,
        piece: impl Fn(u32) -> Option<(&'a [u8], bool)>,
        ends: &[u32],
    ) -> Result<Vocabulary, GrammarError> {
        let words: Vec<Vec<u8>> = (0..size).map(|id| piece(id).map_or_else(Vec::new, word)).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if size > IDS_MAX || bytes > TREE_NODES_MAX {
            let message = format!(
                "a vocabulary of {size} tokens with {bytes} bytes cannot be held to a grammar; {IDS_MAX} and {TREE_NODES_MAX} can"
            );
            return Err(GrammarError(message));
        }
        let ends: Vec<u32> = ends.iter().copied().filter(|end| *end < size).collect();
        let first = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let mut tree = TokTrie::from(&TokRxInfo::new(size, first), &words);
        if !ends.is_empty() {
            tree = tree.with_eos_tokens(&ends);
        }
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
            .map_err(|e| GrammarError::of(&e))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Vocabulary { factory, has_ends: !ends.is_empty() })
    }

    /// An answer at its beginning.
    ///
    /// # Errors
    /// The text is no grammar of that kind, or beyond a limit.
    pub fn constrain(&self, kind: Kind, text: &str) -> Result<Constrained, GrammarError> {
        if text.len() > GRAMMAR_BYTES_MAX {
            let bytes = text.len();
            return Err(GrammarError(format!(
                "the grammar has {bytes} bytes, more than {GRAMMAR_BYTES_MAX}"
            )));
        }
        let grammar = match kind {
            Kind::JsonSchema => TopLevelGrammar::from_json_schema(prepared(text)?),
            Kind::Lark => TopLevelGrammar::from_lark(text.to_owned()),
        };
        let parser = self.factory.create_parser(grammar).map_err(|e| GrammarError::of(&e))?;
        let mut constrained = Constrained {
            matcher: Matcher::new(Ok(parser)),
            next: TokenSet::default(),
            has_ends: self.has_ends,
        };
        constrained.look_ahead()?;
        Ok(constrained)
    }
}

/// An answer that cannot be followed further, in words for who wrote the schema.
fn beyond_limits(error: &impl std::fmt::Display) -> GrammarError {
    let GrammarError(words) = GrammarError::of(error);
    let words = match words.as_str() {
        "LexerTooComplex" => "a pattern in it takes more work to follow than a token may cost".to_owned(),
        "ParserTooComplex" => "its rules can be read in more ways at once than are followed".to_owned(),
        _ => words,
    };
    GrammarError(format!("what may come next is beyond the limits: {words}"))
}

/// What the library knows a token by. A control token has a byte before its spelling that no text has, so that text is never
/// taken for it; what is no part of any text is left out.
fn word((bytes, control): (&[u8], bool)) -> Vec<u8> {
    if bytes.len() > TOKEN_BYTES_MAX || (!control && bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER)) {
        return Vec::new();
    }
    let marker = control.then_some(TokTrie::SPECIAL_TOKEN_MARKER);
    marker.into_iter().chain(bytes.iter().copied()).collect()
}

/// An answer on its way through a grammar.
pub struct Constrained {
    matcher: Matcher,
    next: TokenSet,
    has_ends: bool,
}

impl Constrained {
    /// The tokens that may come next; the ones that end an answer where it is complete, and nowhere else.
    pub fn next(&self) -> &TokenSet {
        &self.next
    }

    /// The answer is complete, nothing may follow, and the model has no token to say so.
    pub fn is_over(&self) -> bool {
        !self.has_ends && self.next.is_empty()
    }

    /// A token of the answer, one of [`Constrained::next`] that does not end it.
    ///
    /// # Errors
    /// What follows is too complex to be worked out within the limits.
    pub fn push(&mut self, id: u32) -> Result<(), GrammarError> {
        self.matcher.consume_token(id).map_err(|e| beyond_limits(&e))?;
        self.look_ahead()
    }

    fn look_ahead(&mut self) -> Result<(), GrammarError> {
        self.next.words.clear();
        if self.matcher.is_stopped() && !self.has_ends {
            return Ok(());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| beyond_limits(&e))?;
        // A parser that gave up has stopped as well, and would let the answer end here.
        let reason = self.matcher.stop_reason();
        if !reason.is_ok() {
            return Err(beyond_limits(&reason));
        }
        self.next.words.extend_from_slice(mask.as_slice());
        Ok(())
    }
}

impl std::fmt::Debug for Constrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrained").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
