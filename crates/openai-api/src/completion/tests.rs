use serde_json::{Value, json};

use super::parameters::PromptText;
use super::*;
use crate::InvalidRequest;

fn read(change: Value) -> Result<CompletionParameters, InvalidRequest> {
    let mut body = json!({"model": "m", "prompt": "hi"});
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    crate::parse::<CompletionRequest>(body.to_string().as_bytes())?.checked()
}

fn refused(change: Value, param: &str) {
    let error = read(change.clone()).expect_err(&change.to_string());
    assert_eq!(error.param.as_deref(), Some(param), "{change}: {error:?}");
}

#[test]
fn a_prompt_has_four_forms() {
    let prompts = |prompt: Value| read(json!({"prompt": prompt})).unwrap().prompts;
    assert_eq!(prompts(json!("a")), [PromptText::Text("a".into())]);
    assert_eq!(prompts(json!(["a", "b"])), [PromptText::Text("a".into()), PromptText::Text("b".into())]);
    assert_eq!(prompts(json!([1, 2])), [PromptText::Tokens(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2, 3]])), [PromptText::Tokens(vec![1]), PromptText::Tokens(vec![2, 3])]);
}

#[test]
fn prompts_that_are_none_are_refused() {
    for prompt in [json!(""), json!([]), json!(["a", ""]), json!([[]]), json!([[1], []])] {
        refused(json!({"prompt": prompt}), "prompt");
    }
    refused(json!({"prompt": ["a", 1]}), "prompt[1]");
    refused(json!({"prompt": [-1]}), "prompt[0]");
    refused(json!({"prompt": [4294967296u64]}), "prompt[0]");
    refused(json!({"prompt": {}}), "prompt");
    refused(json!({"prompt": vec!["a"; 17]}), "prompt");
    refused(json!({"prompt": null}), "prompt");
}

#[test]
fn fields_are_honoured_or_refused() {
    let p = read(json!({"n": 2, "best_of": 2, "echo": true, "suffix": "", "user": "u"})).unwrap();
    assert!(p.echo);
    assert_eq!((p.choices, p.sampling.tokens_max), (2, 16));
    assert_eq!(read(json!({"logprobs": 5})).unwrap().sampling.logprobs, Some(5));
    refused(json!({"best_of": 3}), "best_of");
    refused(json!({"suffix": "x"}), "suffix");
    refused(json!({"logprobs": 6}), "logprobs");
    refused(json!({"echo": true, "logprobs": 1}), "echo");
    refused(json!({"echo": true, "prompt": [1]}), "echo");
    refused(json!({"max_tokens": 0}), "max_tokens");
    refused(json!({"messages": []}), "messages");
    refused(json!({"temperature": 3}), "temperature");
}
