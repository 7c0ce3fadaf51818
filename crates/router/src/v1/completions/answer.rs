//! The answer out of the pieces of its choices: as a whole, or chunk by chunk.

use std::collections::VecDeque;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use openai_api::completion::{Completion, CompletionChoice, CompletionLogprobs};
use openai_api::usage::Usage;

use super::assemble::{Continuation, Piece};
use crate::error::Failure;
use crate::sse::Item;
use crate::v1::sequence::{Common, Event, Events};

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
        struct State {
            answer: Answer,
            events: Events<Continuation>,
            pending: VecDeque<Item>,
            ended: bool,
        }
        let state = State { answer: self, events, pending: VecDeque::new(), ended: false };
        let items = stream::unfold(Some(state), move |state| async move {
            let mut state = state?;
            loop {
                if let Some(item) = state.pending.pop_front() {
                    return Some((Ok(item), Some(state)));
                }
                if state.ended {
                    return None;
                }
                match state.events.next().await {
                    Some(Ok((index, event))) => {
                        let items = state.answer.item(index, event, include_usage);
                        state.pending.extend(items);
                    }
                    Some(Err(failure)) => return Some((Err(failure), None)),
                    None => {
                        state.ended = true;
                        if include_usage {
                            let usage = state.answer.common.usage();
                            state.pending.push_back(Item::json(
                                &state.answer.completion(Vec::new(), Some(Some(usage))),
                            ));
                        }
                    }
                }
            }
        });
        items.boxed()
    }

    fn item(&mut self, index: u32, event: Event<Continuation>, include_usage: bool) -> Option<Item> {
        let (piece, finish_reason) = match event {
            Event::Loading(progress) => return Some(Item::Loading(progress)),
            Event::Started(started) => {
                self.common.started(index, &started);
                return None;
            }
            Event::Piece(piece) => (piece, None),
            Event::Ended(ended) => {
                self.common.ended(&ended);
                (Piece::default(), Some(ended.finish.as_str().to_owned()))
            }
        };
        let choice = CompletionChoice { index, text: piece.text, logprobs: piece.logprobs, finish_reason };
        Some(Item::json(&self.completion(vec![choice], include_usage.then_some(None))))
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
