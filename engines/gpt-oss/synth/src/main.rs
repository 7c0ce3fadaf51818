//! `gpt-oss-synth --shape 20b --out DIR`: writes a checkpoint of random weights.

#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gpt_oss_synth::{Plan, Shape, write_checkpoint};

/// How often a line of progress is written.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// Write a gpt-oss checkpoint of random weights in the exact published form.
#[derive(Debug, Parser)]
struct Arguments {
    /// Size of the model.
    #[arg(long)]
    shape: Shape,
    /// The same seed writes the same bytes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder to write into; made if it is not there.
    #[arg(long)]
    out: PathBuf,
}

fn main() -> ExitCode {
    let Arguments { shape, seed, out } = Arguments::parse();
    let start = Instant::now();
    let mut reported = start;
    let result = write_checkpoint(shape, seed, &out, |done, total| {
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            say(&format!("{:.1} of {:.1} GB", done as f64 / 1e9, total as f64 / 1e9));
        }
    });
    match result {
        Ok(()) => {
            let bytes = Plan::new(shape).file_bytes();
            let seconds = start.elapsed().as_secs_f64();
            say(&format!("{}: {:.2} GB in {seconds:.1} s", out.display(), bytes as f64 / 1e9));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let source = std::error::Error::source(&error).map_or(String::new(), |s| format!(": {s}"));
            say(&format!("{error}{source}"));
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    // Nobody listening is no reason to stop writing the checkpoint.
    let _ = writeln!(std::io::stderr(), "gpt-oss-synth: {line}");
}
