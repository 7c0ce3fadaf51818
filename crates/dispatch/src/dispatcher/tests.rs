use super::*;
use crate::model::SURPLUS;
use crate::retry::RETRIES_MAX;

const LIMITS: Limits = Limits { queue_length: 3, queue_wait: Duration::from_secs(10) };

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn loaded(sequences_max: u32) -> Replica {
    Replica::Loaded { sequences_max, workers: 1 }
}

fn view(replicas: &[(&str, Replica)]) -> NodeView {
    let replicas = replicas.iter().map(|(m, r)| ((*m).to_owned(), *r)).collect();
    NodeView { draining: false, memory_free: 0, replicas }
}

/// A dispatcher with these nodes, all with model `m`.
fn with(nodes: &[(&str, Replica)]) -> Dispatcher {
    let mut d = Dispatcher::new(LIMITS);
    for (node, replica) in nodes {
        d.set_node(at(0), node, &view(&[("m", *replica)]));
    }
    d
}

fn sent(decisions: &[Decision]) -> Vec<&str> {
    let node = |d: &'_ Decision| match d {
        Decision::Send { node, .. } => Some(Arc::clone(node)),
        Decision::Refuse { .. } => None,
    };
    decisions
        .iter()
        .map(|d| match node(d) {
            // Names of nodes are single letters here.
            Some(node) => ["a", "b", "c"].into_iter().find(|n| **n == *node).unwrap(),
            None => "refused",
        })
        .collect()
}

#[track_caller]
fn send(d: &mut Dispatcher, ms: u64, expected: &str) -> Ticket {
    let ticket = d.submit(at(ms), "m", 0).ticket;
    assert_eq!(sent(&d.poll(at(ms))), [expected]);
    ticket
}

#[track_caller]
fn wait(d: &mut Dispatcher, ms: u64) -> Submitted {
    let submitted = d.submit(at(ms), "m", 0);
    assert_eq!(d.poll(at(ms)), []);
    submitted
}

#[test]
fn a_loaded_replica_comes_before_one_that_would_have_to_load() {
    let mut d = with(&[("a", Replica::Ready), ("b", loaded(1))]);
    send(&mut d, 0, "b");
    // Room for those that a worker has at hand when another ends.
    for _ in 0..SURPLUS {
        send(&mut d, 0, "b");
    }
    send(&mut d, 0, "a");
    wait(&mut d, 0);
}

#[test]
fn replicas_on_several_nodes_share_the_load() {
    let mut d = with(&[("a", loaded(2)), ("b", loaded(4))]);
    for expected in ["a", "b", "b", "a", "b", "b"] {
        send(&mut d, 0, expected);
    }
}

#[test]
fn a_model_that_is_not_loaded_gets_one_request_to_load_it_and_the_rest_waits_here() {
    let mut d = with(&[("a", Replica::Ready), ("b", Replica::Ready)]);
    let trigger = send(&mut d, 0, "a");
    assert_eq!(wait(&mut d, 1).position, 0);
    assert_eq!(wait(&mut d, 2).position, 1);
    d.set_node(at(3), "a", &view(&[("m", Replica::Loading { progress: 0.5 })]));
    assert_eq!(d.poll(at(3)), []);
    d.begun(trigger);
    d.set_node(at(4), "a", &view(&[("m", loaded(2))]));
    assert_eq!(sent(&d.poll(at(4))), ["a", "a"]);
}

#[test]
fn a_model_is_loaded_where_most_memory_is_free() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node(at(0), "a", &NodeView { memory_free: 1, ..view(&[("m", Replica::Ready)]) });
    d.set_node(at(0), "b", &NodeView { memory_free: 2, ..view(&[("m", Replica::Ready)]) });
    send(&mut d, 0, "b");
}

#[test]
fn a_request_that_runs_on_a_leaving_worker_does_not_keep_the_next_load_away() {
    let mut d = with(&[("a", loaded(1))]);
    let running = send(&mut d, 0, "a");
    d.begun(running);
    d.set_node(at(1), "a", &view(&[("m", Replica::Ready)]));
    send(&mut d, 1, "a");
}

#[test]
fn the_same_beginning_goes_to_the_same_replica_while_it_has_room() {
    let mut d = with(&[("a", loaded(2)), ("b", loaded(2))]);
    let mut go = |affinity| {
        d.submit(at(0), "m", affinity);
        sent(&d.poll(at(0)))[0].to_owned()
    };
    let first = go(7);
    assert_eq!(go(7), first);
    let other = go(7);
    assert_ne!(other, first, "its places are taken");
    let rest: Vec<String> = (0..1).map(|_| go(7)).collect();
    assert_eq!(rest, [other]);
}

