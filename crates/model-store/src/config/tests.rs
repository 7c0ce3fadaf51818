//! The environment is read as the hub's own client reads it.

use super::*;

fn config(values: &[(&str, &str)]) -> Result<HubConfig, HubConfigError> {
    let find = |name: &str| values.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
    HubConfig::from_env(find, Some(PathBuf::from("/home/u")))
}

#[test]
fn the_defaults_are_those_of_the_hub() {
    let config = config(&[]).unwrap();
    assert_eq!(config.endpoint.as_str(), "https://huggingface.co/");
    assert_eq!(config.cache_dir, Path::new("/home/u/.cache/huggingface/hub"));
    assert_eq!(config.token, None);
}

#[test]
fn the_cache_folder_follows_the_strongest_variable() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
        (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")], "/h/hub"),
        (&[("HF_HOME", "~/h")], "/home/u/h/hub"),
        (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c"),
        (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/h")], "/h/hub"),
    ];
    for (values, expected) in cases {
        assert_eq!(config(values).unwrap().cache_dir, Path::new(expected), "{values:?}");
    }
}

#[test]
fn the_token_comes_from_the_variable_or_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
    let home = dir.path().to_str().unwrap();
    let token = |values: &[(&str, &str)]| config(values).unwrap().token.map(|t| t.bearer());
    assert_eq!(token(&[("HF_HOME", home)]).as_deref(), Some("Bearer hf_file"));
    assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", " hf_env ")]).as_deref(), Some("Bearer hf_env"));
    let path = dir.path().join("token");
    assert_eq!(token(&[("HF_TOKEN_PATH", path.to_str().unwrap())]).as_deref(), Some("Bearer hf_file"));
    assert_eq!(token(&[("HF_HOME", "/nowhere")]), None);
}

#[test]
fn a_token_with_a_line_break_inside_is_refused_and_never_shown() {
    let error = config(&[("HF_TOKEN", "hf_secret\r\nX: y")]).unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    let token = Token::new("hf_secret", "test").unwrap().unwrap();
    assert!(!format!("{token:?}").contains("secret"));
}

#[test]
fn an_endpoint_that_is_no_address_is_refused() {
    for value in ["huggingface.co", "ftp://x", "http://", "https://x/?q=1"] {
        assert!(matches!(config(&[("HF_ENDPOINT", value)]), Err(HubConfigError::Endpoint { .. })), "{value}");
    }
    assert_eq!(
        config(&[("HF_ENDPOINT", "http://localhost:1/")]).unwrap().endpoint.as_str(),
        "http://localhost:1/"
    );
}

#[test]
fn pauses_double_up_to_their_limit() {
    let policy = RetryPolicy::default();
    let pauses: Vec<u128> = [1, 2, 3, 20, u32::MAX].map(|n| policy.pause_after(n).as_millis()).to_vec();
    assert_eq!(pauses, [500, 1000, 2000, 30_000, 30_000]);
}
