//! `cargo xtask demo`: the whole way from registration to a token, on this machine, with nothing but this repository.
//!
//! A hub that serves `assets/demo-model`, a router and a node on the CPU run as processes of their own. What the model
//! answers is compared with `reference.json`, which another implementation of the same model wrote.

mod ask;
mod reference;
mod services;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{build, setup, shell};
use reference::Reference;
use services::Services;

/// As the demo's hub names it.
const REPO: &str = "llm-router/demo-model";
const MODEL_DIR: &str = "assets/demo-model";
/// What a person would try, in the order of a tour: one answer, a talk, a tool, a long text.
const TOUR: &[(&str, &str)] = &[
    ("capital", "a plain answer"),
    ("memory", "an answer from what was said before"),
    ("tool_call", "a tool call"),
    ("lighthouse", "a long answer, streamed"),
];

#[derive(Args)]
pub struct DemoArguments {
    /// Leave everything running, on the usual port
    #[arg(long)]
    keep: bool,
    /// One machine-readable line on stdout; fails when any answer differs from the reference
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Timings {
    build_seconds: f64,
    start_seconds: f64,
    ready_seconds: f64,
    total_seconds: f64,
}

pub fn run(arguments: &DemoArguments) -> Result<()> {
    let start = Instant::now();
    say("building");
    setup::linker()?;
    let bin_dir = build::products(false)?;
    let build_time = start.elapsed();

    say("starting a hub, a router and a node (on the CPU)");
    let reference = Reference::read(&shell::root().join(MODEL_DIR).join("reference.json"))?;
    let mut services = Services::start(&bin_dir, arguments.keep, &reference.date()?)?;
    let started_time = start.elapsed();
    eprintln!("   hub     {}\n   router  {}", services.hub_url, services.router_url);

    say(&format!("registering {REPO} as safetensors"));
    let model = register(&services)?;
    let ready_time = start.elapsed();

    let mut answers = Vec::new();
    for (name, what) in TOUR {
        let prompt = reference.prompt(name)?;
        say(what);
        for turn in prompt.messages.iter().filter(|m| m["content"].as_str().is_some_and(|c| !c.is_empty())) {
            eprintln!(
                "   {:>9}: {}",
                turn["role"].as_str().unwrap_or("?"),
                turn["content"].as_str().unwrap_or("")
            );
        }
        let answer = ask::ask(&services.router_url, REPO, prompt, *name == "lighthouse")?;
        answer.show();
        answers.push(answer);
    }

    let timings = Timings {
        build_seconds: seconds(build_time),
        start_seconds: seconds(started_time - build_time),
        ready_seconds: seconds(ready_time - started_time),
        total_seconds: seconds(start.elapsed()),
    };
    let different: Vec<&str> =
        answers.iter().filter(|a| !a.differences.is_empty()).map(|a| a.name.as_str()).collect();
    if arguments.json {
        let ready = ["ready", "loading", "loaded"].iter().any(|state| model["state"] == **state);
        let report = json!({
            "ok": different.is_empty(),
            "model": REPO,
            "ready": ready,
            "state": model["state"],
            "url": services.router_url,
            "answers": answers,
            "timings": timings,
        });
        println!("{report}");
    }
    if !different.is_empty() {
        bail!("these answers differ from {MODEL_DIR}/reference.json: {}", different.join(", "));
    }
    say(&format!("all answers equal the reference; {:.1} s in all", timings.total_seconds));
    if arguments.keep {
        services.keep()?;
        next_kept(&bin_dir, &services);
    } else {
        services.stop();
        next(&bin_dir);
    }
    Ok(())
}

/// Through the product's own command, which shows the progress.
fn register(services: &Services) -> Result<Value> {
    let mut command = services.client();
    command.args(["--json", "models", "add", REPO, "--format", "safetensors", "--wait"]);
    command.args(["--url", &services.router_url]).stderr(std::process::Stdio::inherit());
    let output = command.output().context("cannot start llm-router")?;
    if !output.status.success() {
        bail!(
            "the registration ended with {}\nhint: the logs are in {}",
            output.status,
            services.dir.display()
        );
    }
    serde_json::from_slice(&output.stdout).context("`models add --json` printed something else than JSON")
}

fn say(what: &str) {
    eprintln!("\n== {what}");
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

fn program(bin_dir: &Path) -> PathBuf {
    let path = bin_dir.join(build::binary_name("llm-router"));
    path.strip_prefix(shell::root()).map(Path::to_path_buf).unwrap_or(path)
}

fn next(bin_dir: &Path) {
    let program = program(bin_dir);
    let program = program.display();
    eprintln!("\nTo try next:");
    eprintln!("   cargo xtask demo --keep                       the same, left running");
    eprintln!("   {program} doctor                    what this machine has for models");
    eprintln!("   {program} up --device cpu           a router and a node of your own");
    eprintln!("   {program} models add ./{MODEL_DIR} --id demo");
    eprintln!("   {program} chat demo");
}

fn next_kept(bin_dir: &Path, services: &Services) {
    let program = program(bin_dir);
    let program = program.display();
    let url = &services.router_url;
    eprintln!("\nLeft running. To try next:");
    eprintln!("   {program} chat {REPO} --url {url}");
    eprintln!("   {program} models show {REPO} --url {url}");
    eprintln!("   {program} nodes ls --url {url}");
    eprintln!("   curl {url}/v1/models");
    eprintln!(
        "   curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n        \
         -d '{{\"model\":\"{REPO}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}'"
    );
    eprintln!("\nTo end it:\n   {}", services.end_command());
}
