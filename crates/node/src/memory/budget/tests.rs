//! What is within the grant, over it, and too much.

use super::*;

const MIB: u64 = 1 << 20;

fn check(granted: &[(&str, u64)], taken: &[(&str, u64)], expected: &[(&str, bool)]) {
    let map =
        |of: &[(&str, u64)]| of.iter().map(|(d, b)| ((*d).to_owned(), b * MIB)).collect::<BTreeMap<_, _>>();
    let excesses = excesses(&map(granted), &map(taken), &MemoryLimits::default());
    let found: Vec<(&str, bool)> = excesses.iter().map(|e| (e.device.as_str(), e.ends)).collect();
    assert_eq!(found, expected);
}

#[test]
fn as_much_as_was_granted_is_fine() {
    check(&[("cpu", 1000), ("sim:0", 10)], &[("cpu", 1000), ("sim:0", 9)], &[]);
    check(&[("sim:0", 10)], &[], &[]);
}

#[test]
fn more_is_told_and_past_the_margin_it_ends_the_worker() {
    // 10 % of 1000 and 256.
    check(&[("sim:0", 1000)], &[("sim:0", 1001)], &[("sim:0", false)]);
    check(&[("sim:0", 1000)], &[("sim:0", 1356)], &[("sim:0", false)]);
    check(&[("sim:0", 1000)], &[("sim:0", 1357)], &[("sim:0", true)]);
}

#[test]
fn a_device_that_was_not_granted_counts_too_the_worst_first() {
    check(&[("sim:0", 100)], &[("sim:0", 101), ("sim:1", 300)], &[("sim:1", true), ("sim:0", false)]);
}

#[test]
fn the_memory_of_the_machine_has_an_allowance_where_the_engine_stated_none() {
    check(&[("cuda:0", 100)], &[("cpu", 4000)], &[]);
    check(&[("cuda:0", 100)], &[("cpu", 8000)], &[("cpu", true)]);
}

#[test]
fn no_number_overflows() {
    let all = BTreeMap::from([("cpu".to_owned(), u64::MAX)]);
    assert!(excesses(&all, &all, &MemoryLimits::default()).is_empty());
    let excess = excesses(&BTreeMap::new(), &all, &MemoryLimits::default());
    assert!(
        excess[0].ends
            && excess[0].message("org/m").contains("the worker of org/m takes 18446744073709551615")
    );
}
