//! Which template a model gets.

use super::*;

fn select(architecture: &str, file: Option<&str>, config: Option<&str>) -> Result<TemplateSet, SelectError> {
    let tokens = ControlTokens::new(["<s>".to_owned()], ["<think>".to_owned()]);
    TemplateSet::select(architecture, file.map(str::as_bytes), config.map(str::as_bytes), tokens)
}

#[test]
fn the_file_is_stronger_than_the_config() {
    let set = select("llama", Some("file"), Some(r#"{"chat_template": "config"}"#)).unwrap();
    assert_eq!((set.origin, set.for_request(false).text.as_str()), (Origin::File, "file"));
    assert_eq!(set.for_request(false).control_tokens, ["<s>"]);
    assert_eq!(set.for_request(false).markers, ["<think>"]);
}

#[test]
fn the_config_is_used_without_a_file() {
    let set = select("llama", None, Some(r#"{"chat_template": "config"}"#)).unwrap();
    assert_eq!((set.origin, set.for_request(true).text.as_str()), (Origin::TokenizerConfig, "config"));
}

#[test]
fn named_templates_are_chosen_by_tools() {
    let config = r#"{"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "r"}
    ]}"#;
    let set = select("command_r", None, Some(config)).unwrap();
    assert_eq!(set.for_request(false).text, "plain");
    assert_eq!(set.for_request(true).text, "tools");
}

#[test]
fn named_templates_without_a_default_are_an_error() {
    let config = r#"{"chat_template": [{"name": "rag", "template": "r"}]}"#;
    let error = select("x", None, Some(config)).unwrap_err();
    assert!(error.to_string().contains("rag"), "{error}");
}

#[test]
fn a_template_of_a_wrong_type_is_an_error() {
    for config in [
        r#"{"chat_template": 3}"#,
        r#"{"chat_template": [3]}"#,
        r#"{"chat_template": [{"name": "default"}]}"#,
    ] {
        assert!(matches!(select("x", None, Some(config)), Err(SelectError::WrongType)), "{config}");
    }
}

#[test]
fn a_model_without_templates_gets_the_default_of_its_architecture() {
    for config in [None, Some("{}"), Some(r#"{"chat_template": null}"#)] {
        let set = select("gpt_oss", None, config).unwrap();
        assert_eq!(set.origin, Origin::Default);
        assert!(set.for_request(true).text.contains("<|channel|>"));
        assert!(!select("echo", None, config).unwrap().for_request(false).text.contains("<|"));
    }
}

#[test]
fn special_tokens_are_variables() {
    let config = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}, "pad_token": null,
        "model_max_length": 3, "extra_special_tokens": {"image_token": "<image>"}}"#;
    let set = select("x", None, Some(config)).unwrap();
    let variables: Vec<_> =
        set.for_request(false).variables.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(variables, [("bos_token", "<s>"), ("eos_token", "</s>"), ("image_token", "<image>")]);
}

#[test]
fn a_plain_text_begins_with_the_token_where_the_config_says_so() {
    let of = |config: &str| plain_beginning(config.as_bytes());
    assert_eq!(of(r#"{"bos_token": "<s>", "add_bos_token": true}"#).as_deref(), Some("<s>"));
    let object = r#"{"bos_token": {"content": "<s>"}, "add_bos_token": true}"#;
    assert_eq!(of(object).as_deref(), Some("<s>"));
    for config in [
        r#"{"bos_token": "<s>", "add_bos_token": false}"#,
        r#"{"bos_token": "<s>"}"#,
        r#"{"bos_token": null, "add_bos_token": true}"#,
        "{",
    ] {
        assert_eq!(of(config), None, "{config}");
    }
}

#[test]
fn oversized_and_broken_files_are_errors_that_name_them() {
    let large = "x".repeat(TEMPLATE_BYTES_MAX + 1);
    let error = select("x", Some(&large), None).unwrap_err();
    assert!(error.to_string().starts_with("chat_template.jinja has 1048577 bytes"), "{error}");
    let error = select("x", None, Some("{")).unwrap_err();
    assert!(matches!(error, SelectError::Json(_)), "{error}");
    let error = TemplateSet::select("x", Some(&[0xff]), None, ControlTokens::default()).unwrap_err();
    assert!(matches!(error, SelectError::NotUtf8 { .. }), "{error}");
}
