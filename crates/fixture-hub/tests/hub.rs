//! The hub over real sockets, as its clients see it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use fixture_hub::{Fault, FixtureHub, Options, Repo};
use reqwest::header::HeaderMap;
use reqwest::{Client, StatusCode};
use serde_json::Value;

fn repo() -> Repo {
    Repo::new("org/name")
        .file("config.json", "{}")
        .file("a b/c+d.txt", "odd name")
        .file("model.safetensors", "0123456789")
        .also_as("refs/pr/1")
}

/// Follows nothing, and knows no proxy.
fn client() -> Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(Duration::from_secs(30))
        .build()
        .unwrap()
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).unwrap_or_else(|| panic!("no {name} in {headers:?}")).to_str().unwrap()
}

async fn json(url: String) -> Value {
    serde_json::from_str(&client().get(url).send().await.unwrap().text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn large_files_are_redirected_to_another_origin_with_what_they_are_in_the_headers() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let url = format!("{}/org/name/resolve/main/model.safetensors", hub.url());
    let answer = client().head(&url).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::FOUND);
    assert_eq!(header(answer.headers(), "x-repo-commit"), repo().commit());
    assert_eq!(header(answer.headers(), "x-linked-size"), "10");
    let sha256 = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
    assert_eq!(header(answer.headers(), "x-linked-etag"), format!("\"{sha256}\""));
    let location = header(answer.headers(), "location").to_owned();
    assert!(location.starts_with(hub.cdn_url()) && !location.starts_with(hub.url()), "{location}");
    let body = client().get(&location).send().await.unwrap();
    assert_ne!(header(body.headers(), "etag"), format!("\"{sha256}\""), "the network has ETags of its own");
    assert_eq!(body.text().await.unwrap(), "0123456789");
}

#[tokio::test]
async fn the_content_network_wants_its_signature_and_no_token() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let url = format!("{}/org/name/resolve/main/model.safetensors", hub.url());
    let answer = client().get(&url).send().await.unwrap();
    let location = header(answer.headers(), "location").to_owned();
    let unsigned = location.split('?').next().unwrap();
    assert_eq!(client().get(unsigned).send().await.unwrap().status(), StatusCode::FORBIDDEN);
    let with_token = client().get(&location).bearer_auth("hf_x").send().await.unwrap();
    assert_eq!(with_token.status(), StatusCode::BAD_REQUEST);
    let seen = hub.requests();
    assert_eq!(seen.last().unwrap().authorization.as_deref(), Some("Bearer hf_x"), "a leak is seen");
}

#[tokio::test]
async fn small_files_are_redirected_on_the_hub_itself_and_have_their_git_id() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let answer =
        client().get(format!("{}/org/name/resolve/main/config.json", hub.url())).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
    let location = header(answer.headers(), "location").to_owned();
    assert!(location.starts_with('/'), "relative: {location}");
    let answer = client().get(format!("{}{location}", hub.url())).send().await.unwrap();
    // `printf '{}' | git hash-object --stdin`
    assert_eq!(header(answer.headers(), "etag"), "\"9e26dfeeb6e641a33dae4961196235bdb965b21b\"");
    assert_eq!(header(answer.headers(), "x-repo-commit"), repo().commit());
    assert_eq!(answer.text().await.unwrap(), "{}");
}

#[tokio::test]
async fn ranges_are_answered_in_part_or_refused() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let url = format!("{}/org/name/resolve/main/model.safetensors", hub.url());
    let answer = client().get(&url).send().await.unwrap();
    let location = header(answer.headers(), "location").to_owned();
    let part = |range: &'static str| client().get(&location).header("range", range).send();
    let answer = part("bytes=4-").await.unwrap();
    assert_eq!(answer.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(header(answer.headers(), "content-range"), "bytes 4-9/10");
    assert_eq!(answer.text().await.unwrap(), "456789");
    assert_eq!(part("bytes=0-0").await.unwrap().text().await.unwrap(), "0");
    let answer = part("bytes=10-").await.unwrap();
    assert_eq!(answer.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(header(answer.headers(), "content-range"), "bytes */10");
}

#[tokio::test]
async fn a_description_has_commit_and_files() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let info = json(format!("{}/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true", hub.url())).await;
    assert_eq!(
        (info["id"].as_str(), info["sha"].as_str()),
        (Some("org/name"), Some(repo().commit().as_str()))
    );
    let weights =
        info["siblings"].as_array().unwrap().iter().find(|s| s["rfilename"] == "model.safetensors").unwrap();
    assert_eq!((weights["size"].as_u64(), weights["lfs"]["size"].as_u64()), (Some(10), Some(10)));
    let plain = json(format!("{}/api/models/org/name", hub.url())).await;
    assert!(plain["siblings"][0].get("size").is_none());
}

#[tokio::test]
async fn lists_come_in_pages_that_lead_to_each_other() {
    let options = Options { page_files_max: 2, ..Options::default() };
    let hub = FixtureHub::start_with(options, [repo()]).await.unwrap();
    let mut url = format!("{}/api/models/org/name/tree/main?recursive=true", hub.url());
    let mut paths = Vec::new();
    loop {
        let answer = client().get(&url).send().await.unwrap();
        let link = answer.headers().get("link").map(|v| v.to_str().unwrap().to_owned());
        let page: Vec<Value> = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert!((1..=2).contains(&page.len()));
        paths.extend(page.iter().map(|e| e["path"].as_str().unwrap().to_owned()));
        let Some(link) = link else { break };
        assert!(link.ends_with("rel=\"next\""), "{link}");
        url = link[1..link.find('>').unwrap()].to_owned();
    }
    assert_eq!(paths, ["a b", "a b/c+d.txt", "config.json", "model.safetensors"]);
    let top = json(format!("{}/api/models/org/name/tree/main", hub.url())).await;
    assert_eq!(top.as_array().unwrap().len(), 2, "a page of the top folder");
    let below = json(format!("{}/api/models/org/name/tree/main/a%20b", hub.url())).await;
    assert_eq!(below[0]["path"], "a b/c+d.txt");
}

