//! The troubles: one after another, drawn from a seed.

use std::process::Command;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, seq::IndexedRandom as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use engine_testkit::build::install_engine;

use crate::soak::models::{Misdeed, SoakEngine};
use crate::soak::scene::{FIRST_VERSION, Scene};

/// Between two troubles.
const PAUSE_MS: std::ops::Range<u64> = 200..1500;
/// An engine that is switched off stays so, as long.
const OFF_MS: std::ops::Range<u64> = 0..300;
/// A node that was restarted is waited for before the next one is: all of them gone is another test.
const NODE_BACK_MAX: Duration = Duration::from_secs(110);
/// A reload in the run of reloads is one of a new folder this often; the others are of the same version.
const FOLDER_EVERY: u64 = 20;

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Done {
    pub reloads: u64,
    pub kills: u64,
    pub hangs: u64,
    pub crashes: u64,
    pub node_restarts: u64,
    pub switches: u64,
    /// Longest pause that a hand-over said it made, milliseconds.
    pub pause_max_ms: u64,
    /// What should have come about and did not.
    pub failed: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Reload,
    NewVersion,
    KillWorker,
    StopWorker,
    Misdeed(Misdeed),
    EndNode,
    KillNode,
    Switch,
}

impl Trouble {
    /// Only the engine made for tests does what it is told, and can be installed under other versions.
    fn can_come_over(self, engine: SoakEngine) -> bool {
        engine == SoakEngine::Fault || !matches!(self, Trouble::NewVersion | Trouble::Misdeed(_))
    }
}

/// With how often each is drawn.
const TROUBLES: [(Trouble, u32); 10] = [
    (Trouble::Reload, 6),
    (Trouble::NewVersion, 2),
    (Trouble::KillWorker, 6),
    (Trouble::StopWorker, 2),
    (Trouble::Misdeed(Misdeed::HangInStep), 2),
    (Trouble::Misdeed(Misdeed::AbortInStep), 4),
    (Trouble::Misdeed(Misdeed::AbortInLoad), 2),
    (Trouble::EndNode, 1),
    (Trouble::KillNode, 1),
    (Trouble::Switch, 2),
];

pub struct Chaos {
    random: StdRng,
    done: Done,
    /// The version whose folder is there, `0.1.<version>`.
    version: u64,
}

impl Chaos {
    pub fn new(random: StdRng) -> Chaos {
        Chaos { random, done: Done::default(), version: 0 }
    }

    pub fn done(&self) -> Done {
        self.done.clone()
    }

    /// One trouble after another until `end`; what was switched off is on again then.
    pub async fn everything(&mut self, scene: &mut Scene, end: Instant) {
        let troubles: Vec<_> = TROUBLES.into_iter().filter(|t| t.0.can_come_over(scene.engine)).collect();
        while Instant::now() < end {
            let pause = Duration::from_millis(self.random.random_range(PAUSE_MS));
            sleep(pause.min(end.saturating_duration_since(Instant::now()))).await;
            let (trouble, _) =
                *troubles.choose_weighted(&mut self.random, |t| t.1).expect("weights are not 0");
            self.make(scene, trouble).await;
        }
    }

    async fn make(&mut self, scene: &mut Scene, trouble: Trouble) {
        match trouble {
            Trouble::Reload => self.reload(scene).await,
            Trouble::NewVersion => self.new_version(scene).await,
            Trouble::KillWorker => self.signal_worker(scene, "-KILL").await,
            Trouble::StopWorker => self.signal_worker(scene, "-STOP").await,
            Trouble::Misdeed(misdeed) => {
                let model = scene.models.choose(&mut self.random).expect("there are models").id;
                scene.ask_for(misdeed, model);
                match misdeed {
                    Misdeed::HangInStep => self.done.hangs += 1,
                    Misdeed::AbortInStep | Misdeed::AbortInLoad => self.done.crashes += 1,
                }
            }
            Trouble::EndNode => self.restart_node(scene, false).await,
            Trouble::KillNode => self.restart_node(scene, true).await,
            Trouble::Switch => self.switch(scene).await,
        }
    }

