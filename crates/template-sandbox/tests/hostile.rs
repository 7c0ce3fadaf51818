//! Hostile templates cost their limit, a child process, and nothing else. Real children: this binary is also the worker.

#![expect(clippy::unwrap_used, reason = "a test with a main of its own, which clippy does not take for one")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chat::{RenderError, RenderRequest, TemplateSource};
use serde_json::json;
use template_sandbox::{CappedAllocator, SandboxError, Schema, TemplateSandbox, worker_main};
use time::macros::datetime;

#[global_allocator]
static ALLOCATOR: CappedAllocator = CappedAllocator;

/// The limit, the kill, and a busy machine on top.
const COST_MAX: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("template-worker") {
        return worker_main(std::io::stdin().lock(), std::io::stdout().lock());
    }
    if std::env::args().any(|a| a == "--list") {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        good_templates_render().await;
        hostile_templates_cost_their_limit().await;
        schemas_are_checked_before_the_template_runs().await;
        many_requests_share_few_children().await;
        a_killed_child_is_replaced().await;
        a_request_that_is_too_large_is_refused().await;
        many_templates_are_forgotten_and_sent_again().await;
        a_binary_that_is_no_worker_is_named().await;
    });
    ExitCode::SUCCESS
}

fn passed(name: &str) {
    println!("test {name} ... ok");
}

fn sandbox() -> TemplateSandbox {
    TemplateSandbox::new(std::env::current_exe().unwrap())
}

fn template(text: &str) -> TemplateSource {
    TemplateSource {
        text: text.to_owned(),
        architecture: "any".to_owned(),
        control_tokens: vec!["<|end|>".to_owned()],
        markers: Vec::new(),
        variables: BTreeMap::new(),
    }
}

fn request(content: &str) -> RenderRequest {
    RenderRequest {
        messages: vec![json!({"role": "user", "content": content})],
        tools: Vec::new(),
        documents: None,
        add_generation_prompt: true,
        kwargs: serde_json::Map::new(),
        now: datetime!(2025-01-01 0:00),
    }
}

const GOOD: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}";

async fn good_templates_render() {
    let sandbox = sandbox();
    sandbox.warm().await.unwrap();
    let source = template(GOOD);
    let rendered = sandbox.render(&source, &request("a<|end|>b")).await.unwrap();
    assert_eq!(rendered.text, "user:a<|end|>b<|end|>");
    assert_eq!(rendered.literal.len(), 1);
    assert_eq!((rendered.literal[0].start, rendered.literal[0].end), (0, 14));

    const ROUNDS: usize = 300;
    let mut times = Vec::with_capacity(ROUNDS);
    let request = request("hello");
    for _ in 0..ROUNDS {
        let start = Instant::now();
        sandbox.render(&source, &request).await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    println!("warm render: median {:?}, 99th of 100 {:?}", times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
    assert!(times[ROUNDS / 2] < Duration::from_millis(5), "{:?}", times[ROUNDS / 2]);

    let error = sandbox.render(&template("{{ raise_exception('no') }}"), &request).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Render(RenderError::Refused { message }) if message == "no"),
        "{error}"
    );
    let error = sandbox.render(&template("{% if %}"), &request).await.unwrap_err();
    assert!(matches!(&error, SandboxError::Render(RenderError::Syntax { .. })), "{error}");
    passed("good_templates_render");
}

