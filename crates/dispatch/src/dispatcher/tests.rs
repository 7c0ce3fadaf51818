use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { node_requests_max: 2, waiting_max: 3, wait_max: Duration::from_secs(10) };

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn view(replicas: &[(&str, Replica)]) -> NodeView {
    NodeView { draining: false, replicas: replicas.iter().map(|(m, r)| ((*m).to_owned(), *r)).collect() }
}

const LOADED: Replica = Replica::Loaded { sequences_max: 2 };

fn sent(decisions: &[Decision]) -> Vec<&str> {
    decisions
        .iter()
        .map(|d| match d {
            Decision::Send { node, .. } => node.as_str(),
            Decision::Refuse { .. } => "refused",
        })
        .collect()
}

#[test]
fn a_loaded_replica_comes_before_a_loading_and_a_ready_one() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node("a", view(&[("m", Replica::Ready)]));
    d.set_node("b", view(&[("m", Replica::Loading)]));
    d.set_node("c", view(&[("m", LOADED)]));
    for expected in ["c", "c", "b", "b", "a", "a"] {
        d.submit(at(0), "m");
        assert_eq!(sent(&d.poll(at(0))), [expected]);
    }
    d.submit(at(0), "m");
    assert!(d.poll(at(0)).is_empty(), "every place is taken");
}

#[test]
fn at_equal_state_the_least_busy_node_is_taken() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node("a", view(&[("m", LOADED)]));
    d.set_node("b", view(&[("m", LOADED)]));
    for expected in ["a", "b", "a", "b"] {
        d.submit(at(0), "m");
        assert_eq!(sent(&d.poll(at(0))), [expected]);
    }
}

#[test]
fn a_full_worker_comes_after_one_that_has_to_load() {
    let mut d = Dispatcher::new(Limits { node_requests_max: 9, ..LIMITS });
    d.set_node("a", view(&[("m", Replica::Loaded { sequences_max: 1 })]));
    d.set_node("b", view(&[("m", Replica::Ready)]));
    for expected in ["a", "b"] {
        d.submit(at(0), "m");
        assert_eq!(sent(&d.poll(at(0))), [expected]);
    }
}

#[test]
fn draining_nodes_and_other_models_get_nothing() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node("a", NodeView { draining: true, ..view(&[("m", LOADED)]) });
    d.set_node("b", view(&[("other", LOADED)]));
    let ticket = d.submit(at(0), "m");
    assert_eq!(d.poll(at(0)), [Decision::Refuse { ticket, refusal: Refusal::NotReady }]);
}

#[test]
fn waiting_has_a_bound_and_a_deadline() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node("a", view(&[("m", LOADED)]));
    let running = [d.submit(at(0), "m"), d.submit(at(0), "m")];
    assert_eq!(d.poll(at(0)).len(), 2);
    for _ in 0..3 {
        d.submit(at(5), "m");
    }
    assert!(d.poll(at(5)).is_empty());
    let late = d.submit(at(6), "m");
    assert_eq!(
        d.poll(at(6)),
        [Decision::Refuse { ticket: late, refusal: Refusal::QueueFull { waiting: 3 } }]
    );

    d.finish(running[0]);
    assert_eq!(sent(&d.poll(at(7))), ["a"]);
    assert_eq!(d.next_deadline(), Some(at(10_005)));
    assert!(d.poll(at(10_004)).is_empty());
    let refused = d.poll(at(10_005));
    assert_eq!(refused.len(), 2);
    for decision in refused {
        let Decision::Refuse { refusal: Refusal::WaitedTooLong { waited }, .. } = decision else {
            panic!("{decision:?}")
        };
        assert_eq!(waited, at(10_000));
    }
    assert_eq!(d.next_deadline(), None);
}

#[test]
fn one_model_without_a_place_does_not_hold_up_another() {
    let mut d = Dispatcher::new(Limits { node_requests_max: 1, ..LIMITS });
    d.set_node("a", view(&[("m", LOADED)]));
    d.set_node("b", view(&[("n", LOADED)]));
    d.submit(at(0), "m");
    d.submit(at(0), "m");
    d.submit(at(0), "n");
    assert_eq!(sent(&d.poll(at(0))), ["a", "b"]);
}

#[test]
fn a_retry_goes_to_another_node_at_once_and_to_the_same_after_a_pause() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node("a", view(&[("m", LOADED)]));
    d.set_node("b", view(&[("m", Replica::Ready)]));
    let ticket = d.submit(at(0), "m");
    assert_eq!(sent(&d.poll(at(0))), ["a"]);
    assert!(d.retry(at(1), ticket));
    assert_eq!(sent(&d.poll(at(1))), ["b"]);
    assert_eq!((d.running("a"), d.running("b")), (0, 1));
    assert!(d.retry(at(2), ticket));
    assert!(d.poll(at(2)).is_empty());
    assert_eq!(d.next_deadline(), Some(at(202)));
    assert_eq!(sent(&d.poll(at(202))), ["a"]);
    assert!(!d.retry(at(203), ticket), "three times is enough");
    d.finish(ticket);
    assert_eq!(d.running("a"), 0);
}

#[test]
fn a_retry_keeps_its_place_before_those_that_came_later() {
    let mut d = Dispatcher::new(Limits { node_requests_max: 1, ..LIMITS });
    d.set_node("a", view(&[("m", LOADED)]));
    let first = d.submit(at(0), "m");
    d.poll(at(0));
    d.submit(at(1), "m");
    d.set_node("b", view(&[("m", LOADED)]));
    assert!(d.retry(at(2), first));
    let decisions = d.poll(at(2));
    assert_eq!(decisions[0], Decision::Send { ticket: first, node: "b".into() });
}

