//! An NVIDIA GPU as `src/cuda.rs` drives it, with stand-ins for the driver's library (`emulation/driver.cpp`) and for NVML: contexts,
//! pinned memory, events, graphs, and GPUs that are hidden. The stand-in works only when somebody waits.

use std::process::Command;

use engine_testkit::build::stand_in_nvml;
use gpt_oss_cuda::cuda::{Cuda, gpus};
use gpt_oss_cuda::ops::{OPERATORS, Size};

use super::*;

/// Set in the process that has the stand-ins.
const CHILD: &str = "STAND_IN_DRIVER_IS_THERE";
/// What is loaded in place of an image: the stand-in has the kernels already.
const IMAGE: &[u8] = b"kernels";
/// What the stand-in takes for a context.
const CONTEXT_BYTES: u64 = 300 << 20;
const PAGE_BYTES: u64 = 2 << 20;

/// Runs the test of this name in a process that has the stand-ins in its path and this variable: a library is looked for once in a
/// process, by name. `true`: this is that process.
fn in_a_child(name: &str, visible: Option<&str>) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let dir = tempfile::tempdir().unwrap();
    stand_in_nvml(dir.path());
    let driver = Path::new(env!("STAND_IN_DRIVER")).join("libcuda.so.1");
    std::fs::copy(driver, dir.path().join("libcuda.so.1")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("driver::{name}"), "--nocapture"]);
    child.env("LD_LIBRARY_PATH", dir.path()).env(CHILD, "1").env_remove("CUDA_VISIBLE_DEVICES");
    child.envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
    let child = child.output().unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let failed = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{failed}");
    false
}

/// Why a GPU is not opened.
fn refusal(number: u32) -> String {
    match Cuda::open(number, Some(IMAGE)) {
        Err(DeviceError::NoDevice { number: refused, cause }) if refused == number => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hidden_gpu_is_refused_by_the_variable_that_hides_it() {
    if !in_a_child("a_hidden_gpu_is_refused_by_the_variable_that_hides_it", Some("0")) {
        return;
    }
    // The driver's first is the second on the bus, and stays that.
    let found: Vec<_> = gpus().unwrap().into_iter().map(|g| (g.number, g.name)).collect();
    assert_eq!(found, [(1, "Stand-in 1".into())]);
    let cause = refusal(0);
    assert!(cause.starts_with("CUDA_VISIBLE_DEVICES is \"0\", which hides it\nhint: "), "{cause}");
    assert_eq!(refusal(2), "it has 2");
    let device = Cuda::open(1, Some(IMAGE)).unwrap();
    assert_eq!(device.info().unwrap().processors, 4);
}

#[test]
fn where_all_are_hidden_there_is_none_to_use() {
    if !in_a_child("where_all_are_hidden_there_is_none_to_use", Some("")) {
        return;
    }
    assert_eq!(gpus().unwrap().len(), 0);
    assert!(refusal(1).starts_with("CUDA_VISIBLE_DEVICES is \"\", which hides it"));
}

#[test]
fn a_gpu_answers_by_a_stand_in_for_the_driver() {
    if !in_a_child("a_gpu_answers_by_a_stand_in_for_the_driver", None) {
        return;
    }
    // By place on the bus, which is not the driver's order.
    let found: Vec<_> = gpus().unwrap().into_iter().map(|g| (g.number, g.name, g.processors)).collect();
    assert_eq!(found, [(0, "Stand-in 0".into(), 5), (1, "Stand-in 1".into(), 4)]);
    assert_eq!(refusal(2), "it has 2");
    let open = |number| Cuda::open(number, Some(IMAGE)).unwrap();
    let (first, second) = (open(0), open(1));
    let (of_first, of_second) = (first.info().unwrap(), second.info().unwrap());
    // What the driver took is told by NVML, and free no more.
    for info in [&of_first, &of_second] {
        assert_eq!(info.driver_bytes, Some(CONTEXT_BYTES));
        assert_eq!(info.memory_total - info.memory_free, CONTEXT_BYTES);
    }
    // Memory of one is not the other's.
    first.allocate(1 << 20).unwrap();
    assert_eq!(first.info().unwrap().memory_free, of_first.memory_free - PAGE_BYTES);
    let free = of_second.memory_free;
    assert_eq!(second.info().unwrap().memory_free, free);
    assert_eq!(
        second.allocate(free + 1),
        Err(DeviceError::OutOfMemory { wanted: free + 1, free }),
        "with both numbers"
    );
    drop(first);
    assert_eq!(open(0).info().unwrap().memory_free, of_first.memory_free, "everything is freed");
    // More than a staging buffer holds, twice.
    let bytes: Vec<u8> =
        (0..(70 << 20) + 5).map(|i: u32| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let at = second.allocate(bytes.len() as u64).unwrap();
    second.upload(at, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    second.download(at, &mut back).unwrap();
    assert!(back == bytes);
    for operator in OPERATORS.iter().filter(|o| ["embed", "linear_mma", "sample"].contains(&o.name)) {
        (operator.check)(&second, Size::RaggedTail, 1).unwrap();
    }
    drop(second);
    answer(open(0), &["sum"], 64);
    answer_ahead(open(1));
    // What a kernel does wrong is told by a later call, and stays.
    let broken = open(1);
    let launch = Launch { kernel: "embed", grid: [1, 1, 1], threads: 256, arguments: vec![0; 40] };
    broken.launch(&launch).unwrap();
    for _ in 0..2 {
        match broken.wait() {
            Err(DeviceError::Failed { operation, cause }) => {
                assert_eq!((&*operation, &*cause), ("work", "as the stand-in has it (STAND_IN)"));
            }
            other => panic!("{other:?}"),
        }
    }
}
