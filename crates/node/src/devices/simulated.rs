//! Devices that are not there, for tests: a name, a size, and what workers say they take of them.

use std::str::FromStr;

use node_api::DeviceInfo;

/// Kind of such devices, in engines' manifests too.
pub const KIND: &str = "sim";
/// Devices in one setting, at most.
const DEVICES_MAX: usize = 16;
/// Bytes of one, at most: sums stay far from the end of u64.
const BYTES_MAX: u64 = 1 << 50;

/// As set: `sim:0=8GiB,sim:1=4GiB`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimulatedDevices(Vec<(String, u64)>);

impl SimulatedDevices {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn devices(&self) -> Vec<DeviceInfo> {
        let device = |(id, bytes): &(String, u64)| DeviceInfo {
            id: id.clone(),
            kind: KIND.to_owned(),
            name: "simulated device".to_owned(),
            memory_total: *bytes,
            driver: None,
        };
        self.0.iter().map(device).collect()
    }
}

impl FromStr for SimulatedDevices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(SimulatedDevices::default());
        }
        let mut devices: Vec<(String, u64)> = Vec::new();
        for part in text.split(',') {
            let bad = || format!("`{}` is no simulated device; write sim:0=8GiB,sim:1=512MiB", part.trim());
            let (id, size) = part.trim().split_once('=').ok_or_else(bad)?;
            let number = id.strip_prefix("sim:").ok_or_else(bad)?;
            let canonical = number.parse::<u16>().is_ok_and(|n| n.to_string() == number);
            let bytes = bytes(size).filter(|bytes| (1..=BYTES_MAX).contains(bytes)).ok_or_else(bad)?;
            if !canonical {
                return Err(bad());
            }
            if devices.iter().any(|(known, _)| known == id) {
                return Err(format!("{id} is simulated twice"));
            }
            devices.push((id.to_owned(), bytes));
        }
        if devices.len() > DEVICES_MAX {
            return Err(format!(
                "{} devices are to be simulated, at most {DEVICES_MAX} can be",
                devices.len()
            ));
        }
        Ok(SimulatedDevices(devices))
    }
}

/// A whole number, with or without KiB, MiB, GiB, TiB.
fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    number
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| number.parse::<u64>().ok())
        .flatten()?
        .checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_sizes_are_read() {
        let devices = "sim:0=8GiB, sim:1=512MiB,sim:2=100".parse::<SimulatedDevices>().unwrap().devices();
        let read: Vec<_> = devices.iter().map(|d| (d.id.as_str(), d.kind.as_str(), d.memory_total)).collect();
        assert_eq!(read, [("sim:0", "sim", 8 << 30), ("sim:1", "sim", 512 << 20), ("sim:2", "sim", 100)]);
        assert!("".parse::<SimulatedDevices>().unwrap().is_empty());
    }

    #[test]
    fn what_is_no_simulated_device_is_refused_with_its_text() {
        let many = (0..=DEVICES_MAX).map(|n| format!("sim:{n}=1GiB")).collect::<Vec<_>>().join(",");
        for text in [
            "sim:0",
            "sim:0=",
            "sim:0=0",
            "sim:0=-1",
            "sim:0=+1",
            "sim:0=1GB",
            "sim:x=1GiB",
            "sim:00=1",
            "cuda:0=1GiB",
            "sim:0=1GiB,",
            "sim:0=1,sim:0=2",
            "sim:0=99999999999TiB",
            &many,
        ] {
            let error = text.parse::<SimulatedDevices>().unwrap_err();
            assert!(error.contains("simulated"), "{text}: {error}");
        }
    }
}
