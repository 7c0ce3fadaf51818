//! llama.cpp at its best: `llama-bench` on GGUF files of the same numbers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::command;

/// A load of 13 GB from a cold disk and 4096 tokens at 15 a second.
const BENCH_LIMIT: Duration = Duration::from_secs(900);

pub struct Peer {
    bench: PathBuf,
    server: PathBuf,
}

/// What `llama-bench` is asked for: every length with every number of threads.
pub struct Bench {
    pub model: PathBuf,
    pub threads: Vec<u32>,
    pub prefill: Vec<u32>,
    /// Tokens of an answer; 0: none.
    pub decode: u32,
    pub repeat: u32,
}

/// A line of its results.
#[derive(Debug, Deserialize)]
pub struct Line {
    pub n_threads: u32,
    pub n_prompt: u32,
    /// Tokens a second, one for each time.
    pub samples_ts: Vec<f64>,
}

impl Bench {
    /// Measures nothing yet.
    pub fn new(model: PathBuf) -> Bench {
        Bench { model, threads: Vec::new(), prefill: Vec::new(), decode: 0, repeat: 1 }
    }
}

impl Peer {
    pub fn find(folder: &Path) -> Result<Peer> {
        let program = |name: &str| {
            let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
            ensure!(path.exists(), "{} is missing\nhint: `cargo xtask bench cpu` builds it", path.display());
            Ok(path)
        };
        Ok(Peer { bench: program("llama-bench")?, server: program("llama-server")? })
    }

    /// Its server's program, with the environment that is best for it.
    pub fn server(&self) -> Command {
        best(&self.server)
    }

    pub fn bench(&self, wanted: &Bench) -> Result<Vec<Line>> {
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = best(&self.bench);
        command.arg("-m").arg(&wanted.model).args(["-o", "jsonl", "-lm", "none"]);
        command.args(["-t", &list(&wanted.threads), "-r", &wanted.repeat.to_string()]);
        command.args(["-p", &if wanted.prefill.is_empty() { "0".to_owned() } else { list(&wanted.prefill) }]);
        command.args(["-n", &wanted.decode.to_string()]);
        if !wanted.prefill.is_empty() {
            // Its warm-up is the whole prompt once more.
            command.arg("--no-warmup");
        }
        let text = command::output(command, BENCH_LIMIT)?;
        let lines = text.lines().filter(|l| l.starts_with('{'));
        let lines: Vec<Line> =
            lines.map(serde_json::from_str).collect::<Result<_, _>>().context("llama-bench's results")?;
        ensure!(!lines.is_empty(), "llama-bench printed no result");
        Ok(lines)
    }
}

/// Without huge pages a quarter of the bandwidth is lost on some machines.
fn best(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    command
}
