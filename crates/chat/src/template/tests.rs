//! Limits, errors, and the defaults by architecture.

use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::ControlTokens;

const HARMONY_TOKENS: [&str; 7] =
    ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"];

fn request(messages: Json) -> RenderRequest {
    RenderRequest {
        messages: messages.as_array().unwrap().clone(),
        tools: Vec::new(),
        documents: None,
        add_generation_prompt: true,
        kwargs: serde_json::Map::new(),
        now: datetime!(2025-06-28 10:00),
    }
}

fn harmony(request: &RenderRequest) -> Result<Rendered, RenderError> {
    let tokens = ControlTokens::new(HARMONY_TOKENS.map(str::to_owned), []);
    let set = TemplateSet::select("gpt_oss", None, None, tokens).unwrap();
    Template::compile((**set.for_request(true)).clone(), 5)?.render(request)
}

fn bare(text: &str) -> Result<Rendered, RenderError> {
    let source = TemplateSource {
        text: text.to_owned(),
        architecture: "any".to_owned(),
        control_tokens: vec!["<s>".to_owned()],
        markers: Vec::new(),
        variables: BTreeMap::new(),
    };
    Template::compile(source, 1)?.render(&request(json!([{"role": "user", "content": "hi"}])))
}

const SYSTEM: &str = "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
    Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: medium\n\n\
    # Valid channels: analysis, commentary, final. Channel must be included for every message.";

#[test]
fn harmony_by_default_renders_a_plain_turn() {
    let rendered = harmony(&request(json!([{"role": "user", "content": "Hi <|end|>"}]))).unwrap();
    assert_eq!(
        rendered.text,
        format!("{SYSTEM}<|end|><|start|>user<|message|>Hi <|end|><|end|><|start|>assistant")
    );
}

#[test]
fn harmony_by_default_renders_tools_calls_and_results() {
    let mut request = request(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "reasoning_content": "I ask.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"}
    ]));
    request.tools = vec![
        json!({"type": "function", "function": {"name": "get_weather", "description": "The weather.\nToday's.", "parameters": {
            "type": "object", "required": ["city"], "properties": {
                "city": {"type": "string", "description": "Where"},
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
                "days": {"type": ["integer", "null"]},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
                "tags": {"type": "array", "items": {"type": "string"}}}}}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ];
    request.kwargs.insert("reasoning_effort".to_owned(), json!("high"));
    let expected = SYSTEM.replace("medium", "high")
        + "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>\
        <|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\nnamespace functions {\n\n\
        // The weather.\n// Today's.\ntype get_weather = (_: {\n// Where\ncity: string,\nunit?: \"c\" | \"f\", // default: c\n\
        days?: number | null,\nwhere?: {\nlat?: number,\n},\ntags?: string[],\n}) => any;\n\ntype now = () => any;\n\n\
        } // namespace functions<|end|><|start|>user<|message|>Weather?<|end|>\
        <|start|>assistant<|channel|>analysis<|message|>I ask.<|end|>\
        <|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}<|call|>\
        <|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>sunny<|end|><|start|>assistant";
    assert_eq!(harmony(&request).unwrap().text, expected);
}

#[test]
fn harmony_by_default_drops_reasoning_of_finished_turns() {
    let mut request = request(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "old"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning": "new"}
    ]));
    let text = harmony(&request).unwrap().text;
    assert!(!text.contains("old") && !text.contains("new"), "{text}");
    request.add_generation_prompt = false;
    let text = harmony(&request).unwrap().text;
    assert!(!text.contains("old"), "{text}");
    assert!(
        text.ends_with(
            "<|start|>assistant<|channel|>analysis<|message|>new<|end|>\
            <|start|>assistant<|channel|>final<|message|>d<|return|>"
        ),
        "{text}"
    );
}

#[test]
fn harmony_by_default_refuses_a_result_without_a_call() {
    let error = harmony(&request(json!([{"role": "tool", "content": "x"}]))).unwrap_err();
    assert!(matches!(error, RenderError::Refused { .. }), "{error}");
}

#[test]
fn the_plain_default_has_names_and_texts() {
    let set = TemplateSet::select("echo", None, None, ControlTokens::default()).unwrap();
    let template = Template::compile((**set.for_request(false)).clone(), 5).unwrap();
    let rendered = template
        .render(&request(json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}])))
        .unwrap();
    assert_eq!(rendered.text, "system: s\n\nuser: hi\n\nassistant:");
}

#[test]
fn a_tool_without_description_is_rendered_by_a_template_that_needs_one() {
    let text = "{% for t in tools %}// {{ '' + t.function.description }}{{ t.function.name }}{% endfor %}";
    let source = TemplateSource {
        text: text.to_owned(),
        architecture: "any".to_owned(),
        control_tokens: Vec::new(),
        markers: Vec::new(),
        variables: BTreeMap::new(),
    };
    let mut request = request(json!([]));
    request.tools = vec![json!({"type": "function", "function": {"name": "f"}})];
    assert_eq!(Template::compile(source, 1).unwrap().render(&request).unwrap().text, "// f");
}

#[test]
fn errors_say_what_happened_and_where() {
    let syntax = bare("a\n{% if %}").unwrap_err();
    assert!(matches!(&syntax, RenderError::Syntax { message } if message.contains("line 2")), "{syntax}");
    let failed = bare("a\n{{ nothing.at.all }}").unwrap_err();
    assert!(matches!(&failed, RenderError::Failed { message } if message.contains("line 2")), "{failed}");
    let refused =
        bare("{% macro m() %}{{ raise_exception('no <s> ' ~ 1) }}{% endmacro %}{{ m() }}").unwrap_err();
    assert_eq!(refused, RenderError::Refused { message: "no <s> 1".to_owned() });
}

