//! Adapters of other vendors on Linux, as the kernel shows them under `/sys/class/drm`.

use std::fs;
use std::path::{Path, PathBuf};

use node_api::DeviceInfo;

use super::Detected;

const NVIDIA: &str = "0x10de";
/// Adapters looked at, at most.
const CARDS_MAX: usize = 64;

/// `root` is `/` but in tests.
pub fn detect(detected: &mut Detected, root: &Path) {
    for (index, card) in cards(root).into_iter().enumerate() {
        let attribute = |name: &str| read(&card.join(name));
        let vendor = attribute("vendor").unwrap_or_default();
        let driver = fs::read_link(card.join("driver")).ok();
        let driver = driver.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        let maker = match vendor.as_str() {
            "0x1002" => "AMD",
            "0x8086" => "Intel",
            "0x1af4" => "virtio",
            _ => "PCI",
        };
        let model = attribute("product_name").unwrap_or_else(|| {
            format!("{vendor}:{}", attribute("device").unwrap_or_else(|| "unknown".to_owned()))
        });
        let memory = attribute("mem_info_vram_total").and_then(|bytes| bytes.parse().ok());
        let version =
            driver.as_ref().map(|driver| match read(&root.join("sys/module").join(driver).join("version")) {
                Some(version) => format!("{driver} {version}"),
                None => driver.clone(),
            });
        let device = DeviceInfo {
            id: format!("vulkan:{index}"),
            kind: "vulkan".to_owned(),
            name: format!("{maker} {model}"),
            memory_total: memory.unwrap_or(0),
            driver: version,
        };
        if device.driver.is_none() {
            detected.notes.push(format!("{} has no driver", device.name));
            continue;
        }
        detected.gpus.push(device);
    }
}

/// Bytes in use, where the driver counts them (amdgpu).
pub fn memory_used(device: &DeviceInfo, root: &Path) -> Option<u64> {
    let index: usize = device.id.strip_prefix("vulkan:")?.parse().ok()?;
    read(&cards(root).get(index)?.join("mem_info_vram_used"))?.parse().ok()
}

/// The PCI folders of adapters that NVML does not show, by card number. Connectors (`card0-DP-1`) and devices that are no
/// GPU (no vendor: simple framebuffers) are left out.
fn cards(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join("sys/class/drm")) else { return Vec::new() };
    let mut cards: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("card")?.parse().ok()?;
            let folder = entry.path().join("device");
            let vendor = read(&folder.join("vendor"))?;
            (vendor != NVIDIA).then_some((number, folder))
        })
        .take(CARDS_MAX)
        .collect();
    cards.sort();
    cards.into_iter().map(|(_, folder)| folder).collect()
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
