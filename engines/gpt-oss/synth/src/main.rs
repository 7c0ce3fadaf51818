//! `gpt-oss-synth --shape 20b --out DIR`: writes a checkpoint of random weights.

#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gpt_oss_synth::{Dense, Shape, convert_gguf, convert_metal, write_checkpoint, write_gguf};

/// How often a line of progress is written.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// Write a gpt-oss checkpoint of random weights in the exact published form, or as the file a peer reads.
#[derive(Debug, Parser)]
struct Arguments {
    /// Size of the model.
    #[arg(long, required_unless_present = "from")]
    shape: Option<Shape>,
    /// Convert the checkpoint in this folder, a small one, instead of making one up.
    #[arg(long, requires = "form", conflicts_with_all = ["shape", "seed"])]
    from: Option<PathBuf>,
    /// The same seed writes the same bytes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder to write into, made if it is not there; with --gguf or --metal-bin the file.
    #[arg(long)]
    out: PathBuf,
    /// Write the same weights as one GGUF file, everything but the experts in this form.
    #[arg(long, group = "form")]
    gguf: Option<Dense>,
    /// Write the same weights as the `model.bin` that Apple's GPUs are given.
    #[arg(long, group = "form", requires = "from")]
    metal_bin: bool,
}

fn main() -> ExitCode {
    let Arguments { shape, from, seed, out, gguf, metal_bin } = Arguments::parse();
    let start = Instant::now();
    let mut reported = start;
    let mut bytes = 0;
    let progress = |done: u64, total: u64| {
        bytes = total;
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            say(&format!("{:.1} of {:.1} GB", done as f64 / 1e9, total as f64 / 1e9));
        }
    };
    let result = match (shape, from, gguf) {
        (Some(shape), _, None) => write_checkpoint(shape, seed, &out, progress),
        (Some(shape), _, Some(dense)) => write_gguf(shape, seed, dense, &out, progress),
        (None, Some(from), Some(dense)) => convert_gguf(&from, dense, &out, progress),
        (None, Some(from), None) if metal_bin => convert_metal(&from, &out).map(|written| bytes = written),
        (None, ..) => unreachable!("the arguments require a shape, or a folder and a form"),
    };
    match result {
        Ok(()) => {
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
