//! Loads against a server whose answers the test holds back until a state has come.

use std::time::{Duration, Instant};

use serde_json::json;

use super::arguments;
use super::server::{Asked, STATE_MAX, Server};
use crate::commands::bench::plan::{Case, Load};
use crate::commands::bench::sample::{Sample, Taken};
use crate::commands::bench::target::Target;
use crate::commands::bench::{BenchArguments, load};

async fn one(server: &mut Server, words: &[&str], serve: impl AsyncFnOnce(Asked)) -> Sample {
    one_since(Instant::now(), server, words, serve).await
}

async fn one_since(
    begin: Instant,
    server: &mut Server,
    words: &[&str],
    serve: impl AsyncFnOnce(Asked),
) -> Sample {
    let arguments = arguments(words);
    let target = Target::new(&server.url, &arguments).expect("an address");
    let body = target.body("acme/model", "hello", &arguments);
    let serving = async { serve(server.next().await).await };
    let asking = target.ask(&body, begin, Duration::ZERO);
    let both = async { tokio::join!(asking, serving).0 };
    tokio::time::timeout(STATE_MAX, both).await.expect("an answer in time")
}

/// Runs a case while `serve` plays the server.
async fn case(load: Load, arguments: &BenchArguments, serve: impl AsyncFnOnce(&mut Server)) -> Taken {
    let mut server = Server::start().await;
    let target = Target::new(&server.url, arguments).expect("an address");
    let case = Case { load, prompt_words: 1 };
    let body = |number: u64| json!({"number": number});
    let served = async {
        serve(&mut server).await;
        std::future::pending().await
    };
    let loaded = async {
        tokio::select! {
            taken = load::run(&target, &case, body, arguments) => taken,
            never = served => never,
        }
    };
    tokio::time::timeout(STATE_MAX, loaded).await.expect("the load ends")
}

#[tokio::test]
async fn a_request_is_timed_part_by_part() {
    let mut server = Server::start().await;
    let (mut asked_at, mut ended_at) = (None, None);
    let begin = Instant::now();
    let sample = one_since(begin, &mut server, &[], async |mut asked| {
        asked_at = Some(begin.elapsed());
        assert!(asked.head.starts_with("post /v1/chat/completions"), "{}", asked.head);
        assert!(!asked.head.contains("authorization"), "{}", asked.head);
        assert_eq!(asked.body["messages"], json!([{"role": "user", "content": "hello"}]));
        assert_eq!((&asked.body["stream"], &asked.body["max_tokens"]), (&json!(true), &json!(128)));
        asked.begin().await;
        asked.text("").await;
        asked.text("one").await;
        asked.text("two").await;
        ended_at = Some(begin.elapsed());
        asked.end(9, 4).await;
    })
    .await;
    assert_eq!(sample.error, None);
    // An event without text is no token.
    assert_eq!((sample.parts.len(), sample.prompt_tokens, sample.completion_tokens), (2, Some(9), Some(4)));
    let (asked, ended) = (asked_at.expect("it was asked"), ended_at.expect("it was answered"));
    // The first part cannot have come before the request was there, the end not before it was sent.
    assert!(sample.parts[0] >= asked && sample.ended >= ended, "{sample:?} {asked:?} {ended:?}");
    assert!(sample.parts.is_sorted() && sample.ended >= sample.parts[1]);
}

#[tokio::test]
async fn completions_and_lengths_are_asked_for_as_told() {
    let mut server = Server::start().await;
    let words = ["--api", "completions", "--ignore-eos", "--max-tokens", "7"];
    let sample = one(&mut server, &words, async |asked| {
        assert!(asked.head.starts_with("post /v1/completions"), "{}", asked.head);
        assert_eq!(asked.body["prompt"], "hello");
        assert_eq!((&asked.body["min_tokens"], &asked.body["ignore_eos"]), (&json!(7), &json!(true)));
        asked.answer(7).await;
    })
    .await;
    assert_eq!((sample.error, sample.parts.len()), (None, 7));
}