async fn schemas_are_checked_before_the_template_runs() {
    let sandbox = sandbox();
    let source = template(GOOD);
    let request = request("hello");
    let schema =
        |text: &str| Schema { param: format!("schema of {} bytes", text.len()), text: text.to_owned() };
    let good = schema(r#"{"type": "object"}"#);
    let rendered = sandbox.render_checked(&source, &request, std::slice::from_ref(&good)).await.unwrap();
    assert_eq!(rendered.text, "user:hello<|end|>");
    let items = r#"{"type":"array","items":"#;
    let deep = format!("{}{{}}{}", items.repeat(100), "}".repeat(100));
    sandbox.render_checked(&source, &request, &[schema(&deep)]).await.unwrap();

    let deeper = format!("{}{{}}{}", items.repeat(2_500), "}".repeat(2_500));
    let long_pattern = format!(r#"{{"type": "string", "pattern": "^{}$"}}"#, "(a|b)*c".repeat(9_000));
    let nested_pattern =
        format!(r#"{{"type": "string", "pattern": "^{}a{}$"}}"#, "(".repeat(20_000), ")".repeat(20_000));
    let counted = r#"{"type": "string", "pattern": "^((((a|b){1,900}c){1,900}d){1,900}e){1,900}$"}"#;
    for bad in [r#"{"not": {}}"#, "{", &deeper, &long_pattern, &nested_pattern, counted] {
        let start = Instant::now();
        let schemas = [good.clone(), schema(bad)];
        let error = sandbox.render_checked(&source, &request, &schemas).await;
        let took = start.elapsed();
        match error {
            // What compiles within the limits is no harm.
            Ok(_) => assert!(bad == counted || bad == long_pattern, "{}", schemas[1].param),
            Err(SandboxError::Render(RenderError::Request { param, .. })) => {
                assert_eq!(param, schemas[1].param)
            }
            Err(SandboxError::Render(RenderError::Limit { .. })) => {}
            Err(error) => panic!("{}: {error}", schemas[1].param),
        }
        assert!(took < COST_MAX, "{} took {took:?}", schemas[1].param);
    }
    passed("schemas_are_checked_before_the_template_runs");
}

async fn hostile_templates_cost_their_limit() {
    let nested_loops = "{% for a in range(99999) %}".repeat(4) + "x" + &"{% endfor %}".repeat(4);
    let deep_source = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let deep_lists = format!("{{{{ {}{} }}}}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_blocks = "{% if true %}".repeat(20_000) + &"{% endif %}".repeat(20_000);
    let long_chain = format!("{{{{ {} }}}}", vec!["1"; 200_000].join("+"));
    let hostile: Vec<(&str, String)> = vec![
        ("endless_loop", nested_loops),
        ("quiet_loop", "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}".to_owned()),
        (
            "doubling_string",
            "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}".to_owned(),
        ),
        ("repeated_string", "{{ 'x' * 99999999999 }}".to_owned()),
        ("repeated_string_of_strings", "{{ (('x' * 10000000) * 10000000) | length }}".to_owned()),
        ("doubling_list", "{% set n = namespace(l=[1]) %}{% for i in range(64) %}{% set n.l = (n.l + n.l) | list %}{% endfor %}".to_owned()),
        ("deep_recursion", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".to_owned()),
        ("mutual_recursion", "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}".to_owned()),
        ("recursive_loop", "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned()),
        ("huge_output", "{% for a in range(9999) %}{% for b in range(99) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}".to_owned()),
        ("huge_range", "{{ range(999999999999) | list | length }}".to_owned()),
        ("pathological_filters", "{% set x = range(99999) | list %}{% for i in range(999) %}{{ x | sort | unique | map('string') | join | upper | replace('1', '22') | length }}{% endfor %}".to_owned()),
        ("replace_explosion", "{% set n = namespace(s='aaaaaaaaaa') %}{% for i in range(20) %}{% set n.s = n.s | replace('a', n.s) %}{% endfor %}".to_owned()),
        ("indent_bomb", "{{ ('\n' * 100000) | indent(1000000, true, true) | length }}".to_owned()),
        ("pad_bomb", "{{ 'x'.ljust(999999999) }}".to_owned()),
        ("format_bomb", "{{ '%0999999999d' | format(1) }}".to_owned()),
        ("json_indent_bomb", "{{ range(99999) | list | tojson(indent='x' * 1000000) }}".to_owned()),
        (
            "deep_value",
            "{% set n = namespace(v=[]) %}{% for i in range(99999) %}{% set n.v = [n.v] %}{% endfor %}{{ n.v }}".to_owned(),
        ),
        (
            "deep_value_dropped",
            "{% set n = namespace(v=[]) %}{% for i in range(99999) %}{% set n.v = [n.v] %}{% endfor %}".to_owned(),
        ),
        ("cyclic_value", "{% set n = namespace() %}{% set n.me = n %}{{ n }}{{ n | tojson }}".to_owned()),
        ("deep_source", deep_source),
        ("deep_lists", deep_lists),
        ("deep_blocks", deep_blocks),
        ("long_chain", long_chain),
        ("large_source", "x".repeat(2 << 20)),
        ("power", "{{ 9 ** 9 ** 9 ** 9 }}".to_owned()),
        ("backward_slice", "{{ ''[::-1] }}".to_owned()),
        ("self_include", "{% include 'chat_template' %}".to_owned()),
        ("self_extend", "{% extends 'chat_template' %}".to_owned()),
    ];
    let sandbox = sandbox();
    let good = template(GOOD);
    for (name, text) in hostile {
        sandbox.render(&good, &request("warm")).await.unwrap();
        let start = Instant::now();
        let result = sandbox.render(&template(&text), &request("hi")).await;
        let took = start.elapsed();
        let error = match result {
            // Some are no danger to a lazy engine: then they are cheap and right.
            Ok(rendered) => format!("rendered {} bytes", rendered.text.len()),
            Err(SandboxError::Render(error)) => error.to_string(),
            Err(other) => panic!("{name}: {other}"),
        };
        println!("  {name}: {took:?}: {}", error.chars().take(90).collect::<String>());
        assert!(took < COST_MAX, "{name} took {took:?}");
        let after = sandbox.render(&good, &request("after")).await.unwrap();
        assert_eq!(after.text, "user:after<|end|>", "{name}");
        passed(&format!("hostile::{name}"));
    }
    // That the limits are what stops them, not chance.
    let error = sandbox.render(&template("{{ 'x' * 60000000 }}"), &request("hi")).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Render(RenderError::Limit { limit }) if limit == "64 MiB of memory"),
        "{error}"
    );
    let slow = "{% for a in range(99999) %}{{ (range(9999) | list | sort | join | length) }}{% endfor %}";
    let start = Instant::now();
    let error = sandbox.render(&template(slow), &request("hi")).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Render(RenderError::Limit { limit }) if limit == "100 ms"),
        "{error}"
    );
    assert!(start.elapsed() >= Duration::from_millis(100));
    passed("the_limits_are_what_stops_them");
}

async fn many_requests_share_few_children() {
    let sandbox = std::sync::Arc::new(sandbox());
    let source = std::sync::Arc::new(template(GOOD));
    let tasks: Vec<_> = (0..64)
        .map(|i| {
            let (sandbox, source) = (sandbox.clone(), source.clone());
            tokio::spawn(async move {
                let text = format!("request {i}");
                let rendered = sandbox.render(&source, &request(&text)).await.unwrap();
                assert_eq!(rendered.text, format!("user:{text}<|end|>"));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    passed("many_requests_share_few_children");
}

async fn a_killed_child_is_replaced() {
    let sandbox = sandbox();
    let good = template(GOOD);
    for _ in 0..3 {
        // Crashes the only warm child: dropping a value nested this deep overflows the stack.
        let deep =
            "{% set n = namespace(v=[]) %}{% for i in range(99999) %}{% set n.v = [n.v] %}{% endfor %}";
        let _ = sandbox.render(&template(deep), &request("x")).await;
        assert_eq!(sandbox.render(&good, &request("y")).await.unwrap().text, "user:y<|end|>");
    }
    passed("a_killed_child_is_replaced");
}

async fn a_request_that_is_too_large_is_refused() {
    let sandbox = sandbox();
    let error = sandbox.render(&template(GOOD), &request(&"x".repeat(7 << 20))).await.unwrap_err();
    assert!(matches!(error, SandboxError::Render(RenderError::Request { .. })), "{error}");
    // The largest that is taken is rendered within the memory limit.
    let large = sandbox.render(&template(GOOD), &request(&"x".repeat(5 << 20))).await;
    assert!(
        matches!(&large, Ok(rendered) if rendered.text.len() > 5 << 20)
            || matches!(&large, Err(SandboxError::Render(RenderError::Limit { limit })) if limit == "100 ms"),
        "{:?}",
        large.err()
    );
    passed("a_request_that_is_too_large_is_refused");
}

async fn many_templates_are_forgotten_and_sent_again() {
    let sandbox = sandbox();
    let padding = " ".repeat(40_000);
    let sources: Vec<_> = (0..12).map(|i| template(&format!("{{# {padding} #}}{i}:{GOOD}"))).collect();
    for _ in 0..2 {
        for (i, source) in sources.iter().enumerate() {
            let rendered = sandbox.render(source, &request("z")).await.unwrap();
            assert_eq!(rendered.text, format!("{i}:user:z<|end|>"));
        }
    }
    passed("many_templates_are_forgotten_and_sent_again");
}

async fn a_binary_that_is_no_worker_is_named() {
    let missing = TemplateSandbox::new("/nonexistent/llm-router".into());
    let error = missing.render(&template(GOOD), &request("x")).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Start { .. }) && error.to_string().contains("nonexistent"),
        "{error}"
    );
    // This binary, with an argument that makes it end at once.
    let other = TemplateSandbox::with_arguments(std::env::current_exe().unwrap(), vec!["--list".into()]);
    let error = other.render(&template(GOOD), &request("x")).await.unwrap_err();
    assert!(matches!(&error, SandboxError::Ended { .. }), "{error}");
    passed("a_binary_that_is_no_worker_is_named");
}
