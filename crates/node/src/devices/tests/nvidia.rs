//! Two NVIDIA GPUs, as a stand-in for the driver's library shows them.

use std::path::{Path, PathBuf};
use std::process::Command;

use engine_testkit::build::{hold_in_stand_in, stand_in_nvml};

use super::*;

/// Where the stand-in is; set in the process that has it.
const STAND_IN: &str = "STAND_IN_NVML";
const NAME: &str = "devices::tests::nvidia::two_gpus_are_found_and_their_figures_followed";
const GIB: u64 = 1 << 30;

/// The library is looked for once in a process, by name: so a process of its own has the stand-in in its path.
#[test]
fn two_gpus_are_found_and_their_figures_followed() {
    if let Some(dir) = std::env::var_os(STAND_IN) {
        return follow(&PathBuf::from(dir));
    }
    let dir = tempfile::tempdir().unwrap();
    stand_in_nvml(dir.path());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("LD_LIBRARY_PATH", dir.path())
        .env(STAND_IN, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

/// In the process with the stand-in.
fn follow(dir: &Path) {
    let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
    let hold = |gpu, pid, gib| hold_in_stand_in(dir, gpu, pid, gib * GIB);
    hold(0, own, 1);
    hold(1, own, 2);
    hold(1, parent, 3);
    let detected = detect();
    let gpus: Vec<DeviceInfo> = detected.gpus.into_iter().filter(|gpu| gpu.kind == "cuda").collect();
    let gpu = |number: u64| DeviceInfo {
        id: format!("cuda:{number}"),
        kind: "cuda".into(),
        name: format!("Stand-in {number}"),
        memory_total: (4 + 4 * number) * GIB + GIB / 4,
        driver: Some("NVIDIA 999.1".into()),
    };
    assert_eq!(gpus, [gpu(0), gpu(1)]);
    // What the driver keeps for itself is not free: it counts as used.
    let free = || memory(&gpus).into_iter().map(|m| (m.device, (m.total - m.used) / GIB)).collect::<Vec<_>>();
    assert_eq!(free(), [("cuda:0".into(), 3), ("cuda:1".into(), 3)]);
    let of_processes = || {
        let mut all = memory_of_processes(&gpus);
        all.sort();
        all
    };
    let mut want =
        [(own, "cuda:0".into(), GIB), (own, "cuda:1".into(), 2 * GIB), (parent, "cuda:1".into(), 3 * GIB)];
    want.sort();
    assert_eq!(of_processes(), want);
    hold(0, own, 4);
    hold(1, parent, 0);
    assert_eq!(free(), [("cuda:0".into(), 0), ("cuda:1".into(), 6)]);
    let mut want = [(own, "cuda:0".into(), 4 * GIB), (own, "cuda:1".into(), 2 * GIB)];
    want.sort();
    assert_eq!(of_processes(), want);
}
