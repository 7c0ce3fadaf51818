//! Registers the model that is served, and waits until it is as a measurement needs it.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::repo;
use crate::router::connection::{Connection, get, post};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// `wanted` is the state to wait for. An error names what the router answered, or the state that the model stayed in.
pub async fn register(connection: &mut Connection, settings: Option<Value>, wanted: &str) -> Result<()> {
    let mut body = json!({"repo": repo::REPO, "format": "safetensors"});
    if let Some(settings) = settings {
        body["settings"] = settings;
    }
    let answer = connection.send(&post("/api/models", &body.to_string()), true).await?;
    if !(200..300).contains(&answer.status) {
        let words = String::from_utf8_lossy(&answer.body.unwrap_or_default()).into_owned();
        bail!("the model was not registered ({}): {words}", answer.status);
    }
    let deadline = Instant::now() + READY_TIMEOUT;
    let mut ticks = tokio::time::interval(POLL);
    loop {
        ticks.tick().await;
        let answer = connection.send(&get(&format!("/api/models/{}", repo::REPO)), true).await?;
        let model: Value = serde_json::from_slice(&answer.body.unwrap_or_default())?;
        if model["state"] == wanted {
            return Ok(());
        }
        let seconds = READY_TIMEOUT.as_secs();
        ensure!(Instant::now() < deadline, "the model was not {wanted} in {seconds} s: {model}");
    }
}
