//! The answer out of the pieces of its choices: as a whole, or chunk by chunk.

use futures_util::stream::{BoxStream, StreamExt as _};
use openai_api::completion::{Completion, CompletionChoice, CompletionLogprobs};
use openai_api::usage::Usage;

use super::assemble::{Continuation, Piece};
use crate::error::Failure;
use crate::sse::Item;
use crate::v1::sequence::{Chunks, Common, Event, Events, items};

pub struct Answer {
    common: Common,
    choices: usize,
}

impl Answer {
    pub fn new(common: Common, choices: usize) -> Answer {
        Answer { common, choices }
    }

    pub async fn whole(mut self, mut events: Events<Continuation>) -> Result<Completion, Failure> {
        let empty =
            |index| CompletionChoice { index, text: String::new(), logprobs: None, finish_reason: None };
        let mut choices: Vec<CompletionChoice> = (0..).take(self.choices).map(empty).collect();
        while let Some(event) = events.next().await {
            let (index, event) = event?;
            let choice = choices.get_mut(index as usize).expect("events have the numbers of their choices");
            match event {
                Event::Loading(_) => {}
                Event::Started(started) => self.common.started(index, &started),
                Event::Piece(piece) => add(choice, piece),
                Event::Ended(ended) => {
                    self.common.ended(&ended);
                    choice.finish_reason = Some(ended.finish.as_str().to_owned());
                }
            }
        }
        let usage = self.common.usage();
        Ok(self.completion(choices, Some(Some(usage))))
    }

    pub fn stream(
        self,
        events: Events<Continuation>,
        include_usage: bool,
    ) -> BoxStream<'static, Result<Item, Failure>> {
        items(Streamed { answer: self, include_usage }, events)
    }

    fn completion(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> Completion {
        Completion {
            id: self.common.id.clone(),
            object: "text_completion".to_owned(),
            created: self.common.created,
            model: self.common.model.clone(),
            choices,
            system_fingerprint: self.common.system_fingerprint.clone(),
            usage,
        }
    }
}

/// An answer on its way.
struct Streamed {
    answer: Answer,
    include_usage: bool,
}

impl Chunks<Continuation> for Streamed {
    fn item(&mut self, index: u32, event: Event<Continuation>) -> Option<Item> {
        let common = &mut self.answer.common;
        let (piece, finish_reason) = match event {
            Event::Loading(progress) => return Some(Item::Loading(progress)),
            Event::Started(started) => {
                common.started(index, &started);
                return None;
            }
            Event::Piece(piece) => (piece, None),
            Event::Ended(ended) => {
                common.ended(&ended);
                (Piece::default(), Some(ended.finish.as_str().to_owned()))
            }
        };
        let choice = CompletionChoice { index, text: piece.text, logprobs: piece.logprobs, finish_reason };
        Some(Item::json(&self.answer.completion(vec![choice], self.include_usage.then_some(None))))
    }

    fn last(&mut self) -> Option<Item> {
        let usage = self.answer.common.usage();
        self.include_usage.then(|| Item::json(&self.answer.completion(Vec::new(), Some(Some(usage)))))
    }
}

fn add(choice: &mut CompletionChoice, piece: Piece) {
    choice.text.push_str(&piece.text);
    let Some(new) = piece.logprobs else { return };
    let all = choice.logprobs.get_or_insert_with(CompletionLogprobs::default);
    all.tokens.extend(new.tokens);
    all.token_logprobs.extend(new.token_logprobs);
    all.text_offset.extend(new.text_offset);
    if let Some(top) = new.top_logprobs {
        all.top_logprobs.get_or_insert_default().extend(top);
    }
}
