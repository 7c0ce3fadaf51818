//! Events of a sequence and its end, in whatever order they come between two looks.

use std::task::Waker;

use engine_protocol::FinishReason;

use super::*;

fn finished() -> EventKind {
    EventKind::Finished { reason: FinishReason::Stop, completion_tokens: 1 }
}

fn gone() -> WorkerEnd {
    WorkerEnd { cause: EndCause::Crashed, reason: "gone".into() }
}

/// The worker's reader sends the last event and lets the sequence go, both after its receiver saw no event and before it asks for
/// the end: here while the end is being worded.
#[test]
fn a_last_event_that_comes_between_two_looks_is_not_taken_for_the_end_of_the_worker() {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let (end_in, end) = oneshot::channel();
    drop(end_in);
    let mut sequence = SequenceEvents { events, end, ended: None };
    let mut context = Context::from_waker(Waker::noop());
    let sent_meanwhile = || {
        sender.try_send(Ok(finished())).unwrap();
        gone()
    };
    let first = sequence.poll(&mut context, sent_meanwhile);
    assert!(matches!(first, Poll::Ready(Ok(EventKind::Finished { .. }))), "{first:?}");
    let second = sequence.poll(&mut context, || unreachable!("it was worded before"));
    assert!(matches!(second, Poll::Ready(Err(RequestEnd::Worker(_)))), "{second:?}");
}

#[test]
fn what_came_before_the_end_is_delivered_before_it() {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let (end_in, end) = oneshot::channel();
    let mut sequence = SequenceEvents { events, end, ended: None };
    let mut context = Context::from_waker(Waker::noop());
    assert!(sequence.poll(&mut context, gone).is_pending());
    sender.try_send(Ok(EventKind::Started { prompt_tokens: 1, cached_tokens: 0 })).unwrap();
    sender.try_send(Ok(EventKind::Embedding(vec![1.0]))).unwrap();
    end_in.send(RequestEnd::Overflow).unwrap();
    for _ in 0..2 {
        assert!(matches!(sequence.poll(&mut context, gone), Poll::Ready(Ok(_))));
    }
    assert_eq!(sequence.poll(&mut context, gone), Poll::Ready(Err(RequestEnd::Overflow)));
}