    async fn reload(&mut self, scene: &Scene) {
        // A reload that a kill or a restart comes in the way of is refused by name; the load is what is watched.
        if let Ok(answer) = scene.command("/api/engines/reload", &json!({"engine": scene.engine.id()})).await
        {
            self.count(&answer);
        }
    }

    /// A new folder beside the old one, which the nodes find by themselves; the old one goes.
    async fn new_version(&mut self, scene: &Scene) {
        let old = self.version_text();
        self.version += 1;
        let new = self.version_text();
        if let Err(error) = install_engine(scene.engine.id(), &new, &scene.engines_dir) {
            self.done.failed.push(format!("{new} cannot be installed: {error:#}"));
            return;
        }
        if let Ok(answer) = scene.command("/api/engines/reload", &json!({})).await {
            self.count(&answer);
        }
        // Workers hold a copy of their own: the folder may go while they still run.
        if let Err(error) =
            std::fs::remove_dir_all(scene.engines_dir.join(format!("{}-{old}", scene.engine.id())))
        {
            self.done.failed.push(format!("{old} cannot be removed: {error}"));
        }
    }

    fn version_text(&self) -> String {
        if self.version == 0 { FIRST_VERSION.to_owned() } else { format!("0.1.{}", self.version) }
    }

    fn count(&mut self, answer: &Value) {
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        for handover in nodes.filter_map(|node| node["reply"]["handovers"].as_array()).flatten() {
            if handover["done"] == true {
                self.done.reloads += 1;
                let pause = handover["pause_ms"].as_u64().unwrap_or(0);
                self.done.pause_max_ms = self.done.pause_max_ms.max(pause);
            }
        }
    }

    async fn signal_worker(&mut self, scene: &Scene, signal: &str) {
        let workers = scene.workers().await;
        let Some(pid) = workers.choose(&mut self.random) else { return };
        // It may have ended in between.
        let sent = Command::new("kill")
            .args([signal, &pid.to_string()])
            .stderr(std::process::Stdio::null())
            .status();
        if sent.is_ok_and(|status| status.success()) {
            if signal == "-KILL" { self.done.kills += 1 } else { self.done.hangs += 1 }
        }
    }

    async fn restart_node(&mut self, scene: &mut Scene, kill: bool) {
        let number = self.random.random_range(0..scene.node_count());
        let name = format!("node-{number}");
        let Some(node) = scene.system.nodes.remove(&name) else { return };
        if kill {
            node.kill().await;
        } else {
            node.end().await;
        }
        scene.start_node(number).await;
        self.done.node_restarts += 1;
        let count = scene.node_count();
        if timeout(NODE_BACK_MAX, scene.system.until_nodes(count)).await.is_err() {
            self.done.failed.push(format!("{name} did not come back"));
        }
    }

    /// Off and on again. While it is off nothing can be loaded; what is loaded goes on.
    async fn switch(&mut self, scene: &Scene) {
        let engine = scene.engine.id();
        let off = scene.command(&format!("/api/engines/{engine}/disable"), &json!({})).await;
        sleep(Duration::from_millis(self.random.random_range(OFF_MS))).await;
        let on = scene.command(&format!("/api/engines/{engine}/enable"), &json!({})).await;
        if off.is_ok() && on.is_ok() {
            self.done.switches += 1;
        }
        if let Err(error) = on {
            self.done.failed.push(error);
        }
    }

    /// Reloads one after another, each of which has to come about.
    pub async fn reloads(&mut self, scene: &mut Scene, count: u64, each_max: Duration) {
        while self.done.reloads < count && self.done.failed.is_empty() {
            let before = self.done.reloads;
            let reload = async {
                let folder = before % FOLDER_EVERY == FOLDER_EVERY - 1;
                if folder && Trouble::NewVersion.can_come_over(scene.engine) {
                    self.new_version(scene).await;
                } else {
                    let answer =
                        scene.command("/api/engines/reload", &json!({"engine": scene.engine.id()})).await;
                    match answer {
                        Ok(answer) => self.count(&answer),
                        Err(error) => self.done.failed.push(error),
                    }
                }
            };
            let ended = timeout(each_max, reload).await.is_ok();
            if !ended || self.done.reloads == before {
                self.done.failed.push(format!("reload {} did not come about", before + 1));
            }
        }
    }
}
