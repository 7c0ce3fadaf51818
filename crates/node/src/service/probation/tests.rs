use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn those_without_a_death_begin_together() {
    let gate: Arc<RwLock<()>> = Arc::default();
    let first = enter(&gate, 0).now_or_never();
    let second = enter(&gate, 0).now_or_never();
    assert!(matches!((first, second), (Some(Pass::Shared { .. }), Some(Pass::Shared { .. }))));
}

#[tokio::test]
async fn one_that_has_seen_a_death_begins_alone() {
    let gate: Arc<RwLock<()>> = Arc::default();
    let innocent = enter(&gate, 0).await;
    let mut suspect = Box::pin(enter(&gate, 1));
    assert!((&mut suspect).now_or_never().is_none(), "another has yet to begin");
    drop(innocent);
    let alone = suspect.await;
    assert!(matches!(alone, Pass::Alone { .. }));
    assert!(enter(&gate, 0).now_or_never().is_none(), "nobody joins it");
    assert!(enter(&gate, 1).now_or_never().is_none(), "nor another suspect");
    drop(alone);
    assert!(enter(&gate, 0).now_or_never().is_some());
}

#[tokio::test]
async fn a_suspect_waits_its_turn_and_no_longer() {
    let gate: Arc<RwLock<()>> = Arc::default();
    let begun = enter(&gate, 0).await;
    let mut suspect = Box::pin(enter(&gate, 1));
    assert!((&mut suspect).now_or_never().is_none());
    let mut later = Box::pin(enter(&gate, 0));
    assert!((&mut later).now_or_never().is_none(), "it came after the suspect");
    drop(begun);
    let alone = suspect.now_or_never().expect("its turn has come");
    assert!((&mut later).now_or_never().is_none());
    drop(alone);
    assert!(later.now_or_never().is_some());
}

#[tokio::test]
async fn a_request_that_gives_up_waiting_keeps_nobody_out() {
    let gate: Arc<RwLock<()>> = Arc::default();
    let held = enter(&gate, 0).await;
    let mut gone = Box::pin(enter(&gate, 1));
    assert!((&mut gone).now_or_never().is_none());
    drop(gone);
    assert!(enter(&gate, 0).now_or_never().is_some());
    drop(held);
}
