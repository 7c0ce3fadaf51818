use super::*;

fn detect(json: &str) -> Result<Config, ConfigError> {
    detect_runtime(json.as_bytes())
}

#[test]
fn gpt_oss_and_its_aliases_are_known() {
    for json in [
        r#"{"architectures":["GptOssForCausalLM"],"model_type":"gpt_oss"}"#,
        r#"{"model_type":"gpt_oss"}"#,
        r#"{"model_type":"gpt-oss"}"#,
        r#"{"model_type":"GPT_OSS"}"#,
        r#"{"model_type":"gptoss"}"#,
        r#"{"architectures":["GptOssForCausalLM"]}"#,
        r#"{"architectures":["Wrapper","GptOssForCausalLM"],"model_type":null}"#,
    ] {
        let config = detect(json).unwrap();
        assert_eq!(config.architecture, "gpt_oss", "{json}");
        assert_eq!(config.runtimes, ["gpt-oss"], "{json}");
    }
}

#[test]
fn echo_is_known() {
    let config = detect(r#"{"model_type":"echo","max_position_embeddings":4096}"#).unwrap();
    assert_eq!(
        (config.architecture.as_str(), config.runtimes.as_slice()),
        ("echo", &["echo".to_owned()][..])
    );
    assert_eq!(config.context_length_max, Some(4096));
}

#[test]
fn an_unknown_model_keeps_its_name_and_has_no_runtime() {
    let config = detect(r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama"}"#).unwrap();
    assert_eq!(config.architecture, "llama");
    assert!(config.runtimes.is_empty());
    assert_eq!(detect(r#"{"architectures":["X"]}"#).unwrap().architecture, "X");
}

#[test]
fn a_config_that_says_nothing_is_refused() {
    for json in ["{}", r#"{"model_type":""}"#, r#"{"architectures":[]}"#] {
        assert!(matches!(detect(json), Err(ConfigError::NoArchitecture { .. })), "{json}");
    }
}

#[test]
fn a_config_that_contradicts_itself_names_both() {
    let error = detect(r#"{"architectures":["GptOssForCausalLM"],"model_type":"llama"}"#).unwrap_err();
    assert!(
        error.to_string().contains("llama") && error.to_string().contains("GptOssForCausalLM"),
        "{error}"
    );
}

#[test]
fn hostile_configs_name_the_file() {
    let deep = "[".repeat(200_000);
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(CONFIG_BYTES_MAX));
    for json in [
        "",
        "[]",
        "{",
        "nul",
        deep.as_str(),
        long.as_str(),
        "{\"model_type\":1}",
        "{\"architectures\":\"x\"}",
    ] {
        let text = detect(json).unwrap_err().to_string();
        assert!(text.contains("config.json"), "{text}");
    }
    assert!(detect_runtime(b"{\"model_type\":\"\xff\"}").is_err());
}

#[test]
fn impossible_context_lengths_name_the_field() {
    for value in ["0", "-1", "1.5", "4294967296", "\"1\""] {
        let error =
            detect(&format!(r#"{{"model_type":"echo","max_position_embeddings":{value}}}"#)).unwrap_err();
        assert!(error.to_string().contains("max_position_embeddings"), "{error}");
    }
}
