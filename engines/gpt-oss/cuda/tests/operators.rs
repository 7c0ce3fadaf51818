//! Every operator against plain Rust, on the emulated device in several schedules.

#![cfg(emulated)]

use gpt_oss_cuda::device::Device as _;
use gpt_oss_cuda::emulated::Emulated;
use gpt_oss_cuda::ops::{OPERATORS, Size};
use gpt_oss_cuda::{DeviceError, Launch};

/// In their order, and three by chance.
const SCHEDULES: [u64; 4] = [0, 1, 22, 333];

fn check(name: &str) {
    let operator = OPERATORS.iter().find(|o| o.name == name).expect("an operator of this name");
    for schedule in SCHEDULES {
        for size in Size::ALL {
            for seed in [1, 2] {
                let device = Emulated::new(schedule);
                if let Err(failure) = (operator.check)(&device, size, seed) {
                    panic!("{name}, {size:?}, seed {seed}, schedule {schedule}: {failure}");
                }
            }
        }
    }
}

macro_rules! operators {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn none_is_forgotten() {
            assert_eq!(OPERATORS.iter().map(|o| o.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

operators! {
    peak embed rmsnorm linear_gemv linear_mma rope_kv attention_decode attention_combine attention_prefill route experts_sort
    experts_up_gemv experts_down_gemv experts_up_mma experts_down_mma experts_combine sample
}

#[test]
fn a_launch_that_cannot_be_is_refused() {
    let device = Emulated::new(0);
    let launch = |kernel, threads, bytes| {
        let launch = Launch { kernel, grid: [1, 1, 1], threads, arguments: vec![0; bytes] };
        match device.launch(&launch) {
            Err(DeviceError::Failed { cause, .. }) => cause,
            other => panic!("{other:?}"),
        }
    };
    assert!(launch("nothing", 32, 8).contains("0 bytes"), "there is no kernel of this name");
    assert!(launch("embed", 128, 8).contains("its arguments have 40 bytes and 8 were given"));
    assert!(launch("embed", 256, 40).contains("launched with 256 threads, made for 128"));
}

#[test]
fn memory_ends_where_it_ends_and_is_counted() {
    let device = Emulated::with_memory(0, 1000);
    let first = device.allocate(600).expect("there is room");
    assert_eq!(device.allocate(600), Err(DeviceError::OutOfMemory { wanted: 600, free: 400 }));
    assert!(device.upload(first, &[0; 601]).is_err(), "beyond the end");
}
