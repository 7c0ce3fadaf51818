//! `bench cpu`: gpt-oss on the cpu beside llama.cpp, and what this machine could do at best.
//!
//! Both have the same shapes and the same random numbers: ours as safetensors (BF16, MXFP4 experts), the peer's as GGUF with
//! everything but the experts in BF16 or in Q8_0. Two processes never have a 20b model at the same time.
//!
//! **Order.** Limits first, then rounds; in a round ours has all its turns on the 20b shape, then the peer all of its own. Both
//! files together do not fit the memory of a 24 GiB machine, so before each side's turns its files are read once from
//! beginning to end: after that, ours lies in the disk cache (13.8 GB), and of the peer's there is what fits beside the copy
//! that it makes of it (it runs with `-lm none`, which is fastest). Loading counts for `load-first-token` only.
//!
//! **What counts.** Decode: tokens after the first one divided by the time between the first and the last; ours samples them
//! and goes through the engine SDK's runner, llama-bench only computes logits. Prefill: tokens of the prompt divided by the
//! time to the first token; llama-bench likewise, without sampling. Streams: so many requests at once over HTTP, each with
//! its own prompt of [`streams::PROMPT_TOKENS`] tokens and an answer of fixed length; all answers' tokens divided by the
//! time from the first byte sent to the last byte received. Ours is the whole product (router, node and worker).
//!
//! A part that fails is reported, the others go on and are recorded, and the program ends with an error.

mod command;
mod cost;
mod found;
mod ours;
pub mod peer;
mod samples;
pub mod streams;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use crate::Common;
use crate::limits::{Limits, Pages, Unit};
use crate::record::Row;
use cost::Cost;
use ours::Turn;
use peer::{Bench, Peer};
use samples::{Samples, Side};
use streams::{Model, Outcome, Prompts, Weights};

/// Rounds when nobody says how many.
const ROUNDS: u32 = 2;
/// Threads of the rows `-2t`, and of the servers.
const THREADS: u32 = 2;
/// Tokens of an answer whose pace is measured.
const DECODE_TOKENS: u32 = 32;
/// As in `load-first-token`.
const FIRST_PROMPT: u32 = 64;
const SHORT_PROMPT: u32 = 512;
/// In the first round only: the peer needs minutes for it.
const LONG_PROMPT: u32 = 4096;
/// Times each figure is taken in a turn.
const REPEATS: u32 = 3;
const STREAMS_MAX: u32 = 16;
const SMALL_STREAMS: [u32; 3] = [1, 4, STREAMS_MAX];
/// Of the limits, which take seconds.
const LIMIT_ROUNDS: u32 = 5;
/// Promised for the mapped form, KV apart.
const PRIVATE_MIB_MAX: f64 = 1024.0;
/// Of each answer.
const SMALL_TOKENS: u32 = 128;
const BIG_TOKENS: u32 = 48;

#[derive(Args)]
pub struct CpuArguments {
    /// Folder with `20b`, `small` and the peer's files of both; `cargo xtask bench cpu` writes them
    #[arg(long)]
    models: PathBuf,
    /// Folder with the peer's `llama-bench` and `llama-server`; without it the rows have no peer
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// One sequence, weights as published, one and two threads
    Decode,
    /// One sequence, 8 bits outside the experts
    Decode8bit,
    /// Prompts of 512 and 4096 tokens
    Prefill,
    /// From nothing to the first token, and private memory
    Load,
    /// 1, 4 and 16 requests at once, small model
    SmallStreams,
    /// 16 requests at once, 20b shape
    BigStreams,
}

impl Part {
    /// Those that take minutes are in the first round only.
    fn is_in(self, round: u32) -> bool {
        round == 0 || !matches!(self, Part::BigStreams)
    }

    fn is_big(self) -> bool {
        self != Part::SmallStreams
    }

