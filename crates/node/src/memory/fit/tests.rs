//! What is chosen where nobody said, and what is refused.

use super::*;

const GIB: u64 = 1 << 30;

fn estimate(kv_per_token: u64, context_length_max: u32) -> Estimate {
    let need = DeviceNeed { device: "cpu".into(), workspace: GIB, kv_per_token, ..DeviceNeed::default() };
    Estimate { devices: vec![need], context_length_max }
}

fn check(
    kv_per_token: u64,
    wanted: (Option<u32>, Option<u32>),
    free: u64,
) -> Result<(u32, u32, u64), NoRoom> {
    let wanted = Wanted { context_length: wanted.0, sequences_max: wanted.1 };
    fit(&estimate(kv_per_token, 131_072), wanted, |_| free)
        .map(|fit| (fit.context_length, fit.sequences_max, fit.budget[0].bytes))
}

#[test]
fn a_small_model_gets_everything_it_can_use() {
    assert_eq!(check(1024, (None, None), 16 * GIB), Ok((131_072, 4, GIB + (512 << 20))));
}

#[test]
fn the_context_is_halved_first_and_half_of_the_rest_stays_free() {
    // 64 KiB a token: four sequences of 131,072 would be 32 GiB; 7 GiB may be used.
    assert_eq!(check(64 << 10, (None, None), 15 * GIB), Ok((16_384, 4, 5 * GIB)));
}

#[test]
fn sequences_go_when_the_context_cannot_shrink_further() {
    let (context, sequences, _) = check(1 << 20, (None, None), 6 * GIB).unwrap();
    assert_eq!((context, sequences), (2048, 1));
}

#[test]
fn what_the_operator_set_is_taken_or_refused_with_both_numbers() {
    assert_eq!(check(64 << 10, (Some(65_536), Some(2)), 10 * GIB), Ok((65_536, 2, 9 * GIB)));
    let refused = check(64 << 10, (Some(65_536), Some(2)), 8 * GIB).unwrap_err();
    assert_eq!((refused.needed, refused.available), (9 * GIB, 8 * GIB));
    assert_eq!((refused.context_length, refused.sequences_max), (65_536, 2));
}

#[test]
fn a_wish_beyond_the_model_is_the_models_own_maximum() {
    assert_eq!(check(1024, (Some(1 << 30), Some(1)), 16 * GIB).unwrap().0, 131_072);
}

#[test]
fn mapped_weights_count_where_they_are_pinned_only() {
    let mut estimate = estimate(0, 4096);
    estimate.devices[0].weights_mapped = 12 * GIB;
    assert!(fit(&estimate, Wanted::default(), |_| 2 * GIB).is_ok());
    estimate.devices[0].device = "metal:0".into();
    assert_eq!(fit(&estimate, Wanted::default(), |_| 2 * GIB).unwrap_err().needed, 13 * GIB);
}

#[test]
fn lying_estimates_saturate() {
    let refused = check(u64::MAX, (None, None), GIB).unwrap_err();
    assert_eq!(refused.needed, u64::MAX);
}
