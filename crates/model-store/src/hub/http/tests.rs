//! Where redirects may lead, how addresses are made, and how long a hub asks to wait.

use reqwest::header::HeaderName;

use super::*;

fn http(endpoint: &str) -> Http {
    Http::new(&HubConfig::new(Url::parse(endpoint).unwrap(), "unused".into())).unwrap()
}

fn redirect(from: &str, location: &str) -> Option<String> {
    let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_str(location).unwrap())]);
    http("https://hub.example").next(&Url::parse(from).unwrap(), &headers).ok().map(|url| url.to_string())
}

#[test]
fn redirects_lead_to_http_and_https_and_never_down() {
    let at = "https://hub.example/a/b";
    assert_eq!(redirect(at, "/c?d=e").as_deref(), Some("https://hub.example/c?d=e"));
    assert_eq!(redirect(at, "https://cdn.example/x").as_deref(), Some("https://cdn.example/x"));
    assert_eq!(redirect(at, "//cdn.example/x").as_deref(), Some("https://cdn.example/x"));
    for refused in ["http://cdn.example/x", "file:///etc/passwd", "ftp://x/y", "https://", "data:,x"] {
        assert_eq!(redirect(at, refused), None, "{refused}");
    }
    assert_eq!(redirect("http://hub.example/a", "https://x/").as_deref(), Some("https://x/"));
    let without = http("https://hub.example").next(&Url::parse(at).unwrap(), &HeaderMap::new());
    assert!(without.is_err());
}

#[test]
fn parts_of_an_address_stay_parts() {
    let url = |endpoint: &str, after: &[&str]| {
        http(endpoint).url(&["api", "models"], "org/name", after).to_string()
    };
    assert_eq!(
        url("https://hub.example", &["revision", "refs/pr/1"]),
        "https://hub.example/api/models/org/name/revision/refs%2Fpr%2F1"
    );
    assert_eq!(
        url("https://h.example/mirror/", &["tree", "a?b#c"]),
        "https://h.example/mirror/api/models/org/name/tree/a%3Fb%23c"
    );
}

#[test]
fn the_wait_is_read_from_either_header() {
    let read = |name: &'static str, value: &str| {
        wait(&HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())]))
    };
    assert_eq!(read("retry-after", " 30 "), Some(Duration::from_secs(30)));
    assert_eq!(read("ratelimit", r#""api";r=0;t=55"#), Some(Duration::from_secs(55)));
    for none in ["", "-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        assert_eq!(read("retry-after", none), None, "{none}");
    }
}