    /// What a side needs for it in the folder of models.
    fn files(self, side: Side) -> &'static [&'static str] {
        match (self, side) {
            (Part::SmallStreams, Side::Ours) => &["small"],
            (Part::SmallStreams, Side::Peer) => &["small-bf16.gguf"],
            (Part::Load, Side::Peer) => &[],
            (_, Side::Ours) => &["20b"],
            (Part::Decode8bit, Side::Peer) => &["20b-q8_0.gguf"],
            (_, Side::Peer) => &["20b-bf16.gguf"],
        }
    }
}

/// # Errors
/// Nothing at all could be measured.
pub fn run(arguments: &CpuArguments, common: &Common) -> Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let peer = arguments.peer.as_deref().map(Peer::find).transpose()?;
    let limits = Limits::measure(None, LIMIT_ROUNDS).inspect_err(|e| eprintln!("no limits: {e:#}")).ok();
    let session = Session { arguments, common, peer, runtime, limits };
    let parts: Vec<Part> = Part::value_variants().iter().copied().filter(|p| session.wants(*p)).collect();
    let start = Instant::now();
    let mut samples = Samples::default();
    for round in 0..common.rounds(ROUNDS) {
        for side in session.sides() {
            let parts: Vec<Part> = parts.iter().copied().filter(|p| p.is_in(round)).collect();
            session.warm(side, &parts);
            for part in parts {
                eprintln!(
                    "{:5.0} s: round {}, {part:?}, {side:?} …",
                    start.elapsed().as_secs_f64(),
                    round + 1
                );
                if let Err(e) = session.measure(part, side, round, &mut samples) {
                    let failure = format!("round {}, {part:?}, {side:?}: {e:#}", round + 1);
                    eprintln!("failed: {failure}");
                    samples.failures.push(failure);
                }
            }
        }
    }
    eprintln!("{:.0} s in all", start.elapsed().as_secs_f64());
    for failure in &samples.failures {
        eprintln!("failed: {failure}");
    }
    let rows = session.rows(&samples);
    ensure!(!rows.is_empty(), "nothing could be measured");
    Ok(Measured { rows, failed: samples.failures.len() })
}

/// What was measured, and how many parts were not.
pub struct Measured {
    pub rows: Vec<Row>,
    pub failed: usize,
}

struct Session<'a> {
    arguments: &'a CpuArguments,
    common: &'a Common,
    peer: Option<Peer>,
    runtime: tokio::runtime::Runtime,
    limits: Option<Limits>,
}