#[test]
fn what_ran_on_a_lost_node_goes_elsewhere_and_counts_nowhere() {
    let mut d = Dispatcher::new(LIMITS);
    d.set_node("a", view(&[("m", LOADED)]));
    let ticket = d.submit(at(0), "m");
    d.poll(at(0));
    d.remove_node("a");
    d.set_node("b", view(&[("m", Replica::Ready)]));
    assert!(d.retry(at(1), ticket));
    assert_eq!(sent(&d.poll(at(1))), ["b"]);
    d.finish(ticket);
    assert_eq!(d.running("b"), 0);
    d.finish(ticket);
    assert!(!d.retry(at(2), ticket));
}

#[derive(Debug, Clone)]
enum Step {
    Submit(usize),
    Finish(usize),
    Retry(usize),
    Node { node: usize, draining: bool, replicas: Vec<(usize, Replica)> },
    Remove(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let replica = prop_oneof![
        (0u32..3).prop_map(|sequences_max| Replica::Loaded { sequences_max }),
        Just(Replica::Loading),
        Just(Replica::Ready)
    ];
    prop_oneof![
        4 => (0usize..2).prop_map(Step::Submit),
        3 => (0usize..20).prop_map(Step::Finish),
        2 => (0usize..20).prop_map(Step::Retry),
        2 => (0usize..3, any::<bool>(), prop::collection::vec((0usize..2, replica), 0..3))
            .prop_map(|(node, draining, replicas)| Step::Node { node, draining, replicas }),
        1 => (0usize..3).prop_map(Step::Remove),
        2 => (0u64..12_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens: places and queue keep their bounds, only fit nodes get requests, in order of arrival, nobody waits
    /// beyond the deadline, and no request is decided twice or tried too often.
    #[test]
    fn promises_hold_in_any_order_of_events(steps in prop::collection::vec(step(), 0..200)) {
        let mut d = Dispatcher::new(LIMITS);
        let mut now = at(0);
        let mut views: BTreeMap<String, NodeView> = BTreeMap::new();
        // (ticket, model, node it runs on, times sent, waiting since)
        let mut live: Vec<(Ticket, String, Option<String>, u32, Duration)> = Vec::new();
        for step in steps {
            match step {
                Step::Submit(model) => {
                    let model = format!("m{model}");
                    let ticket = d.submit(now, &model);
                    live.push((ticket, model, None, 0, now));
                }
                Step::Finish(at) if !live.is_empty() => {
                    let (ticket, ..) = live.remove(at % live.len());
                    d.finish(ticket);
                }
                Step::Retry(at) if !live.is_empty() => {
                    let at = at % live.len();
                    let was_running = live[at].2.is_some();
                    let again = d.retry(now, live[at].0);
                    prop_assert_eq!(again, was_running && live[at].3 < ATTEMPTS_MAX);
                    if again {
                        live[at].2 = None;
                        live[at].4 = now;
                    }
                }
                Step::Finish(_) | Step::Retry(_) => {}
                Step::Node { node, draining, replicas } => {
                    let replicas = replicas.into_iter().map(|(m, r)| (format!("m{m}"), r)).collect();
                    let view = NodeView { draining, replicas };
                    d.set_node(&format!("n{node}"), view.clone());
                    views.insert(format!("n{node}"), view);
                }
                Step::Remove(node) => {
                    d.remove_node(&format!("n{node}"));
                    views.remove(&format!("n{node}"));
                    // What ran there counts no longer, also if the node comes back.
                    for entry in live.iter_mut().filter(|l| l.2 == Some(format!("n{node}"))) {
                        entry.2 = Some("gone".into());
                    }
                }
                Step::Wait(ms) => now += at(ms),
            }
            for decision in d.poll(now) {
                match decision {
                    Decision::Send { ticket, node } => {
                        let at = live.iter().position(|l| l.0 == ticket).expect("only live tickets are sent");
                        prop_assert!(live[at].2.is_none(), "sent while running");
                        let view = &views[&node];
                        prop_assert!(!view.draining && view.replicas.contains_key(&live[at].1));
                        live[at].2 = Some(node);
                        live[at].3 += 1;
                        prop_assert!(live[at].3 <= ATTEMPTS_MAX);
                    }
                    Decision::Refuse { ticket, refusal } => {
                        let at = live.iter().position(|l| l.0 == ticket).expect("only live tickets are refused");
                        let (_, model, node, ..) = live.remove(at);
                        prop_assert!(node.is_none(), "refused while running");
                        if refusal == Refusal::NotReady {
                            prop_assert!(!views.values().any(|v| !v.draining && v.replicas.contains_key(&model)));
                        }
                    }
                }
            }
            for node in views.keys() {
                prop_assert!(d.running(node) <= LIMITS.node_requests_max);
            }
            prop_assert!(d.waiting() <= LIMITS.waiting_max);
            prop_assert_eq!(d.waiting(), live.iter().filter(|l| l.2.is_none()).count());
            for (.., since) in live.iter().filter(|l| l.2.is_none()) {
                prop_assert!(now < *since + LIMITS.wait_max, "waits beyond its deadline");
            }
            prop_assert_eq!(d.next_deadline().is_some(), d.waiting() > 0);
        }
        for (ticket, ..) in live {
            d.finish(ticket);
        }
        prop_assert_eq!(d.waiting(), 0);
        for node in views.keys() {
            prop_assert_eq!(d.running(node), 0);
        }
    }
}
