//! `bench router`: what the router costs, on one core.
//!
//! The router process is pinned to one core. On another core, in this process and on one thread, are the load generator and
//! a stand-in for a node that answers from memory. Every scenario is also run with the generator and a static HTTP/1.1
//! upstream of this process alone (`limit`: what the other side reaches when nothing is in between), and, where `nginx`
//! is found, through nginx on the router's core in front of that upstream (`peer`: a proxy in C that looks at no body).
//! Requests are `POST /v1/completions` with a prompt of some sixty bytes and one token of answer, unless the row says
//! otherwise.
//!
//! | row | what |
//! |---|---|
//! | `router-rps` | requests a second, not streamed, 64 connections, each sending when it has its answer |
//! | `router-rps-chat` | the same for `/v1/chat/completions`: every request also renders its template in a process of its own |
//! | `router-p50-ms-1`, `router-p99-ms-1` | added at one connection: percentile through the router less that without it |
//! | `router-p50-ms`, `router-p99-ms` | added at 2,000 requests a second, arriving by chance (Poisson, seeded), whether or not earlier ones are done; a request's time counts from when it was due |
//! | `router-cpu-us`, `router-cpu-us-chat`, `router-cpu-us-event` | processor time of the router's own process for each answer (event) of the three rows of throughput: it says the same on a busy machine |
//! | `router-events` | events a second, streamed, 64 connections, 512 tokens an answer, as fast as they are taken |

pub mod connection;
mod events;
mod load;
mod nginx;
mod stand_in;
mod started;
mod upstream;

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::affinity::{self, Cores};
use crate::record::Row;
use crate::statistics::{median, percentile};
use crate::{Common, ROUNDS};
use load::{Load, Outcome};
use nginx::Nginx;
use started::Router;
use upstream::Upstream;

/// Connections of the scenarios that want throughput.
const CONNECTIONS: usize = 64;
/// Arrivals a second of the open loop.
const OPEN_RATE: f64 = 2000.0;
/// Tokens of a streamed answer.
pub const STREAM_TOKENS: u32 = 512;

#[derive(Args)]
pub struct RouterArguments {
    /// Of each scenario in each round
    #[arg(long, default_value_t = 1.5, value_name = "SECONDS")]
    seconds: f64,
    /// Only the scenarios whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// What the router logs, as LLM_ROUTER_LOG [default: its default]
    #[arg(long, value_name = "FILTER")]
    router_log: Option<String>,
}

/// What is asked, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    Whole,
    Chat,
    OneConnection,
    Open,
    Streamed,
}

impl Scenario {
    const ALL: [Scenario; 5] =
        [Scenario::Whole, Scenario::Chat, Scenario::OneConnection, Scenario::Open, Scenario::Streamed];

    fn name(self) -> &'static str {
        match self {
            Scenario::Whole => "rps",
            Scenario::Chat => "chat",
            Scenario::OneConnection => "one",
            Scenario::Open => "open",
            Scenario::Streamed => "events",
        }
    }

    fn load(self, length: Duration, round: u32) -> Load {
        match self {
            Scenario::Whole | Scenario::Chat | Scenario::Streamed => {
                Load::Closed { connections: CONNECTIONS, length }
            }
            Scenario::OneConnection => Load::Closed { connections: 1, length },
            Scenario::Open => Load::Open { rate: OPEN_RATE, length, seed: u64::from(round) },
        }
    }
}

/// The outcomes of one scenario, a list of rounds for each of those that answered.
#[derive(Default)]
struct Outcomes {
    router: Vec<Outcome>,
    direct: Vec<Outcome>,
    nginx: Vec<Outcome>,
}

pub fn run(arguments: &RouterArguments, common: &Common) -> Result<Vec<Row>> {
    let cores = Cores::find().context("two cores are needed, one for the router and one for the load")?;
    if !affinity::pin(cores.others) {
        eprintln!("this system does not let programs choose their cores: nothing is pinned");
    }
    // One thread: generator and stand-ins share the core that the router does not have.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(arguments, common, cores))
}

