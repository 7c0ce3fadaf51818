//! Joining, being refused, losing the router, and ending.

use std::sync::atomic::Ordering;

use node::LinkState;
use node_api::ModelState;
use tokio_util::sync::CancellationToken;

use crate::support::{FakeRouter, WAYS, collect, config, request, rig, rig_by, wait_for, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_with_what_it_is_and_has() {
    let rig = rig().await;
    let info = &rig.join.node;
    assert_eq!(rig.join.protocol_version, node_api::PROTOCOL_VERSION);
    assert_eq!((info.name.as_str(), info.machine_id.as_str()), ("rig", node::machine_id().as_str()));
    assert_eq!(info.devices.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(), ["cpu"]);
    assert_eq!(info, rig.node.info());
    let mut status = rig.link.status().await.unwrap();
    let first = within("a status", status.next()).await.unwrap().unwrap();
    assert!(first.memory.ram_total > 0 && first.memory.ram_available > 0 && !first.draining);
    let second = within("a heartbeat", status.next()).await.unwrap().unwrap();
    assert_eq!((first.sequence, second.sequence), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_kept_with_its_reason() {
    for way in WAYS {
        let folders = tempfile::tempdir().unwrap();
        let router = FakeRouter::start().await;
        router.refuses.store(true, Ordering::Relaxed);
        let config = config(folders.path(), "http://127.0.0.1:1", router.address(way));
        let node = node::start(config, CancellationToken::new()).await.unwrap();
        let mut links = node.links();
        let refused = links.wait_for(|links| matches!(links[0], LinkState::Refused(_)));
        let links = within("a refusal", refused).await;
        let LinkState::Refused(reason) = &links.unwrap()[0] else { panic!("waited for it") };
        assert_eq!((reason.status, reason.code.as_str()), (403, "gpu_required"), "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_router_is_joined_again_and_nothing_is_forgotten() {
    for way in WAYS {
        let mut rig = rig_by(way, |_| {}).await;
        let fingerprint = rig.ready().await;
        let reply = collect(rig.generate(&fingerprint, "one").await).await;
        assert_eq!(reply.text, "one", "{reply:?}");
        let before = rig.wait_for("loaded", |s| matches!(s, ModelState::Loaded { .. })).await;

        // The last handle on the connection: the node sees it close.
        drop(rig.link);
        let (join, link) = rig.router.join().await;
        assert_eq!(join.node.id, rig.join.node.id);
        let after = wait_for(&link, "still loaded", |s| matches!(s, ModelState::Loaded { .. })).await;
        assert_eq!(after, before, "the same worker");
        let lines = link.generate(&request(&fingerprint, "two")).await.unwrap();
        assert_eq!(collect(lines).await.text, "two");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ending_node_finishes_its_requests_and_takes_no_more() {
    for way in WAYS {
        let rig = rig_by(way, |_| {}).await;
        let fingerprint = rig.ready().await;
        collect(rig.generate(&fingerprint, "load").await).await;
        let text = "x".repeat(20_000);
        let mut running = rig.generate(&fingerprint, &text).await;
        within("the first event", running.next()).await.unwrap().unwrap();
        let mut status = rig.link.status().await.unwrap();
        rig.end.cancel();
        let draining = async { while !status.next().await.expect("the status goes on").unwrap().draining {} };
        within("draining is told", draining).await;
        if let Ok(mut refused) = rig.link.generate(&request(&fingerprint, "late")).await {
            panic!("taken: {:?}", refused.next().await);
        }
        let reply = collect(running).await;
        assert_eq!((reply.text.len(), reply.failed), (text.len(), None));
        within("the node ends", rig.node.wait()).await.unwrap();
        within("the router sees it", rig.link.closed()).await;
    }
}
