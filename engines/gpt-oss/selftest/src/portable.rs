//! Metal, Vulkan and Direct3D 12: which adapters there are, every operator against plain Rust, and how fast kernels are.

use anyhow::Result;
use gpt_oss_wgpu::measure::measure;
use gpt_oss_wgpu::ops::{OPERATORS, Size};
use gpt_oss_wgpu::shaders::Shape;
use gpt_oss_wgpu::{Adapter, Gpu, Verdict};
use serde_json::{Value, json};

use crate::report::Report;

/// Of the published models and of the demo model.
const SHAPES: [Shape; 2] = [Shape { head_dim: 64, group: 8 }, Shape { head_dim: 64, group: 2 }];
const SEED: u64 = 0x5eed;

pub fn list(report: &mut Report) {
    for adapter in Adapter::all() {
        let mut limits = json!({
            "buffer_bytes": adapter.buffer_max, "binding_bytes": adapter.binding_max,
            "subgroup": [adapter.subgroup.0, adapter.subgroup.1], "f16": adapter.has_f16,
            "kernels": adapter.form.as_str(),
        });
        if let Some(bytes) = adapter.memory_max {
            limits["recommended_bytes"] = bytes.into();
        }
        report.adapter(&json!({
            "id": adapter.id, "name": adapter.name, "driver": adapter.driver,
            "verdict": adapter.verdict.to_string(), "usable": adapter.verdict == Verdict::Usable,
            "software": adapter.verdict == Verdict::Software,
            "limits": limits,
        }));
    }
}

/// Whether the adapter is software.
pub fn kernels(device: &str, report: &mut Report) -> Result<bool> {
    let adapter = Adapter::find(device, true)?;
    for operator in OPERATORS {
        report.check(&format!("kernel {}", operator.name), || {
            for shape in SHAPES {
                let mut gpu = Gpu::open(adapter.clone(), shape).map_err(|error| error.to_string())?;
                for size in Size::ALL {
                    (operator.check)(&mut gpu, size, SEED)
                        .map_err(|error| format!("{size:?}, {shape:?}: {error}"))?;
                }
            }
            Ok((format!("{} sizes as plain Rust computes them", Size::ALL.len() * SHAPES.len()), Value::Null))
        });
    }
    Ok(adapter.verdict == Verdict::Software)
}

pub fn speed(device: &str, report: &mut Report) -> Result<()> {
    let adapter = Adapter::find(device, true)?;
    report.check("speed", || {
        let measured = measure(&adapter).map_err(|error| error.to_string())?;
        let rows: Vec<Value> = measured
            .rows
            .iter()
            .map(|row| {
                json!({ "kernel": row.name, "tokens": row.tokens, "microseconds": row.seconds * 1e6,
                        "gigabytes_a_second": row.gigabytes_a_second(), "gigaflops": row.gigaflops(),
                        "share": measured.share(row) })
            })
            .collect();
        let token = measured.token;
        let figures = json!({
            "read_gigabytes_a_second": measured.gigabytes_a_second, "gigaflops": measured.gigaflops,
            "dispatches_a_token": token.dispatches, "encode_microseconds": token.encode_seconds() * 1e6,
            "submit_microseconds": token.submitting_seconds * 1e6,
            "bytes_a_token": token.bytes, "bytes_a_token_min": token.bytes_min,
            "kernels": rows,
        });
        let found = format!(
            "reads {:.1} GB/s, {:.0} GFLOP/s; {} launches a token of 24 layers, {:.0} µs to encode",
            measured.gigabytes_a_second,
            measured.gigaflops,
            token.dispatches,
            token.encode_seconds() * 1e6
        );
        Ok((found, figures))
    });
    Ok(())
}
