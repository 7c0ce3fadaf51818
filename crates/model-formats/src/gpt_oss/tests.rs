use serde_json::{Value, json};

use super::*;
use crate::checkpoint::Place;
use crate::safetensors::{Dtype, Tensor};
use crate::{Checkpoint, Header};

fn published_20b() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880,
        "layer_types": (0..24).map(|i| if i % 2 == 0 { "sliding_attention" } else { "full_attention" })
            .collect::<Vec<_>>(),
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "vocab_size": 201088
    })
}

fn parse(config: &Value) -> Result<GptOssConfig, ConfigError> {
    GptOssConfig::parse(config.to_string().as_bytes())
}

/// The published config with one field set, or removed when the value is null.
fn with(field: &str, value: Value) -> Value {
    let mut config = published_20b();
    config[field] = value;
    config
}

#[test]
fn the_published_config_is_read() {
    let config = parse(&published_20b()).unwrap();
    assert_eq!(
        (config.hidden, config.intermediate, config.experts, config.experts_per_token),
        (2880, 2880, 32, 4)
    );
    assert_eq!((config.query_width(), config.kv_width(), config.vocabulary), (4096, 512, 201_088));
    assert_eq!(config.layers[..3], [Attention::Sliding, Attention::Full, Attention::Sliding]);
    assert_eq!((config.swiglu_alpha, config.swiglu_limit, config.rms_epsilon), (1.702, 7.0, 1e-5));
    let yarn = config.rope.yarn.unwrap();
    assert!((yarn.concentration - 1.3465735902799727).abs() < 1e-12);
    assert!(!yarn.truncate);
    assert_eq!(config.end_tokens, [200_002]);
}

#[test]
fn the_form_of_new_transformers_is_read() {
    let mut config = published_20b();
    let object = config.as_object_mut().unwrap();
    let mut rope = object.remove("rope_scaling").unwrap();
    rope["rope_theta"] = object.remove("rope_theta").unwrap();
    object.insert("rope_parameters".to_owned(), rope);
    assert_eq!(parse(&config).unwrap(), parse(&published_20b()).unwrap());
}

#[test]
fn what_is_absent_has_the_published_default() {
    let mut config = published_20b();
    for field in
        ["layer_types", "rope_scaling", "rope_theta", "sliding_window", "swiglu_limit", "rms_norm_eps"]
    {
        config.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(parse(&config).unwrap(), parse(&published_20b()).unwrap());
}

#[test]
fn plain_rope_is_read() {
    let config = parse(&with("rope_scaling", json!({"rope_type": "default"}))).unwrap();
    assert_eq!(config.rope, Rope { theta: 150_000.0, yarn: None });
}

#[test]
fn fields_out_of_range_are_named() {
    for (field, value) in [
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(100_000)),
        ("num_hidden_layers", json!(23)),
        ("hidden_size", json!(2881)),
        ("hidden_size", json!(-32)),
        ("hidden_size", json!(u64::MAX)),
        ("intermediate_size", json!(33)),
        ("num_local_experts", json!("32")),
        ("num_experts_per_tok", json!(33)),
        ("experts_per_token", json!(3)),
        ("num_key_value_heads", json!(7)),
        ("num_key_value_heads", json!(0)),
        ("head_dim", json!(63)),
        ("head_dim", Value::Null),
        ("num_attention_heads", json!(1.5)),
        ("vocab_size", json!(1u64 << 40)),
        ("vocab_size", json!(1000)),
        ("sliding_window", json!(0)),
        ("max_position_embeddings", json!(0)),
        ("rms_norm_eps", json!(-1)),
        ("rope_theta", json!(0)),
        ("rope_scaling", json!("yarn")),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 2})),
        ("rope_scaling", json!({"rope_type": "yarn"})),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 1})),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2, "mscale": 1})),
        ("layer_types", json!(["sliding_attention"])),
        ("layer_types", json!(vec!["linear_attention"; 24])),
        ("tie_word_embeddings", json!(true)),
        ("attention_bias", json!(false)),
        ("hidden_act", json!("gelu")),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("quantization_config", Value::Null),
        ("eos_token_id", json!(201_088)),
    ] {
        let text = match parse(&with(field, value.clone())) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{field} = {value} was accepted"),
        };
        let named = [field, "eos_token_id", "num_experts_per_tok", "layer_types", "experts_per_token"];
        assert!(text.contains("config.json") && named.iter().any(|f| text.contains(f)), "{field}: {text}");
    }
}

#[test]
fn the_tensors_of_20b_have_the_published_total() {
    let config = parse(&published_20b()).unwrap();
    let all = tensors(&config);
    assert_eq!(all.len(), 459);
    assert_eq!(all.iter().map(TensorSpec::byte_len).sum::<u64>(), 13_761_264_768);
    assert!(all[19].name.starts_with("model.layers.1.") && all[38].name.starts_with("model.layers.10."));
}

fn small() -> (GptOssConfig, Checkpoint) {
    let mut config = published_20b();
    for (field, value) in [("num_hidden_layers", 2), ("hidden_size", 64), ("vocab_size", 201_000)] {
        config[field] = json!(value);
    }
    config["layer_types"] = Value::Null;
    config["eos_token_id"] = Value::Null;
    let config = parse(&config).unwrap();
    let mut checkpoint = Checkpoint::single("a.safetensors", Header::default());
    for spec in tensors(&config) {
        let tensor = Tensor { dtype: spec.dtype, range: 0..spec.byte_len(), shape: spec.shape };
        checkpoint.tensors.insert(spec.name, Place { shard: 0, tensor });
    }
    (config, checkpoint)
}

#[test]
fn a_complete_checkpoint_passes() {
    let (config, checkpoint) = small();
    check_tensors(&config, &checkpoint).unwrap();
}

#[test]
fn a_missing_tensor_is_named() {
    let (config, mut checkpoint) = small();
    checkpoint.tensors.remove("model.layers.1.self_attn.sinks");
    let error = check_tensors(&config, &checkpoint).unwrap_err();
    assert_eq!(error, TensorError::Missing { tensor: "model.layers.1.self_attn.sinks".to_owned() });
}

#[test]
fn a_wrong_dtype_names_file_and_tensor() {
    let (config, mut checkpoint) = small();
    checkpoint.tensors.get_mut("lm_head.weight").unwrap().tensor.dtype = Dtype::F16;
    let text = check_tensors(&config, &checkpoint).unwrap_err().to_string();
    assert_eq!(text, "a.safetensors: tensor lm_head.weight is F16, not BF16");
}

#[test]
fn a_wrong_shape_names_file_and_tensor() {
    let (config, mut checkpoint) = small();
    checkpoint.tensors.get_mut("model.norm.weight").unwrap().tensor.shape = vec![32, 2];
    let text = check_tensors(&config, &checkpoint).unwrap_err().to_string();
    assert_eq!(text, "a.safetensors: tensor model.norm.weight has shape [32, 2]; config.json makes it [64]");
}

#[test]
fn a_tensor_beyond_the_config_is_named() {
    let (config, mut checkpoint) = small();
    let place = checkpoint.tensors["model.norm.weight"].clone();
    checkpoint.tensors.insert("model.layers.2.input_layernorm.weight".to_owned(), place);
    let text = check_tensors(&config, &checkpoint).unwrap_err().to_string();
    assert!(text.contains("a.safetensors") && text.contains("model.layers.2."), "{text}");
}
