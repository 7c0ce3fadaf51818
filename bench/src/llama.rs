//! `bench llama`: a GGUF file through router, node and the engine llama-cpp, beside llama-server with the same file.
//!
//! Both have the same threads, room for the same sequences, and get the same requests over HTTP; see [`streams`]. Both are
//! there from the beginning to the end, and their turns follow on one another request by request, with the same prompts,
//! because a machine that is shared changes its speed from minute to minute: ours first in even turns, the peer first in odd
//! ones. The peer copies the weights, which is its best. Where memory does not hold the file twice, either it maps the file as
//! ours does (`--peer-maps`, its usual way), or they are started in turn, each for all numbers of requests of a round
//! (`--one-at-a-time`).
//!
//! [`streams`]: crate::cpu::streams

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::Common;
use crate::cpu::peer::Peer;
use crate::cpu::streams::{PROMPT_TOKENS, Prompts, Server, Weights};
use crate::record::Row;
use crate::statistics::median;

const ROUNDS: u32 = 2;
const STREAMS: [u32; 3] = [1, 4, 16];
/// Of each answer, when nobody says how many.
const TOKENS: u32 = 128;
/// Before each turn: for a while after an answer the threads of the one that had the turn before still look for work, and take
/// processors from the other. llama.cpp's own pool does so for a tenth of a second, libomp for a fifth.
const REST: Duration = Duration::from_millis(500);
/// Times each number of requests is measured in a turn.
const REPEATS: u32 = 3;

#[derive(Args)]
pub struct LlamaArguments {
    /// The file; `cargo xtask bench llama` writes one of random weights
    #[arg(long)]
    file: PathBuf,
    /// Folder with `llama-server`; without it the rows have no peer
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Name of the file in the rows, which become `gguf-NAME-1-stream`
    #[arg(long)]
    name: Option<String>,
    /// How many requests at once
    #[arg(long, value_delimiter = ',', default_values_t = STREAMS)]
    streams: Vec<u32>,
    /// Tokens of each answer
    #[arg(long, default_value_t = TOKENS)]
    tokens: u32,
    /// Only one of them runs at a time, for a file that memory does not hold twice
    #[arg(long)]
    one_at_a_time: bool,
    /// The peer maps the file instead of copying it, so that both share the system's pages of it
    #[arg(long)]
    peer_maps: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Peer,
}

/// Tokens a second, of each number of requests.
type Samples = Vec<Vec<f64>>;

/// # Errors
/// A server that does not start or refuses a request.
pub fn run(arguments: &LlamaArguments, common: &Common) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let peer = arguments.peer.as_deref().map(Peer::find).transpose()?;
    let rounds = common.rounds(ROUNDS);
    let none: Samples = vec![Vec::new(); arguments.streams.len()];
    let (mut ours, mut theirs) = (none.clone(), none);
    let sides =
        |turn: u32| if turn.is_multiple_of(2) { [Side::Ours, Side::Peer] } else { [Side::Peer, Side::Ours] };
    let weights = if arguments.peer_maps { Weights::Mapped } else { Weights::Copied };
    let start = async |side| {
        let server = match (side, &peer) {
            (Side::Ours, _) => Server::ours(common, &arguments.file).await.context("the product")?,
            (Side::Peer, Some(peer)) => {
                Server::peer(peer.server(), &arguments.file, weights).await.context("llama-server")?
            }
            (Side::Peer, None) => return Ok(None),
        };
        // Loads the model, where that waits for a request.
        server
            .requests(&Prompts::new(Prompts::WARM_UP, 1, PROMPT_TOKENS), 1)
            .await
            .context("the first request")?;
        anyhow::Ok(Some(server))
    };
    runtime.block_on(async {
        if arguments.one_at_a_time {
            for round in 0..rounds {
                for side in sides(round) {
                    let Some(server) = start(side).await? else { continue };
                    let samples = side.of(&mut ours, &mut theirs);
                    for turn in round * REPEATS..(round + 1) * REPEATS {
                        for (streams, samples) in arguments.streams.iter().zip(&mut *samples) {
                            samples.push(measure(arguments, &server, turn, *streams).await?);
                        }
                    }
                }
            }
            return Ok(());
        }
        let servers = (start(Side::Ours).await?, start(Side::Peer).await?);
        for turn in 0..rounds * REPEATS {
            for (which, streams) in arguments.streams.iter().enumerate() {
                for side in sides(turn) {
                    let server = if side == Side::Ours { &servers.0 } else { &servers.1 };
                    let Some(server) = server else { continue };
                    let samples = &mut side.of(&mut ours, &mut theirs)[which];
                    samples.push(measure(arguments, server, turn, *streams).await?);
                }
            }
        }
        anyhow::Ok(())
    })?;
    let row = |((streams, ours), theirs): ((&u32, &mut Vec<f64>), &mut Vec<f64>)| {
        let peer = (!theirs.is_empty()).then(|| median(theirs));
        let name = arguments.name.as_ref().map(|name| format!("{name}-")).unwrap_or_default();
        Row::new(
            format!("gguf-{name}{streams}-{}", if *streams == 1 { "stream" } else { "streams" }),
            "tok/s",
            median(ours),
            rounds,
        )
        .peer("llama-server", peer)
    };
    Ok(arguments.streams.iter().zip(&mut ours).zip(&mut theirs).map(row).collect())
}

impl Side {
    fn of<'a>(self, ours: &'a mut Samples, theirs: &'a mut Samples) -> &'a mut Samples {
        if self == Side::Ours { ours } else { theirs }
    }
}

/// Tokens a second of so many requests at once; of a turn they are the same for both sides.
async fn measure(arguments: &LlamaArguments, server: &Server, turn: u32, streams: u32) -> Result<f64> {
    tokio::time::sleep(REST).await;
    let prompts = Prompts::new(turn, streams, PROMPT_TOKENS);
    Ok(server.requests(&prompts, arguments.tokens).await?.tokens_per_s)
}
