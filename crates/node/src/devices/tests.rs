//! Choosing devices, and reading a kernel's tree that was made for the purpose.

use super::*;

#[cfg(target_os = "linux")]
mod nvidia;

fn gpu(id: &str) -> DeviceInfo {
    let kind = id.split(':').next().unwrap_or_default().to_owned();
    DeviceInfo { id: id.into(), kind, name: "test".into(), memory_total: 1, driver: None }
}

#[test]
fn the_cpu_is_taken_only_when_asked_for() {
    let detected = Detected { gpus: vec![gpu("cuda:0")], notes: Vec::new() };
    assert_eq!(select(&DeviceChoice::Auto, &detected, false).unwrap(), detected.gpus);
    let chosen = select(&"cpu".parse().unwrap(), &detected, false).unwrap();
    assert_eq!(chosen.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(), ["cpu"]);
    assert!(chosen[0].memory_total > 0);
    assert!(select(&DeviceChoice::Auto, &Detected::default(), false).unwrap().is_empty());
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let detected = Detected { gpus: vec![gpu("cuda:0")], notes: Vec::new() };
    let error = select(&"cuda:1".parse().unwrap(), &detected, false).unwrap_err().to_string();
    assert!(error.contains("cuda:1") && error.contains("cuda:0, cpu"), "{error}");
    assert_eq!(select(&"cuda,cuda:0".parse().unwrap(), &detected, false).unwrap().len(), 1);
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

#[test]
fn kinds_are_offered_in_their_order() {
    let mut kinds = ["d3d12", "sim", "vulkan", "cuda", "metal"];
    kinds.sort_by_key(|kind| place_of(kind));
    assert_eq!(kinds, ["cuda", "metal", "vulkan", "d3d12", "sim"]);
    let detected =
        |ids: &[&str]| Detected { gpus: ids.iter().map(|id| gpu(id)).collect(), notes: Vec::new() };
    let ids = |ids: &[&str]| {
        let chosen = select(&DeviceChoice::Auto, &detected(ids), false).unwrap();
        chosen.into_iter().map(|device| device.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["cuda:0", "vulkan:0", "d3d12:0"]), ["cuda:0", "vulkan:0"]);
    assert_eq!(ids(&["d3d12:0"]), ["d3d12:0"]);
}

#[test]
fn a_software_adapter_is_taken_with_leave_alone_and_counts_as_the_cpu() {
    let detected = Detected::default();
    let asked = DeviceChoice::Only(vec!["vulkan".into()]);
    let refused = select(&asked, &detected, false).unwrap_err().to_string();
    assert!(refused.contains("vulkan") && refused.contains("--allow-software"), "{refused}");
    let chosen = select(&asked, &detected, true).unwrap();
    assert_eq!((chosen[0].id.as_str(), chosen[0].kind.as_str()), ("vulkan:0", "cpu"));
    assert!(
        is_software("vulkan:0", "cpu") && !is_software("cpu", "cpu") && !is_software("vulkan:0", "vulkan")
    );
    assert!(select(&DeviceChoice::Only(vec!["cuda:0".into()]), &detected, true).is_err());
    // Hardware of that name goes before it.
    let detected = Detected { gpus: vec![gpu("vulkan:0")], notes: Vec::new() };
    assert_eq!(select(&asked, &detected, true).unwrap(), [gpu("vulkan:0")]);
}

#[test]
fn directml_is_refused_with_the_library_and_what_to_use_instead() {
    let asked: DeviceChoice = "directml".parse().unwrap();
    let refused = select(&asked, &Detected::default(), true).unwrap_err().to_string();
    for part in ["DirectML.dll", "https://", "--device vulkan", "--device d3d12", "experimental"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}
