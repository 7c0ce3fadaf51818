//! `bench llama`: a GGUF file through router, node and the engine llama-cpp, beside llama-server with the same file.
//!
//! Both have the same threads, room for the same sequences, and get the same requests over HTTP; see [`streams`]. In a round
//! each has its turn with all numbers of requests, ours first in even rounds and the peer first in odd ones. Only one of
//! them runs at a time.
//!
//! [`streams`]: crate::cpu::streams

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::Common;
use crate::cpu::peer::Peer;
use crate::cpu::streams::{PROMPT_TOKENS, Server};
use crate::record::Row;
use crate::statistics::median;

const ROUNDS: u32 = 2;
const STREAMS: [u32; 3] = [1, 4, 16];
/// Of each answer, when nobody says how many.
const TOKENS: u32 = 128;
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
    for round in 0..rounds {
        let mut sides = [Side::Ours, Side::Peer];
        if round % 2 == 1 {
            sides.reverse();
        }
        for side in sides {
            match (side, &peer) {
                (Side::Ours, _) => {
                    let turn = async {
                        measure(arguments, &Server::ours(common, &arguments.file).await?, &mut ours).await
                    };
                    runtime.block_on(turn).context("the product")?;
                }
                (Side::Peer, Some(peer)) => {
                    let server = peer.server();
                    let turn = async {
                        measure(arguments, &Server::peer(server, &arguments.file).await?, &mut theirs).await
                    };
                    runtime.block_on(turn).context("llama-server")?;
                }
                (Side::Peer, None) => {}
            }
        }
    }
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

async fn measure(arguments: &LlamaArguments, server: &Server, samples: &mut Samples) -> Result<()> {
    // Loads the model, where that waits for a request.
    server.requests(1, PROMPT_TOKENS, 1).await.context("the first request")?;
    for _ in 0..REPEATS {
        for (streams, samples) in arguments.streams.iter().zip(&mut *samples) {
            let answers = server.requests(*streams, PROMPT_TOKENS, arguments.tokens).await?;
            samples.push(answers.tokens_per_s);
        }
    }
    Ok(())
}
