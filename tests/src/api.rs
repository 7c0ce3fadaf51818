//! The router's two APIs as a plain HTTP client sees them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::until;

const ANSWER_MAX: Duration = Duration::from_secs(180);

#[derive(Clone)]
pub struct Api {
    pub url: String,
    http: reqwest::Client,
}

/// Status and body, JSON where it was JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.body);
        self.body
    }

    /// An error of this status in OpenAI's form whose message (or hint) names all of `parts`.
    #[track_caller]
    pub fn refused(&self, status: u16, parts: &[&str]) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.body["error"];
        let text = format!(
            "{} {}",
            error["message"].as_str().unwrap_or_default(),
            error["hint"].as_str().unwrap_or_default()
        );
        assert!(error["type"].is_string() && !text.trim().is_empty(), "no error body: {}", self.body);
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {}", self.body);
        }
    }
}

impl Api {
    pub fn new(url: &str) -> Api {
        // The first of the process wins; they are all the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http =
            reqwest::Client::builder().no_proxy().timeout(ANSWER_MAX).build().expect("HTTP can be set up");
        Api { url: url.to_owned(), http }
    }

    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    pub async fn get(&self, path: &str) -> Answer {
        answer(self.http.get(format!("{}{path}", self.url))).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        answer(self.http.delete(format!("{}{path}", self.url))).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        answer(self.http.post(format!("{}{path}", self.url)).json(body)).await
    }

    pub async fn post_raw(&self, path: &str, content_type: &str, body: Vec<u8>) -> Answer {
        let request = self.http.post(format!("{}{path}", self.url));
        answer(request.header("content-type", content_type).body(body)).await
    }

    pub async fn chat(&self, body: &Value) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    /// The data of every event of a stream, `[DONE]` included as a string.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self
            .http
            .post(format!("{}{path}", self.url))
            .json(body)
            .send()
            .await
            .expect("the router answers");
        let status = response.status();
        let text = response.text().await.expect("a whole stream");
        assert_eq!(status, 200, "{text}");
        text.lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(
                |data| {
                    if data == "[DONE]" { json!("[DONE]") } else { serde_json::from_str(data).expect("JSON") }
                },
            )
            .collect()
    }

    pub async fn register(&self, body: &Value) -> Answer {
        self.post("/api/models", body).await
    }

    pub async fn model(&self, id: &str) -> Value {
        self.get(&format!("/api/models/{id}")).await.ok()
    }

    /// Waits until a request to the model can be sent.
    pub async fn until_ready(&self, id: &str) -> Value {
        self.until_state(id, &["ready", "loading", "loaded"]).await
    }

    pub async fn until_state(&self, id: &str, states: &[&str]) -> Value {
        until(&format!("{id} in one of {states:?}"), || async {
            let model = self.model(id).await;
            if states.iter().any(|s| model["state"] == **s) { Ok(model) } else { Err(model.to_string()) }
        })
        .await
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.expect("the router answers");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.expect("a whole answer");
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Answer { status, headers, body }
}