impl Session<'_> {
    fn wants(&self, part: Part) -> bool {
        self.arguments.only.is_empty() || self.arguments.only.contains(&part)
    }

    fn sides(&self) -> impl Iterator<Item = Side> {
        [Some(Side::Ours), self.peer.as_ref().map(|_| Side::Peer)].into_iter().flatten()
    }

    fn model(&self, name: &str) -> PathBuf {
        self.arguments.models.join(name)
    }

    /// Reads a side's files of the 20b shape, so that what is measured next finds in memory what memory has room for.
    fn warm(&self, side: Side, parts: &[Part]) {
        if !parts.iter().any(|p| p.is_big()) {
            return;
        }
        let name = match side {
            Side::Ours => "20b",
            Side::Peer => "20b-bf16.gguf",
        };
        let start = Instant::now();
        let read = match side {
            Side::Ours => command::map_once(&self.model(name)),
            Side::Peer => command::read_once(&self.model(name)),
        };
        match read {
            Ok(bytes) => {
                let seconds = start.elapsed().as_secs_f64();
                eprintln!("  read {name} once: {:.1} GB in {seconds:.0} s", bytes as f64 / 1e9);
            }
            Err(e) => eprintln!("  {name} could not be read: {e:#}"),
        }
    }

    fn measure(&self, part: Part, side: Side, round: u32, samples: &mut Samples) -> Result<()> {
        for name in part.files(side) {
            let path = self.model(name);
            ensure!(path.exists(), "{} is missing\nhint: `cargo xtask bench cpu` writes it", path.display());
        }
        match (part, side) {
            (Part::SmallStreams, _) => self.streams(side, Model::SMALL, samples),
            (Part::BigStreams, _) => self.streams(side, Model::BIG, samples),
            (_, Side::Ours) => self.ours(part, round, samples),
            (_, Side::Peer) => self.peer(part, round, samples),
        }
    }

    fn ours(&self, part: Part, round: u32, samples: &mut Samples) -> Result<()> {
        let plain = Turn { repeat: REPEATS, ..Turn::new(self.model("20b"), THREADS) };
        match part {
            Part::Decode => {
                for (suffix, options) in [("", ""), (ours::ROUNDED_SUFFIX, ours::ROUNDED)] {
                    for threads in [1, THREADS] {
                        let options = options.to_owned();
                        let done = Turn { threads, decode: DECODE_TOKENS, options, ..plain.clone() }.run()?;
                        let row = format!("decode-bf16-{threads}t{suffix}");
                        samples.extend(Side::Ours, &row, &done.decode);
                    }
                }
            }
            Part::Decode8bit => {
                let options = ours::EIGHT_BITS.to_owned();
                let done = Turn { decode: DECODE_TOKENS, options, ..plain }.run()?;
                samples.extend(Side::Ours, "decode-8bit-2t", &done.decode);
            }
            Part::Prefill => {
                let rounded = Turn {
                    prefill: vec![SHORT_PROMPT],
                    options: ours::ROUNDED.to_owned(),
                    repeat: 1,
                    ..plain.clone()
                };
                for (suffix, turn) in
                    [("", Turn { prefill: prompts(round), ..plain }), (ours::ROUNDED_SUFFIX, rounded)]
                {
                    for (tokens, rates) in &turn.run()?.prefill {
                        samples.extend(Side::Ours, &format!("prefill-{tokens}-2t{suffix}"), rates);
                    }
                }
            }
            Part::Load => {
                let done = Turn { first: Some(FIRST_PROMPT), ..plain }.run()?;
                let first = done.first_token_s.context("the turn gave no first token")?;
                samples.extend(Side::Ours, "load-first-token", &[done.load_s + first]);
                samples.extend(
                    Side::Ours,
                    "load-private-mib",
                    &done.private_mib.into_iter().collect::<Vec<_>>(),
                );
            }
            Part::SmallStreams | Part::BigStreams => unreachable!("measured over HTTP"),
        }
        Ok(())
    }

    fn peer(&self, part: Part, round: u32, samples: &mut Samples) -> Result<()> {
        let peer = self.peer.as_ref().context("there is no peer")?;
        let bench =
            Bench { threads: vec![THREADS], repeat: REPEATS, ..Bench::new(self.model("20b-bf16.gguf")) };
        match part {
            Part::Decode => {
                let bench = Bench { threads: vec![1, THREADS], decode: DECODE_TOKENS, ..bench };
                for line in peer.bench(&bench)? {
                    let row = format!("decode-bf16-{}t", line.n_threads);
                    samples.extend(Side::Peer, &row, &line.samples_ts);
                }
            }
            Part::Decode8bit => {
                let model = self.model("20b-q8_0.gguf");
                for line in peer.bench(&Bench { model, decode: DECODE_TOKENS, ..bench })? {
                    samples.extend(Side::Peer, "decode-8bit-2t", &line.samples_ts);
                }
            }
            Part::Prefill => {
                // Each once: a prompt takes so long that there is nothing to warm up.
                let bench = Bench { prefill: prompts(round), repeat: 1, ..bench };
                for line in peer.bench(&bench)? {
                    samples.extend(Side::Peer, &format!("prefill-{}-2t", line.n_prompt), &line.samples_ts);
                }
            }
            // Taken where its server is started for the streams: each start takes most of a minute.
            Part::Load => {}
            Part::SmallStreams | Part::BigStreams => unreachable!("measured over HTTP"),
        }
        Ok(())
    }

    fn streams(&self, side: Side, model: Model, samples: &mut Samples) -> Result<()> {
        let (counts, tokens, repeats): (&[u32], u32, u32) = if model == Model::BIG {
            (&[STREAMS_MAX], BIG_TOKENS, 1)
        } else {
            (&SMALL_STREAMS, SMALL_TOKENS, 3)
        };
        let (name, path) = (model.name, self.model(model.name));
        self.runtime.block_on(async {
            let server = match side {
                Side::Ours => streams::Server::ours(self.common, &path).await?,
                Side::Peer => {
                    let peer = self.peer.as_ref().context("there is no peer")?;
                    let file = path.with_file_name(format!("{name}-bf16.gguf"));
                    streams::Server::peer(peer.server(), &file, Weights::Copied).await?
                }
            };
            let first = server
                .requests(&Prompts::new(Prompts::WARM_UP, 1, FIRST_PROMPT), 1)
                .await
                .context("the first request")?;
            if side == Side::Peer && model == Model::BIG {
                samples.extend(side, "load-first-token", &[server.start_s + first.first_token_s]);
                samples.extend(
                    side,
                    "load-private-mib",
                    &server.private_mib().into_iter().collect::<Vec<_>>(),
                );
            }
            for repeat in 0..repeats {
                for &count in counts {
                    let prompts = Prompts::new(repeat, count, streams::PROMPT_TOKENS);
                    let Outcome { tokens_per_s, first_token_s } = server.requests(&prompts, tokens).await?;
                    samples.extend(side, &format!("{name}-{count}-streams"), &[tokens_per_s]);
                    samples.extend(side, &format!("{name}-{count}-streams-first-ms"), &[first_token_s * 1e3]);
                }
            }
            Ok(())
        })
    }

    /// With the limits of this run, where they could be measured and two threads are all there are.
    fn rows(&self, samples: &Samples) -> Vec<Row> {
        let limits = self.limits.as_ref().filter(|l| l.threads == THREADS as usize);
        let cost = Cost::of(&self.model("20b")).inspect_err(|e| eprintln!("no limits: {e:#}")).ok();
        let limit = |row: &str| limit(limits?, cost.as_ref()?, row);
        samples.rows(limit).into_iter().chain(self.limits.iter().flat_map(|l| l.rows(LIMIT_ROUNDS))).collect()
    }
}

