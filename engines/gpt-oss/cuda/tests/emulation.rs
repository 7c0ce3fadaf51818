//! The emulated device finds what kernels do wrong: each of `emulation/faults.cu` has one fault.

#![cfg(emulated)]

use gpt_oss_cuda::device::Device as _;
use gpt_oss_cuda::emulated::Emulated;
use gpt_oss_cuda::testing::Bed;
use gpt_oss_cuda::{DeviceError, Launch};

const SCHEDULES: [u64; 5] = [0, 1, 2, 3, 4];
const THREADS: usize = 128;

/// What the kernel wrote, or what is wrong with it.
fn run(kernel: &'static str, threads: u32, schedule: u64) -> Result<Vec<u32>, String> {
    let device = Emulated::new(schedule);
    let bed = Bed::new(&device, 0);
    let out = bed.put_u32(&[0; THREADS]).expect("there is memory");
    let arguments = out.0.to_le_bytes().to_vec();
    let launch = Launch { kernel, grid: [1, 1, 1], threads, arguments };
    match device.launch(&launch) {
        Ok(()) => Ok(bed.get_u32(out, THREADS).expect("it was allocated")),
        Err(DeviceError::Failed { cause, .. }) => Err(cause),
        Err(other) => panic!("{other}"),
    }
}

/// Every schedule finds it, in these words.
fn check(kernel: &'static str, threads: u32, words: &str) {
    for schedule in SCHEDULES {
        let found = run(kernel, threads, schedule).expect_err(kernel);
        assert!(found.contains(words), "{kernel}, schedule {schedule}: {found}");
    }
}

#[test]
fn threads_at_different_barriers_are_found() {
    check("fault_other_barrier", 64, "different barriers");
}

#[test]
fn a_barrier_that_a_thread_never_comes_to_is_found() {
    check("fault_passed_barrier", 64, "barrier");
}

#[test]
fn lanes_that_wait_for_others_for_ever_are_found() {
    check("fault_half_a_warp", 64, "wait for others");
}

#[test]
fn lanes_in_different_operations_are_found() {
    check("fault_other_operation", 32, "different operations");
}

#[test]
fn an_unaligned_load_is_found() {
    check("fault_unaligned", 32, "no multiple of 16");
}

#[test]
fn too_much_shared_memory_is_found() {
    check("fault_too_much_shared", 32, "more shared memory");
}

/// What is missing is seen by NaN's bits where nobody has written yet.
#[test]
fn a_missing_barrier_is_seen_in_some_schedules() {
    let want: Vec<u32> = (0..THREADS as u32).map(|i| (i + 32) % THREADS as u32).collect();
    let wrong =
        SCHEDULES.iter().filter(|s| run("fault_missing_barrier", THREADS as u32, **s) != Ok(want.clone()));
    assert!(wrong.count() >= SCHEDULES.len() - 1);
}

/// A fault is no end: the next launch is as if nothing had been.
#[test]
fn after_a_fault_the_next_launch_works() {
    let device = Emulated::new(3);
    assert!(run("fault_half_a_warp", 64, 3).is_err());
    let embed = gpt_oss_cuda::ops::OPERATORS.iter().find(|o| o.name == "embed").expect("it is there");
    (embed.check)(&device, gpt_oss_cuda::ops::Size::RaggedTail, 1).expect("nothing is wrong with it");
}
