//! The contract between a text and its tokens.

use std::ops::Range;

use crate::Status;

/// Text to ids and back. [`crate::Tokenizer`] is the one for `tokenizer.json`.
pub trait Tokenize: Send + Sync {
    /// The ids of `text`, with nothing added at either end. Spellings of control tokens become control tokens, except
    /// where they touch a byte of `literal` (byte ranges of `text`, in order, not overlapping): there they stay text.
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status>;

    /// The ids of `text` as the input of an embedding: as [`Tokenize::encode`] has them, with what the model expects before
    /// and behind a text.
    fn encode_to_embed(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        self.encode(text, literal)
    }

    /// What a token stands for; `None` for an id that the vocabulary does not have. Such ids are never generated.
    fn piece(&self, id: u32) -> Option<Piece<'_>>;
}

/// What a token stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Its bytes, which may be part of a UTF-8 character. Of a control token: its spelling.
    pub bytes: &'a [u8],
    /// A control token, which is not text (`<|channel|>`).
    pub control: bool,
}
