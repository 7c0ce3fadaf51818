//! Who gets room, who waits for it, and who leaves.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::world::*;
use crate::memory::{Ask, Patience};

#[tokio::test(start_paused = true)]
async fn room_is_granted_at_once_and_given_back() {
    let world = World::new().await;
    let room = world.reserve("a", 600, Patience::Now).await.unwrap();
    assert_eq!((world.memory.free("sim:0"), room.fit.budget[0].bytes), (400, 600));
    assert_eq!(world.memory.status().devices[0].reserved, 600);
    drop(room);
    assert_eq!(world.memory.free("sim:0"), 1000);
}

#[tokio::test(start_paused = true)]
async fn what_fits_nowhere_is_refused_at_once_with_both_numbers_and_nobody_leaves() {
    let world = World::new().await;
    let started = Instant::now();
    let no = world.reserve("large", 1001, Patience::Wait).await.unwrap_err();
    assert_eq!((no.needed, no.available, no.device.as_str(), no.waited), (1001, 1000, "sim:0", None));
    assert_eq!(started.elapsed(), Duration::ZERO);
    world.load_idle("a", 600).await;
    world.load("b", 300, true).await;
    let started = Instant::now();
    let no = world.reserve("large", 1001, Patience::Wait).await.unwrap_err();
    assert_eq!((no.needed, no.available, no.waited), (1001, 1000, None));
    assert_eq!(no.holders, ["a", "b"]);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(world.left().is_empty() && !world.is_leaving("b"));
}

#[tokio::test(start_paused = true)]
async fn idle_models_leave_the_least_recently_used_first_and_no_more_than_needed() {
    let world = World::new().await;
    for model in ["old", "middle", "new"] {
        world.load_idle(model, 300).await;
    }
    world.load("next", 500, false).await;
    assert_eq!(world.left(), ["old", "middle"]);
    assert!(world.holds("new"));
}