#[tokio::test]
async fn refusals_have_the_status_and_code_that_clients_tell_them_by() {
    let gated = Repo::new("org/gated").gated().file("config.json", "{}");
    let private = Repo::new("org/private").private().file("config.json", "{}");
    let hub = FixtureHub::start([repo(), gated, private]).await.unwrap();
    hub.know_token("known");
    let cases = [
        ("/api/models/org/absent", None, 401, Some("RepoNotFound")),
        ("/api/models/org/absent", Some("known"), 404, Some("RepoNotFound")),
        ("/api/models/org/private", None, 401, Some("RepoNotFound")),
        ("/api/models/org/private", Some("known"), 404, Some("RepoNotFound")),
        ("/api/models/org/name", Some("wrong"), 401, None),
        ("/api/models/org/gated", None, 200, None),
        ("/org/gated/resolve/main/config.json", None, 401, Some("GatedRepo")),
        ("/org/gated/resolve/main/config.json", Some("known"), 403, Some("GatedRepo")),
        ("/org/name/resolve/main/absent.json", None, 404, Some("EntryNotFound")),
        ("/org/name/resolve/absent/config.json", None, 404, Some("RevisionNotFound")),
        ("/api/models/org/name/tree/absent", None, 404, Some("RevisionNotFound")),
        ("/org/name", None, 404, None),
    ];
    for (path, token, status, code) in cases {
        let mut request = client().get(format!("{}{path}", hub.url()));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        let found = answer.headers().get("x-error-code").map(|v| v.to_str().unwrap());
        assert_eq!((answer.status().as_u16(), found), (status, code), "{path} with {token:?}");
        if status != 200 {
            assert!(answer.headers().contains_key("x-error-message"), "{path}");
        }
    }
}

#[tokio::test]
async fn a_renamed_repository_is_redirected_without_a_host() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    hub.rename("org/name", "new/other");
    for path in ["/api/models/org/name?blobs=true", "/org/name/resolve/main/config.json"] {
        let answer = client().get(format!("{}{path}", hub.url())).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
        assert_eq!(header(answer.headers(), "location"), path.replace("org/name", "new/other"));
    }
}

#[tokio::test]
async fn an_older_commit_stays_when_the_branch_moves() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let new = hub.push(repo().file("config.json", "[]"));
    let old = json(format!("{}/api/models/org/name/revision/{}", hub.url(), repo().commit())).await;
    assert_eq!(old["sha"], repo().commit());
    assert_eq!(json(format!("{}/api/models/org/name", hub.url())).await["sha"], new);
}

#[tokio::test]
async fn faults_strike_as_often_as_they_were_asked_for() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let url = format!("{}/org/name/resolve/main/model.safetensors", hub.url());
    let answer = client().get(&url).send().await.unwrap();
    let location = header(answer.headers(), "location").to_owned();
    let get = || client().get(&location).send();

    hub.fault("model.safetensors", Fault::RateLimited { retry_after_s: 7 }, 1);
    hub.fault("model.safetensors", Fault::Status(502), 1);
    hub.fault("model.safetensors", Fault::WrongBytes, 1);
    hub.fault("model.safetensors", Fault::CutAfter(4), 1);
    hub.fault("other", Fault::Status(500), 1);
    let limited = get().await.unwrap();
    assert_eq!((limited.status().as_u16(), header(limited.headers(), "retry-after")), (429, "7"));
    assert_eq!(get().await.unwrap().status().as_u16(), 502);
    assert_eq!(get().await.unwrap().text().await.unwrap(), "1123456789");
    assert!(get().await.unwrap().text().await.is_err(), "the connection breaks");
    assert_eq!(get().await.unwrap().text().await.unwrap(), "0123456789");
}

#[tokio::test]
async fn a_stall_lasts_until_it_is_released() {
    let hub = FixtureHub::start([repo()]).await.unwrap();
    let url = format!("{}/org/name/resolve/main/model.safetensors", hub.url());
    let answer = client().get(&url).send().await.unwrap();
    let location = header(answer.headers(), "location").to_owned();
    hub.fault("model.safetensors", Fault::StallAfter(4), 1);
    let mut answer = client().get(&location).send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "0123");
    assert!(tokio::time::timeout(Duration::from_millis(100), answer.chunk()).await.is_err());
    hub.release_stalls();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "456789");
}

#[tokio::test]
async fn the_program_serves_folders_and_ends_with_its_input() {
    use std::process::Stdio;
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_fixture-hub"))
        .args(["--exit-with-stdin", "--repo", &format!("org/disk={}", dir.path().display())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).await.unwrap();
    let info = json(format!("{}/api/models/org/disk", url.trim())).await;
    assert_eq!(info["siblings"][0]["rfilename"], "config.json");
    drop(child.stdin.take());
    let status = tokio::time::timeout(Duration::from_secs(30), child.wait()).await.unwrap().unwrap();
    assert!(status.success());
}
