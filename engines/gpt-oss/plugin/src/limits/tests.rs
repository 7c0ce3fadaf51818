use super::*;

const GIB: u64 = 1 << 30;
const F32: KvOptions = KvOptions { format: KvFormat::F32, tokens: None };

fn config() -> GptOssConfig {
    let json = r#"{"num_hidden_layers":24,"hidden_size":2880,"intermediate_size":2880,"num_local_experts":32,
        "num_experts_per_tok":4,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,
        "vocab_size":201088,"quantization_config":{"quant_method":"mxfp4"}}"#;
    GptOssConfig::parse(json.as_bytes()).unwrap()
}

fn choose(settings: &Settings, granted: u64) -> Result<Limits, Status> {
    let limits = Limits::choose(&config(), settings, F32, Fixed::default(), granted);
    if let Ok(limits) = &limits {
        assert!(limits.total() <= granted, "{limits:?} does not fit {granted}");
    }
    limits
}

#[test]
fn with_room_the_defaults_hold() {
    let limits = choose(&Settings::default(), 16 * GIB).unwrap();
    assert_eq!((limits.context_length, limits.sequences_max), (CONTEXT_DEFAULT, ON_CPU.sequences));
    assert!(limits.workspace < GIB);
}

#[test]
fn with_less_room_the_context_is_shorter_and_then_sequences_fewer() {
    let limits = choose(&Settings::default(), GIB).unwrap();
    assert_eq!(limits.sequences_max, ON_CPU.sequences);
    assert!((CONTEXT_DEFAULT / 4..CONTEXT_DEFAULT).contains(&limits.context_length), "{limits:?}");
    let limits = choose(&Settings::default(), GIB / 4).unwrap();
    assert!(limits.sequences_max < ON_CPU.sequences, "{limits:?}");
}

#[test]
fn what_is_asked_for_is_kept_or_refused_with_both_numbers() {
    let settings = Settings { context_length: Some(131_072), sequences_max: Some(2), ..Settings::default() };
    let limits = choose(&settings, 16 * GIB).unwrap();
    assert_eq!((limits.context_length, limits.sequences_max), (131_072, 2));
    let error = choose(&settings, GIB).unwrap_err();
    assert_eq!((error.code, error.available), (StatusCode::OomRam, GIB));
    assert!(error.needed > 12 * GIB, "{error}");
}

#[test]
fn sequences_that_share_their_room_fit_where_the_longest_of_each_do_not() {
    let settings = Settings { context_length: Some(131_072), sequences_max: Some(16), ..Settings::default() };
    let choose =
        |tokens| Limits::choose(&config(), &settings, KvOptions { tokens, ..F32 }, Fixed::default(), 8 * GIB);
    assert_eq!(choose(None).unwrap_err().code, StatusCode::OomRam);
    let limits = choose(Some(131_072)).unwrap();
    assert_eq!((limits.context_length, limits.sequences_max), (131_072, 16));
    assert!(limits.kv_bytes > 131_072 * 12 * 4096 && limits.total() < 8 * GIB, "{limits:?}");
}

#[test]
fn nothing_fits_nothing() {
    let error = choose(&Settings::default(), 1000).unwrap_err();
    assert_eq!(error.code, StatusCode::OomRam);
    assert!(error.message.contains("1000 are granted"), "{error}");
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for settings in [
        Settings { context_length: Some(131_073), ..Settings::default() },
        Settings { context_length: Some(0), ..Settings::default() },
        Settings { sequences_max: Some(0), ..Settings::default() },
        Settings { sequences_max: Some(SEQUENCES_MAX + 1), ..Settings::default() },
        Settings { batch_tokens_max: Some(3), ..Settings::default() },
        Settings { batch_tokens_max: Some(BATCH_TOKENS_MAX + 1), ..Settings::default() },
    ] {
        let error = choose(&settings, 64 * GIB).unwrap_err();
        assert_eq!((error.code, error.reason.as_ref()), (StatusCode::Unsupported, reason::INVALID_SETTINGS));
    }
}

#[test]
fn bf16_halves_what_a_token_takes() {
    let per_token = |format| needs(&config(), 256, 4, KvOptions { format, tokens: None }).kv_per_token;
    assert_eq!((per_token(KvFormat::F32), per_token(KvFormat::Bf16)), (12 * 4096, 12 * 2048));
}

#[test]
fn a_copy_of_weights_that_does_not_fit_is_refused_with_its_bytes() {
    let settings = Settings { context_length: Some(1024), sequences_max: Some(1), ..Settings::default() };
    let fixed = Fixed { tokenizer: 1000, copy: GIB };
    let choose = |granted| Limits::choose(&config(), &settings, F32, fixed, granted);
    let without = Limits::choose(&config(), &settings, F32, Fixed::default(), GIB).unwrap().total();
    let needed = without + 1000 + GIB;
    assert_eq!(choose(needed).unwrap().total(), needed);
    let error = choose(needed - 1).unwrap_err();
    assert_eq!((error.code, error.needed, error.available), (StatusCode::OomRam, needed, needed - 1));
    assert!(error.message.contains("(1073741824 of them for the copy of weights)"), "{error}");
}
