//! What the look once a second finds and does.

use node_api::ReplicaMemory;

use super::world::*;
use crate::memory::{MemoryLimits, Patience};

#[tokio::test(start_paused = true)]
async fn what_a_worker_takes_is_shown_beside_its_grant() {
    let world = World::new().await;
    let room = world.reserve("a", 600, Patience::Now).await.unwrap();
    let worker = PlayedWorker::new(7, 250);
    world.machine.0.lock().unwrap().processes.insert(7, 40);
    room.watch(&worker);
    world.memory.round().await;
    let figures = room.figures();
    let on_cpu = ReplicaMemory { device: "cpu".into(), used: 40, ..ReplicaMemory::default() };
    let on_device =
        ReplicaMemory { device: "sim:0".into(), estimated: 600, granted: 600, used: 250, mapped: 0 };
    assert_eq!(figures.memory, [on_cpu, on_device]);
    assert_eq!((figures.kv_bytes_used, figures.kv_bytes_total), (3, 5));
    assert_eq!(world.memory.status().devices[0].used, 250);
}

#[tokio::test(start_paused = true)]
async fn an_overrun_is_told_and_past_the_margin_ends_the_worker_once() {
    let world = World::new().await;
    let room = world.reserve("org/a", 600, Patience::Now).await.unwrap();
    let worker = PlayedWorker::new(7, 650);
    room.watch(&worker);
    world.memory.round().await;
    let alerts = world.memory.alerts();
    assert_eq!(
        (alerts.len(), alerts[0].code.as_str(), alerts[0].subject.as_str()),
        (1, "over_budget", "org/a on sim:0")
    );
    assert!(alerts[0].message.contains("650") && alerts[0].message.contains("600"), "{alerts:?}");
    assert!(worker.ended.lock().unwrap().is_empty(), "within the margin");

    *worker.takes.lock().unwrap() = 600;
    world.memory.round().await;
    assert!(world.memory.alerts().is_empty(), "it is over");

    *worker.takes.lock().unwrap() = 701;
    world.memory.round().await;
    world.memory.round().await;
    let ended = worker.ended.lock().unwrap().clone();
    assert_eq!(ended, ["the worker of org/a takes 701 bytes on sim:0, it was granted 600"]);
    drop(room);
    world.memory.round().await;
    assert!(world.memory.alerts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_too_much_leaves_less_for_others() {
    let world = World::new().await;
    let room = world.reserve("a", 600, Patience::Now).await.unwrap();
    let worker = PlayedWorker::new(7, 690);
    room.watch(&worker);
    world.memory.round().await;
    let no = world.reserve("b", 400, Patience::Now).await.unwrap_err();
    assert_eq!((no.needed, no.available), (400, 310));
}

#[tokio::test(start_paused = true)]
async fn memory_that_is_nearly_full_is_an_alert_until_it_is_clearly_not() {
    let world = World::new().await;
    let look = |used| {
        world.machine.0.lock().unwrap().ram_used = used;
        world.memory.round()
    };
    look(905).await;
    let alerts = world.memory.alerts();
    assert_eq!((alerts[0].code.as_str(), alerts[0].subject.as_str()), ("memory_high", "ram"));
    assert_eq!(alerts[0].message, "ram is 90 % full: 905 of 1000 bytes");
    look(890).await;
    assert_eq!(world.memory.alerts().len(), 1);
    look(870).await;
    assert!(world.memory.alerts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn above_the_threshold_idle_models_leave_one_after_another_until_below() {
    let limits = MemoryLimits { evict_percent: 80, minimum_stay: STAY, ..MemoryLimits::default() };
    let world = World::with(limits).await;
    let mut workers = Vec::new();
    for (pid, model) in [(1, "busy"), (2, "old"), (3, "new")] {
        let room = world.reserve(model, 250, Patience::Now).await.unwrap();
        let worker = PlayedWorker::new(pid, 250);
        room.watch(&worker);
        workers.push(worker);
        world.hold(model, room, model == "busy");
        tokio::time::advance(STAY).await;
    }
    world.memory.round().await;
    assert!(world.left().is_empty(), "75 % is below the threshold");
    // The busy one takes more than it was granted, within the margin.
    *workers[0].takes.lock().unwrap() = 400;
    world.memory.round().await;
    assert_eq!(world.left(), ["old"]);
    world.memory.round().await;
    assert_eq!(world.left(), ["old"], "the first one's memory is not back yet");
    tokio::time::sleep(STAY).await;
    world.memory.round().await;
    assert_eq!(world.left(), ["old"], "65 % is below");
    *workers[0].takes.lock().unwrap() = 900;
    world.memory.round().await;
    tokio::time::sleep(STAY).await;
    world.memory.round().await;
    assert_eq!(world.left(), ["old", "new"]);
    assert!(world.holds("busy"), "a busy model never leaves");
}
