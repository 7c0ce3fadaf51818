//! What is left on a device, whatever was granted, taken and given back.

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn bytes(device: &str, bytes: u64) -> Vec<DeviceBytes> {
    vec![DeviceBytes { device: device.into(), bytes }]
}

fn sight(device: &str, total: u64, used: Option<u64>) -> Sight {
    let seen = DeviceSight { total, used, shares_ram: false };
    Sight { ram_total: 100, ram_available: 80, devices: [(device.to_owned(), seen)].into() }
}

#[test]
fn what_is_granted_and_not_taken_yet_is_not_free() {
    let mut ledger = Ledger::default();
    let seen = sight("cuda:0", 10 * GIB, Some(3 * GIB));
    assert_eq!(ledger.free(&seen, "cuda:0", 0), 7 * GIB);
    let id = ledger.grant("m", &bytes("cuda:0", 4 * GIB), 0);
    assert_eq!(ledger.free(&seen, "cuda:0", 0), 3 * GIB);
    // What it takes is seen by the driver too.
    ledger.get_mut(id).unwrap().taken.insert("cuda:0".into(), 3 * GIB);
    assert_eq!(ledger.free(&seen, "cuda:0", 0), 6 * GIB);
    assert_eq!(ledger.free_without(&seen, "cuda:0", 0, &[id], 0), 10 * GIB);
    ledger.release(id, Instant::now());
    assert!(ledger.released_at("cuda:0").is_some());
    assert_eq!(ledger.granted("cuda:0"), 0);
}

#[test]
fn where_nobody_shows_the_use_our_own_and_the_engines_word_count() {
    let mut ledger = Ledger::default();
    let seen = sight("sim:0", 10 * GIB, None);
    let id = ledger.grant("m", &bytes("sim:0", 4 * GIB), 0);
    assert_eq!(ledger.free(&seen, "sim:0", 0), 6 * GIB);
    // More than it was granted is gone too.
    ledger.get_mut(id).unwrap().taken.insert("sim:0".into(), 5 * GIB);
    assert_eq!(ledger.free(&seen, "sim:0", 0), 5 * GIB);
    assert_eq!(ledger.free_without(&seen, "sim:0", 0, &[], 2 * GIB), 3 * GIB);
    assert_eq!(ledger.free_without(&seen, "sim:0", 0, &[id], 2 * GIB), 8 * GIB);
}

#[test]
fn a_share_of_every_device_is_never_granted() {
    let ledger = Ledger::default();
    assert_eq!(ledger.free(&sight("sim:0", 1000, None), "sim:0", 5), 950);
    assert_eq!(ledger.free(&sight("sim:0", 1000, Some(980)), "sim:0", 5), 0);
    assert_eq!(ledger.free(&sight("sim:0", 1000, None), "cpu", 5), 75);
    assert_eq!(ledger.free(&sight("sim:0", 1000, None), "cuda:7", 5), 0, "a device nobody knows has no room");
}

#[test]
fn a_device_that_shares_the_machines_memory_has_no_more_than_the_machine() {
    let mut seen = sight("metal:0", 90, None);
    seen.devices.get_mut("metal:0").unwrap().shares_ram = true;
    let mut ledger = Ledger::default();
    assert_eq!(ledger.free(&seen, "metal:0", 0), 80);
    ledger.grant("m", &bytes("metal:0", 50), 0);
    assert_eq!((ledger.free(&seen, "metal:0", 0), ledger.free(&seen, "cpu", 0)), (30, 30));
}

#[derive(Debug, Clone)]
enum Change {
    Grant(u64),
    /// (which, percent of its grant)
    Take(usize, u64),
    Release(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..2000_u64).prop_map(Change::Grant),
        (any::<usize>(), 0..=100_u64).prop_map(|(which, percent)| Change::Take(which, percent)),
        any::<usize>().prop_map(Change::Release),
    ]
}

proptest! {
    /// Grants that fit what was said to be free never exceed the device, whatever is taken of them and when.
    #[test]
    fn grants_never_exceed_the_device(
        changes in prop::collection::vec(change(), 0..60),
        foreign in 0..3000_u64,
        shown in any::<bool>(),
        spare in 0..20_u8,
    ) {
        const TOTAL: u64 = 4000;
        let mut ledger = Ledger::default();
        let mut ids: Vec<GrantId> = Vec::new();
        let seen = |ledger: &Ledger| {
            let taken = ledger.sum(|grant| grant.taken.get("sim:0").copied().unwrap_or(0));
            sight("sim:0", TOTAL, shown.then_some(foreign + taken))
        };
        for change in changes {
            match change {
                Change::Grant(wanted) => {
                    let free = ledger.free_without(&seen(&ledger), "sim:0", spare, &[], foreign);
                    if wanted <= free {
                        ids.push(ledger.grant("m", &bytes("sim:0", wanted), 0));
                    }
                }
                Change::Take(which, percent) if !ids.is_empty() => {
                    let grant = ledger.get_mut(ids[which % ids.len()]).unwrap();
                    grant.taken.insert("sim:0".into(), grant.granted["sim:0"] * percent / 100);
                }
                Change::Release(which) if !ids.is_empty() => {
                    let id = ids.swap_remove(which % ids.len());
                    ledger.release(id, Instant::now());
                }
                _ => {}
            }
            if ledger.granted("sim:0") > 0 {
                prop_assert!(ledger.granted("sim:0") + foreign <= TOTAL - TOTAL / 100 * u64::from(spare));
            }
        }
        // When everybody has left, everything is there again.
        let alone = ledger.free_without(&seen(&ledger), "sim:0", 0, &ids, foreign);
        prop_assert_eq!(alone, TOTAL - foreign);
    }
}
