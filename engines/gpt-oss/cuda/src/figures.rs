//! What NVML, the driver's library of figures, says of this machine's GPUs: which there are, those that are hidden from this process
//! included, and what is in use on them.

use std::sync::OnceLock;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::{Device, Nvml};

/// What a driver's context can take: figures beyond are somebody else's doing.
const CONTEXT_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=2 << 30;

/// Opened once, where it is.
fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().ok()).as_ref()
}

fn gpu(number: u32) -> Option<Device<'static>> {
    nvml()?.device_by_index(number).ok()
}

/// Domain, bus, device.
pub(crate) type Place = [i32; 3];

/// Where every GPU is, by its number, which is also `nvidia-smi`'s and the node's; none of one that does not answer. No list where
/// there is no NVML.
pub(crate) fn places() -> Option<Vec<Option<Place>>> {
    let place = |number| {
        let place = gpu(number)?.pci_info().ok()?;
        let [domain, bus, device] = [place.domain, place.bus, place.device].map(|n| i32::try_from(n).ok());
        Some([domain?, bus?, device?])
    };
    let count = nvml()?.device_count().ok()?;
    Some((0..count).map(place).collect())
}

/// What was in use on a GPU at some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InUse {
    number: u32,
    by_all: Option<u64>,
    by_this_process: Option<u64>,
}

impl InUse {
    pub(crate) fn now(number: u32) -> InUse {
        let gpu = gpu(number);
        let processes = gpu.as_ref().and_then(|gpu| gpu.running_compute_processes().ok());
        // Not there: it holds nothing, or it has another number in the driver's eyes, as in a container.
        let own = processes.and_then(|all| all.into_iter().find(|p| p.pid == std::process::id()));
        InUse {
            number,
            by_all: gpu.and_then(|gpu| gpu.memory_info().ok()).map(|memory| memory.used),
            by_this_process: own.and_then(|process| match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            }),
        }
    }

    /// What this process has taken since: by the driver's count of its memory, or, where it does not count by process, by what all
    /// take, which others may change meanwhile. None where nobody can tell.
    pub(crate) fn taken_since(self) -> Option<u64> {
        let InUse { by_all, by_this_process, .. } = InUse::now(self.number);
        let own = by_this_process.map(|now| now.saturating_sub(self.by_this_process.unwrap_or(0)));
        let taken = own.or_else(|| by_all?.checked_sub(self.by_all?));
        taken.filter(|bytes| CONTEXT_BYTES.contains(bytes))
    }
}