#[tokio::test]
async fn every_way_to_fail_has_its_words() {
    let mut server = Server::start().await;
    let refused = one(&mut server, &[], async |asked| {
        asked.json("503 Service Unavailable", json!({"error": {"message": "the queue is full"}})).await;
    });
    assert_eq!(refused.await.error.as_deref(), Some("503: the queue is full"));
    let cut = one(&mut server, &[], async |mut asked| {
        asked.begin().await;
        asked.text("one").await;
    });
    assert_eq!(cut.await.error.as_deref(), Some("the stream ended before the reply did"));
    let empty = one(&mut server, &[], async |asked| asked.answer(0).await);
    assert_eq!(empty.await.error.as_deref(), Some("an answer without a token"));
    let mut held = None;
    let silent = one(&mut server, &["--deadline", "0.2"], async |asked| held = Some(asked));
    assert_eq!(silent.await.error.as_deref(), Some("over the deadline of 0.2 s"));
}

#[tokio::test]
async fn a_closed_loop_keeps_its_connections_busy_and_has_no_more() {
    let arguments = arguments(&["--seconds", "0.2", "--warm-up", "1"]);
    let taken = case(Load::Closed { connections: 3 }, &arguments, async |server| {
        let warm = server.next().await;
        assert_eq!(warm.body["number"], 0);
        assert!(!server.is_asked(), "the warm-up is one request after another");
        warm.answer(1).await;
        // All three are here before any is answered; a fourth only when one was.
        let waiting = [server.next().await, server.next().await, server.next().await];
        assert!(!server.is_asked(), "three connections have three requests");
        for asked in waiting {
            asked.answer(2).await;
        }
        // Whatever more they ask until their time is up.
        loop {
            server.next().await.answer(2).await;
        }
    })
    .await;
    assert!(taken.samples.len() >= 3, "{}", taken.samples.len());
    assert!(taken.samples.iter().all(|s| s.error.is_none() && s.parts.len() == 2), "{:?}", taken.samples);
}

#[tokio::test]
async fn an_open_loop_waits_for_no_answer() {
    let arguments = arguments(&["--seconds", "0.1", "--warm-up", "0", "--seed", "3"]);
    let due = crate::commands::bench::plan::arrivals(200.0, Duration::from_millis(100), 3);
    let count = due.len();
    let taken = case(Load::Open { rate: 200.0 }, &arguments, async |server| {
        let mut waiting = Vec::new();
        // None is answered before all have come.
        for _ in 0..count {
            waiting.push(server.next().await);
        }
        for asked in waiting {
            asked.answer(1).await;
        }
    })
    .await;
    let mut seen: Vec<Duration> = taken.samples.iter().map(|s| s.due).collect();
    seen.sort_unstable();
    assert_eq!(seen, due);
    // The first waited for the last to come, and that is in its time.
    let first = taken.samples.iter().min_by_key(|s| s.due).expect("a sample");
    assert!(first.to_first().is_some_and(|t| t >= due[count - 1] - due[0]), "{first:?}");
}

#[tokio::test]
async fn the_only_model_is_found_and_several_are_named() {
    let mut server = Server::start().await;
    let target = Target::new(&format!("{}/v1/", server.url), &arguments(&[])).expect("an address");
    let model = |id: &str| json!({"id": id, "object": "model", "created": 0, "owned_by": "acme"});
    let mut ask = async |models: serde_json::Value| {
        let serving = async {
            let asked = server.next().await;
            assert!(asked.head.starts_with("get /v1/models "), "{}", asked.head);
            asked.json("200 OK", json!({"object": "list", "data": models})).await;
        };
        tokio::join!(target.only_model(), serving).0
    };
    assert_eq!(ask(json!([model("acme/one")])).await.expect("a model"), "acme/one");
    let several = ask(json!([model("acme/one"), model("acme/two")])).await.expect_err("a choice").to_string();
    assert!(several.contains("acme/one, acme/two"), "{several}");
    assert!(ask(json!([])).await.expect_err("none").to_string().contains("no model"));
}

#[test]
fn addresses_and_keys_that_are_none_are_refused() {
    for url in ["", "127.0.0.1:8411", "ftp://host", "mailto:a@b"] {
        assert!(Target::new(url, &arguments(&[])).is_err(), "{url}");
    }
    let url = |url: &str| Target::new(url, &arguments(&[])).expect("an address").url().to_owned();
    assert_eq!(url("http://host:1"), "http://host:1/v1");
    assert_eq!(url("https://host/api/v1/"), "https://host/api/v1");
    let error = Target::new("http://host", &arguments(&["--key-env", "NO_SUCH_VARIABLE_HERE"]));
    assert!(error.err().is_some_and(|e| e.to_string().contains("NO_SUCH_VARIABLE_HERE")));
}
