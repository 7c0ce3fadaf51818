//! Holds an answer to a grammar from its first token to its end.
//!
//! The tokens of the model are made into a tree once, for the first answer that needs it; the set of tokens that may come
//! next is worked out when a token has come, so that it is there whoever asks, and however often: a step that is launched
//! ahead and the host that chooses for a device read the same set.

use grammar::{Constrained, GrammarError, Kind, TokenSet, Vocabulary};

use crate::{ModelSpec, Status, Tokenize, reason};

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    pub kind: Kind,
    pub text: String,
}

/// The vocabulary of a loaded model, made when it is first needed.
#[derive(Default)]
pub(crate) struct Grammars {
    vocabulary: Option<Vocabulary>,
}

impl Grammars {
    /// # Errors
    /// `UNSUPPORTED` `invalid_sampling`: the text is no grammar, or beyond a limit, or the vocabulary is.
    pub fn start(
        &mut self,
        constraint: &Constraint,
        tokenizer: &dyn Tokenize,
        spec: &ModelSpec,
    ) -> Result<Constrained, Status> {
        let vocabulary = match &mut self.vocabulary {
            Some(vocabulary) => vocabulary,
            empty => {
                let piece = |id| tokenizer.piece(id).map(|piece| (piece.bytes, piece.control));
                let made = Vocabulary::new(spec.vocabulary_size, piece, &spec.end_tokens);
                empty.insert(made.map_err(|e| refused(&e))?)
            }
        };
        vocabulary.constrain(constraint.kind, &constraint.text).map_err(|e| refused(&e))
    }
}

/// Notes a token of the answer that does not end it.
///
/// # Errors
/// `UNSUPPORTED` `invalid_sampling`: what may follow is too complex to be worked out.
pub(crate) fn push(constrained: &mut Constrained, id: u32) -> Result<(), Status> {
    constrained.push(id).map_err(|e| refused(&e))
}

/// The tokens that may come next under one rule, or under none.
pub(crate) type Only<'a> = std::borrow::Cow<'a, TokenSet>;

fn refused(error: &GrammarError) -> Status {
    let message = format!("the answer cannot be held to the constraint: {error}");
    Status::unsupported(reason::INVALID_SAMPLING, message).with_param("constraint")
}