/// What a row could be at best. Reading is that of the kind of pages that is read fastest.
fn limit(limits: &Limits, cost: &Cost, row: &str) -> Option<f64> {
    let read = |threads: usize| {
        let rates = Pages::ALL.iter().filter_map(|pages| limits.read(*pages));
        rates.map(|rate| rate.of(threads)).reduce(f64::max)
    };
    let all = limits.threads;
    let (row, rounded) = row.strip_suffix(ours::ROUNDED_SUFFIX).map_or((row, false), |row| (row, true));
    // Each part by the best unit for what it is computed in: experts in eight bits unless asked otherwise.
    let computed = |prompt: u32| {
        let bf16 = limits.best_unit(Unit::FOR_BF16)?.1.all;
        let experts = if rounded { bf16 } else { limits.best_unit(Unit::FOR_INT8)?.1.all };
        let operations = cost.prefill_operations(prompt);
        Some(1.0 / (operations.experts / experts + operations.rest / bf16))
    };
    match row {
        "decode-bf16-1t" => Some(read(1)? / cost.step_bytes(1)),
        "decode-bf16-2t" => Some(read(all)? / cost.step_bytes(1)),
        "decode-8bit-2t" => Some(read(all)? / cost.eight_bit_bytes()),
        "prefill-512-2t" => computed(SHORT_PROMPT),
        "prefill-4096-2t" => computed(LONG_PROMPT),
        "20b-16-streams" => Some(f64::from(STREAMS_MAX) * read(all)? / cost.step_bytes(STREAMS_MAX)),
        "load-private-mib" => Some(PRIVATE_MIB_MAX),
        _ => None,
    }
}

fn prompts(round: u32) -> Vec<u32> {
    if round == 0 { vec![SHORT_PROMPT, LONG_PROMPT] } else { vec![SHORT_PROMPT] }
}
