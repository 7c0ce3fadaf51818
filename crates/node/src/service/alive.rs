//! A stream of events that is never silent for long.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use node_api::{ALIVE_INTERVAL, GenerateEvent};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The events of one request as they come, with [`GenerateEvent::Alive`] where nothing came for a while. It ends with them.
///
/// The interval runs by itself: a timer set anew for each event would be a cost on every token's way.
#[derive(Debug)]
pub struct Alive {
    events: mpsc::Receiver<GenerateEvent>,
    interval: Interval,
    /// Something was said since the last tick.
    said: bool,
}

impl Alive {
    pub fn new(events: mpsc::Receiver<GenerateEvent>) -> Alive {
        let mut interval = interval(ALIVE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval.reset();
        Alive { events, interval, said: false }
    }
}

impl Stream for Alive {
    type Item = GenerateEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<GenerateEvent>> {
        if let Poll::Ready(event) = self.events.poll_recv(cx) {
            self.said = true;
            return Poll::Ready(event);
        }
        while self.interval.poll_tick(cx).is_ready() {
            if !std::mem::replace(&mut self.said, false) {
                return Poll::Ready(Some(GenerateEvent::Alive));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_and_speech_is_not() {
        let (sender, events) = mpsc::channel(8);
        let mut alive = Alive::new(events);
        assert_eq!(alive.next().await, Some(GenerateEvent::Alive));
        assert_eq!(alive.next().await, Some(GenerateEvent::Alive));
        let began = tokio::time::Instant::now();
        for n in 0..20u8 {
            tokio::time::advance(ALIVE_INTERVAL / 4).await;
            let said = GenerateEvent::Loading { progress: f32::from(n) };
            sender.send(said.clone()).await.unwrap();
            assert_eq!(alive.next().await, Some(said), "after {:?}", began.elapsed());
        }
        assert_eq!(alive.next().await, Some(GenerateEvent::Alive));
        drop(sender);
        assert_eq!(alive.next().await, None);
    }
}
