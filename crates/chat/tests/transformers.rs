//! Renders as `transformers` does, byte for byte: our templates against recorded renderings, the demo model's prompts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use chat::{ControlTokens, RenderError, RenderRequest, Rendered, Template, TemplateSet, TemplateSource};
use serde_json::Value as Json;
use time::PrimitiveDateTime;
use time::macros::{datetime, format_description};

fn folder(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn json(path: &Path) -> Json {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn list(value: &Json) -> Vec<Json> {
    value.as_array().cloned().unwrap_or_default()
}

fn request(case: &Json) -> RenderRequest {
    RenderRequest {
        messages: list(&case["messages"]),
        tools: list(&case["tools"]),
        documents: case.get("documents").map(list),
        add_generation_prompt: case["add_generation_prompt"] == Json::Bool(true),
        kwargs: case.get("kwargs").and_then(Json::as_object).cloned().unwrap_or_default(),
        now: datetime!(2025-03-09 07:05:02),
    }
}

/// The parts outside of the literal ranges.
fn control(rendered: &Rendered) -> Vec<String> {
    let mut parts = Vec::new();
    let mut done = 0;
    for range in &rendered.literal {
        parts.push(rendered.text[done..range.start as usize].to_owned());
        done = range.end as usize;
    }
    parts.push(rendered.text[done..].to_owned());
    parts.retain(|part| !part.is_empty());
    parts
}

#[test]
fn templates_render_as_in_transformers() {
    let recorded = json(&folder("tests/hf/renderings.json"));
    let cases = list(&json(&folder("tests/hf/conversations.json")));
    let variables: BTreeMap<String, String> = serde_json::from_value(recorded["variables"].clone()).unwrap();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for entry in list(&recorded["templates"]) {
        let file = entry["file"].as_str().unwrap();
        let source = TemplateSource {
            text: std::fs::read_to_string(folder("tests/hf/templates").join(file)).unwrap(),
            architecture: "other".to_owned(),
            control_tokens: serde_json::from_value(entry["control_tokens"].clone()).unwrap(),
            markers: serde_json::from_value(entry["markers"].clone()).unwrap(),
            variables: variables.clone(),
        };
        let spellings = [source.control_tokens.clone(), source.markers.clone()].concat();
        let template = Template::compile(source, 7).unwrap_or_else(|e| panic!("{file}: {e}"));
        for case in &cases {
            let name = case["name"].as_str().unwrap();
            let expected = &entry["renderings"][name];
            let ours = template.render(&request(case));
            compared += 1;
            let is_same = match (&ours, expected.get("text")) {
                (Ok(rendered), Some(text)) => {
                    for part in control(rendered) {
                        let whole = ControlTokens::new(spellings.clone(), []);
                        assert!(
                            is_all_spellings(&part, whole.spellings()),
                            "{file} {name}: {part:?} is no control token"
                        );
                    }
                    rendered.text == text.as_str().unwrap()
                }
                (Err(RenderError::Refused { message }), None) => {
                    expected.get("refused").and_then(Json::as_str) == Some(message.as_str())
                }
                (Err(RenderError::Failed { .. }), None) => expected.get("failed").is_some(),
                _ => false,
            };
            if !is_same {
                wrong.push(format!("{file} {name}{}", difference(expected, &ours)));
            }
        }
    }
    assert!(compared > 500, "{compared}");
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Where the two part, with a little of both.
fn difference(expected: &Json, ours: &Result<Rendered, RenderError>) -> String {
    let (Some(expected), Ok(ours)) = (expected.get("text").and_then(Json::as_str), ours) else {
        return format!("\n  expected {expected}\n  ours     {ours:?}");
    };
    let same = expected.chars().zip(ours.text.chars()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| text.chars().skip(same.saturating_sub(30)).take(90).collect::<String>();
    format!(" at character {same}\n  expected {:?}\n  ours     {:?}", part(expected), part(&ours.text))
}

fn is_all_spellings(text: &str, spellings: &[String]) -> bool {
    text.is_empty()
        || spellings
            .iter()
            .any(|s| text.strip_prefix(s.as_str()).is_some_and(|rest| is_all_spellings(rest, spellings)))
}

#[test]
fn every_control_token_of_the_template_is_recognised() {
    // Without any text of the request that could look like one, every spelling in the prompt is the template's.
    let recorded = json(&folder("tests/hf/renderings.json"));
    let cases = list(&json(&folder("tests/hf/conversations.json")));
    let variables: BTreeMap<String, String> = serde_json::from_value(recorded["variables"].clone()).unwrap();
    for entry in list(&recorded["templates"]) {
        let file = entry["file"].as_str().unwrap();
        let source = TemplateSource {
            text: std::fs::read_to_string(folder("tests/hf/templates").join(file)).unwrap(),
            architecture: "other".to_owned(),
            control_tokens: serde_json::from_value(entry["control_tokens"].clone()).unwrap(),
            markers: serde_json::from_value(entry["markers"].clone()).unwrap(),
            variables: variables.clone(),
        };
        let spellings = source.control_tokens.clone();
        let template = Template::compile(source, 99).unwrap();
        for case in &cases {
            let Ok(rendered) = template.render(&request(case)) else { continue };
            for range in &rendered.literal {
                let text = &rendered.text[range.start as usize..range.end as usize];
                let left = spellings.iter().find(|s| text.contains(s.as_str()));
                assert_eq!(left, None, "{file} {}: {text:?}", case["name"]);
            }
        }
    }
}

#[test]
fn the_prompts_of_the_demo_model_are_those_of_its_reference() {
    let model = folder("../../assets/demo-model");
    let read = |name: &str| std::fs::read(model.join(name)).unwrap();
    let control_tokens = ControlTokens::from_tokenizer_json(&read("tokenizer.json")).unwrap();
    let set = TemplateSet::select(
        "gpt_oss",
        Some(&read("chat_template.jinja")),
        Some(&read("tokenizer_config.json")),
        control_tokens.clone(),
    )
    .unwrap();
    let prompts = list(&json(&model.join("reference.json"))["prompts"]);
    assert_eq!(prompts.len(), 25);
    for prompt in prompts {
        let name = prompt["name"].as_str().unwrap();
        let tools = list(&prompt["tools"]);
        let date =
            time::Date::parse(prompt["date"].as_str().unwrap(), format_description!("[year]-[month]-[day]"))
                .unwrap();
        let template = Template::compile((**set.for_request(!tools.is_empty())).clone(), 3).unwrap();
        let rendered = template
            .render(&RenderRequest {
                messages: list(&prompt["messages"]),
                tools,
                documents: None,
                add_generation_prompt: true,
                kwargs: [("reasoning_effort".to_owned(), prompt["reasoning_effort"].clone())]
                    .into_iter()
                    .collect(),
                now: PrimitiveDateTime::new(date, time::Time::MIDNIGHT),
            })
            .unwrap();
        assert_eq!(rendered.text, prompt["prompt"].as_str().unwrap(), "{name}");
        for range in &rendered.literal {
            let text = &rendered.text[range.start as usize..range.end as usize];
            assert!(!control_tokens.spellings().iter().any(|s| text.contains(s.as_str())), "{name}: {text}");
        }
    }
}
