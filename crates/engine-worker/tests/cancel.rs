//! A cancelled sequence ends within one step, whatever else runs.

use engine_protocol::{EventKind, FinishReason, Prompt, Sampling, Settings, Submit, Task, ToNode, ToWorker};
use engine_testkit::build::{engine_dir, worker_binary};
use engine_testkit::model::{describe, write_echo_model};
use engine_testkit::worker::Worker;

fn submit(sequence: u64) -> ToWorker {
    ToWorker::Submit(Box::new(Submit {
        sequence,
        request_id: "request".to_owned(),
        prompt: Prompt::Text { text: "x".repeat(1500), literal: Vec::new() },
        task: Task::Generate(Box::new(Sampling { temperature: 0.0, ..Sampling::default() })),
        cache_salt: 0,
    }))
}

/// Waits for the next batch of events: what one step gave. (tokens of sequence 1, tokens of sequence 2, end of 1)
fn step(worker: &mut Worker) -> (u32, u32, Option<FinishReason>) {
    let events = worker
        .wait_for(|m| if let ToNode::Events(events) = m { Ok(events) } else { Err(m) })
        .expect("a step gives events");
    let tokens = |sequence| {
        events.iter().filter(|e| e.sequence == sequence && matches!(e.kind, EventKind::Token(_))).count()
            as u32
    };
    let end = events.iter().find_map(|e| match e.kind {
        EventKind::Finished { reason, .. } if e.sequence == 1 => Some(reason),
        _ => None,
    });
    (tokens(1), tokens(2), end)
}

#[test]
fn a_cancelled_sequence_gets_no_more_tokens_than_the_steps_that_were_under_way() {
    let dir = tempfile::tempdir().expect("a folder");
    write_echo_model(dir.path(), 4096).expect("a model");
    let mut worker = Worker::start(&worker_binary(), &[]).expect("hello");
    worker.open(&engine_dir("echo-c")).expect("an answer").expect("it opens");
    let model = describe(dir.path(), "echo-c").expect("a model");
    worker.load(&model, &Settings::default(), &[]).expect("an answer").expect("it loads");
    // The cancellation is in the same read as the submits: by the time the first step runs it has been asked for.
    worker.send_all(&[submit(1), submit(2), ToWorker::Cancel { sequence: 1 }]).expect("sent");
    let (mut of_first, mut of_second) = (0, 0);
    loop {
        let (first, second, end) = step(&mut worker);
        (of_first, of_second) = (of_first + first, of_second + second);
        if let Some(end) = end {
            assert_eq!(end, FinishReason::Cancelled);
            break;
        }
    }
    assert!(of_first <= 1, "{of_first} tokens after the cancellation");
    assert!(of_second <= 2, "the other one had {of_second} steps: the end came late");
    let other = worker.collect(2).expect("the other goes on");
    assert!(
        matches!(other.last(), EventKind::Finished { reason: FinishReason::Stop, .. }),
        "{:?}",
        other.last()
    );
}
