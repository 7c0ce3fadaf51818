//! The clients: each has one request at a time, until the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use crate::soak::client::{Outcome, Question};
use crate::soak::scene::Scene;

/// So many broken promises are told in full.
const TOLD_MAX: usize = 20;
/// So many different words of one kind of error are kept.
const WORDS_MAX: usize = 12;
/// Numbers of requests of one client: no two clients have the same.
const NUMBERS_EACH: u64 = 1 << 32;

/// Truthful errors of one kind.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    pub count: u64,
    /// Some of what was said, each once.
    pub words: BTreeSet<String>,
}

impl Refusals {
    fn add(&mut self, count: u64, words: Option<String>) {
        self.count += count;
        if self.words.len() < WORDS_MAX {
            self.words.extend(words);
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub requests: u64,
    pub complete: u64,
    pub left: u64,
    /// By status and code.
    pub refused: BTreeMap<String, Refusals>,
    pub broken: u64,
    /// The first of them.
    pub broken_words: Vec<String>,
}

impl Tally {
    pub fn truthful_errors(&self) -> u64 {
        self.refused.values().map(|refusals| refusals.count).sum()
    }

    fn count(&mut self, outcome: Outcome) {
        self.requests += 1;
        match outcome {
            Outcome::Complete => self.complete += 1,
            Outcome::Left => self.left += 1,
            Outcome::Refused(what, words) => self.refused.entry(what).or_default().add(1, Some(words)),
            Outcome::Broken(why) => {
                self.broken += 1;
                if self.broken_words.len() < TOLD_MAX {
                    self.broken_words.push(why);
                }
            }
        }
    }

    fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.complete += other.complete;
        self.left += other.left;
        self.broken += other.broken;
        self.broken_words.extend(other.broken_words);
        self.broken_words.truncate(TOLD_MAX);
        for (what, refusals) in other.refused {
            let sum = self.refused.entry(what).or_default();
            sum.add(refusals.count, None);
            for words in refusals.words {
                sum.add(0, Some(words));
            }
        }
    }
}

pub struct Load {
    clients: JoinSet<Tally>,
}

impl Load {
    pub fn start(scene: &Scene, seed: u64, clients: u64, stop: Arc<AtomicBool>) -> Load {
        let mut set = JoinSet::new();
        for client in 0..clients {
            let mut random = StdRng::seed_from_u64(seed.wrapping_add(client.wrapping_mul(NUMBERS_EACH)));
            let (models, http, url) = (scene.models.clone(), scene.http(), scene.url());
            let stop = Arc::clone(&stop);
            set.spawn(async move {
                let mut tally = Tally::default();
                for number in client * NUMBERS_EACH.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    tally.count(Question::draw(&mut random, &models, number).ask(&http, &url).await);
                }
                tally
            });
        }
        Load { clients: set }
    }

    /// Every request is answered to its end first.
    pub async fn end(self) -> Tally {
        let mut sum = Tally::default();
        for tally in self.clients.join_all().await {
            sum.add(tally);
        }
        sum
    }
}
