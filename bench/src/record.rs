//! Rows of results: shown as a table, kept as lines of JSON.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};
use serde::Serialize;
use time::OffsetDateTime;

use crate::Common;

/// What was measured. A row keeps its name for ever.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub row: String,
    pub unit: &'static str,
    pub ours: f64,
    /// From the same run.
    pub peer: Option<f64>,
    pub peer_name: Option<&'static str>,
    /// What could be reached at best, from the same run.
    pub limit: Option<f64>,
    /// Rounds of which the figures are the medians.
    pub n: u32,
}

impl Row {
    pub fn new(row: impl Into<String>, unit: &'static str, ours: f64, n: u32) -> Row {
        Row { row: row.into(), unit, ours, peer: None, peer_name: None, limit: None, n }
    }

    pub fn peer(self, name: &'static str, peer: Option<f64>) -> Row {
        Row { peer, peer_name: peer.map(|_| name), ..self }
    }

    pub fn limit(self, limit: f64) -> Row {
        Row { limit: Some(limit), ..self }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    date: String,
    commit: &'a str,
    row: &'a str,
    unit: &'a str,
    ours: f64,
    peer: Option<f64>,
    peer_name: Option<&'a str>,
    limit: Option<f64>,
    n: u32,
}

/// Three decimals: below that is noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Appends the rows to `<kind>-<machine>.jsonl` and says where that is.
pub fn append(rows: &[Row], kind: &str, common: &Common) -> Result<PathBuf> {
    let machine = common.machine.clone().unwrap_or_else(machine);
    let path = common.results.join(format!("{kind}-{machine}.jsonl"));
    std::fs::create_dir_all(&common.results)
        .with_context(|| format!("cannot create {}", common.results.display()))?;
    let today = OffsetDateTime::now_utc().date();
    let mut text = String::new();
    for row in rows {
        let line = Line {
            date: today.to_string(),
            commit: &common.commit,
            row: &row.row,
            unit: row.unit,
            ours: rounded(row.ours),
            peer: row.peer.map(rounded),
            peer_name: row.peer_name,
            limit: row.limit.map(rounded),
            n: row.n,
        };
        text.push_str(&serde_json::to_string(&line)?);
        text.push('\n');
    }
    // In one write: a run that is cut leaves no half of a table.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot append to {}", path.display()))?;
    Ok(path)
}

pub fn table(rows: &[Row]) -> Table {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["ROW", "UNIT", "OURS", "PEER", "PEER IS", "LIMIT", "N"]);
    for row in rows {
        table.add_row([
            row.row.clone(),
            row.unit.to_owned(),
            number(Some(row.ours)),
            number(row.peer),
            row.peer_name.unwrap_or("-").to_owned(),
            number(row.limit),
            row.n.to_string(),
        ]);
    }
    table
}

/// `epyc-2core`: the processor's family, and the cores there are.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Not those this thread is pinned to by now.
    let cores = match text.lines().filter(|line| line.starts_with("processor")).count() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    };
    format!("{}-{cores}core", family(&text))
}

fn family(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let name = name.to_ascii_lowercase();
    let known = ["epyc", "xeon", "ryzen", "core", "neoverse"];
    known
        .iter()
        .find(|k| name.contains(**k))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |k| (*k).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_named_for_their_processor() {
        assert_eq!(family("model name\t: AMD EPYC\n"), "epyc");
        assert_eq!(family("model name\t: Intel(R) Xeon(R) Platinum\n"), "xeon");
        assert_eq!(family("nothing known"), std::env::consts::ARCH);
    }

    #[test]
    fn rows_become_lines_with_every_field() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let common = Common {
            bin_dir: PathBuf::new(),
            results: folder.path().to_owned(),
            machine: Some("test-1core".to_owned()),
            commit: "abc1234".to_owned(),
            no_record: false,
            rounds: Some(3),
        };
        let row = Row::new("router-rps", "1/s", 12.345_678, 3).peer("nginx", Some(20.0)).limit(30.0);
        append(std::slice::from_ref(&row), "host", &common).expect("a writable folder");
        let path =
            append(&[Row::new("alone", "us", 1.0, 3).peer("nginx", None)], "host", &common).expect("again");
        let text = std::fs::read_to_string(path).expect("the file");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["ours"], 12.346);
        assert_eq!((lines[0]["peer_name"].as_str(), lines[0]["limit"].as_f64()), (Some("nginx"), Some(30.0)));
        assert!(lines[1]["peer"].is_null() && lines[1]["peer_name"].is_null() && lines[1]["limit"].is_null());
    }
}
