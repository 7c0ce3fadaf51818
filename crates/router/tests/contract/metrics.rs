//! What `/metrics` says after requests, and of what nodes told.

use node_api::*;
use serde_json::json;

use crate::support::*;

/// The text, when it has a line that `wanted` accepts.
async fn until(world: &World, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    in_time(what, async {
        loop {
            let text = scrape(world).await;
            if text.lines().any(&wanted) {
                return text;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

async fn scrape(world: &World) -> String {
    let response = world.client.get(format!("{}/metrics", world.url)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4");
    response.text().await.unwrap()
}

#[track_caller]
fn check(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "no line `{line}` in\n{text}");
}

#[tokio::test]
async fn requests_are_counted_under_the_names_vllms_users_know() {
    let (world, node) = World::ready().await;
    let chat = |stream: bool| json!({"model": "org/tiny", "stream": stream, "messages": [{"role": "user", "content": "hi"}]});
    node.reply_events(words(&["one", " two"]));
    assert_eq!(world.send("/v1/chat/completions", &chat(false)).await.status(), 200);
    node.reply_events(vec![started(), text("x"), finished(FinishReason::Length, 1)]);
    Events::read(world.send("/v1/chat/completions", &chat(true)).await).await.chunks();
    node.reply(Reply::Refuse(refusal(507, "out_of_memory", false)));
    assert_eq!(world.send("/v1/chat/completions", &chat(false)).await.status(), 507);
    assert_eq!(
        world
            .post(
                "/v1/chat/completions",
                &json!({"model": "no/such", "messages": [{"role": "user", "content": "hi"}]})
            )
            .await
            .0,
        404
    );

    let text = scrape(&world).await;
    for line in [
        r#"vllm:num_requests_running{model_name="org/tiny"} 0"#,
        r#"vllm:num_requests_waiting{model_name="org/tiny"} 0"#,
        r#"vllm:request_success_total{finished_reason="stop",model_name="org/tiny"} 1"#,
        r#"vllm:request_success_total{finished_reason="length",model_name="org/tiny"} 1"#,
        r#"vllm:request_success_total{finished_reason="error",model_name="org/tiny"} 1"#,
        r#"llm_router_request_failures_total{model_name="org/tiny",status="507"} 1"#,
        r#"vllm:prompt_tokens_total{model_name="org/tiny"} 14"#,
        r#"vllm:prefix_cache_queries_total{model_name="org/tiny"} 14"#,
        r#"vllm:prefix_cache_hits_total{model_name="org/tiny"} 6"#,
        r#"vllm:generation_tokens_total{model_name="org/tiny"} 4"#,
        r#"vllm:time_to_first_token_seconds_count{model_name="org/tiny"} 2"#,
        r#"vllm:inter_token_latency_seconds_count{model_name="org/tiny"} 2"#,
        r#"vllm:e2e_request_latency_seconds_count{model_name="org/tiny"} 3"#,
        r#"vllm:request_queue_time_seconds_count{model_name="org/tiny"} 3"#,
        r#"llm_router_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 2"#,
        r#"llm_router_http_requests_total{method="POST",route="/v1/chat/completions",status="404"} 1"#,
    ] {
        check(&text, line);
    }
    assert!(!text.contains("no/such"), "a name that a caller made up is a label\n{text}");
}

#[tokio::test]
async fn a_caller_that_goes_away_is_an_abort_and_runs_no_more() {
    let (world, node) = World::ready().await;
    node.reply(Reply::Manual);
    let body = json!({"model": "org/tiny", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&body);
    let task = tokio::spawn(async move { request.send().await.unwrap().text().await });
    let call = node.call().await;
    call.events.send(started()).unwrap();
    until(&world, "a running request", |l| l == r#"vllm:num_requests_running{model_name="org/tiny"} 1"#)
        .await;
    task.abort();
    let aborted = r#"vllm:request_success_total{finished_reason="abort",model_name="org/tiny"} 1"#;
    let text = until(&world, "the abort", |l| l == aborted).await;
    check(&text, r#"vllm:num_requests_running{model_name="org/tiny"} 0"#);
}

#[tokio::test]
async fn what_a_node_tells_is_shown_and_leaves_with_it() {
    let (world, node) = World::ready().await;
    node.change(|status| {
        status.counters = Counters { worker_crashes: 3, reload_pause_ms: 1500, ..Counters::default() };
        status.alerts = vec![Alert {
            code: "memory_high".into(),
            subject: "cuda:0".into(),
            message: "91 % in use".into(),
            since: 1,
        }];
        status.memory.devices =
            vec![DeviceMemory { device: "cuda:0".into(), total: 1000, used: 910, reserved: 800 }];
        status.models[0].replicas = vec![replica()];
    });
    let crashed = |l: &str| l == r#"llm_router_worker_crashes_total{node="node-1-name",node_id="node-1"} 3"#;
    let text = until(&world, "the node's counters", crashed).await;
    for line in [
        r#"llm_router_reload_pause_seconds_total{node="node-1-name",node_id="node-1"} 1.5"#,
        r#"llm_router_alerts{code="memory_high",node="node-1-name",node_id="node-1",subject="cuda:0"} 1"#,
        r#"llm_router_device_memory_bytes{device="cuda:0",kind="used",node="node-1-name",node_id="node-1"} 910"#,
        r#"llm_router_device_memory_bytes{device="cuda:0",kind="reserved",node="node-1-name",node_id="node-1"} 800"#,
        r#"llm_router_estimate_error_ratio{device="cuda:0",node="node-1-name",node_id="node-1"} 0.25"#,
        r#"vllm:kv_cache_usage_perc{model_name="org/tiny"} 0.5"#,
        r#"llm_router_nodes{state="connected"} 1"#,
        r#"llm_router_engines{engine="echo",node="node-1-name",node_id="node-1",state="available",version="1.0.0"} 1"#,
    ] {
        check(&text, line);
    }
    node.kill();
    let text = until(&world, "the node to go", |l| l == r#"llm_router_nodes{state="connected"} 0"#).await;
    assert!(!text.contains("node-1"), "{text}");
}

#[tokio::test]
async fn a_removed_model_leaves_the_figures() {
    let (world, _node) = World::ready().await;
    assert!(scrape(&world).await.contains(r#"model_name="org/tiny""#));
    let response = world.client.delete(format!("{}/api/models/org/tiny", world.url)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!scrape(&world).await.contains("org/tiny"));
}

#[tokio::test]
async fn every_figure_is_in_the_guide_for_operators() {
    let (world, node) = World::ready().await;
    let failing = json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]});
    node.reply(Reply::Refuse(refusal(507, "out_of_memory", false)));
    assert_eq!(world.send("/v1/chat/completions", &failing).await.status(), 507);
    node.change(|status| status.models[0].replicas = vec![replica()]);
    let text = until(&world, "the replica", |l| l.starts_with("llm_router_replicas{")).await;
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let figures: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(figures.len() > 40, "only {} figures", figures.len());
    for figure in figures {
        assert!(guide.contains(&format!("`{figure}`")), "docs/operations.md says nothing of `{figure}`");
    }
}
