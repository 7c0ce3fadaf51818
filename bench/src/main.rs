//! Benchmarks of what lies between a client and an engine (`bench host`, `bench router`, `bench path`), of gpt-oss on the
//! cpu (`bench cpu`), of what this machine can do at best (`bench limits`), and of what the kernels make of that
//! (`bench kernels`).
//!
//! `cargo xtask bench SUITE` builds everything optimized and runs this. Each row is a line appended to
//! `bench/results/<kind>-<machine>.jsonl`; `bench/README.md` says what each row is.
//!
//! **Invariant:** unsafe code is in [`limits`] only.

#![deny(unsafe_code)]

mod affinity;
mod cpu;
mod host;
mod kernels;
mod limits;
mod llama;
mod path;
mod process;
mod record;
mod register;
mod repo;
mod router;
mod statistics;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "bench", about = "Benchmarks of router, node, worker and the cpu's engine")]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum Suite {
    /// What node and worker cost: the echo engine through both, and in this process
    Host(host::HostArguments),
    /// What the router costs: on one core, between a load generator and a node that answers from memory
    Router(router::RouterArguments),
    /// From the engine's event to the byte on the client's socket, through everything
    Path(path::PathArguments),
    /// What this machine can do at best: bandwidth by kind of pages, peak of each unit that multiplies
    Limits(limits::LimitsArguments),
    /// Every kernel of gpt-oss on the cpu at published shapes, beside the limit that binds it
    Kernels(kernels::KernelsArguments),
    /// gpt-oss on the cpu beside llama.cpp
    Cpu(cpu::CpuArguments),
    /// A GGUF file through the product, beside llama-server
    Llama(llama::LlamaArguments),
}

impl Suite {
    /// Beginning of the name of the file that keeps the rows.
    fn kind(&self) -> &'static str {
        match self {
            Suite::Host(_) | Suite::Router(_) | Suite::Path(_) => "host",
            Suite::Limits(_) | Suite::Kernels(_) | Suite::Cpu(_) => "cpu",
            Suite::Llama(_) => "llama",
        }
    }
}

#[derive(Args)]
pub struct Common {
    /// Folder with the `llm-router` binary and `engines/` beside it
    #[arg(long, global = true, default_value = "target/release")]
    pub bin_dir: PathBuf,
    /// Folder of the results
    #[arg(long, global = true, default_value = "bench/results")]
    pub results: PathBuf,
    /// Name of this machine in the results [default: of its processor and cores]
    #[arg(long, global = true)]
    pub machine: Option<String>,
    /// Of the tree that was built
    #[arg(long, global = true, default_value = "unknown")]
    pub commit: String,
    /// Print the rows and append them nowhere
    #[arg(long, global = true)]
    pub no_record: bool,
    /// Each figure is the median of so many rounds [default: 5, of `cpu` 2]
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: Option<u32>,
}

/// Rounds of the suites whose rounds take seconds, when nobody says how many.
const ROUNDS: u32 = 5;

impl Common {
    pub fn rounds(&self, default: u32) -> u32 {
        self.rounds.unwrap_or(default)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Parts that have no rows: what was measured is recorded first.
    let mut failed = 0;
    let rows = match &arguments.suite {
        Suite::Host(host) => host::run(host, &arguments.common),
        Suite::Router(router) => router::run(router, &arguments.common),
        Suite::Path(path) => path::run(path, &arguments.common),
        Suite::Limits(limits) => limits::run(limits, &arguments.common),
        Suite::Kernels(kernels) => kernels::run(kernels, &arguments.common),
        Suite::Llama(llama) => llama::run(llama, &arguments.common),
        Suite::Cpu(cpu) => cpu::run(cpu, &arguments.common).map(|measured| {
            failed = measured.failed;
            measured.rows
        }),
    };
    let finished = rows.and_then(|rows| finish(&rows, arguments.suite.kind(), &arguments.common));
    ended(finished.and_then(|()| match failed {
        0 => Ok(()),
        _ => Err(anyhow::anyhow!("{failed} of the parts could not be measured, see above")),
    }))
}

fn ended(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("failed: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn finish(rows: &[record::Row], kind: &str, common: &Common) -> Result<()> {
    println!("{}", record::table(rows));
    if common.no_record {
        return Ok(());
    }
    let path = record::append(rows, kind, common)?;
    eprintln!("appended to {}", path.display());
    Ok(())
}
