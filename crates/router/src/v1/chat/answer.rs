//! The answer out of the pieces of its choices: as a whole, or chunk by chunk.

use futures_util::stream::{BoxStream, StreamExt as _};
use openai_api::chat::{
    AssistantMessage, ChatChoice, ChatChunk, ChatCompletion, ChunkChoice, Delta, FinishReason, FunctionDelta,
    ToolCall, ToolCallDelta, ToolCallFunction,
};
use openai_api::logprobs::{ChatLogprobs, TokenLogprob};
use openai_api::usage::Usage;

use super::assemble::{Piece, Reply};
use crate::error::Failure;
use crate::sse::Item;
use crate::v1::sequence::{Chunks, Common, Event, Events, items};

pub struct Answer {
    common: Common,
    choices: u32,
    /// Log probabilities were asked for.
    logprobs: bool,
    service_tier: Option<String>,
}

/// A choice as far as it has come.
#[derive(Debug, Default)]
struct Collected {
    content: Option<String>,
    reasoning: Option<String>,
    calls: Vec<ToolCall>,
    logprobs: Vec<TokenLogprob>,
    finish: Option<FinishReason>,
}

impl Answer {
    pub fn new(common: Common, choices: u32, logprobs: bool, tier_named: bool) -> Answer {
        Answer { common, choices, logprobs, service_tier: tier_named.then(|| "default".to_owned()) }
    }

    pub async fn whole(mut self, mut events: Events<Reply>) -> Result<ChatCompletion, Failure> {
        let mut collected: Vec<Collected> = (0..self.choices).map(|_| Collected::default()).collect();
        while let Some(event) = events.next().await {
            let (index, event) = event?;
            let choice = collected.get_mut(index as usize).expect("events have the numbers of their choices");
            match event {
                Event::Loading(_) => {}
                Event::Started(started) => self.common.started(index, &started),
                Event::Piece(piece) => choice.add(piece),
                Event::Ended(ended) => {
                    self.common.ended(&ended);
                    choice.finish = Some(ended.finish);
                }
            }
        }
        let logprobs = self.logprobs;
        let choice = |(index, collected): (u32, Collected)| collected.into_choice(index, logprobs);
        Ok(ChatCompletion {
            object: "chat.completion".to_owned(),
            choices: (0..).zip(collected).map(choice).collect(),
            usage: self.common.usage(),
            id: self.common.id,
            created: self.common.created,
            model: self.common.model,
            system_fingerprint: self.common.system_fingerprint,
            service_tier: self.service_tier,
        })
    }

    pub fn stream(
        self,
        events: Events<Reply>,
        include_usage: bool,
    ) -> BoxStream<'static, Result<Item, Failure>> {
        items(Streamed { answer: self, include_usage }, events)
    }

    fn chunk(&self, choice: Option<ChunkChoice>, usage: Option<Option<Usage>>) -> ChatChunk {
        ChatChunk {
            id: self.common.id.clone(),
            object: "chat.completion.chunk".to_owned(),
            created: self.common.created,
            model: self.common.model.clone(),
            system_fingerprint: self.common.system_fingerprint.clone(),
            service_tier: self.service_tier.clone(),
            choices: choice.into_iter().collect(),
            usage,
        }
    }
}

/// An answer on its way.
struct Streamed {
    answer: Answer,
    include_usage: bool,
}

impl Chunks<Reply> for Streamed {
    fn item(&mut self, index: u32, event: Event<Reply>) -> Option<Item> {
        let common = &mut self.answer.common;
        let (delta, logprobs, finish_reason) = match event {
            Event::Loading(progress) => return Some(Item::Loading(progress)),
            Event::Started(started) => {
                common.started(index, &started);
                (Delta { role: Some("assistant".to_owned()), ..Delta::default() }, None, None)
            }
            Event::Piece(piece) => {
                let (delta, logprobs) = delta(piece);
                let wanted = Some(logprobs).filter(|l| self.answer.logprobs && !l.is_empty());
                (delta, wanted.map(chat_logprobs), None)
            }
            Event::Ended(ended) => {
                common.ended(&ended);
                (Delta::default(), None, Some(ended.finish))
            }
        };
        let choice = ChunkChoice { index, delta, logprobs, finish_reason };
        Some(Item::json(&self.answer.chunk(Some(choice), self.include_usage.then_some(None))))
    }

    fn last(&mut self) -> Option<Item> {
        let usage = self.answer.common.usage();
        self.include_usage.then(|| Item::json(&self.answer.chunk(None, Some(Some(usage)))))
    }
}

impl Collected {
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Content { text, logprobs } => {
                self.content.get_or_insert_default().push_str(&text);
                self.logprobs.extend(logprobs);
            }
            Piece::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            Piece::CallStart { id, name, .. } => {
                let function = ToolCallFunction { name, arguments: String::new() };
                self.calls.push(ToolCall { id, r#type: "function".to_owned(), function, index: None });
            }
            Piece::CallArguments { index, arguments } => {
                if let Some(call) = self.calls.get_mut(index as usize) {
                    call.function.arguments.push_str(&arguments);
                }
            }
        }
    }

    fn into_choice(self, index: u32, logprobs: bool) -> ChatChoice {
        // Null only beside calls: an answer without words is an empty one.
        let content =
            if self.calls.is_empty() { Some(self.content.unwrap_or_default()) } else { self.content };
        ChatChoice {
            index,
            message: AssistantMessage {
                role: "assistant".to_owned(),
                content,
                refusal: None,
                reasoning: self.reasoning.clone(),
                reasoning_content: self.reasoning,
                tool_calls: self.calls,
            },
            logprobs: logprobs.then(|| chat_logprobs(self.logprobs)),
            finish_reason: self.finish.unwrap_or(FinishReason::Stop),
        }
    }
}

fn chat_logprobs(entries: Vec<TokenLogprob>) -> ChatLogprobs {
    ChatLogprobs { content: Some(entries), refusal: None }
}

fn delta(piece: Piece) -> (Delta, Vec<TokenLogprob>) {
    let call = |delta: ToolCallDelta| Delta { tool_calls: vec![delta], ..Delta::default() };
    match piece {
        Piece::Content { text, logprobs } => (Delta { content: Some(text), ..Delta::default() }, logprobs),
        Piece::Reasoning(text) => {
            let delta =
                Delta { reasoning: Some(text.clone()), reasoning_content: Some(text), ..Delta::default() };
            (delta, Vec::new())
        }
        Piece::CallStart { index, id, name } => {
            let function = FunctionDelta { name: Some(name), arguments: Some(String::new()) };
            let start = ToolCallDelta { index, id: Some(id), r#type: Some("function".to_owned()), function };
            (call(start), Vec::new())
        }
        Piece::CallArguments { index, arguments } => {
            let function = FunctionDelta { name: None, arguments: Some(arguments) };
            (call(ToolCallDelta { index, function, ..ToolCallDelta::default() }), Vec::new())
        }
    }
}