#[tokio::test(start_paused = true)]
async fn a_busy_model_stays_and_a_load_that_may_not_wait_is_refused() {
    let world = World::new().await;
    world.load("busy", 600, true).await;
    tokio::time::advance(STAY).await;
    world.load_idle("idle", 300).await;
    for patience in [Patience::Now, Patience::Evict] {
        let no = world.reserve("b", 700, patience).await.unwrap_err();
        assert_eq!(no.needed, 700);
        assert!(world.left().is_empty(), "nobody leaves in vain: {patience:?}");
    }
    assert!(!world.is_leaving("busy"));
    world.load("small", 300, false).await;
    assert_eq!(world.left(), ["idle"]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_model_past_its_stay_finishes_and_leaves_for_one_that_waits() {
    let world = Arc::new(World::new().await);
    world.load("a", 600, true).await;
    let loaded = Instant::now();
    let waiting = {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.reserve("b", 600, Patience::Wait).await })
    };
    world.settle().await;
    assert!(!world.is_leaving("a"), "its minimum stay is not over");
    tokio::time::sleep_until(loaded + STAY).await;
    world.settle().await;
    assert!(world.is_leaving("a"));
    assert!(!waiting.is_finished(), "it still has requests");
    world.finish("a");
    let room = waiting.await.unwrap().unwrap();
    assert_eq!((room.fit.budget[0].bytes, world.left()), (600, vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_is_refused_with_both_numbers_and_its_length() {
    let world = World::new().await;
    world.load("a", 600, true).await;
    let no = world.reserve("b", 600, Patience::Wait).await.unwrap_err();
    assert_eq!((no.needed, no.available, no.waited), (600, 400, Some(ROOM_WAIT)));
    assert_eq!(no.holders, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_small_load_does_not_pass_a_large_one_that_waits() {
    let world = Arc::new(World::new().await);
    world.load("a", 600, true).await;
    let spawn = |model: &'static str, bytes| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let room = world.reserve(model, bytes, Patience::Wait).await.unwrap();
            world.hold(model, room, true);
        })
    };
    let large = spawn("large", 900);
    world.settle().await;
    let small = spawn("small", 100);
    world.settle().await;
    assert!(!small.is_finished(), "it would fit, and has to wait for its turn");
    // On another device nobody waits.
    world.memory.reserve(ask("other", &[("sim:1", 900)], Patience::Wait)).await.unwrap();
    tokio::time::advance(STAY).await;
    world.settle().await;
    world.finish("a");
    large.await.unwrap();
    small.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_makes_room_in_the_queue() {
    let world = World::new().await;
    world.load("a", 600, true).await;
    let waiting = world.reserve("large", 900, Patience::Wait);
    assert!(tokio::time::timeout(Duration::from_secs(1), waiting).await.is_err());
    world.reserve("small", 400, Patience::Now).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_version_keeps_the_old_one_and_can_go_ahead_of_those_who_wait() {
    let world = Arc::new(World::new().await);
    world.load_idle("old", 600).await;
    let keep = vec![world.memory.lock().ledger.holders("sim:0").next().unwrap().0];
    let beside = Ask { keep, ..ask("new", &[("sim:0", 600)], Patience::Evict) };
    let no = world.memory.reserve(beside).await.unwrap_err();
    assert_eq!((no.needed, no.available), (600, 400));
    assert!(world.holds("old"));
    // It does not fit beside the old one: it waits for it in front of everybody.
    world.load("busy", 400, true).await;
    let waits = |model: &'static str, ahead| {
        let world = Arc::clone(&world);
        let ask = Ask { ahead, ..ask(model, &[("sim:0", 1000)], Patience::Wait) };
        tokio::spawn(async move { world.memory.reserve(ask).await.map(|room| world.hold(model, room, true)) })
    };
    let other = waits("other", false);
    world.settle().await;
    let new = waits("new", true);
    tokio::time::advance(STAY).await;
    world.settle().await;
    world.finish("busy");
    new.await.unwrap().unwrap();
    assert!(!other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn of_several_devices_the_first_with_room_is_taken() {
    let world = World::new().await;
    world.load_idle("a", 600).await;
    let rooms = [("sim:0", 600), ("sim:1", 600)];
    let room = world.memory.reserve(ask("b", &rooms, Patience::Wait)).await.unwrap();
    assert_eq!((room.room, room.fit.budget[0].device.as_str()), (1, "sim:1"));
    assert!(world.holds("a"), "nobody has to leave");
}

#[tokio::test(start_paused = true)]
async fn many_loads_at_once_never_get_more_than_there_is() {
    let world = Arc::new(World::new().await);
    let loads = (0..40).map(|n| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.reserve(&format!("m{n}"), 90 + n, Patience::Now).await.ok() })
    });
    let loads: Vec<_> = loads.collect();
    let mut granted = Vec::new();
    for load in loads {
        granted.extend(load.await.unwrap());
    }
    let sum: u64 = granted.iter().map(|room| room.fit.budget[0].bytes).sum();
    assert!(sum <= TOTAL && sum > TOTAL - 130, "{sum}");
}

/// Both have requests all the time: each is loaded at most once in a minimum stay, and both are served.
#[tokio::test(start_paused = true)]
async fn two_models_that_do_not_fit_together_take_turns_and_do_not_thrash() {
    const TIME: Duration = Duration::from_secs(200);
    let world = Arc::new(World::new().await);
    let started = Instant::now();
    let players = ["a", "b"].map(|model| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let (mut loads, mut requests) = (0_u32, 0_u32);
            while started.elapsed() < TIME {
                let room = world.reserve(model, 600, Patience::Wait).await.unwrap();
                world.hold(model, room, true);
                loads += 1;
                // Requests come until it is told to leave; one takes two seconds.
                while !world.is_leaving(model) && started.elapsed() < TIME {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    requests += 1;
                }
                world.finish(model);
            }
            world.forget(model);
            (loads, requests)
        })
    });
    let mut all_loads = 0;
    for player in players {
        let (loads, requests) = player.await.unwrap();
        assert!(loads >= 5 && requests >= 25, "{loads} loads, {requests} requests");
        all_loads += loads;
    }
    let most = TIME.as_secs() / STAY.as_secs() + 1;
    assert!(u64::from(all_loads) <= most, "{all_loads} loads, at most {most}");
}
