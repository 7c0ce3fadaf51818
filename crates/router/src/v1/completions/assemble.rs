//! Tokens of a continuation into its pieces of text.

use std::collections::BTreeMap;

use chat::StopScanner;
use node_api::Token;
use openai_api::completion::CompletionLogprobs;

use crate::text::Utf8Pieces;
use crate::v1::logprobs::{finite, spelling};
use crate::v1::sequence::Assemble;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
}

impl Finish {
    pub fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

pub struct Continuation {
    echo: Option<String>,
    utf8: Utf8Pieces,
    stop: StopScanner,
    /// `Some(n)`: with the n most likely tokens.
    logprobs: Option<u32>,
    /// Tokens whose text is not out yet, by number.
    pending: std::collections::VecDeque<(u64, Token)>,
    tokens: u64,
    /// Characters of the tokens given out with log probabilities.
    offset: u32,
}

impl Continuation {
    pub fn new(echo: Option<String>, stop: Vec<String>, logprobs: Option<u32>) -> Continuation {
        Continuation {
            echo,
            utf8: Utf8Pieces::default(),
            stop: StopScanner::new(stop),
            logprobs,
            pending: std::collections::VecDeque::new(),
            tokens: 0,
            offset: 0,
        }
    }

    fn piece(&mut self, text: String, upto: u64) -> Option<Piece> {
        let logprobs = self.logprobs.is_some().then(|| self.logprobs_before(upto));
        let empty = text.is_empty() && logprobs.as_ref().is_none_or(|l| l.tokens.is_empty());
        (!empty).then_some(Piece { text, logprobs })
    }

    fn logprobs_before(&mut self, upto: u64) -> CompletionLogprobs {
        let with_top = self.logprobs.is_some_and(|n| n > 0);
        let mut out =
            CompletionLogprobs { top_logprobs: with_top.then(Vec::new), ..CompletionLogprobs::default() };
        while let Some((number, _)) = self.pending.front()
            && *number < upto
        {
            let (_, token) = self.pending.pop_front().expect("it was just looked at");
            let text = spelling(&token.bytes.to_vec());
            let chosen = token.logprobs.first().map(|l| finite(l.logprob));
            out.text_offset.push(self.offset);
            self.offset += u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
            out.tokens.push(text);
            out.token_logprobs.push(chosen);
            if let Some(top) = &mut out.top_logprobs {
                let best = token.logprobs.iter().skip(1);
                top.push(
                    best.map(|l| (spelling(&l.bytes.to_vec()), finite(l.logprob)))
                        .collect::<BTreeMap<_, _>>(),
                );
            }
        }
        out
    }
}

impl Assemble for Continuation {
    type Piece = Piece;
    type Finish = Finish;

    fn begin(&mut self) -> Vec<Piece> {
        self.echo.take().map(|text| Piece { text, logprobs: None }).into_iter().collect()
    }

    fn push(&mut self, token: &Token) -> (Vec<Piece>, Option<Finish>) {
        let number = self.tokens;
        self.tokens += 1;
        // A control token is not text.
        if token.control {
            return (Vec::new(), None);
        }
        if self.logprobs.is_some() {
            self.pending.push_back((number, token.clone()));
        }
        let text = self.utf8.push(&token.bytes.to_vec());
        let scanned = self.stop.push(&text, number..number + 1);
        let piece = self.piece(scanned.text, scanned.tokens.end);
        (piece.into_iter().collect(), scanned.is_stopped.then_some(Finish::Stop))
    }

    fn finish(&mut self, length: bool) -> (Vec<Piece>, Finish) {
        let rest = self.utf8.finish();
        let last = self.tokens;
        let pushed = self.stop.push(&rest, last..last);
        let held = self.stop.finish();
        let piece = self.piece(pushed.text + &held.text, u64::MAX);
        (piece.into_iter().collect(), if length { Finish::Length } else { Finish::Stop })
    }
}
