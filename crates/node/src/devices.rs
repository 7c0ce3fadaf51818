//! Which devices this machine has, and which of them the node serves with.

pub mod libraries;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
mod nvidia;
mod simulated;
#[cfg(windows)]
mod windows;

use node_api::{DeviceInfo, DeviceMemory};

pub use simulated::SimulatedDevices;

use crate::{DeviceChoice, NodeError};

/// Microsoft's interface for models compiled elsewhere; recognised, and not served with.
pub const DIRECTML: &str = "directml";
/// Kinds under which a software adapter may be.
const SOFTWARE_KINDS: [&str; 2] = ["vulkan", "d3d12"];
/// The order in which kinds of devices are offered; those that are not named come last.
const KIND_ORDER: [&str; 4] = ["cuda", "metal", "vulkan", "d3d12"];

/// The devices of this machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detected {
    /// GPUs in the order of their ids; the CPU is not among them.
    pub gpus: Vec<DeviceInfo>,
    /// What could not be looked at, and why: for people.
    pub notes: Vec<String>,
}

impl Detected {
    /// Adds devices that are not there, and says so.
    pub fn simulate(&mut self, simulated: &SimulatedDevices) {
        let devices = simulated.devices();
        if !devices.is_empty() {
            let ids: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
            self.notes.push(format!("{} are simulated: this node is for tests", ids.join(", ")));
        }
        self.gpus.extend(devices);
    }
}

/// Looks at what there is. A missing driver is a note, never an error. May take a second; call it off the event loop.
pub fn detect() -> Detected {
    let mut detected = Detected::default();
    nvidia::detect(&mut detected);
    #[cfg(target_os = "linux")]
    linux::detect(&mut detected, std::path::Path::new("/"));
    #[cfg(target_os = "macos")]
    macos::detect(&mut detected);
    #[cfg(windows)]
    windows::detect(&mut detected);
    detected.gpus.sort_by_key(|gpu| place_of(&gpu.kind));
    detected
}

fn place_of(kind: &str) -> usize {
    KIND_ORDER.iter().position(|known| *known == kind).unwrap_or(KIND_ORDER.len())
}

/// What Vulkan shows Direct3D 12 shows again: the first goes before.
fn once_each(gpus: &[DeviceInfo]) -> Vec<DeviceInfo> {
    let has_vulkan = gpus.iter().any(|gpu| gpu.kind == "vulkan");
    gpus.iter().filter(|gpu| !has_vulkan || gpu.kind != "d3d12").cloned().collect()
}

/// Whether it is an adapter that computes on the processor: it has an adapter's id, and counts as the CPU.
pub fn is_software(id: &str, kind: &str) -> bool {
    kind == "cpu" && id != "cpu"
}

/// A software adapter, which only the engine sees: what it takes is the machine's memory.
fn software(id: String) -> DeviceInfo {
    DeviceInfo { name: format!("software adapter on {}", cpu().name), id, ..cpu() }
}

/// The CPU as a device: its memory is the machine's.
pub fn cpu() -> DeviceInfo {
    let (mut brand, mut memory_total) = (None, 0);
    // A system that tells nothing of itself still has a CPU.
    if let Ok(mut system) = sysinfo::System::new() {
        system.refresh_memory();
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        brand =
            system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).filter(|name| !name.is_empty());
        memory_total = crate::memory::ram_total(&system);
    }
    DeviceInfo {
        id: "cpu".to_owned(),
        kind: "cpu".to_owned(),
        name: brand.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        memory_total,
        driver: None,
    }
}

/// What is in use on each GPU now, where the driver tells.
pub(crate) fn memory(devices: &[DeviceInfo]) -> Vec<DeviceMemory> {
    devices
        .iter()
        .filter_map(|device| {
            let used = match device.kind.as_str() {
                "cuda" => nvidia::memory_used(device)?,
                #[cfg(target_os = "linux")]
                "vulkan" => linux::memory_used(device, std::path::Path::new("/"))?,
                _ => return None,
            };
            Some(DeviceMemory { device: device.id.clone(), total: device.memory_total, used, reserved: 0 })
        })
        .collect()
}

/// What each process takes of each GPU, where the driver tells: process id, device, bytes.
pub(crate) fn memory_of_processes(devices: &[DeviceInfo]) -> Vec<(u32, String, u64)> {
    let cuda = devices.iter().filter(|device| device.kind == "cuda");
    cuda.flat_map(|device| {
        let used = nvidia::memory_of_processes(device);
        used.into_iter().map(|(pid, bytes)| (pid, device.id.clone(), bytes))
    })
    .collect()
}

/// The devices that were asked for. A device named and not there is an error that lists what there is; with
/// `allow_software` it is taken for a software adapter where it can be one.
pub fn select(
    choice: &DeviceChoice,
    detected: &Detected,
    allow_software: bool,
) -> Result<Vec<DeviceInfo>, NodeError> {
    let DeviceChoice::Only(ids) = choice else { return Ok(once_each(&detected.gpus)) };
    let mut selected: Vec<DeviceInfo> = Vec::with_capacity(ids.len());
    for id in ids {
        let device = match id.as_str() {
            "cpu" => Some(cpu()),
            id => {
                let whole = if id.contains(':') { id.to_owned() } else { format!("{id}:0") };
                let kind = whole.split(':').next().unwrap_or_default();
                if kind == DIRECTML {
                    let runtime = libraries::DIRECTML_RUNTIME.find();
                    let refusal = libraries::directml_refusal(runtime.as_deref());
                    return Err(NodeError::DirectMl { refusal });
                }
                let may_be_software = allow_software && SOFTWARE_KINDS.contains(&kind);
                let hardware = detected.gpus.iter().find(|gpu| gpu.id == whole).cloned();
                hardware.or_else(|| may_be_software.then(|| software(whole)))
            }
        };
        let found = || {
            let mut names: Vec<_> = detected.gpus.iter().map(|gpu| gpu.id.as_str()).collect();
            names.push("cpu");
            names.join(", ")
        };
        let device = device.ok_or_else(|| NodeError::Device { asked: id.clone(), found: found() })?;
        if selected.iter().all(|known| known.id != device.id) {
            selected.push(device);
        }
    }
    Ok(selected)
}

#[cfg(test)]
mod tests;
