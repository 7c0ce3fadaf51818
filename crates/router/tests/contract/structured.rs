//! Answers that are held to a schema: what is refused, and what a node is asked for.

use node_api::{Constraint, FinishReason, GenerateRequest, Prompt};
use serde_json::{Value, json};

use crate::support::*;

fn body(change: Value) -> Value {
    let mut body = json!({"model": "org/demo", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false})
}

fn format(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "flag", "description": "A flag", "schema": schema}})
}

fn tool(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": schema(), "strict": strict}})
}

/// What the node is asked for.
async fn asked(world: &World, node: &FakeNode, body: &Value) -> GenerateRequest {
    node.reply_events(vec![started(), text("{}"), finished(FinishReason::Stop, 1)]);
    let (status, answer) = world.post("/v1/chat/completions", body).await;
    assert_eq!(status, 200, "{answer}");
    node.call().await.request
}

async fn grammar(world: &World, node: &FakeNode, change: Value) -> String {
    match asked(world, node, &body(change.clone())).await.sampling.constraint {
        Some(Constraint::Lark(text)) => text,
        other => panic!("{change}: {other:?}"),
    }
}

async fn refused(world: &World, body: &Value, param: &str, words: &[&str]) {
    let (status, answer) = world.post("/v1/chat/completions", body).await;
    assert_eq!((status.as_u16(), answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(words.iter().all(|word| message.contains(word)), "{answer}");
}

#[tokio::test]
async fn a_plain_reply_is_held_to_the_schema_of_its_response_format() {
    let (world, node) = World::ready().await;
    let of = |format: Value| {
        let mut body = body(json!({"response_format": format}));
        body["model"] = json!("org/tiny");
        body
    };
    let request = asked(&world, &node, &of(json!({"type": "json_object"}))).await;
    let Some(Constraint::JsonSchema(text)) = request.sampling.constraint else { panic!("a schema is sent") };
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["type"], "object");
    let Prompt::Text { text: prompt, .. } = request.prompt else { panic!("text is sent") };
    assert!(!prompt.contains("Response Formats"), "{prompt}");

    let request = asked(&world, &node, &of(format(schema()))).await;
    let Some(Constraint::JsonSchema(text)) = request.sampling.constraint else { panic!("a schema is sent") };
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["properties"], schema()["properties"]);
    let request = asked(&world, &node, &of(json!({"type": "text"}))).await;
    assert_eq!(request.sampling.constraint, None);
}

#[tokio::test]
async fn a_harmony_reply_is_told_of_the_schema_and_held_to_it_in_its_final_message() {
    let (world, node) = World::ready_harmony().await;
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]);
    let change = json!({"response_format": format(schema()), "messages": messages});
    let request = asked(&world, &node, &body(change)).await;
    let Some(Constraint::Lark(text)) = request.sampling.constraint else { panic!("a grammar is sent") };
    assert!(text.contains("<|channel|> \"final\" <|message|> %json {\"type\":\"object\""), "{text}");
    assert!(!text.contains("call"), "{text}");
    let Prompt::Text { text: prompt, .. } = request.prompt else { panic!("text is sent") };
    let at = |words: &str| prompt.find(words).unwrap_or_else(|| panic!("{words}: {prompt}"));
    assert!(at("Be brief.") < at("# Response Formats\n\n## flag\n\n// A flag\n{"));
    assert!(at("# Response Formats") < at("<|start|>user"));

    let text = grammar(&world, &node, json!({"response_format": {"type": "json_object"}})).await;
    assert!(text.contains("%json {\"type\":\"object\""), "{text}");
}

#[tokio::test]
async fn arguments_of_strict_tools_are_held_to_their_parameters() {
    let (world, node) = World::ready_harmony().await;
    let tools = json!([tool("get", true), tool("play", false)]);
    let text = grammar(&world, &node, json!({"tools": tools})).await;
    let line = |begin: &str| text.lines().find(|l| l.starts_with(begin)).unwrap().to_owned();
    assert!(line("call_0").contains("to=functions.get\"") && line("call_0").contains("%json {"), "{text}");
    assert!(line("call_1").ends_with("text?") && line("content").ends_with("text?"), "{text}");

    let text = grammar(&world, &node, json!({"tools": tools, "tool_choice": "required"})).await;
    assert!(text.starts_with("start: call\n") && line("call_0").contains("\"commentary\""), "{text}");

    let forced = json!({"type": "function", "function": {"name": "get"}});
    let request = asked(&world, &node, &body(json!({"tools": tools, "tool_choice": forced}))).await;
    assert!(matches!(request.sampling.constraint, Some(Constraint::JsonSchema(_))), "{request:?}");
    assert!(request.sampling.begin_with.is_empty());

    // Nothing is held where nothing strict can be called.
    let request = asked(&world, &node, &body(json!({"tools": tools, "tool_choice": "none"}))).await;
    assert_eq!(request.sampling.constraint, None);
    let loose = json!([tool("a", false), tool("b", false)]);
    let request = asked(&world, &node, &body(json!({"tools": loose, "tool_choice": "required"}))).await;
    assert_eq!((request.sampling.constraint, request.sampling.begin_with.len()), (None, 2));
}

#[tokio::test]
async fn a_schema_that_cannot_be_kept_to_is_refused_where_it_stands() {
    let (world, _node) = World::ready_harmony().await;
    let schema_param = "response_format.json_schema.schema";
    for (schema, word) in [
        (json!({"not": {}}), "not"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "tree"}), "tree"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance"),
        (json!({"description": "x".repeat(grammar::SCHEMA_BYTES_MAX)}), "65536"),
    ] {
        refused(&world, &body(json!({"response_format": format(schema)})), schema_param, &[word]).await;
    }
    let mut broken = tool("b", true);
    broken["function"]["parameters"] = json!({"type": "object", "if": {}});
    let tools = json!([tool("a", true), broken]);
    refused(&world, &body(json!({"tools": tools})), "tools[1].function.parameters", &["if"]).await;

    let (world, _node) = World::ready().await;
    let mut plain = body(json!({"tools": [tool("a", true)]}));
    plain["model"] = json!("org/tiny");
    refused(&world, &plain, "tools", &[]).await;
}

#[tokio::test]
async fn an_engine_that_cannot_hold_an_answer_is_not_asked() {
    let (world, node) = World::ready_harmony().await;
    node.change(|status| status.engines[0].capabilities.clear());
    let asked = body(json!({"response_format": {"type": "json_object"}}));
    in_time("the engine to have lost the capability", async {
        loop {
            node.reply_events(vec![started(), finished(FinishReason::Stop, 0)]);
            if world.post("/v1/chat/completions", &asked).await.0 == 400 {
                return;
            }
        }
    })
    .await;
    refused(&world, &asked, "response_format", &["echo 1.0.0"]).await;
}

#[tokio::test]
async fn an_engines_own_refusal_names_what_the_caller_wrote() {
    let (world, node) = World::ready_harmony().await;
    let error = || node_api::ApiError {
        message: "the answer cannot be held to the constraint: too complex".to_owned(),
        param: Some("constraint".to_owned()),
        ..refusal(400, "invalid_sampling", false)
    };
    node.reply(Reply::Refuse(error()));
    let of_format = body(json!({"response_format": {"type": "json_object"}}));
    refused(&world, &of_format, "response_format", &["too complex"]).await;
    node.reply(Reply::Refuse(error()));
    refused(&world, &body(json!({"tools": [tool("a", true)]})), "tools", &["too complex"]).await;
}
