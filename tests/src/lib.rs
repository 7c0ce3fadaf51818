//! What whole-system tests stand on: real processes on free ports, with folders of their own, and a hub.

#![forbid(unsafe_code)]

pub mod api;
pub mod process;
pub mod reference;
pub mod repos;
#[cfg(target_os = "linux")]
pub mod soak;
pub mod system;

pub use api::Api;
pub use process::Process;
pub use reference::Reference;
pub use system::{NodeSpec, System};

use std::time::Duration;

/// How long any state may take to come about. Machines that test are busy.
pub const STATE_MAX: Duration = Duration::from_secs(120);
/// Between two looks at a state.
pub const POLL: Duration = Duration::from_millis(50);

/// Looks until `look` gives something; fails with `what` and the last thing seen when the time is up.
pub async fn until<T, F, Fut>(what: &str, mut look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = tokio::time::Instant::now() + STATE_MAX;
    let mut ticks = tokio::time::interval(POLL);
    loop {
        ticks.tick().await;
        match look().await {
            Ok(found) => return found,
            Err(seen) if tokio::time::Instant::now() > deadline => {
                panic!("{what} did not come about in {} s; last seen: {seen}", STATE_MAX.as_secs())
            }
            Err(_) => {}
        }
    }
}
