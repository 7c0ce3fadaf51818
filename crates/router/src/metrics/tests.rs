//! What the text says after what happened.

use std::time::Duration;

use http::{Method, StatusCode};

use super::{Answer, Metrics, RetryCause, Snapshot, Wait};

fn text(metrics: &Metrics) -> String {
    let snapshot =
        Snapshot { nodes: Vec::new(), models: Vec::new(), uptime: Duration::from_secs(7), draining: false };
    metrics.render(&snapshot).unwrap()
}

#[track_caller]
fn check(metrics: &Metrics, line: &str) {
    let text = text(metrics);
    assert!(text.lines().any(|l| l == line), "no line `{line}` in\n{text}");
}

#[test]
fn a_request_is_counted_from_its_wait_to_its_end() {
    let metrics = Metrics::new();
    metrics.add_model("org/m");
    let mut wait = Wait::begin(metrics.model("org/m"));
    let mut answer = Answer::begin(metrics.model("org/m"));
    wait.position(3);
    check(&metrics, r#"vllm:num_requests_waiting{model_name="org/m"} 1"#);
    wait.placed();
    check(&metrics, r#"vllm:num_requests_waiting{model_name="org/m"} 0"#);
    check(&metrics, r#"vllm:num_requests_running{model_name="org/m"} 1"#);
    answer.started(7, 3);
    (0..4).for_each(|_| answer.token());
    answer.finished(true);
    drop((wait, answer));
    for line in [
        r#"vllm:num_requests_running{model_name="org/m"} 0"#,
        r#"vllm:request_queue_time_seconds_count{model_name="org/m"} 1"#,
        r#"llm_router_queue_position_bucket{model_name="org/m",le="5"} 1"#,
        r#"llm_router_queue_position_bucket{model_name="org/m",le="2"} 0"#,
        r#"vllm:prompt_tokens_total{model_name="org/m"} 7"#,
        r#"vllm:prefix_cache_hits_total{model_name="org/m"} 3"#,
        r#"vllm:generation_tokens_total{model_name="org/m"} 4"#,
        r#"vllm:time_to_first_token_seconds_count{model_name="org/m"} 1"#,
        r#"vllm:inter_token_latency_seconds_count{model_name="org/m"} 3"#,
        r#"vllm:e2e_request_latency_seconds_count{model_name="org/m"} 1"#,
        r#"vllm:request_success_total{finished_reason="length",model_name="org/m"} 1"#,
    ] {
        check(&metrics, line);
    }
}

#[test]
fn retries_leave_the_gauges_right_and_the_first_wait_alone() {
    let metrics = Metrics::new();
    metrics.add_model("m");
    let mut wait = Wait::begin(metrics.model("m"));
    wait.placed();
    wait.retry(RetryCause::WorkerDied);
    check(&metrics, r#"vllm:num_requests_waiting{model_name="m"} 1"#);
    check(&metrics, r#"vllm:num_requests_running{model_name="m"} 0"#);
    wait.placed();
    wait.retry(RetryCause::Failed);
    wait.retry(RetryCause::Failed);
    check(&metrics, r#"llm_router_request_retries_total{cause="worker_died",model_name="m"} 1"#);
    check(&metrics, r#"llm_router_request_retries_total{cause="failed",model_name="m"} 2"#);
    check(&metrics, r#"vllm:request_queue_time_seconds_count{model_name="m"} 1"#);
    drop(wait);
    check(&metrics, r#"vllm:num_requests_waiting{model_name="m"} 0"#);
}

#[test]
fn an_answer_ends_once_and_one_that_is_dropped_was_aborted() {
    let metrics = Metrics::new();
    metrics.add_model("m");
    drop(Answer::begin(metrics.model("m")));
    let mut failed = Answer::begin(metrics.model("m"));
    failed.failed(StatusCode::INSUFFICIENT_STORAGE);
    failed.failed(StatusCode::BAD_GATEWAY);
    failed.finished(false);
    drop(failed);
    check(&metrics, r#"vllm:request_success_total{finished_reason="abort",model_name="m"} 1"#);
    check(&metrics, r#"vllm:request_success_total{finished_reason="error",model_name="m"} 1"#);
    check(&metrics, r#"llm_router_request_failures_total{model_name="m",status="507"} 1"#);
    assert!(!text(&metrics).contains(r#"status="502""#));
}

#[test]
fn what_callers_make_up_is_no_label() {
    let metrics = Metrics::new();
    Wait::begin(metrics.model("made/up")).placed();
    metrics.answered(None, &Method::from_bytes(b"BREW").unwrap(), StatusCode::NOT_FOUND);
    let text = text(&metrics);
    assert!(!text.contains("made/up") && !text.contains("BREW"), "{text}");
    check(&metrics, r#"llm_router_http_requests_total{method="other",route="none",status="404"} 1"#);
}

#[test]
fn a_removed_model_takes_its_figures_along_and_its_requests_still_end() {
    let metrics = Metrics::new();
    metrics.add_model("m");
    let mut wait = Wait::begin(metrics.model("m"));
    metrics.remove_model("m");
    wait.placed();
    drop(wait);
    assert!(!text(&metrics).contains("model_name"));
}

#[test]
fn names_that_need_escapes_cannot_break_the_text() {
    let metrics = Metrics::new();
    metrics.add_model("a\"b\\c\nd");
    check(&metrics, r#"vllm:num_requests_running{model_name="a\"b\\c\nd"} 0"#);
}
