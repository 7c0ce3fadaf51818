//! A short soak of each kind; `cargo xtask soak` is the long one.
#![cfg(target_os = "linux")]

use std::time::Duration;

use system_tests::soak::{Soak, Trouble};

/// Another one each day would find more and fail for nobody's change; the long one has other seeds.
const SEED: u64 = 20;
const TIME: Duration = Duration::from_secs(60);
const RELOADS: u64 = 25;

async fn check(soak: Soak) {
    let report = soak.run().await;
    println!("{report}");
    let complaints = report.complaints();
    assert!(complaints.is_empty(), "{report}\n{}\n{}", complaints.join("\n"), report.node_log_tail);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_right_or_a_truthful_error_whatever_happens() {
    check(Soak { seed: SEED, trouble: Trouble::Everything { time: TIME }, nodes: 2, clients: 8 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_cost_no_request_no_memory_and_no_descriptors() {
    check(Soak { seed: SEED, trouble: Trouble::Reloads { count: RELOADS }, nodes: 1, clients: 6 }).await;
}
