//! `cargo xtask bench`: builds everything optimized and runs a suite of benchmarks, whose rows go to `bench/results`.

mod models;
mod peer;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::build::{self, binary_name};
use crate::shell;

#[derive(Args)]
pub struct BenchArguments {
    suite: Suite,
    #[command(flatten)]
    cpu: CpuArguments,
    /// For the suite itself; `cargo xtask bench host -- --help` lists them
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Of `cpu` and `llama` alone.
#[derive(Args)]
struct CpuArguments {
    /// Folder with llama-bench and llama-server [default: built below build/llama.cpp]
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Measure without a peer
    #[arg(long, conflicts_with = "peer")]
    no_peer: bool,
    /// Folder with the checkpoints and the peer's files, 40 GB; what is missing is written [default: build/cpu-bench]
    #[arg(long)]
    models: Option<PathBuf>,
}

impl CpuArguments {
    /// For the suite, after everything that it needs is there.
    fn prepared(&self) -> Result<Vec<OsString>> {
        let models = self.models.clone().unwrap_or_else(|| shell::build_dir().join("cpu-bench"));
        models::write_missing(&models, !self.no_peer)?;
        let mut arguments = vec!["--models".into(), models.into()];
        arguments.extend(self.peer_arguments()?);
        Ok(arguments)
    }

    fn peer_arguments(&self) -> Result<Vec<OsString>> {
        if self.no_peer {
            return Ok(Vec::new());
        }
        let peer = self.peer.clone().map_or_else(peer::find_or_build, Ok)?;
        Ok(vec!["--peer".into(), peer.into()])
    }

    /// The same for `llama`, which needs one small file.
    fn prepared_for_llama(&self) -> Result<Vec<OsString>> {
        let models = self.models.clone().unwrap_or_else(|| shell::build_dir().join("cpu-bench"));
        let file = models::write_llama_file(&models)?;
        let mut arguments = vec!["--file".into(), file.into()];
        arguments.extend(self.peer_arguments()?);
        Ok(arguments)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// What node and worker cost per token, beside the same engine in one process
    Host,
    /// What the router costs as a proxy, beside nginx
    Router,
    /// From the engine's event to the byte on the client's socket
    Path,
    /// What this machine can do at best: bandwidth, and the peak of each unit that multiplies
    Limits,
    /// Every kernel of gpt-oss on the cpu, beside the limit that binds it
    Kernels,
    /// gpt-oss on the cpu, beside llama.cpp
    Cpu,
    /// A GGUF file through router, node and the engine llama-cpp, beside llama-server
    Llama,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Suite::Host => "host",
            Suite::Router => "router",
            Suite::Path => "path",
            Suite::Limits => "limits",
            Suite::Kernels => "kernels",
            Suite::Cpu => "cpu",
            Suite::Llama => "llama",
        }
    }

    /// Whether it runs the binary and its plugins.
    fn needs_products(self) -> bool {
        !matches!(self, Suite::Limits | Suite::Kernels)
    }
}

pub fn run(arguments: &BenchArguments) -> Result<()> {
    if arguments.suite.needs_products() {
        build::products(true)?;
    }
    let bin_dir = build::build(true, &["bench"])?;
    let prepared = match arguments.suite {
        Suite::Cpu => arguments.cpu.prepared()?,
        Suite::Llama => arguments.cpu.prepared_for_llama()?,
        _ => Vec::new(),
    };
    let commit = shell::output(shell::command("git").args(["rev-parse", "--short", "HEAD"]))?;
    shell::run(
        shell::command(bin_dir.join(binary_name("bench")))
            .arg(arguments.suite.name())
            .arg("--bin-dir")
            .arg(&bin_dir)
            .args(["--commit", commit.trim()])
            .args(prepared)
            .args(&arguments.arguments),
    )
}
