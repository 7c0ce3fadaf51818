//! NVIDIA GPUs: which there are, and every operator against plain Rust.

use anyhow::{Context as _, Result};
use gpt_oss_cuda::cuda::{Cuda, gpus};
use gpt_oss_cuda::ops::{OPERATORS, Size};
use serde_json::{Value, json};

use crate::report::Report;

const SEED: u64 = 1;

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
    let number = device.strip_prefix("cuda:").unwrap_or("0");
    let number: u32 = number.parse().with_context(|| format!("{device} has no number"))?;
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
