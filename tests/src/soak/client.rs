//! One request and what became of it, held against the promise.

use std::time::Duration;

use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, seq::IndexedRandom as _};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::reference::Prompt;
use crate::soak::models::{Answers, Repeating, SoakModel};

/// From the request to the end of its answer. It covers a wait for a model that does not fit, a killed worker and a
/// watchdog; whoever waits longer was forgotten.
const ANSWER_MAX: Duration = Duration::from_secs(180);
const SHORT_BYTES: usize = 40;
const LONG_BYTES: usize = 700;
/// The end token is a token of the answer.
const END_TOKENS: usize = 1;

/// A request whose whole answer is known before it is sent.
#[derive(Debug, Clone)]
pub struct Question {
    model: &'static str,
    path: &'static str,
    body: Value,
    expected: Answer,
    finish_reason: &'static str,
    streamed: bool,
    /// Go away after so many pieces.
    leave_after: Option<usize>,
}

/// What a client puts together of one answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answer {
    reasoning: String,
    text: String,
}

impl Answer {
    /// A piece of it: a choice of a completion, or the delta or message of a chat's.
    fn push(&mut self, choice: &Value) {
        let part = choice.get("delta").or(choice.get("message")).unwrap_or(choice);
        self.reasoning.push_str(part["reasoning"].as_str().unwrap_or_default());
        self.text.push_str(part["text"].as_str().or(part["content"].as_str()).unwrap_or_default());
    }

    fn begins(&self, whole: &Answer) -> bool {
        whole.text.starts_with(&self.text) && whole.reasoning.starts_with(&self.reasoning)
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// We left, and what had come was right.
    Left,
    /// An error that says so: status and code, and the words.
    Refused(String, String),
    /// What must never be: why, with what was seen.
    Broken(String),
}

impl Question {
    pub fn draw(random: &mut StdRng, models: &[SoakModel], number: u64) -> Question {
        let model = models
            .choose_weighted(random, |model| model.weight)
            .expect("there are models and their weights are not 0");
        match &model.answers {
            Answers::Repeating(repeating) => Question::repeating(random, model.id, repeating, number),
            Answers::Recorded { prompts, .. } => Question::recorded(random, model.id, prompts),
        }
    }

    fn repeating(random: &mut StdRng, model: &'static str, of: &Repeating, number: u64) -> Question {
        let long = random.random_ratio(1, 4);
        let bytes = random.random_range(4..=if long { LONG_BYTES } else { SHORT_BYTES });
        // No two prompts are alike, so an answer of somebody else's is found out.
        let mut prompt = format!("<{number}> ");
        while prompt.len() < bytes {
            prompt.push(char::from(random.random_range(b'a'..=b'z')));
            if random.random_ratio(1, 6) {
                prompt.push(' ');
            }
        }
        let whole = prompt.repeat(of.repeat);
        let cut = random.random_ratio(1, 5);
        let tokens = if cut { random.random_range(1..=whole.len()) } else { whole.len() + END_TOKENS };
        let (streamed, leave_after) = stay(random);
        Question {
            model,
            path: "/v1/completions",
            body: json!({
                "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": streamed,
            }),
            expected: Answer { text: whole[..tokens.min(whole.len())].to_owned(), ..Answer::default() },
            finish_reason: if cut { "length" } else { "stop" },
            streamed,
            leave_after,
        }
    }

    fn recorded(random: &mut StdRng, model: &'static str, prompts: &[Prompt]) -> Question {
        let prompt = prompts.choose(random).expect("the reference has prompts");
        let (streamed, leave_after) = stay(random);
        let mut body = prompt.request();
        body["stream"] = streamed.into();
        Question {
            model,
            path: "/v1/chat/completions",
            body,
            expected: Answer {
                reasoning: prompt.reasoning.clone().unwrap_or_default(),
                text: prompt.content.clone().unwrap_or_default(),
            },
            finish_reason: "stop",
            streamed,
            leave_after,
        }
    }

    pub async fn ask(&self, http: &reqwest::Client, url: &str) -> Outcome {
        let asked = timeout(ANSWER_MAX, self.send(http, url)).await;
        asked.unwrap_or_else(|_| self.broken(&format!("no answer in {} s", ANSWER_MAX.as_secs())))
    }

