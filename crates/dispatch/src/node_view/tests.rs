use node_api::{DeviceMemory, MemoryStatus, ReplicaStatus};

use super::*;

fn loading() -> ModelState {
    ModelState::Loading {
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        device: "cpu".into(),
        progress: 0.5,
    }
}

fn worker(role: ReplicaRole, sequences_max: u32) -> ReplicaStatus {
    ReplicaStatus {
        worker: 1,
        role,
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        library_sha256: String::new(),
        devices: Vec::new(),
        context_length: 64,
        sequences_max,
        requests_running: 0,
        requests_total: 0,
        loaded_at: 0,
        last_used: 0,
        memory: Vec::new(),
        kv_bytes_used: 0,
        kv_bytes_total: 0,
    }
}

#[track_caller]
fn check(state: ModelState, replicas: Vec<ReplicaStatus>, expected: Option<Replica>) {
    let model =
        ModelStatus { id: "m".into(), fingerprint: "f".into(), state, replicas, ..ModelStatus::default() };
    let status = NodeStatus { models: vec![model], ..NodeStatus::default() };
    assert_eq!(NodeView::of(&status, |_, _| true).replicas.get("m").copied(), expected);
    assert!(NodeView::of(&status, |_, fingerprint| fingerprint != "f").replicas.is_empty());
}

#[test]
fn workers_that_serve_are_counted_together() {
    let workers = vec![
        worker(ReplicaRole::Serving, 4),
        worker(ReplicaRole::Serving, 8),
        worker(ReplicaRole::Draining, 16),
        worker(ReplicaRole::Starting, 32),
    ];
    check(loading(), workers, Some(Replica::Loaded { sequences_max: 12, workers: 2 }));
}

#[test]
fn a_model_whose_workers_all_leave_is_what_its_state_says() {
    let workers = vec![worker(ReplicaRole::Draining, 4)];
    check(loading(), workers, Some(Replica::Loading { progress: 0.5 }));
}

#[test]
fn a_model_that_is_not_ready_gets_nothing() {
    check(ModelState::Waiting, Vec::new(), None);
    let failed = ModelState::Failed { reason: "it keeps dying".into(), retrying: true };
    check(failed, vec![worker(ReplicaRole::Serving, 4)], None);
}

#[test]
fn free_memory_is_that_of_the_roomiest_device() {
    let device =
        |name: &str, used, reserved| DeviceMemory { device: name.into(), total: 100, used, reserved };
    let memory = MemoryStatus {
        ram_total: 1000,
        ram_available: 900,
        devices: vec![device("a", 10, 80), device("b", 70, 20), device("c", 200, 0)],
    };
    let status = NodeStatus { memory, ..NodeStatus::default() };
    assert_eq!(NodeView::of(&status, |_, _| true).memory_free, 30);
}
