//! Our engine in a process of its own, so that the next one finds all memory free: see `bin/bench-cpu-turn.rs`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::command;
use super::found::Found;

/// Options of the 8-bit form.
pub const EIGHT_BITS: &str = r#"{"dense_weights":"int8"}"#;
/// Options with activations in bf16 where many are multiplied, and in f32 where one is; and the end of such a row's name.
pub const ROUNDED: &str = r#"{"activations":"bf16"}"#;
pub const ROUNDED_SUFFIX: &str = "-activations-bf16";
/// Beside this program. Two engines cannot be linked into one: both have the plugin's symbol.
const PROGRAM: &str = "bench-cpu-turn";
/// A load from a cold disk and a long prompt on a slow machine.
const TURN_LIMIT: Duration = Duration::from_secs(600);

/// What a process is asked for; its own help says more.
#[derive(Clone)]
pub struct Turn {
    pub checkpoint: PathBuf,
    pub threads: u32,
    pub options: String,
    pub first: Option<u32>,
    pub prefill: Vec<u32>,
    pub decode: u32,
    pub repeat: u32,
}

impl Turn {
    /// Measures nothing yet.
    pub fn new(checkpoint: PathBuf, threads: u32) -> Turn {
        let (first, prefill, options) = (None, Vec::new(), String::new());
        Turn { checkpoint, threads, options, first, prefill, decode: 0, repeat: 1 }
    }

    pub fn run(&self) -> Result<Found> {
        let own = std::env::current_exe().context("this program's own file")?;
        let mut command =
            Command::new(own.with_file_name(format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX)));
        command.arg("--checkpoint").arg(&self.checkpoint);
        command.args(["--threads", &self.threads.to_string(), "--decode", &self.decode.to_string()]);
        command.args(["--repeat", &self.repeat.to_string(), "--options", &self.options]);
        if let Some(first) = self.first {
            command.args(["--first", &first.to_string()]);
        }
        if !self.prefill.is_empty() {
            let lengths: Vec<String> = self.prefill.iter().map(u32::to_string).collect();
            command.args(["--prefill", &lengths.join(",")]);
        }
        let line = command::output(command, TURN_LIMIT)?;
        serde_json::from_str(&line).context("the turn printed no result")
    }
}