    async fn send(&self, http: &reqwest::Client, url: &str) -> Outcome {
        let sent = http.post(format!("{url}{}", self.path)).json(&self.body).send().await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => return self.broken(&format!("no answer at all: {error:?}")),
        };
        let status = response.status().as_u16();
        if status != 200 {
            let text = response.text().await.unwrap_or_default();
            return self.refused(status, &serde_json::from_str(&text).unwrap_or(Value::String(text)));
        }
        if self.streamed { self.read(response).await } else { self.whole(response).await }
    }

    async fn whole(&self, response: reqwest::Response) -> Outcome {
        let text = match response.text().await {
            Ok(text) => text,
            Err(error) => return self.broken(&format!("the answer is cut: {error:?}")),
        };
        let Ok(reply) = serde_json::from_str::<Value>(&text) else {
            return self.broken(&format!("no JSON: {text:?}"));
        };
        // Sent under way, when the status had gone out already.
        if reply["error"].is_object() {
            return self.refused(200, &reply);
        }
        let choice = &reply["choices"][0];
        let mut answer = Answer::default();
        answer.push(choice);
        self.finished(&answer, &choice["finish_reason"])
    }

    async fn read(&self, response: reqwest::Response) -> Outcome {
        let mut pieces = response.bytes_stream();
        let (mut buffer, mut answer, mut finish, mut seen) = (Vec::new(), Answer::default(), Value::Null, 0);
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => buffer.extend_from_slice(&piece),
                Err(error) => {
                    let bytes = answer.text.len();
                    return self.broken(&format!("the stream is cut after {bytes} bytes: {error:?}"));
                }
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
                if data == "[DONE]" {
                    return self.finished(&answer, &finish);
                }
                let Ok(event) = serde_json::from_str::<Value>(data) else {
                    return self.broken(&format!("an event that is no JSON: {data:?}"));
                };
                if event["error"].is_object() {
                    // Nothing comes after it, and all that came before was right: checked piece by piece.
                    return self.refused(200, &event);
                }
                let choice = &event["choices"][0];
                answer.push(choice);
                if !choice["finish_reason"].is_null() {
                    finish = choice["finish_reason"].clone();
                }
                if !answer.begins(&self.expected) {
                    return self.broken(&format!("a wrong token: {answer:?}"));
                }
                seen += 1;
                if self.leave_after.is_some_and(|pieces| seen > pieces) {
                    return Outcome::Left;
                }
            }
        }
        self.broken(&format!("the stream ends without [DONE] and without an error after {answer:?}"))
    }

    fn finished(&self, answer: &Answer, finish_reason: &Value) -> Outcome {
        if *answer != self.expected {
            return self.broken(&format!("a wrong answer: {answer:?}, not {:?}", self.expected));
        }
        if finish_reason != self.finish_reason {
            return self.broken(&format!("finish_reason is {finish_reason}, not {}", self.finish_reason));
        }
        Outcome::Complete
    }

    /// Our requests are without fault: only 5xx may be answered, with words and a code.
    fn refused(&self, status: u16, body: &Value) -> Outcome {
        let error = &body["error"];
        let words = error["message"].as_str().unwrap_or_default();
        let code = error["code"].as_str().unwrap_or_default();
        let server_side = status == 200 || (500..600).contains(&status);
        if !server_side || words.is_empty() || code.is_empty() {
            return self.broken(&format!("status {status} with {body}"));
        }
        Outcome::Refused(format!("{status} {code}"), words.to_owned())
    }

    fn broken(&self, why: &str) -> Outcome {
        let kind = if self.streamed { "streamed" } else { "whole" };
        Outcome::Broken(format!("{} ({kind}, {} tokens at most): {why}", self.model, self.body["max_tokens"]))
    }
}

/// Whether it is streamed, and after how many pieces the client goes away, if it does.
fn stay(random: &mut StdRng) -> (bool, Option<usize>) {
    let streamed = random.random_ratio(3, 4);
    let leaves = streamed && random.random_ratio(1, 8);
    (streamed, leaves.then(|| random.random_range(0..20)))
}
