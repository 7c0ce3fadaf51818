//! Requests that run together do not see each other: every answer is the one the request has when it is alone.

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use system_tests::reference::{MODEL, Prompt};
use system_tests::repos::{self, ECHO};
use system_tests::{Reference, System};

/// Each of the reference's prompts so many times.
const ROUNDS: usize = 6;
/// Requests on their way at once.
const TOGETHER: usize = 24;
const PAYLOADS: usize = 200;

/// What a reply says, however it came: content, reasoning, name and arguments of the first call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said([String; 4]);

impl Said {
    fn add(&mut self, message: &Value) {
        let call = &message["tool_calls"][0]["function"];
        let parts = [&message["content"], &message["reasoning"], &call["name"], &call["arguments"]];
        for (sum, part) in self.0.iter_mut().zip(parts) {
            sum.push_str(part.as_str().unwrap_or_default());
        }
    }

    fn expected(prompt: &Prompt) -> Said {
        let mut said = Said::default();
        let mut message = json!({"content": prompt.content, "reasoning": prompt.reasoning});
        if let Some(call) = &prompt.tool_call {
            message["tool_calls"] = json!([{ "function": call }]);
        }
        said.add(&message);
        said
    }
}

async fn ask(system: &System, mut body: Value, streamed: bool) -> Said {
    let mut said = Said::default();
    if !streamed {
        said.add(&system.api.chat(&body).await.ok()["choices"][0]["message"]);
        return said;
    }
    body["stream"] = json!(true);
    let mut events = system.api.stream("/v1/chat/completions", &body).await;
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    events.iter().for_each(|event| said.add(&event["choices"][0]["delta"]));
    said
}

/// Draws tokens, so that it disturbs whatever is shared; the caller goes away in the middle of it.
async fn disturb(system: &System, number: usize) {
    let body = json!({
        "model": MODEL, "stream": true, "temperature": 1.5, "seed": number, "max_tokens": 200,
        "messages": [{"role": "user", "content": format!("neighbour {number} ").repeat(1 + number % 7)}],
    });
    let url = format!("{}/v1/chat/completions", system.url);
    let mut reply = system.api.http().post(url).json(&body).send().await.expect("the router answers");
    assert_eq!(reply.status(), 200);
    for _ in 0..number % 5 {
        reply.chunk().await.expect("the stream goes on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_answers_are_the_same_beside_many_others() {
    let system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let reference = Reference::read();
    let count = reference.prompts.len() * ROUNDS;
    let together = (0..count).map(|number| {
        let (system, prompt) = (&system, &reference.prompts[number % reference.prompts.len()]);
        async move {
            if number.is_multiple_of(3) {
                disturb(system, number).await;
            }
            let said = ask(system, prompt.request(), number.is_multiple_of(2)).await;
            (number, said, Said::expected(prompt))
        }
    });
    let answers: Vec<_> = stream::iter(together).buffer_unordered(TOGETHER).collect().await;
    assert_eq!(answers.len(), count);
    for (number, said, expected) in answers {
        assert_eq!(said, expected, "request {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_echo_is_that_of_its_own_request() {
    let system = System::start(vec![repos::echo(ECHO)]).await;
    system.add(ECHO).await;
    let together = (0..PAYLOADS).map(|number| {
        let system = &system;
        async move {
            // All begin alike and are of other lengths; a byte of another's would show. The longest fits the context of
            // 512 bytes twice, as prompt and as answer.
            let payload = format!("the same beginning of all, and then {number:04} ").repeat(1 + number % 6);
            let body = json!({
                "model": ECHO,
                "prompt": payload,
                "temperature": 0,
                // The API's own default is 16 tokens; one of echo is one byte.
                "max_tokens": payload.len(),
                "stream": number.is_multiple_of(2),
            });
            let text = if number.is_multiple_of(2) {
                let mut events = system.api.stream("/v1/completions", &body).await;
                assert_eq!(events.pop(), Some(json!("[DONE]")), "request {number}");
                let texts = events.iter().filter_map(|e| e["choices"][0]["text"].as_str());
                texts.collect::<String>()
            } else {
                let answer = system.api.post("/v1/completions", &body).await.ok();
                answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
            };
            (number, text, payload)
        }
    });
    let answers: Vec<_> = stream::iter(together).buffer_unordered(TOGETHER * 2).collect().await;
    assert_eq!(answers.len(), PAYLOADS);
    for (number, text, payload) in answers {
        assert_eq!(text, payload, "request {number}");
    }
}