#[test]
fn draining_nodes_and_other_models_get_nothing() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node(at(0), "a", &NodeView { draining: true, ..view(&[("m", loaded(2))]) });
    d.set_node(at(0), "b", &view(&[("other", loaded(2))]));
    let Submitted { ticket, .. } = d.submit(at(6000), "m", 0);
    assert_eq!(d.poll(at(6000)), [Decision::Refuse { ticket, refusal: Refusal::NotReady }]);
    let Submitted { ticket, .. } = d.submit(at(6000), "unheard-of", 0);
    assert_eq!(d.poll(at(6000)), [Decision::Refuse { ticket, refusal: Refusal::NotReady }]);
    assert_eq!(d.next_deadline(), None);
}

fn fill(d: &mut Dispatcher, places: u32) -> Vec<Ticket> {
    (0..places + SURPLUS).map(|_| send(d, 0, "a")).collect()
}

#[test]
fn waiting_has_a_bound_and_a_deadline_for_each_model() {
    let mut d = with(&[("a", loaded(1))]);
    let running = fill(&mut d, 1);
    for position in 0..3 {
        assert_eq!(wait(&mut d, 5).position, position);
    }
    let late = d.submit(at(6), "m", 0).ticket;
    assert_eq!(
        d.poll(at(6)),
        [Decision::Refuse { ticket: late, refusal: Refusal::QueueFull { waiting: 3 } }]
    );
    // Another model has a queue of its own.
    d.set_node(at(6), "b", &view(&[("n", loaded(1))]));
    d.submit(at(6), "n", 0);
    assert_eq!(sent(&d.poll(at(6))), ["b"]);

    d.finish(running[0]);
    assert_eq!(sent(&d.poll(at(7))), ["a"]);
    assert_eq!(d.next_deadline(), Some(at(10_005)));
    assert_eq!(d.poll(at(10_004)), []);
    let refused = d.poll(at(10_005));
    assert_eq!(refused.len(), 2);
    for decision in refused {
        let Decision::Refuse { refusal: Refusal::WaitedTooLong { waited }, .. } = decision else {
            panic!("{decision:?}")
        };
        assert_eq!(waited, at(10_000));
    }
    assert_eq!((d.next_deadline(), d.waiting()), (None, 0));
}

#[test]
fn a_queue_of_no_length_lets_through_what_need_not_wait() {
    let mut d = Dispatcher::new(Limits { queue_length: 0, ..LIMITS });
    d.set_node(at(0), "a", &view(&[("m", loaded(1))]));
    fill(&mut d, 1);
    let ticket = d.submit(at(1), "m", 0).ticket;
    assert_eq!(d.poll(at(1)), [Decision::Refuse { ticket, refusal: Refusal::QueueFull { waiting: 0 } }]);
}

#[test]
fn nobody_grows_too_old_while_a_load_moves() {
    let mut d = with(&[("a", Replica::Ready)]);
    send(&mut d, 0, "a");
    wait(&mut d, 0);
    let loading = |progress| view(&[("m", Replica::Loading { progress })]);
    let mut progress = 0.0;
    let mut now = 0;
    // Slow, and moving, for ten minutes.
    while now < 600_000 {
        now += 30_000;
        progress += 0.01;
        d.set_node(at(now), "a", &loading(progress));
        assert_eq!(d.poll(at(now)), [], "after {now} ms");
    }
    // It stalls: a heartbeat with the same progress is no progress.
    d.set_node(at(now + 59_000), "a", &loading(progress));
    assert_eq!(d.poll(at(now + 59_999)), []);
    assert_eq!(sent(&d.poll(at(now + 60_000))), ["refused"]);
}

#[test]
fn a_load_that_moves_for_ever_does_not_hold_for_ever() {
    let mut d = with(&[("a", Replica::Ready)]);
    send(&mut d, 0, "a");
    wait(&mut d, 0);
    let longest = u64::try_from(LOAD_WAIT_MAX.as_millis()).unwrap();
    for (step, now) in (0..=longest).step_by(10_000).enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let progress = step as f32 / 1e4;
        d.set_node(at(now), "a", &view(&[("m", Replica::Loading { progress })]));
        let decisions = d.poll(at(now));
        assert_eq!(decisions.len(), usize::from(now == longest), "after {now} ms");
    }
    assert_eq!(d.waiting(), 0);
}

