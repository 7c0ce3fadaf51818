//! What one process of ours measured, and tells the one that started it.

use serde::{Deserialize, Serialize};

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    pub load_s: f64,
    /// Of the prompt `first`, after the load.
    pub first_token_s: Option<f64>,
    /// Of each length, tokens a second, one for each time.
    pub prefill: Vec<(u32, Vec<f64>)>,
    /// Tokens a second.
    pub decode: Vec<f64>,
    /// Anonymous resident memory at the end, a short KV included.
    pub private_mib: Option<f64>,
}

/// Anonymous resident memory of a process in MiB, where the system tells.
pub fn private_mib(process: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}
