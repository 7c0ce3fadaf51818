//! The queue keeps order, has a bound, and never blocks its writer.

use super::*;

#[test]
fn messages_come_out_in_order() {
    let inbox = Inbox::default();
    for call in 1..4 {
        inbox.put([ToWorker::Stats { call }]).expect("room");
    }
    let out: Vec<_> = std::iter::from_fn(|| inbox.take(false)).collect();
    assert_eq!(out, [1, 2, 3].map(|call| ToWorker::Stats { call }));
}

#[test]
fn too_many_messages_are_refused_and_not_kept() {
    let inbox = Inbox::default();
    for _ in 0..MESSAGES_MAX {
        inbox.put([ToWorker::Stats { call: 1 }]).expect("room");
    }
    assert!(inbox.put([ToWorker::Stats { call: 2 }]).is_err());
}

#[test]
fn shutdown_is_seen_before_the_engine_thread_takes_it() {
    let inbox = Inbox::default();
    assert!(!inbox.stopping());
    inbox.put([ToWorker::Shutdown]).expect("room");
    assert!(inbox.stopping());
    assert_eq!(inbox.take(true), Some(ToWorker::Shutdown));
}

#[test]
fn a_waiting_taker_is_woken() {
    let inbox = Inbox::default();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| inbox.take(true));
        inbox.put([ToWorker::Shutdown]).expect("room");
        assert_eq!(taker.join().expect("no panic"), Some(ToWorker::Shutdown));
    });
}
