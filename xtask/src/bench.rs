//! `cargo xtask bench`: builds everything optimized and runs a suite of benchmarks, whose rows go to `bench/results`.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::build::{self, binary_name};
use crate::shell;

#[derive(Args)]
pub struct BenchArguments {
    suite: Suite,
    /// For the suite itself; `cargo xtask bench host -- --help` lists them
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
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
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Suite::Host => "host",
            Suite::Router => "router",
            Suite::Path => "path",
            Suite::Limits => "limits",
            Suite::Kernels => "kernels",
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
    let commit = shell::output(shell::command("git").args(["rev-parse", "--short", "HEAD"]))?;
    shell::run(
        shell::command(bin_dir.join(binary_name("bench")))
            .arg(arguments.suite.name())
            .arg("--bin-dir")
            .arg(&bin_dir)
            .args(["--commit", commit.trim()])
            .args(&arguments.arguments),
    )
}
