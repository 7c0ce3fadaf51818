//! `cargo xtask gpu-rows`: what the steps of a bundle have measured, as rows of `bench/results/gpu-CARD.jsonl`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::shell;

/// In a bundle and its results: the commit that it was made from.
pub const COMMIT: &str = "commit.txt";
const STEPS: [&str; 3] = ["20b", "serve", "roofline"];

#[derive(Args)]
pub struct RowsArguments {
    /// The folder `results` of the bundle, as it came back
    results: PathBuf,
    /// Name of the card in the file's name [default: of the first GPU that the step `smoke` saw]
    #[arg(long)]
    card: Option<String>,
}

pub fn run(arguments: &RowsArguments) -> Result<()> {
    let folder = &arguments.results;
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    let commit = read(COMMIT).with_context(|| format!("{} has no {COMMIT}", folder.display()))?;
    let card = match &arguments.card {
        Some(card) => card.clone(),
        None => card(&read("smoke.jsonl").unwrap_or_default())
            .context("no GPU is named in smoke.jsonl\nhint: run the step smoke, or give --card")?,
    };
    let mut rows = Vec::new();
    for step in STEPS {
        // A step that was not run has no file.
        rows.extend(rows_of(&read(&format!("{step}.jsonl")).unwrap_or_default(), commit.trim())?);
    }
    if rows.is_empty() {
        bail!("{} has no figures of the steps {}", folder.display(), STEPS.join(", "));
    }
    let path = shell::root().join("bench/results").join(format!("gpu-{}.jsonl", file_name(&card)));
    append(&path, &rows)?;
    eprintln!("  {} rows added to {}", rows.len(), path.display());
    Ok(())
}

fn append(path: &Path, rows: &[Value]) -> Result<()> {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot append to {}", path.display()))
}

/// Lines of JSON; what a step printed besides is passed over.
fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

fn card(smoke: &str) -> Option<String> {
    let gpu = lines(smoke).find(|line| line["what"] == "gpu")?;
    Some(gpu["name"].as_str()?.to_owned())
}

/// `NVIDIA H200` is `nvidia-h200`.
fn file_name(card: &str) -> String {
    let letters = card.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    letters.collect()
}

/// The figures of a step. A row keeps its name for ever.
fn rows_of(text: &str, commit: &str) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    let mut date = String::new();
    for line in lines(text) {
        if let Some(of_run) = line["date"].as_str() {
            of_run.clone_into(&mut date);
        }
        if line["ok"] == false {
            continue;
        }
        let number = |name: &str| {
            line[name].as_f64().with_context(|| format!("a row {} without {name}: {line}", line["what"]))
        };
        let mut row = |name: String, unit: &str, ours: f64, limit: Option<f64>| {
            rows.push(json!({ "date": date, "commit": commit, "row": name, "unit": unit, "ours": ours,
                "peer": null, "peer_name": null, "limit": limit, "n": 1 }));
        };
        match line["what"].as_str().unwrap_or_default() {
            "load" => {
                row("20b-load".into(), "s", number("seconds")?, None);
                row("20b-load-rate".into(), "GB/s", number("gb_a_second")?, None);
                row("20b-estimate-over-used".into(), "1", number("estimate_over_used")?, None);
                // Some drivers do not tell.
                if let Some(bytes) = line["driver_bytes"].as_f64() {
                    row("20b-driver-bytes".into(), "B", bytes, None);
                }
            }
            "decode" => {
                let name = format!("20b-decode-batch-{}-context-{}", number("batch")?, number("context")?);
                row(name, "tok/s", number("tokens_a_second")?, None);
            }
            "prefill" => {
                let name = format!("20b-prefill-{}", number("tokens")?);
                row(name, "tok/s", number("tokens_a_second")?, None);
            }
            "kernel" => {
                let name =
                    format!("kernel-{}-{}", line["operator"].as_str().unwrap_or_default(), number("tokens")?);
                let rate = number("gb_a_second")?;
                let limit = line["share_of_bandwidth"].as_f64().map(|share| rate / share);
                row(name.clone(), "GB/s", rate, limit);
                let rate = number("tflop_a_second")?;
                let limit = line["share_of_peak"].as_f64().map(|share| rate / share);
                if rate > 0.0 {
                    row(format!("{name}-operations"), "Tflop/s", rate, limit);
                }
            }
            "serve" => {
                let name = format!("serve-{}-streams", number("streams")?);
                let rate = line["cases"][0]["tokens_per_second"].as_f64();
                row(name, "tok/s", rate.context("a case without tokens_per_second")?, None);
            }
            _ => {}
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_step_become_rows_and_failures_do_not() {
        let text = r#"
            {"what":"run","ok":true,"date":"2026-11-22"}
            {"what":"decode","ok":true,"batch":8,"context":256,"milliseconds":2.0,"tokens_a_second":4000.0}
            {"what":"decode","ok":false,"batch":9,"context":256,"tokens_a_second":1.0}
            not JSON
            {"what":"kernel","ok":true,"operator":"embed","tokens":1,"gb_a_second":2.0,"share_of_bandwidth":0.5,"tflop_a_second":0.0}
            {"what":"serve","ok":true,"streams":4,"cases":[{"tokens_per_second":99.5}]}
        "#;
        let rows = rows_of(text, "abc").expect("they are whole");
        let of = |row: &Value| {
            (row["row"].as_str().map(str::to_owned), row["ours"].as_f64(), row["limit"].as_f64())
        };
        let want = [
            (Some("20b-decode-batch-8-context-256".to_owned()), Some(4000.0), None),
            (Some("kernel-embed-1".to_owned()), Some(2.0), Some(4.0)),
            (Some("serve-4-streams".to_owned()), Some(99.5), None),
        ];
        assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), want);
        assert!(rows.iter().all(|row| row["date"] == "2026-11-22" && row["commit"] == "abc"));
    }

    #[test]
    fn a_row_without_its_figure_is_refused_and_a_card_is_named() {
        assert!(rows_of(r#"{"what":"prefill","ok":true,"tokens":512}"#, "abc").is_err());
        let smoke = "{\"what\":\"build\"}\n{\"what\":\"gpu\",\"name\":\"NVIDIA H200\"}";
        assert_eq!(card(smoke).map(|card| file_name(&card)), Some("nvidia-h200".to_owned()));
        assert_eq!(card(""), None);
    }
}
