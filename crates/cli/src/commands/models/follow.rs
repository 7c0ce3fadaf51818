//! Follows a model through download and verification until a request can be sent.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use admin_api::{Availability, Model, ModelDetails};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use node_api::ModelState;

use crate::client::Client;
use crate::output;

const POLL: Duration = Duration::from_millis(50);
/// Without any change for this long nobody is working on it. A node may be busy hashing one large file.
const STALL_MAX: Duration = Duration::from_secs(300);

/// The model when it is ready; an error when it cannot become so, or nothing moves any more.
pub async fn until_ready(client: &Client, id: &str) -> Result<ModelDetails> {
    let bar = ProgressBar::new(0);
    let terminal = std::io::stderr().is_terminal();
    let mut ticks = tokio::time::interval(POLL);
    let mut last: Option<Model> = None;
    let mut moved = Instant::now();
    loop {
        ticks.tick().await;
        let details: ModelDetails = client.get(&["api", "models", id]).await?;
        let model = &details.model;
        show(&bar, model);
        if !terminal && last.as_ref().map(|l| l.state) != Some(model.state) {
            // A bar would draw nothing here; each state gets a line instead.
            eprintln!("{id}: {}{}", model.state.as_str(), amount(model));
        }
        if model.state.is_ready() {
            // Small models are there between two looks; the bar ends with all of it all the same.
            work_style(&bar, "ready      ");
            bar.set_length(model.total_bytes);
            bar.set_position(model.total_bytes);
            bar.finish();
            return Ok(details);
        }
        let reason = || model.reason.clone().unwrap_or_else(|| "no reason was given".to_owned());
        let given_up =
            model.nodes.iter().all(|n| matches!(n.state, ModelState::Failed { retrying: false, .. }));
        match model.state {
            Availability::Unsupported => {
                bar.abandon();
                bail!("{id} is registered and no connected node can run it: {}", reason());
            }
            Availability::Failed if given_up => {
                bar.abandon();
                bail!("{id} is registered and did not become ready: {}", reason());
            }
            _ => {}
        }
        if last.as_ref() != Some(model) {
            last = Some(model.clone());
            moved = Instant::now();
        } else if moved.elapsed() > STALL_MAX {
            bar.abandon();
            bail!(
                "{id} is {} and nothing has changed for {} s: {}\nhint: it goes on by itself; \
                 `llm-router models show {id}` tells how far it is",
                model.state.as_str(),
                STALL_MAX.as_secs(),
                reason()
            );
        }
    }
}

/// What belongs behind the state: how much is there, or why it is not.
fn amount(model: &Model) -> String {
    match (&model.reason, model.state) {
        (_, state) if state.is_ready() => format!(" ({})", output::bytes(model.total_bytes)),
        // A disk that is full is tried again, and whoever waits has to know.
        (Some(reason), Availability::Failed) => format!(": {reason}"),
        _ => String::new(),
    }
}

fn show(bar: &ProgressBar, model: &Model) {
    let working = model.nodes.iter().map(|n| &n.state).find(|s| Availability::of(s) == model.state);
    match working {
        Some(ModelState::Downloading { bytes_done, bytes_total, .. }) => {
            work_style(bar, "downloading");
            bar.set_length(*bytes_total);
            bar.set_position(*bytes_done);
        }
        Some(ModelState::Verifying { bytes_done, bytes_total }) => {
            work_style(bar, "verifying  ");
            bar.set_length(*bytes_total);
            bar.set_position(*bytes_done);
        }
        _ => {
            bar.set_style(style("{spinner} {msg}"));
            bar.set_message(match model.state {
                Availability::NoNode => "waiting for a node".to_owned(),
                state => format!(
                    "{}{}",
                    state.as_str(),
                    model.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default()
                ),
            });
        }
    }
    bar.tick();
}

fn work_style(bar: &ProgressBar, word: &'static str) {
    bar.set_style(style(
        "{msg} {bar:30} {percent:>3} % {decimal_bytes} of {decimal_total_bytes} {decimal_bytes_per_sec}",
    ));
    bar.set_message(word);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates in this file are valid")
}
