//! An NVIDIA GPU as `src/cuda.rs` drives it, with a stand-in for the driver's library (`emulation/driver.cpp`): contexts, pinned
//! memory, events, graphs. The stand-in works only when somebody waits.

use std::process::Command;

use gpt_oss_cuda::cuda::{Cuda, gpus};
use gpt_oss_cuda::ops::{OPERATORS, Size};

use super::*;

/// Set in the process that has the stand-in.
const CHILD: &str = "STAND_IN_DRIVER_IS_THERE";
const NAME: &str = "driver::a_gpu_answers_by_a_stand_in_for_the_driver";
/// What is loaded in place of an image: the stand-in has the kernels already.
const IMAGE: &[u8] = b"kernels";

/// The library is looked for once in a process, by name: so a process of its own has the stand-in in its path.
#[test]
fn a_gpu_answers_by_a_stand_in_for_the_driver() {
    if std::env::var_os(CHILD).is_some() {
        return drive();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("LD_LIBRARY_PATH", env!("STAND_IN_DRIVER"))
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let failed = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{failed}");
}

/// In the process with the stand-in.
fn drive() {
    // By place on the bus, which is not the driver's order.
    let found: Vec<_> = gpus().unwrap().into_iter().map(|g| (g.number, g.name, g.processors)).collect();
    assert_eq!(found, [(0, "Stand-in 1".into(), 5), (1, "Stand-in 0".into(), 4)]);
    match Cuda::open(2, Some(IMAGE)) {
        Err(DeviceError::NoDevice { number: 2, cause }) => assert_eq!(cause, "it has 2"),
        other => panic!("{other:?}"),
    }
    let open = |number| Cuda::open(number, Some(IMAGE)).unwrap();
    let (first, second) = (open(0), open(1));
    let free = first.info().unwrap().memory_free;
    // Memory of one is not the other's.
    first.allocate(1 << 20).unwrap();
    assert_eq!(first.info().unwrap().memory_free, free - (1 << 20));
    assert_eq!(second.info().unwrap().memory_free, free);
    assert_eq!(
        second.allocate(free + 1),
        Err(DeviceError::OutOfMemory { wanted: free + 1, free }),
        "with both numbers"
    );
    drop(first);
    assert_eq!(open(0).info().unwrap().memory_free, free, "everything is freed");
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
