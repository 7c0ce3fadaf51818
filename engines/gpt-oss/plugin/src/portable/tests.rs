use super::*;

fn config() -> GptOssConfig {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../assets/demo-model/config.json");
    GptOssConfig::parse(&std::fs::read(path).expect("the demo model is in the tree")).expect("it is sound")
}

fn asked() -> Asked {
    let settings = Settings {
        context_length: Some(1024),
        sequences_max: Some(4),
        batch_tokens_max: Some(128),
        ..Settings::default()
    };
    Asked::of(&config(), &settings).expect("it can be")
}

#[test]
fn ids_of_devices_are_read() {
    assert!(["vulkan", "vulkan:0", "metal:0", "d3d12:12"].into_iter().all(is_one));
    assert!(!["cpu", "cuda:0", "vulkan:", "vulkan:x", "opengl:0"].into_iter().any(is_one));
}

#[test]
fn what_is_chosen_fits_what_is_granted() {
    let (config, asked) = (config(), asked());
    let all = asked.blocks(&layout(&config, 0)).0;
    let whole = fit(&config, &asked, u64::MAX, u64::MAX).expect("there is room");
    assert_eq!(whole.blocks as u64, all);
    let granted = Needs::of(&config, whole).total() - 1;
    let less = fit(&config, &asked, u64::MAX, granted).expect("one sequence has room");
    assert_eq!(less.blocks as u64, all - 1);
    assert!(Needs::of(&config, less).total() <= granted);
}

/// On Macs, whose GPU has the memory of the machine.
#[test]
fn blocks_are_chosen_within_what_the_system_recommends() {
    let grant = |bytes| [DeviceBytes { device: "metal:0".into(), bytes }];
    assert_eq!(most(&[], "metal:0", None), u64::MAX);
    assert_eq!(most(&grant(7), "metal:0", None), 7);
    assert_eq!(most(&grant(7), "metal:1", Some(5)), 5);
    assert_eq!(most(&grant(7), "metal:0", Some(5)), 5);
    assert_eq!(most(&grant(7), "metal:0", Some(9)), 7);
    // Without a grant too: less is taken, in place of an allocation that is refused.
    let (config, asked) = (config(), asked());
    let whole = fit(&config, &asked, u64::MAX, u64::MAX).expect("there is room");
    let recommended = Needs::of(&config, whole).total() - 1;
    let less =
        fit(&config, &asked, u64::MAX, most(&[], "metal:0", Some(recommended))).expect("there is room");
    assert!(less.blocks < whole.blocks && Needs::of(&config, less).total() <= recommended);
}

/// Of 128 MiB, as software adapters have them: the host asks for what the estimate allows, and that has to load.
#[test]
fn the_longest_context_is_one_whose_keys_and_values_fit_a_buffer() {
    const BUFFER: u64 = 128 << 20;
    let config = config();
    assert_eq!(context_max(&config, 128, u64::MAX), config.context_length_max);
    let longest = context_max(&config, 128, BUFFER);
    assert!(longest < config.context_length_max && longest > config.context_length_max / 2, "{longest}");
    let of = |context: u32| {
        let settings = Settings {
            context_length: Some(context),
            sequences_max: Some(4),
            batch_tokens_max: Some(128),
            ..Settings::default()
        };
        Asked::of(&config, &settings).and_then(|asked| fit(&config, &asked, BUFFER, u64::MAX))
    };
    assert!(of(longest).is_ok() && of(longest + BLOCK_TOKENS as u32).is_err());
    assert_eq!(context_max(&config, 128, 1 << 16), config.context_length_max, "none fits");
}

#[test]
fn what_does_not_fit_says_both_numbers() {
    let refused =
        |buffer_max, granted| fit(&config(), &asked(), buffer_max, granted).expect_err("it is too little");
    let status = refused(u64::MAX, 1 << 20);
    assert_eq!((status.code, status.available), (StatusCode::OomVram, 1 << 20));
    assert!(status.needed > 1 << 20);
    let status = refused(1 << 16, u64::MAX);
    assert_eq!((status.code, status.available), (StatusCode::OomVram, 1 << 16));
}

#[test]
fn a_lost_device_is_the_engines_end_and_a_full_one_is_not() {
    let lost = status(&DeviceError::Lost { cause: "it was reset".into() });
    assert_eq!(lost.code, StatusCode::Internal);
    assert!(lost.message.contains("it was reset"));
    let full = DeviceError::OutOfMemory {
        what: "up_blocks".into(),
        wanted: 30,
        used: 12,
        cause: "none left".into(),
    };
    let full = status(&full);
    assert_eq!((full.code, full.needed, full.available), (StatusCode::OomVram, 42, 12));
}
