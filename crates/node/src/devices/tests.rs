//! Choosing devices, and reading a kernel's tree that was made for the purpose.

use super::*;

fn gpu(id: &str) -> DeviceInfo {
    let kind = id.split(':').next().unwrap_or_default().to_owned();
    DeviceInfo { id: id.into(), kind, name: "test".into(), memory_total: 1, driver: None }
}

#[test]
fn the_cpu_is_taken_only_when_asked_for() {
    let detected = Detected { gpus: vec![gpu("cuda:0")], notes: Vec::new() };
    assert_eq!(select(&DeviceChoice::Auto, &detected).unwrap(), detected.gpus);
    let chosen = select(&"cpu".parse().unwrap(), &detected).unwrap();
    assert_eq!(chosen.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(), ["cpu"]);
    assert!(chosen[0].memory_total > 0);
    assert!(select(&DeviceChoice::Auto, &Detected::default()).unwrap().is_empty());
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let detected = Detected { gpus: vec![gpu("cuda:0")], notes: Vec::new() };
    let error = select(&"cuda:1".parse().unwrap(), &detected).unwrap_err().to_string();
    assert!(error.contains("cuda:1") && error.contains("cuda:0, cpu"), "{error}");
    assert_eq!(select(&"cuda,cuda:0".parse().unwrap(), &detected).unwrap().len(), 1);
}

#[test]
fn what_is_no_device_is_refused() {
    for text in ["gpu", "cuda:x", "", "cpu,,cuda:0"] {
        assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn adapters_are_read_from_the_kernels_tree() {
    use std::fs;
    use std::os::unix::fs::symlink;

    let root = tempfile::tempdir().unwrap();
    let card = |name: &str, attributes: &[(&str, &str)], driver: Option<&str>| {
        let folder = root.path().join("sys/class/drm").join(name).join("device");
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in attributes {
            fs::write(folder.join(file), text).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../bus/pci/drivers/{driver}"), folder.join("driver")).unwrap();
        }
    };
    card("card1", &[("vendor", "0x8086\n"), ("device", "0x56a0\n")], Some("xe"));
    let amd = [
        ("vendor", "0x1002\n"),
        ("product_name", "Instinct MI300X\n"),
        ("mem_info_vram_total", "206158430208\n"),
        ("mem_info_vram_used", "12345\n"),
    ];
    card("card0", &amd, Some("amdgpu"));
    card("card2", &[("vendor", "0x10de\n")], Some("nvidia"));
    card("card3", &[("vendor", "0x1002\n")], None);
    card("card0-DP-1", &[("vendor", "0x1002\n")], Some("amdgpu"));
    fs::create_dir_all(root.path().join("sys/module/amdgpu")).unwrap();
    fs::write(root.path().join("sys/module/amdgpu/version"), "6.8.5\n").unwrap();

    let mut detected = Detected::default();
    linux::detect(&mut detected, root.path());
    assert_eq!(detected.gpus.len(), 2, "{detected:?}");
    assert_eq!(
        detected.gpus[0],
        DeviceInfo {
            id: "vulkan:0".into(),
            kind: "vulkan".into(),
            name: "AMD Instinct MI300X".into(),
            memory_total: 206_158_430_208,
            driver: Some("amdgpu 6.8.5".into()),
        }
    );
    assert_eq!(detected.gpus[1].name, "Intel 0x8086:0x56a0");
    assert_eq!(detected.notes.len(), 1);
    assert_eq!(linux::memory_used(&detected.gpus[0], root.path()), Some(12345));
}
