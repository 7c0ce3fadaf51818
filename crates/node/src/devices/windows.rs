//! Adapters of other vendors on Windows, from the registry: name, memory and driver of every display adapter in use.
//!
//! DXGI would tell the same through calls that are all unsafe, and not the driver's version.

use node_api::DeviceInfo;
use windows_registry::LOCAL_MACHINE;

use super::Detected;
use super::libraries::{SHADER_COMPILER, VULKAN_LOADER};

/// Made anew at each start of the system: holds only adapters that are there, one value for each of their outputs.
const ACTIVE: &str = "HARDWARE\\DEVICEMAP\\VIDEO";
const ROOT: &str = "\\REGISTRY\\MACHINE\\";

pub fn detect(detected: &mut Detected) {
    let values = match LOCAL_MACHINE.open(ACTIVE).and_then(|key| Ok(key.values()?.collect::<Vec<_>>())) {
        Ok(values) => values,
        Err(error) => return detected.notes.push(format!("display adapters cannot be listed: {error}")),
    };
    let has_vulkan = VULKAN_LOADER.find().is_some();
    let mut seen = Vec::new();
    for (_, value) in values {
        let Ok(path) = String::try_from(value) else { continue };
        // `\Registry\Machine\System\CurrentControlSet\Control\Video\{id}\0000`: outputs of one adapter share the id.
        let Some(head) = path.get(..ROOT.len()).filter(|head| head.eq_ignore_ascii_case(ROOT)) else {
            continue;
        };
        let path = &path[head.len()..];
        let adapter = path.rsplit_once('\\').map_or(path, |(adapter, _)| adapter).to_ascii_lowercase();
        if seen.contains(&adapter) {
            continue;
        }
        let Ok(key) = LOCAL_MACHINE.open(path) else { continue };
        let Ok(name) = key.get_string("DriverDesc") else { continue };
        // Mirrors and remote displays have a name and no memory. NVML has shown NVIDIA's.
        let Ok(memory_total) = key.get_u64("HardwareInformation.qwMemorySize") else { continue };
        seen.push(adapter);
        if name.contains("NVIDIA") {
            continue;
        }
        let provider = key.get_string("ProviderName").unwrap_or_default();
        let version = key.get_string("DriverVersion").unwrap_or_default();
        let driver = format!("{provider} {version}").trim().to_owned();
        let index = detected.gpus.iter().filter(|gpu| gpu.kind == "d3d12").count();
        let adapter = |kind: &str| DeviceInfo {
            id: format!("{kind}:{index}"),
            kind: kind.to_owned(),
            name: name.clone(),
            memory_total,
            driver: (!driver.is_empty()).then(|| driver.clone()),
        };
        if has_vulkan {
            detected.gpus.push(adapter("vulkan"));
        }
        detected.gpus.push(adapter("d3d12"));
    }
    if detected.gpus.iter().any(|gpu| gpu.kind == "d3d12") && SHADER_COMPILER.find().is_none() {
        let (file, published) = (SHADER_COMPILER.file, SHADER_COMPILER.published);
        let instead = if has_vulkan { "; Vulkan does not need it" } else { "" };
        detected.notes.push(format!(
            "Direct3D 12 has subgroups and f16 only with {file}, and it is not here; put it beside llm-router: {published}{instead}"
        ));
    }
}
