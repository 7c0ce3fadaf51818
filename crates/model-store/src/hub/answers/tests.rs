//! Answers as the hub gives them, and as nobody should.

use reqwest::header::HeaderValue;

use super::*;

fn listed(json: &str) -> Result<Vec<ListedFile>, HubError> {
    parse::<Vec<TreeEntry>>(json.as_bytes(), "the list")
        .map(|list| list.into_iter().map(ListedFile::from).collect())
}

#[test]
fn large_files_have_a_sha256_and_small_ones_a_git_id() {
    let sha256 = "ab".repeat(32);
    let files = listed(&format!(
        r#"[{{"type": "file", "oid": "{git}", "size": 10, "path": "config.json"}},
            {{"type": "file", "oid": "{git}", "size": 20, "path": "m.safetensors", "xetHash": "x",
              "lfs": {{"oid": "{sha256}", "size": 20, "pointerSize": 130}}}}]"#,
        git = "cd".repeat(20),
    ))
    .unwrap();
    assert_eq!(
        (files[0].sha256.as_deref(), files[0].git_oid.as_deref()),
        (None, Some("cd".repeat(20).as_str()))
    );
    assert_eq!((files[1].sha256.as_deref(), files[1].git_oid.as_deref()), (Some(sha256.as_str()), None));
}

#[test]
fn hashes_that_are_none_are_left_out() {
    for oid in ["", "../../x", "ABCD", "zz"] {
        let json = format!(
            r#"[{{"type": "file", "oid": "{oid}", "size": 1, "path": "a", "lfs": {{"oid": "{oid}", "size": 1}}}}]"#
        );
        assert_eq!(listed(&json).unwrap()[0].sha256, None, "{oid}");
    }
}

#[test]
fn lists_that_are_none_are_refused() {
    for json in ["", "{}", "[1]", r#"[{"type": "file"}]"#, r#"[{"type": "file", "path": "a", "size": -1}]"#] {
        assert!(listed(json).is_err(), "{json}");
    }
}

fn headers(name: reqwest::header::HeaderName, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
}

#[test]
fn the_next_page_is_found_among_other_links() {
    let next = |value| next_page(&headers(LINK, value));
    assert_eq!(next(r#"<https://h/a?cursor=x>; rel="next""#).as_deref(), Some("https://h/a?cursor=x"));
    assert_eq!(
        next(r#"<https://h/p>; rel="prev", <https://h/n,1>; rel="next""#).as_deref(),
        Some("https://h/n,1")
    );
    for none in ["", "<", r#"<https://h/a>; rel="prev""#, r#"https://h/a; rel="next""#] {
        assert_eq!(next(none), None, "{none}");
    }
}

#[test]
fn the_start_of_a_part_is_read() {
    let start = |value| range_start(&headers(CONTENT_RANGE, value));
    assert_eq!(start("bytes 10-19/20"), Some(10));
    assert_eq!(start("bytes 10-19/*"), Some(10));
    for none in ["", "bytes */20", "bytes -1-2/3", "lines 1-2/3", "bytes x-2/3"] {
        assert_eq!(start(none), None, "{none}");
    }
}
