//! NVIDIA GPUs through NVML, which comes with the driver and is looked for at run time.

use std::sync::OnceLock;

use node_api::DeviceInfo;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use super::Detected;

/// Opened once: initialisation takes a tenth of a second, and memory is asked for once a second.
fn nvml() -> Result<&'static Nvml, &'static NvmlError> {
    static NVML: OnceLock<Result<Nvml, NvmlError>> = OnceLock::new();
    NVML.get_or_init(Nvml::init).as_ref()
}

pub fn detect(detected: &mut Detected) {
    // Apple sells no machine with one, and has no driver for it.
    if cfg!(target_os = "macos") {
        return;
    }
    let nvml = match nvml() {
        Ok(nvml) => nvml,
        Err(error) => {
            detected.notes.push(match error {
                NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
                    "no NVIDIA driver found (its library NVML is not installed)".to_owned()
                }
                other => format!("the NVIDIA driver cannot be used: {other}"),
            });
            return;
        }
    };
    let driver = nvml.sys_driver_version().ok().map(|version| format!("NVIDIA {version}"));
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => return detected.notes.push(format!("NVIDIA GPUs cannot be counted: {error}")),
    };
    for index in 0..count {
        let device = nvml.device_by_index(index).and_then(|gpu| Ok((gpu.name()?, gpu.memory_info()?.total)));
        match device {
            Ok((name, memory_total)) => detected.gpus.push(DeviceInfo {
                id: format!("cuda:{index}"),
                kind: "cuda".to_owned(),
                name,
                memory_total,
                driver: driver.clone(),
            }),
            Err(error) => detected.notes.push(format!("NVIDIA GPU {index} cannot be used: {error}")),
        }
    }
}

/// Bytes that nobody can have: those in use, and what the driver keeps for itself, which `used` leaves out and the total does not.
pub fn memory_used(device: &DeviceInfo) -> Option<u64> {
    let index = device.id.strip_prefix("cuda:")?.parse().ok()?;
    let memory = nvml().ok()?.device_by_index(index).ok()?.memory_info().ok()?;
    Some(memory.total.saturating_sub(memory.free))
}

/// Process id and bytes in use of every process with a context on it. Nothing where the driver does not count by process:
/// Windows' display driver model, and containers that see other process ids than the driver.
pub fn memory_of_processes(device: &DeviceInfo) -> Vec<(u32, u64)> {
    let index = device.id.strip_prefix("cuda:").and_then(|index| index.parse().ok());
    let Some((index, nvml)) = index.zip(nvml().ok()) else { return Vec::new() };
    let Ok(processes) = nvml.device_by_index(index).and_then(|gpu| gpu.running_compute_processes()) else {
        return Vec::new();
    };
    let used = processes.into_iter().map(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
        UsedGpuMemory::Unavailable => None,
    });
    used.flatten().collect()
}
