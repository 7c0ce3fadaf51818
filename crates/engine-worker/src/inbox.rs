//! What the node asked for and the engine thread has not done yet.
//!
//! The reading thread must never wait for the engine, or it could not see the end of input while the engine hangs.
//! So the queue does not block; it has a bound, and a node that exceeds it is broken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use engine_protocol::{SequenceId, ToWorker};

use crate::engine::Canceller;

/// Messages waiting for the engine thread. A node keeps far fewer in flight; see its own queues.
pub const MESSAGES_MAX: usize = 64 << 10;
/// Bytes of their texts, which is where a queue can grow large.
pub const TEXT_BYTES_MAX: usize = 512 << 20;

#[derive(Default)]
pub struct Inbox {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Shutdown was asked for: loads and steps are told to stop.
    stopping: AtomicBool,
    canceller: Mutex<Option<Canceller>>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<ToWorker>,
    text_bytes: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("over {MESSAGES_MAX} messages or {TEXT_BYTES_MAX} bytes wait for the engine")]
pub struct InboxFull;

impl Inbox {
    /// Called by the reading thread with all that came in one read, so that what was sent together is seen together.
    /// What cannot wait for the engine thread takes effect here.
    pub fn put(&self, messages: impl IntoIterator<Item = ToWorker>) -> Result<(), InboxFull> {
        let mut queue = lock(&self.queue);
        for message in messages {
            match &message {
                ToWorker::Shutdown => self.stopping.store(true, Ordering::Release),
                // At once, so that it costs one step at most; and in order too, in case its submit is still in the
                // queue.
                ToWorker::Cancel { sequence } => self.cancel_now(*sequence),
                _ => {}
            }
            queue.text_bytes += message.text_bytes();
            if queue.messages.len() >= MESSAGES_MAX || queue.text_bytes > TEXT_BYTES_MAX {
                return Err(InboxFull);
            }
            queue.messages.push_back(message);
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// The next message; waits for one if `wait`, otherwise `None` when there is none.
    pub fn take(&self, wait: bool) -> Option<ToWorker> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(message) = queue.messages.pop_front() {
                queue.text_bytes -= message.text_bytes();
                return Some(message);
            }
            if !wait {
                return None;
            }
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// From now on cancellations reach the engine at once; `None` before the engine is closed.
    pub fn set_canceller(&self, canceller: Option<Canceller>) {
        *lock(&self.canceller) = canceller;
    }

    fn cancel_now(&self, sequence: SequenceId) {
        if let Some(canceller) = &*lock(&self.canceller) {
            canceller.cancel(sequence);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
