//! Apple's GPUs through Metal.

use node_api::DeviceInfo;
use objc2_metal::{MTLCopyAllDevices, MTLDevice};

use super::Detected;

pub fn detect(detected: &mut Detected) {
    let driver = sysinfo::System::os_version().ok().map(|version| format!("Metal of macOS {version}"));
    for (index, device) in MTLCopyAllDevices().iter().enumerate() {
        detected.gpus.push(DeviceInfo {
            id: format!("metal:{index}"),
            kind: "metal".to_owned(),
            name: device.name().to_string(),
            // What the system lets a process keep there without paging; the memory is the machine's.
            memory_total: device.recommendedMaxWorkingSetSize(),
            driver: driver.clone(),
        });
    }
    if detected.gpus.is_empty() {
        detected.notes.push("Metal shows no GPU; is this a session without a window server?".to_owned());
    }
}
