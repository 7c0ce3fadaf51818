//! A short soak of each kind; `cargo xtask soak` is the long one.
#![cfg(target_os = "linux")]

use std::time::Duration;

use engine_testkit::build::llama_cpp_is_missing;
use system_tests::soak::{Soak, SoakEngine, Trouble};

/// Another one each day would find more and fail for nobody's change; the long one has other seeds.
const SEED: u64 = 20;
const TIME: Duration = Duration::from_secs(60);
const RELOADS: u64 = 25;

async fn check(engine: SoakEngine, trouble: Trouble, nodes: usize, clients: u64) {
    let report = Soak { seed: SEED, engine, trouble, nodes, clients }.run().await;
    println!("{report}");
    let complaints = report.complaints();
    assert!(complaints.is_empty(), "{report}\n{}\n{}", complaints.join("\n"), report.node_log_tail);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_right_or_a_truthful_error_whatever_happens() {
    check(SoakEngine::Fault, Trouble::Everything { time: TIME }, 2, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_cost_no_request_no_memory_and_no_descriptors() {
    check(SoakEngine::Fault, Trouble::Reloads { count: RELOADS }, 1, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: `cargo xtask test --long`"]
async fn gpt_oss_keeps_the_promises_too() {
    check(SoakEngine::GptOss, Trouble::Everything { time: TIME }, 2, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: `cargo xtask test --long`"]
async fn llama_cpp_keeps_the_promises_too() {
    if !llama_cpp_is_missing() {
        check(SoakEngine::LlamaCpp, Trouble::Everything { time: TIME }, 2, 8).await;
    }
}