#[test]
fn an_endless_template_runs_out_of_steps() {
    let error =
        bare("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}").unwrap_err();
    assert!(matches!(&error, RenderError::Limit { limit } if limit.contains("steps")), "{error}");
}

#[test]
fn a_huge_prompt_is_cut_short() {
    let error = bare("{% for a in range(9999) %}{{ 'x' * 10000 }}{% endfor %}").unwrap_err();
    assert!(matches!(&error, RenderError::Limit { limit } if limit.contains("bytes of prompt")), "{error}");
}

#[test]
fn endless_recursion_is_an_error() {
    assert!(matches!(
        bare("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        Err(RenderError::Failed { .. })
    ));
}

#[test]
fn a_breakdown_of_the_template_engine_is_an_error() {
    assert!(matches!(bare("{{ ''[::-1] }}"), Err(RenderError::Failed { .. })));
}

#[test]
fn kwargs_reach_the_template_and_reserved_names_do_not() {
    let mut request = request(json!([{"role": "user", "content": "x"}]));
    request.kwargs.insert("messages".to_owned(), json!([]));
    let error = harmony(&request).unwrap_err();
    assert!(
        matches!(&error, RenderError::Request { param, .. } if param == "chat_template_kwargs.messages"),
        "{error}"
    );
}

#[test]
fn equal_templates_have_equal_ids_and_others_do_not() {
    let source = |text: &str, token: &str| TemplateSource {
        text: text.to_owned(),
        architecture: "any".to_owned(),
        control_tokens: vec![token.to_owned()],
        markers: Vec::new(),
        variables: BTreeMap::new(),
    };
    assert_eq!(source("a", "b").id(), source("a", "b").id());
    assert_ne!(source("a", "b").id(), source("ab", "").id());
    let mut moved = source("a", "b");
    moved.markers = std::mem::take(&mut moved.control_tokens);
    assert_ne!(source("a", "b").id(), moved.id());
}

#[test]
fn appended_text_is_literal_or_not_as_said() {
    let mut rendered = Rendered::default();
    rendered.push_control("<|start|>");
    rendered.push_literal("a<|end|>");
    rendered.push_literal("");
    rendered.push_control("<|end|>");
    assert_eq!(rendered.text, "<|start|>a<|end|><|end|>");
    assert_eq!(rendered.literal, [LiteralRange { start: 9, end: 17 }]);
}

#[test]
fn nothing_is_not_iterable() {
    let rendered = bare("{{ tools is iterable }} {{ none is iterable }} {{ missing is iterable }} {{ 3 is iterable }} {{ '' is iterable }} {{ [] is iterable }} {{ {} is iterable }}").unwrap();
    assert_eq!(rendered.text, "False False True False True True True");
}

#[test]
fn replace_takes_a_limit() {
    let rendered = bare("{{ 'aaa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'aaa' | replace('a', 'b', -1) }} {{ 12 | replace('1', 'x') }}").unwrap();
    assert_eq!(rendered.text, "bbb bba bbb x2");
}

#[test]
fn filters_are_those_of_jinja() {
    for (template, expected) in [
        (
            "{{ x | default('y') }}{{ '' | default('y', true) }}{{ '' | d('y', boolean=true) }}{{ none | default('y') }}{{ x | d }}",
            "yyyNone",
        ),
        (
            "{{ 'a1' | int }} {{ 'a1' | int(7) }} {{ '12' | int }} {{ '-1.9' | int }} {{ 2.7 | int }} {{ [] | int }} {{ none | int(default=3) }}",
            "0 7 12 -1 2 0 3",
        ),
        (
            "{{ 'ff' | int(base=16) }} {{ '0x1f' | int(0, 16) }} {{ '0b11' | int(0, 0) }} {{ '9' | int(5, 8) }} {{ true | int }}",
            "255 31 3 9 1",
        ),
        (
            "{{ 'x' | float }} {{ ' 2.50 ' | float }} {{ 'x' | float(1.5) }} {{ {} | float }} {{ 3 | float }}",
            "0.0 2.5 1.5 0.0 3.0",
        ),
        ("{{ x | items | list }} {{ {'a': 1} | items | list }}", "[] [('a', 1)]"),
        (
            "{{ \"<a&'>\" | e }}{{ '\"' | e }} {{ '<' | safe | escape }} {{ '<' | e | forceescape }}",
            "&lt;a&amp;&#39;&gt;&#34; < &amp;lt;",
        ),
        ("{{ 'abc' | center(8) }}| {{ 7 | center(3) }}|", "  abc   |  7 |"),
        ("{{ \"it's two words\" | wordcount }} {{ '' | wordcount }}", "4 0"),
        (
            "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('; ') %}{{ j() }}1{{ j() }}2",
            "aba1; 2",
        ),
        (
            "{{ ['\\u00a0\\u200b\\u2028\\u00ad\\ue000é日', '\\u0085'] }}",
            "['\\xa0\\u200b\\u2028\\xad\\ue000é日', '\\x85']",
        ),
        ("{{ debug is defined }}", "False"),
    ] {
        assert_eq!(bare(template).unwrap().text, expected, "{template}");
    }
    assert!(bare("{{ x | int }}").is_err());
    assert!(bare("{{ 1 | items }}").is_err());
    assert!(bare("{{ 'x' | default('y', true, 3) }}").is_err());
}
