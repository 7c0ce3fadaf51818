//! NVIDIA GPUs: which there are, every operator against plain Rust, and how fast kernels are.

use anyhow::{Context as _, Result};
use gpt_oss_cuda::Device;
use gpt_oss_cuda::cuda::{Cuda, gpus};
use gpt_oss_cuda::ops::{OPERATORS, Size};
use gpt_oss_cuda::roofline::{Row, roofline};
use serde_json::{Value, json};

use crate::report::Report;

const SEED: u64 = 1;
/// Tokens of the kernels' rows: one alone, and a prompt.
const TOKENS: [usize; 2] = [1, 512];

pub fn list(report: &mut Report) {
    // No driver, no GPU of this kind: that is most machines.
    for gpu in gpus().unwrap_or_default() {
        let (major, minor) = gpu.capability;
        let usable = gpu.has_kernels();
        let verdict = if usable { "usable" } else { "this build has no kernels for it" };
        report.adapter(&json!({
            "id": format!("cuda:{}", gpu.number), "name": gpu.name, "driver": "CUDA", "verdict": verdict,
            "usable": usable, "software": false,
            "limits": { "capability": format!("{major}.{minor}"), "memory_bytes": gpu.memory_total,
                        "processors": gpu.processors },
        }));
    }
}

pub fn kernels(device: &str, report: &mut Report) -> Result<()> {
    let number = number(device)?;
    for operator in OPERATORS {
        report.check(&format!("kernel {}", operator.name), || {
            for size in Size::ALL {
                // A device of its own: its memory is free again afterwards, and a failed one spoils no other.
                let device = Cuda::open(number, None).map_err(|error| error.to_string())?;
                (operator.check)(&device, size, SEED).map_err(|error| format!("{size:?}: {error}"))?;
            }
            Ok((format!("{} sizes as plain Rust computes them", Size::ALL.len()), Value::Null))
        });
    }
    Ok(())
}

fn number(device: &str) -> Result<u32> {
    let number = device.strip_prefix("cuda:").unwrap_or("0");
    number.parse().with_context(|| format!("{device} has no number"))
}

pub fn speed(device: &str, report: &mut Report) -> Result<()> {
    let number = number(device)?;
    report.check("speed", || {
        let mut rows: Vec<Row> = Vec::new();
        let open = || Ok(Box::new(Cuda::open(number, None)?) as Box<dyn Device>);
        roofline::<anyhow::Error>(&TOKENS, open, |row| rows.push(row))
            .map_err(|error| format!("{error:#}"))?;
        Ok(told(&rows))
    });
    Ok(())
}

/// In words and figures.
fn told(rows: &[Row]) -> (String, Value) {
    let most =
        |of: fn(&Row) -> f64| rows.iter().filter(|row| row.operator == "peak").map(of).fold(0.0, f64::max);
    let (gigabytes, teraflops) = (most(|r| r.bytes_a_second) / 1e9, most(|r| r.operations_a_second) / 1e12);
    // Of the limit that binds a kernel: bandwidth or multiplications, whichever it comes nearer to.
    let share = |row: &Row| row.share_of_bandwidth.into_iter().chain(row.share_of_peak).fold(0.0, f64::max);
    let kernels: Vec<Value> = rows
        .iter()
        .filter(|row| row.operator != "peak")
        .map(|row| {
            json!({ "kernel": row.operator, "tokens": row.tokens, "microseconds": row.seconds * 1e6,
                    "gigabytes_a_second": row.bytes_a_second / 1e9,
                    "gigaflops": row.operations_a_second / 1e9, "share": share(row) })
        })
        .collect();
    let found = format!("reads {gigabytes:.0} GB/s, {teraflops:.0} TFLOP/s by its matrix units");
    let figures =
        json!({ "read_gigabytes_a_second": gigabytes, "gigaflops": teraflops * 1e3, "kernels": kernels });
    (found, figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_rows_and_shares_those_of_the_limit_that_binds() {
        let row = |operator, tokens, bytes_a_second: f64, operations_a_second: f64, peak: Option<f64>| Row {
            operator,
            tokens,
            seconds: 1e-3,
            bytes_a_second,
            operations_a_second,
            share_of_bandwidth: Some(bytes_a_second / 4e12),
            share_of_peak: peak,
        };
        let rows = [
            row("peak", 1, 4e12, 0.0, None),
            row("linear_gemv", 1, 3e12, 3e12, None),
            row("peak", 512, 0.0, 8e14, Some(1.0)),
            row("linear_mma", 512, 4e11, 4e14, Some(0.5)),
        ];
        let (found, figures) = told(&rows);
        assert_eq!(found, "reads 4000 GB/s, 800 TFLOP/s by its matrix units");
        let kernels = figures["kernels"].as_array().expect("rows");
        let shares: Vec<_> = kernels.iter().map(|k| (k["kernel"].as_str(), k["share"].as_f64())).collect();
        assert_eq!(shares, [(Some("linear_gemv"), Some(0.75)), (Some("linear_mma"), Some(0.5))]);
    }
}