#[test]
fn those_that_waited_for_a_load_have_their_whole_wait_after_it() {
    let mut d = with(&[("a", Replica::Loading { progress: 0.1 })]);
    let first = wait(&mut d, 0).ticket;
    for n in 1..3 {
        wait(&mut d, n);
    }
    d.set_node(at(50_000), "a", &view(&[("m", loaded(1))]));
    assert_eq!(d.poll(at(50_000)).len(), 3);
    assert_eq!(d.running("a", "m"), 3);
    d.finish(first);
    // The same with more than fit: they are still there nine seconds later.
    let mut d = Dispatcher::new(Limits { queue_length: 100, ..LIMITS });
    d.set_node(at(0), "a", &view(&[("m", Replica::Loading { progress: 0.1 })]));
    let all: Vec<Ticket> = (0..10).map(|_| wait(&mut d, 0).ticket).collect();
    d.set_node(at(50_000), "a", &view(&[("m", loaded(1))]));
    assert_eq!(d.poll(at(50_000)).len(), 1 + SURPLUS as usize);
    assert_eq!(d.poll(at(59_000)), []);
    d.finish(all[0]);
    assert_eq!(sent(&d.poll(at(59_500))), ["a"]);
}

#[test]
fn a_death_is_followed_by_an_immediate_retry_in_the_first_place() {
    let mut d = with(&[("a", loaded(1))]);
    let running = fill(&mut d, 1);
    wait(&mut d, 1);
    assert_eq!(d.failed(at(2), running[0], Failure::WorkerDied), Verdict::Again);
    let decisions = d.poll(at(2));
    assert_eq!(decisions, [Decision::Send { ticket: running[0], node: "a".into(), worker_deaths: 1 }]);
    assert_eq!(d.failed(at(3), running[0], Failure::WorkerDied), Verdict::Quarantined);
    d.finish(running[0]);
    assert_eq!(sent(&d.poll(at(3))), ["a"], "the one that waited");
}

#[test]
fn other_failures_go_to_another_node_after_a_pause_and_to_the_same_if_there_is_none() {
    let mut d = with(&[("a", loaded(1)), ("b", loaded(1))]);
    let ticket = send(&mut d, 0, "a");
    assert_eq!(d.failed(at(1), ticket, Failure::NobodyDied), Verdict::Again);
    assert_eq!((d.poll(at(1)).len(), d.waiting(), d.next_deadline()), (0, 1, Some(at(101))));
    assert_eq!(sent(&d.poll(at(101))), ["b"]);
    assert_eq!((d.running("a", "m"), d.running("b", "m")), (0, 1));
    assert_eq!(d.failed(at(102), ticket, Failure::NobodyDied), Verdict::Again);
    assert_eq!(sent(&d.poll(at(302))), ["a"]);
    for (now, pause) in [(400, 400), (1000, 800)] {
        assert_eq!(d.failed(at(now), ticket, Failure::NobodyDied), Verdict::Again);
        assert_eq!(d.poll(at(now + pause - 1)), []);
        assert_eq!(d.poll(at(now + pause)).len(), 1);
    }
    assert_eq!(d.failed(at(2000), ticket, Failure::NobodyDied), Verdict::TriedOften);
    d.finish(ticket);
    assert_eq!((d.running("a", "m"), d.running("b", "m"), d.waiting()), (0, 0, 0));
}

#[test]
fn a_failed_load_is_not_repeated_at_once_by_those_who_wait() {
    let mut d = with(&[("a", Replica::Ready)]);
    let first = send(&mut d, 0, "a");
    wait(&mut d, 0);
    assert_eq!(d.failed(at(1), first, Failure::NobodyDied), Verdict::Again);
    assert_eq!(d.poll(at(100)), []);
    let decisions = d.poll(at(101));
    assert_eq!(decisions, [Decision::Send { ticket: first, node: "a".into(), worker_deaths: 0 }]);
}

