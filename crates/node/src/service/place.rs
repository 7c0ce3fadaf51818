//! How many requests a node has, and how many more it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use node_api::ApiError;

use crate::api_error::plain;
use crate::node::Node;

/// Requests on a node at once, waiting ones included.
pub const REQUESTS_MAX: u32 = 1024;

/// A request's place among those a node has, in its status: waiting, then running.
pub struct Place {
    node: Arc<Node>,
    counted: Counted,
}

#[derive(Clone, Copy)]
enum Counted {
    Waiting,
    Running,
}

impl Place {
    pub fn waiting(node: &Arc<Node>) -> Result<Place, ApiError> {
        let (running, waiting) = (&node.requests_running, &node.requests_waiting);
        let all = running.load(Ordering::Relaxed) + waiting.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on dropping it takes the count back.
        let place = Place { node: Arc::clone(node), counted: Counted::Waiting };
        if all > REQUESTS_MAX {
            let message = format!("this node has {REQUESTS_MAX} requests already");
            return Err(plain(503, "node_busy", message, true));
        }
        node.touch();
        Ok(place)
    }

    pub fn running(mut self) -> Place {
        self.node.requests_running.fetch_add(1, Ordering::Relaxed);
        self.counter().fetch_sub(1, Ordering::Relaxed);
        self.counted = Counted::Running;
        self.node.touch();
        self
    }

    fn counter(&self) -> &AtomicU32 {
        match self.counted {
            Counted::Waiting => &self.node.requests_waiting,
            Counted::Running => &self.node.requests_running,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counter().fetch_sub(1, Ordering::Relaxed);
        self.node.touch();
    }
}
