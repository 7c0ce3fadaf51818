//! Keeps an answer to the texts that it has to begin with: which tokens lead to one of them.
//!
//! A text is a string of symbols: the bytes of ordinary text, and control tokens, each of which is one symbol whatever
//! its spelling. So ordinary text that spells a control token never stands for it, here as in a prompt.

use crate::{Piece, Status, TokenSet, Tokenize, reason};

/// A byte (below 256), or 256 plus the id of a control token.
type Symbol = u32;

const CONTROL: Symbol = 256;

/// Where one answer is in the texts that it may begin with.
#[derive(Debug, Clone, Default)]
pub(crate) struct BeginWith {
    /// The texts that the answer may still become. None: anything may follow.
    texts: Vec<Vec<Symbol>>,
    /// How many symbols of them the answer has; the same in all.
    at: usize,
    /// A text is complete, and those that are left go on from it: they may be left alone.
    complete: bool,
}

impl BeginWith {
    /// # Errors
    /// `UNSUPPORTED` `invalid_sampling` for a text with control tokens in it that this tokenizer changes (by case, by
    /// spaces): it cannot be said where in the text they stand.
    pub fn new(texts: &[String], tokenizer: &dyn Tokenize) -> Result<BeginWith, Status> {
        let texts = texts.iter().map(|text| symbols(text, tokenizer)).collect::<Result<_, Status>>()?;
        Ok(BeginWith { texts, at: 0, complete: false })
    }

    /// The tokens that may come next; `None`: every one. `ends` says which end the answer: those may
    /// only complete a text.
    pub fn allowed(
        &self,
        tokenizer: &dyn Tokenize,
        vocabulary_size: u32,
        ends: impl Fn(&u32) -> bool,
    ) -> Option<TokenSet> {
        if !self.is_restricting() {
            return None;
        }
        let fits = |id: &u32| {
            let Some(piece) = tokenizer.piece(*id) else { return false };
            let mut before_end = false;
            for rest in self.rests() {
                match follow(rest, *id, piece) {
                    Some(0) => return true,
                    Some(_) => before_end = true,
                    None => {}
                }
            }
            before_end && !ends(id)
        };
        // A look at the first symbol rules nearly every token out: 200,000 of them take about a millisecond, for the few
        // tokens that a beginning has.
        Some((0..vocabulary_size).filter(fits).collect())
    }

    /// Whether not every token may come next.
    pub fn is_restricting(&self) -> bool {
        !self.texts.is_empty() && !self.complete
    }

    /// A token of the answer.
    pub fn push(&mut self, id: u32, piece: Piece<'_>) {
        if self.texts.is_empty() {
            return;
        }
        let at = self.at;
        self.texts.retain(|text| follow(&text[at..], id, piece).is_some());
        self.at += if piece.control { 1 } else { piece.bytes.len() };
        let at = self.at;
        self.complete = self.texts.iter().any(|text| text.len() == at);
        self.texts.retain(|text| text.len() > at);
    }

    fn rests(&self) -> impl Iterator<Item = &[Symbol]> {
        self.texts.iter().map(|text| &text[self.at..])
    }
}

/// What is left of `rest` behind this token, in symbols; `None` when the token does not lead along it, or nowhere.
fn follow(rest: &[Symbol], id: u32, piece: Piece<'_>) -> Option<usize> {
    if piece.control {
        return (rest.first() == Some(&CONTROL.checked_add(id)?)).then(|| rest.len() - 1);
    }
    let (first, _) = piece.bytes.split_first()?;
    if rest.first() != Some(&Symbol::from(*first)) || piece.bytes.len() > rest.len() {
        return None;
    }
    let same = piece.bytes.iter().zip(rest).all(|(byte, symbol)| Symbol::from(*byte) == *symbol);
    same.then(|| rest.len() - piece.bytes.len())
}

fn symbols(text: &str, tokenizer: &dyn Tokenize) -> Result<Vec<Symbol>, Status> {
    let plain = || text.bytes().map(Symbol::from).collect();
    let ids = tokenizer.encode(text, &[])?;
    let pieces = || ids.iter().filter_map(|id| Some((*id, tokenizer.piece(*id)?)));
    if !pieces().any(|(_, piece)| piece.control) {
        return Ok(plain());
    }
    if !pieces().flat_map(|(_, piece)| piece.bytes).eq(text.as_bytes()) {
        let message =
            format!("begin_with: the tokenizer changes {text:?}, so its control tokens cannot be placed");
        return Err(Status::unsupported(reason::INVALID_SAMPLING, message).with_param("begin_with"));
    }
    Ok(pieces()
        .flat_map(|(id, piece)| {
            let (control, bytes): (_, &[u8]) =
                if piece.control { (CONTROL.checked_add(id), &[]) } else { (None, piece.bytes) };
            control.into_iter().chain(bytes.iter().copied().map(Symbol::from))
        })
        .collect())
}

#[cfg(test)]
mod tests;
