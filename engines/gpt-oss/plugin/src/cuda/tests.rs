use super::*;

fn config() -> GptOssConfig {
    let config = r#"{"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "sliding_window": 128, "eos_token_id": 200002, "hidden_act": "silu",
        "rope_theta": 150000, "attention_bias": true, "quantization_config": {"quant_method": "mxfp4"}}"#;
    GptOssConfig::parse(config.as_bytes()).expect("the published fields")
}

fn asked(context: u32, sequences: u32) -> Asked {
    let settings =
        Settings { context_length: Some(context), sequences_max: Some(sequences), ..Settings::default() };
    Asked::of(&config(), &settings).expect("it can be")
}

#[test]
fn ids_of_devices_are_read() {
    assert_eq!(number("cuda:0"), Some(0));
    assert_eq!(number("cuda:12"), Some(12));
    assert_eq!([number("cuda"), number("cuda:"), number("cpu"), number("cuda:x")], [None; 4]);
}

#[test]
fn what_is_chosen_fits_what_is_granted() {
    let config = config();
    for granted in [16u64 << 30, 20 << 30, 80 << 30] {
        let bounds = fit(&config, &asked(8192, 32), 132, granted).expect("there is room");
        assert!(Needs::of(&config, bounds, 132).total() <= granted);
    }
    // With room for all nothing more is taken.
    let layout = layout(&config, 0);
    let all = layout.blocks_per_sequence(8192) * 32 + layout.blocks_per_step(BATCH_TOKENS_DEFAULT);
    assert_eq!(fit(&config, &asked(8192, 32), 132, 80 << 30).map(|b| b.blocks as u64), Ok(all));
}

#[test]
fn what_does_not_fit_says_both_numbers() {
    let status = fit(&config(), &asked(131_072, 1), 132, 14 << 30).expect_err("weights alone take 13 GB");
    assert_eq!((status.code, status.available), (StatusCode::OomVram, 14 << 30));
    assert!(status.needed > 14 << 30);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let refused = |settings: Settings| match Asked::of(&config(), &settings) {
        Ok(_) => panic!("{settings:?} is taken"),
        Err(status) => status.param.into_owned(),
    };
    let plain = Settings::default;
    assert_eq!(refused(Settings { context_length: Some(1 << 20), ..plain() }), "context_length");
    assert_eq!(refused(Settings { sequences_max: Some(0), ..plain() }), "sequences_max");
    assert_eq!(refused(Settings { batch_tokens_max: Some(9000), ..plain() }), "batch_tokens_max");
    assert_eq!(refused(Settings { options_json: r#"{"isa": "avx2"}"#.into(), ..plain() }), "isa");
}

#[test]
fn a_failed_device_is_the_engines_end_and_a_full_one_is_not() {
    let failed = DeviceError::Failed { operation: "embed".into(), cause: "an illegal address".into() };
    let got = status(&failed);
    assert_eq!((got.code, &*got.reason), (StatusCode::Internal, REASON_DEVICE_FAILED));
    assert!(got.message.contains("embed") && got.message.contains("an illegal address"));
    let got = status(&DeviceError::OutOfMemory { wanted: 7, free: 5 });
    assert_eq!((got.code, got.needed, got.available), (StatusCode::OomVram, 7, 5));
}

#[test]
fn without_a_driver_there_is_no_gpu_and_asking_for_one_says_why() {
    if gpus().is_ok() {
        println!("skipped: there is a driver");
        return;
    }
    assert_eq!(devices(), []);
    let status = find(0).expect_err("there is no driver");
    assert_eq!((status.code, &*status.reason), (StatusCode::Unsupported, reason::UNKNOWN_DEVICE));
    assert!(status.message.starts_with("device cuda:0: "), "{}", status.message);
}
