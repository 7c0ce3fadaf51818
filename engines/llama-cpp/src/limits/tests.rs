use super::*;
use crate::needs::tests::{device, header};

fn choose(settings: &Settings, granted: u64) -> Result<Limits, Status> {
    let granted = [DeviceBytes { device: CPU.to_owned(), bytes: granted }];
    Limits::choose(&header(), settings, &Options::default(), &[device(CPU)], &granted)
}

fn total(settings: &Settings) -> u64 {
    choose(settings, u64::MAX).unwrap().totals[0].bytes
}

#[test]
fn with_enough_memory_everything_is_as_usual() {
    let limits = choose(&Settings::default(), u64::MAX).unwrap();
    assert_eq!((limits.context_length, limits.sequences_max, limits.batch_tokens_max), (4096, 4, 512));
    assert_eq!(limits.cells(), 4 * 4096);
    assert_eq!(limits.kv_bytes, 4 * (64 * 4096 + 64 * 768));
}

#[test]
fn with_less_the_context_shrinks_before_there_are_fewer_sequences() {
    let wanted = |context: u32, sequences: u32| Settings {
        context_length: Some(context),
        sequences_max: Some(sequences),
        ..Settings::default()
    };
    let limits = choose(&Settings::default(), total(&wanted(3000, 4))).unwrap();
    assert_eq!((limits.context_length, limits.sequences_max), (3000, 4));
    let limits = choose(&Settings::default(), total(&wanted(2500, 1))).unwrap();
    assert!(limits.sequences_max < 4 && limits.context_length >= 2048, "{limits:?}");
}

#[test]
fn what_was_asked_for_is_refused_with_both_numbers() {
    let settings = Settings { context_length: Some(4000), sequences_max: Some(4), ..Settings::default() };
    let needed = total(&settings);
    assert_eq!(choose(&settings, needed).unwrap().context_length, 4000);
    let status = choose(&settings, needed - 1).unwrap_err();
    assert_eq!((status.code, &*status.reason), (StatusCode::OomRam, reason::BUDGET_EXCEEDED));
    assert_eq!((status.needed, status.available), (needed, needed - 1));
}

#[test]
fn an_estimate_grants_enough_for_every_context_that_is_chosen_by_it() {
    let header = Header { context_length: 131_072, ..header() };
    let devices = [device(CPU)];
    for options in [Options::default(), Options { shared_kv: true, ..Options::default() }] {
        let needs = estimate(&header, &Settings::default(), &options, &devices).unwrap();
        let [need] = needs.devices.as_slice() else { panic!("{needs:?}") };
        for (sequences, context) in [(4, 2048), (4, 8192), (4, 10_001), (4, 131_072), (2, 2048), (1, 2048)] {
            let each = need.per_sequence + need.kv_fixed + need.kv_per_token * u64::from(context);
            let bytes = need.weights + need.workspace + u64::from(sequences) * each;
            let granted = [DeviceBytes { device: CPU.to_owned(), bytes }];
            let settings = Settings {
                context_length: Some(context),
                sequences_max: Some(sequences),
                ..Settings::default()
            };
            let limits = Limits::choose(&header, &settings, &options, &devices, &granted);
            let limits = limits.unwrap_or_else(|error| panic!("{sequences} of {context}: {error:?}"));
            let spare = bytes - limits.totals[0].bytes;
            // Of the mask of the default context, and where cells are shared of that of all sequences.
            let most = if options.shared_kv { 40 << 20 } else { 16 << 20 };
            assert!(spare <= most, "{sequences} of {context}: {spare} bytes too much");
        }
    }
}

#[test]
fn numbers_that_cannot_be_name_their_setting() {
    for (settings, param) in [
        (Settings { context_length: Some(4097), ..Settings::default() }, "context_length"),
        (Settings { sequences_max: Some(257), ..Settings::default() }, "sequences_max"),
        (Settings { batch_tokens_max: Some(3), ..Settings::default() }, "batch_tokens_max"),
    ] {
        assert_eq!(choose(&settings, u64::MAX).unwrap_err().param, param);
    }
}
