//! Two NVIDIA GPUs, as a stand-in for the driver's library shows them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Where the stand-in reads what is in use; set in the process that has it.
const USED: &str = "STAND_IN_USED";
const NAME: &str = "devices::tests::nvidia::two_gpus_are_found_and_their_figures_followed";

/// The library is looked for once in a process, by name: so a process of its own has the stand-in in its path.
#[test]
fn two_gpus_are_found_and_their_figures_followed() {
    if let Some(used) = std::env::var_os(USED) {
        return follow(&PathBuf::from(used));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/devices/tests/nvml.c");
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libnvidia-ml.so.1");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    let Ok(compiled) = compiled else { return println!("skipped: there is no C compiler") };
    assert!(compiled.success());
    let used = dir.path().join("used");
    std::fs::write(&used, "3 5").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("LD_LIBRARY_PATH", dir.path())
        .env(USED, used)
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
fn follow(used: &Path) {
    const GIB: u64 = 1 << 30;
    let detected = detect();
    let gpus: Vec<DeviceInfo> = detected.gpus.into_iter().filter(|gpu| gpu.kind == "cuda").collect();
    let gpu = |number: u64| DeviceInfo {
        id: format!("cuda:{number}"),
        kind: "cuda".into(),
        name: format!("Stand-in {number}"),
        memory_total: (8 + 8 * number) * GIB,
        driver: Some("NVIDIA 999.1".into()),
    };
    assert_eq!(gpus, [gpu(0), gpu(1)]);
    let seen =
        || memory(&gpus).into_iter().map(|m| (m.device, m.total / GIB, m.used / GIB)).collect::<Vec<_>>();
    assert_eq!(seen(), [("cuda:0".into(), 8, 3), ("cuda:1".into(), 16, 5)]);
    assert_eq!(memory_of_processes(&gpus), [(4321, "cuda:1".into(), 5 * GIB)]);
    std::fs::write(used, "0 7").unwrap();
    assert_eq!(seen(), [("cuda:0".into(), 8, 0), ("cuda:1".into(), 16, 7)]);
    assert_eq!(memory_of_processes(&gpus), [(4321, "cuda:1".into(), 7 * GIB)]);
}
