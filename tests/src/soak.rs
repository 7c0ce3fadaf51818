//! The soak: a mixed streaming load on real processes while workers are killed, hung, starved and reloaded at random, and
//! every answer held against the promise: complete and right, or a truthful error.

mod chaos;
mod client;
mod load;
mod models;
mod report;
mod scene;
mod watch;

pub use models::SoakEngine;
pub use report::Report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::time::Instant;

use crate::soak::chaos::Chaos;
use crate::soak::load::Load;
use crate::soak::scene::Scene;

/// A reload that does not come about in this time ends the run.
const RELOAD_MAX: Duration = Duration::from_secs(120);

/// What to do to the service while it works.
#[derive(Debug, Clone, Copy)]
pub enum Trouble {
    /// Everything, at random, for so long.
    Everything { time: Duration },
    /// So many reloads one after another and nothing else: then no request may fail at all.
    Reloads { count: u64 },
}

#[derive(Debug, Clone, Copy)]
pub struct Soak {
    pub seed: u64,
    pub engine: SoakEngine,
    pub trouble: Trouble,
    pub nodes: usize,
    /// Clients that each have one request at a time.
    pub clients: u64,
}

impl Soak {
    /// The whole run. What it found is in the report; it panics only where the run itself cannot go on.
    pub async fn run(self) -> Report {
        let models = match self.trouble {
            Trouble::Everything { .. } => self.engine.mixed(),
            Trouble::Reloads { .. } => self.engine.steady(),
        };
        let mut scene = Scene::start(self.engine, models, self.nodes).await;
        scene.warm_up().await;
        let before = scene.watch().await;
        let stop = Arc::new(AtomicBool::new(false));
        let load = Load::start(&scene, self.seed, self.clients, Arc::clone(&stop));
        let start = Instant::now();
        // The clients' own draws must not depend on how many troubles there were.
        let mut chaos = Chaos::new(StdRng::seed_from_u64(self.seed ^ u64::MAX));
        match self.trouble {
            Trouble::Everything { time } => chaos.everything(&mut scene, start + time).await,
            Trouble::Reloads { count } => chaos.reloads(&mut scene, count, RELOAD_MAX).await,
        }
        stop.store(true, Ordering::Relaxed);
        let tally = load.end().await;
        let seconds = start.elapsed().as_secs_f64();
        scene.calm_down().await;
        let after = scene.watch().await;
        Report {
            seed: self.seed,
            seconds,
            tally,
            done: chaos.done(),
            before,
            after,
            errors_allowed: matches!(self.trouble, Trouble::Everything { .. }),
            node_log_tail: scene.log_tails(),
        }
    }
}
