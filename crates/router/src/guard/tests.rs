use super::*;

#[test]
fn only_names_of_this_machine_are_loopback() {
    for host in
        ["localhost", "LOCALHOST:8411", "127.0.0.1", "127.0.0.1:1", "127.8.9.1", "[::1]", "[::1]:8411"]
    {
        assert!(is_loopback(host), "{host}");
    }
    for host in [
        "example.com",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "10.0.0.1:8411",
        "[::2]",
        "",
        ":8411",
        "localhost:x",
        "127.0.0.1@example.com",
        "0.0.0.0",
        "2130706433",
    ] {
        assert!(!is_loopback(host), "{host}");
    }
}

fn request(headers: &[(&str, &str)]) -> Request<Body> {
    let mut builder = Request::builder().method("POST").uri("/v1/chat/completions");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

fn code(headers: &[(&str, &str)]) -> Option<String> {
    check(&request(headers)).err().map(|f| format!("{} {}", f.status.as_u16(), f.code))
}

#[test]
fn foreign_hosts_origins_and_body_types_are_refused() {
    let json = ("content-type", "application/json; charset=utf-8");
    let host = ("host", "localhost:8411");
    assert_eq!(code(&[host, json]), None);
    assert_eq!(code(&[host, json, ("origin", "http://localhost:8411")]), None);
    assert_eq!(code(&[json]).as_deref(), Some("400 host_missing"));
    assert_eq!(code(&[("host", "evil.example:8411"), json]).as_deref(), Some("403 host_not_allowed"));
    for origin in
        ["http://evil.example", "null", "http://localhost:3000", "https://localhost:8411", "http://localhost"]
    {
        assert_eq!(
            code(&[host, json, ("origin", origin)]).as_deref(),
            Some("403 origin_not_allowed"),
            "{origin}"
        );
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        assert_eq!(
            code(&[host, ("content-type", kind)]).as_deref(),
            Some("415 content_type_not_json"),
            "{kind}"
        );
    }
    assert_eq!(code(&[host]).as_deref(), Some("415 content_type_not_json"));
}

#[test]
fn request_ids_are_kept_made_or_refused() {
    let id = |value: &str| request_id(request(&[("x-request-id", value)]).headers());
    assert_eq!(id("abc-1:2").unwrap(), "abc-1:2");
    for bad in ["", "a b", "a\tb", "é", &"x".repeat(129)] {
        assert_eq!(id(bad).unwrap_err().code, "invalid_request_id", "{bad}");
    }
    let made = request_id(&HeaderMap::new()).unwrap();
    assert!(made.starts_with("req-") && request_id(request(&[("x-request-id", &made)]).headers()).is_ok());
}
