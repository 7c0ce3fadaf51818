use super::*;

#[test]
fn a_machine_without_a_driver_is_told_so_plainly() {
    // SAFETY: opens the library, if it is there.
    if unsafe { sys::is_culib_present() } {
        println!("skipped: there is a driver");
        return;
    }
    for error in [gpus().map(|_| ()), Cuda::open(0, None).map(|_| ())] {
        let words = error.expect_err("there is no driver").to_string();
        assert!(words.starts_with(&format!("no CUDA driver library ({LIBRARY}) on this machine")), "{words}");
        assert!(words.contains("hint: "), "{words}");
    }
}

#[test]
fn an_image_runs_on_its_own_generation_and_text_on_everything_later() {
    let images = [
        "sm_80.cubin",
        "sm_86.cubin",
        "sm_89.cubin",
        "sm_90a.cubin",
        "sm_100.cubin",
        "sm_120.cubin",
        "compute_80.ptx",
    ];
    let best = |capability| {
        let fits = images.iter().filter_map(|i| fit(i, capability).map(|fit| (fit, *i)));
        fits.max().map(|(_, image)| image)
    };
    assert_eq!(best((8, 0)), Some("sm_80.cubin"));
    assert_eq!(best((8, 6)), Some("sm_86.cubin"));
    assert_eq!(best((8, 7)), Some("sm_86.cubin"));
    assert_eq!(best((8, 9)), Some("sm_89.cubin"));
    assert_eq!(best((9, 0)), Some("sm_90a.cubin"));
    assert_eq!(best((10, 3)), Some("sm_100.cubin"));
    assert_eq!(best((12, 0)), Some("sm_120.cubin"));
    assert_eq!(best((13, 0)), Some("compute_80.ptx"));
    assert_eq!(best((7, 5)), None);
    assert_eq!(fit("notes.txt", (9, 0)), None);
}

#[test]
fn a_long_copy_is_a_copy() {
    let from: Vec<u8> =
        (0..(9 << 20) + 13).map(|i: u32| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let mut to = vec![0; from.len()];
    copy(&mut to, &from);
    assert!(to == from);
}

#[test]
fn a_gpu_keeps_its_number_whatever_is_hidden() {
    let [a, b, c] = [[0, 1, 0], [0, 2, 0], [1, 1, 0]];
    let all = [Some(a), Some(b), Some(c)];
    assert_eq!(numbers(&[a, b, c], Some(&all)), [Some(0), Some(1), Some(2)]);
    assert_eq!(numbers(&[c], Some(&all)), [Some(2)]);
    assert_eq!(numbers(&[a, c], Some(&[Some(c), None, Some(a)])), [Some(2), Some(0)], "NVML's order counts");
    assert_eq!(numbers(&[b, c], None), [Some(0), Some(1)], "without NVML those that are shown are counted");
    // One that NVML cannot place: with none hidden it is known by the others, otherwise it is nobody's.
    assert_eq!(numbers(&[a, b], Some(&[Some(a), None])), [Some(0), Some(1)]);
    assert_eq!(numbers(&[b], Some(&[Some(a), None])), [None]);
}