#[test]
fn all_retries_together_have_a_budget() {
    let mut d = Dispatcher::new(Limits { queue_length: 0, ..LIMITS });
    d.set_node(at(0), "a", &view(&[("m", loaded(10_000))]));
    let tickets: Vec<Ticket> = (0..2000).map(|_| send(&mut d, 0, "a")).collect();
    let verdicts: Vec<Verdict> = tickets.iter().map(|t| d.failed(at(0), *t, Failure::WorkerDied)).collect();
    let again = verdicts.iter().filter(|v| **v == Verdict::Again).count() as u64;
    // The reserve was full when the requests came.
    assert_eq!(again, crate::RETRY_RESERVE);
    assert!(verdicts[again as usize..].iter().all(|v| *v == Verdict::OverBudget));
}

#[test]
fn a_node_that_is_gone_has_time_to_come_back() {
    let mut d = with(&[("a", loaded(1))]);
    let running = fill(&mut d, 1);
    wait(&mut d, 0);
    d.remove_node(at(10), "a");
    assert_eq!(d.poll(at(10)), []);
    assert_eq!(d.failed(at(10), running[0], Failure::NobodyDied), Verdict::Again);
    // Who comes now is told at once.
    d.submit(at(20), "m", 0);
    assert_eq!(sent(&d.poll(at(20))), ["refused"]);
    d.set_node(at(3000), "a", &view(&[("m", loaded(9))]));
    assert_eq!(sent(&d.poll(at(3000))), ["a", "a"], "its places are free again");
    for ticket in running {
        d.finish(ticket);
    }
    assert_eq!(d.running("a", "m"), 1);
    d.remove_node(at(4000), "a");
    assert_eq!(d.poll(at(4000)), []);
}

#[test]
fn a_node_that_does_not_come_back_leaves_nobody_waiting() {
    let mut d = with(&[("a", loaded(1))]);
    let running = fill(&mut d, 1);
    wait(&mut d, 0);
    d.remove_node(at(10), "a");
    assert_eq!(d.failed(at(10), running[0], Failure::NobodyDied), Verdict::Again);
    assert_eq!(d.poll(at(5009)), []);
    assert_eq!(sent(&d.poll(at(5010))), ["refused", "refused"]);
    for ticket in running {
        d.finish(ticket);
    }
    assert_eq!((d.waiting(), d.next_deadline()), (0, None));
    assert!(d.models.is_empty() && d.requests.is_empty() && d.alarms.is_empty());
}

#[test]
fn a_caller_that_goes_away_leaves_nothing_behind() {
    let mut d = with(&[("a", loaded(1))]);
    let running = fill(&mut d, 1);
    let waiting = wait(&mut d, 0).ticket;
    assert_eq!(d.failed(at(1), running[0], Failure::NobodyDied), Verdict::Again);
    for ticket in running.into_iter().chain([waiting]) {
        d.finish(ticket);
        d.finish(ticket);
    }
    d.remove_node(at(2), "a");
    assert_eq!(d.poll(at(2)), []);
    assert!(d.models.is_empty() && d.requests.is_empty() && d.alarms.is_empty());
    assert_eq!(d.waiting(), 0);
}

#[test]
fn a_request_is_tried_as_often_as_is_said_and_no_more() {
    let mut d = with(&[("a", loaded(1))]);
    let ticket = send(&mut d, 0, "a");
    let mut now = 0;
    for _ in 0..RETRIES_MAX {
        assert_eq!(d.failed(at(now), ticket, Failure::NobodyDied), Verdict::Again);
        now += 10_000;
        assert_eq!(d.poll(at(now)).len(), 1);
    }
    assert_eq!(d.failed(at(now), ticket, Failure::NobodyDied), Verdict::TriedOften);
}

#[test]
fn the_wait_of_a_queue_is_that_of_the_last_that_was_sent_or_of_the_next() {
    let mut d = with(&[("a", loaded(1))]);
    assert_eq!(d.wait(at(0), "m"), None, "none was sent");
    let mut running: Vec<Ticket> = (0..=SURPLUS).map(|_| send(&mut d, 0, "a")).collect();
    assert_eq!(d.wait(at(0), "m"), Some(at(0)));
    wait(&mut d, 1000);
    wait(&mut d, 2000);
    assert_eq!(d.wait(at(2500), "m"), Some(at(1500)), "the next has waited so long already");
    d.finish(running.pop().unwrap());
    assert_eq!(sent(&d.poll(at(5000))), ["a"]);
    assert_eq!(d.wait(at(5000), "m"), Some(at(4000)), "as long as the one that was sent");
    assert_eq!(d.wait(at(9000), "m"), Some(at(7000)));
    assert_eq!(d.wait(at(9000), "other"), None);
}
