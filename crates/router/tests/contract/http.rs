//! What holds for every request: names, hosts, origins, bodies, unknown paths.

use node_api::{ModelState, PROTOCOL_VERSION};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{FakeNode, World, answer, in_time};

fn error(body: &Value) -> (&str, &str) {
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{body}");
    assert!(error.get("param").is_some(), "{body}");
    (error["type"].as_str().unwrap(), error["code"].as_str().unwrap())
}

#[tokio::test]
async fn unknown_paths_and_methods_have_the_error_body() {
    let world = World::new().await;
    let (status, body) = world.get("/v1/nothing").await;
    assert_eq!((status, error(&body)), (StatusCode::NOT_FOUND, ("not_found_error", "unknown_url")));
    let (status, body) = world.get("/v1/chat/completions").await;
    assert_eq!(status, 405);
    assert_eq!(error(&body).1, "method_not_allowed");
    let (status, body) =
        answer(world.client.delete(format!("{}/api/nodes", world.url)).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), error(&body).1), (405, "method_not_allowed"));
}

#[tokio::test]
async fn malformed_json_is_refused_with_its_place() {
    let world = World::new().await;
    let request = world.client.post(format!("{}/v1/chat/completions", world.url));
    let request =
        request.header("content-type", "application/json").body("{\"model\": \"x\",\n \"messages\": [}");
    let (status, body) = answer(request.send().await.unwrap()).await;
    assert_eq!((status.as_u16(), error(&body).1), (400, "invalid_json"));
    assert!(body["error"]["message"].as_str().unwrap().contains("line 2 column 15"), "{body}");
}

#[tokio::test]
async fn other_hosts_origins_and_body_types_are_refused() {
    let world = World::new().await;
    let port = world.url.rsplit(':').next().unwrap();
    let send = async |header: &str, value: &str| {
        let request = world.client.post(format!("{}/v1/chat/completions", world.url)).body("{}");
        let request = if header == "content-type" {
            request
        } else {
            request.header("content-type", "application/json")
        };
        let (status, body) = answer(request.header(header, value).send().await.unwrap()).await;
        (status.as_u16(), body["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(send("host", "evil.example").await, (403, "host_not_allowed".into()));
    assert_eq!(send("origin", "http://evil.example").await, (403, "origin_not_allowed".into()));
    assert_eq!(send("origin", "null").await, (403, "origin_not_allowed".into()));
    assert_eq!(send("content-type", "text/plain").await, (415, "content_type_not_json".into()));
    // Through the guard: what is refused now is the body.
    assert_eq!(send("host", &format!("localhost:{port}")).await.0, 400);
    assert_eq!(send("origin", &world.url).await, (400, "missing_required_parameter".into()));
}

#[tokio::test]
async fn a_request_id_is_given_back_made_or_refused() {
    let world = World::new().await;
    let get = async |id: Option<&str>| {
        let mut request = world.client.get(format!("{}/health", world.url));
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.headers()["x-request-id"].to_str().unwrap().to_owned())
    };
    assert_eq!(get(Some("mine-1")).await, (200, "mine-1".into()));
    let (status, made) = get(None).await;
    assert!(status == 200 && made.starts_with("req-"), "{made}");
    assert_eq!(get(Some("not fine")).await.0, 400);
}

#[tokio::test]
async fn a_body_above_the_limit_is_413_with_and_without_its_length() {
    let world = World::with(|config| config.limits.body_bytes_max = 1000).await;
    let large =
        json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(2000)}]}).to_string();
    let post = || {
        world
            .client
            .post(format!("{}/v1/chat/completions", world.url))
            .header("content-type", "application/json")
    };
    let (status, body) = answer(post().body(large.clone()).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), error(&body).1), (413, "body_too_large"));
    assert!(body["error"]["message"].as_str().unwrap().contains("1000"), "{body}");
    let pieces: Vec<Result<String, std::io::Error>> =
        large.as_bytes().chunks(100).map(|c| Ok(String::from_utf8(c.to_vec()).unwrap())).collect();
    let streamed = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let (status, body) = answer(post().body(streamed).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), error(&body).1), (413, "body_too_large"));
}

#[tokio::test]
async fn a_caller_that_reads_nothing_before_it_has_sent_everything_gets_the_413_too() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    // More than the socket buffers of both ends hold.
    const BODY_BYTES: usize = 64 << 20;
    let world = World::with(|config| config.limits.body_bytes_max = 1000).await;
    let address = world.url.strip_prefix("http://").unwrap();
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {BODY_BYTES}\r\nconnection: close\r\n\r\n"
    );
    let exchange = async {
        connection.write_all(head.as_bytes()).await?;
        connection.write_all(&vec![b' '; BODY_BYTES]).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = in_time("the refusal", exchange).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");
}

#[tokio::test]
async fn version_and_health_answer() {
    let world = World::new().await;
    let (_, version) = world.get("/api/version").await;
    assert_eq!(
        (version["name"].as_str(), version["node_protocol_version"].as_u64()),
        (Some("llm-router"), Some(u64::from(PROTOCOL_VERSION)))
    );
    let (status, health) = world.get("/health").await;
    assert_eq!((status.as_u16(), health["status"].as_str()), (200, Some("ok")));
}

#[tokio::test]
async fn ready_is_503_with_the_reason_until_requests_can_be_served() {
    let world = World::new().await;
    let check = async |status: u16, state: &str, reason: &str| {
        let (found, body) = world.get("/ready").await;
        assert_eq!((found.as_u16(), body["status"].as_str()), (status, Some(state)), "{body}");
        assert!(body["reason"].as_str().unwrap_or_default().contains(reason), "{body}");
    };
    check(503, "not_ready", "no node is connected").await;
    let node = FakeNode::join(&world, "node-1").await;
    in_time("the node to be heard", async {
        while world.get("/api/nodes").await.1["nodes"][0]["state"] != "connected" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Without any model it can still be given one.
    check(200, "ok", "").await;
    world.register("org/tiny").await;
    world.wait_for_state("org/tiny", "ready").await;
    check(200, "ok", "").await;
    node.set_state("org/tiny", ModelState::Failed { reason: "broken".into(), retrying: false });
    world.wait_for_state("org/tiny", "failed").await;
    check(503, "not_ready", "none of 1 registered models").await;
    world.drain(&node).await;
    check(503, "not_ready", "the connected nodes are ending").await;
    assert_eq!(world.get("/health").await.0, 200);
}

#[tokio::test]
async fn the_page_and_what_it_loads_come_from_the_router_alone() {
    let world = World::new().await;
    for path in ["/api/docs", "/api/docs/docs.js", "/api/docs/docs.css", "/"] {
        let response = world.client.get(format!("{}{path}", world.url)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        assert!(
            response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'")
        );
        let text = response.text().await.unwrap();
        assert!(!text.contains("https://") && !text.contains("http://"), "{path}");
    }
}

#[tokio::test]
async fn other_addresses_than_loopback_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = router::Config::new(dir.path());
    config.listen = "0.0.0.0:0".parse().unwrap();
    let error = router::start(config, Default::default()).await.unwrap_err().to_string();
    assert!(error.contains("0.0.0.0:0") && error.contains("TLS"), "{error}");
}

#[tokio::test]
async fn a_busy_port_is_named() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = router::Config::new(dir.path());
    config.listen = world.router.as_ref().unwrap().local_addr;
    let port = config.listen.port().to_string();
    let error = router::start(config, Default::default()).await.unwrap_err().to_string();
    assert!(error.contains(&port) && error.contains("in use"), "{error}");
}