async fn measure(arguments: &RouterArguments, common: &Common, cores: Cores) -> Result<Vec<Row>> {
    let router = Router::start(common, cores, arguments.router_log.as_deref()).await?;
    let upstream = Upstream::start().await?;
    let nginx = Nginx::start(cores, upstream.address).await?;
    if nginx.is_none() {
        eprintln!("nginx is not in PATH: rows have no peer");
    }
    let length = Duration::from_secs_f64(arguments.seconds.clamp(0.1, 60.0));
    let mut rows = Vec::new();
    for scenario in Scenario::ALL {
        if arguments.only.as_ref().is_some_and(|only| !scenario.name().contains(only.as_str())) {
            continue;
        }
        eprintln!("{} …", scenario.name());
        let mut outcomes = Outcomes::default();
        let request = started::request(scenario);
        // In turn, so that all see the same machine. The first round warms up.
        for round in 0..=common.rounds(ROUNDS) {
            let load = scenario.load(if round == 0 { length / 4 } else { length }, round);
            let routed = load
                .run(router.address, &request, Some(&router.process))
                .await
                .with_context(|| router.log())?;
            let direct = load.run(upstream.address, &request, None).await.context("without the router")?;
            let proxied = match &nginx {
                Some(nginx) => {
                    let running = load.run(nginx.address, &request, Some(&nginx.process));
                    Some(running.await.with_context(|| nginx.log())?)
                }
                None => None,
            };
            if round > 0 {
                outcomes.router.push(routed);
                outcomes.direct.push(direct);
                outcomes.nginx.extend(proxied);
            }
        }
        rows.extend(rows_of(scenario, &outcomes, common.rounds(ROUNDS)));
    }
    Ok(rows)
}

fn rows_of(scenario: Scenario, outcomes: &Outcomes, rounds: u32) -> Vec<Row> {
    let per_second = |row: &str, unit, count: fn(&Outcome) -> u64| {
        let rate = |all: &[Outcome]| {
            #[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
            let mut rates: Vec<f64> = all.iter().map(|o| count(o) as f64 / o.length.as_secs_f64()).collect();
            median(&mut rates)
        };
        let peer = (!outcomes.nginx.is_empty()).then(|| rate(&outcomes.nginx));
        Row::new(row, unit, rate(&outcomes.router), rounds).peer("nginx", peer).limit(rate(&outcomes.direct))
    };
    let cpu = |row: &str, count: fn(&Outcome) -> u64| {
        let each = |all: &[Outcome]| {
            #[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
            let per = |o: &Outcome| o.cpu_seconds.map(|cpu| cpu * 1e6 / count(o).max(1) as f64);
            let mut each: Vec<f64> = all.iter().filter_map(per).collect();
            (!each.is_empty()).then(|| median(&mut each))
        };
        each(&outcomes.router)
            .map(|ours| Row::new(row, "us", ours, rounds).peer("nginx", each(&outcomes.nginx)))
    };
    // Added: of each round, what is more than without anything in between.
    let added = |row: &str, share: f64| {
        let over = |all: &[Outcome]| {
            let pairs = all.iter().zip(&outcomes.direct);
            let mut added: Vec<f64> =
                pairs.map(|(a, d)| a.percentile_ms(share) - d.percentile_ms(share)).collect();
            median(&mut added)
        };
        let peer = (!outcomes.nginx.is_empty()).then(|| over(&outcomes.nginx));
        Row::new(row, "ms", over(&outcomes.router), rounds).peer("nginx", peer)
    };
    match scenario {
        Scenario::Whole => {
            let answers = |o: &Outcome| o.answers;
            [Some(per_second("router-rps", "1/s", answers)), cpu("router-cpu-us", answers)]
        }
        Scenario::Chat => {
            let answers = |o: &Outcome| o.answers;
            [Some(per_second("router-rps-chat", "1/s", answers)), cpu("router-cpu-us-chat", answers)]
        }
        Scenario::OneConnection => {
            [Some(added("router-p50-ms-1", 0.5)), Some(added("router-p99-ms-1", 0.99))]
        }
        Scenario::Open => [Some(added("router-p50-ms", 0.5)), Some(added("router-p99-ms", 0.99))],
        Scenario::Streamed => {
            let events = |o: &Outcome| o.events;
            [Some(per_second("router-events", "1/s", events)), cpu("router-cpu-us-event", events)]
        }
    }
    .into_iter()
    .flatten()
    .collect()
}

impl Outcome {
    fn percentile_ms(&self, share: f64) -> f64 {
        percentile(&mut self.latencies_us.clone(), share) / 1000.0
    }
}
