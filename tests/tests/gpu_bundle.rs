//! `run.sh` of the bundle for machines with an NVIDIA GPU: its steps, each as a user would run it, on stand-ins for the driver's
//! libraries, with what the bundle has in it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;
use std::process::Command;

use engine_testkit::build::{cuda_check_binary, engine_dir, router_binary, stand_in_gpus, workspace_root};
use serde_json::Value;

/// A folder as `cargo xtask gpu-bundle` makes it, unpacked, and the stand-ins; none where there can be no stand-ins.
fn bundle() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (bin, gpus) = (dir.path().join("bin"), dir.path().join("gpus"));
    for folder in [&bin, &gpus] {
        std::fs::create_dir(folder).expect("the test's folder is writable");
    }
    if !stand_in_gpus(&gpus) {
        return None;
    }
    // The router finds the engine beside the file that the link names.
    engine_dir("gpt-oss");
    let check = workspace_root().join("engines/gpt-oss/cuda-check");
    let linked = [
        (router_binary(), bin.join("llm-router")),
        (cuda_check_binary(), bin.join("gpt-oss-cuda-check")),
        (workspace_root().join("assets/demo-model"), dir.path().join("demo-model")),
        (workspace_root().join("engines/gpt-oss/cuda/kernels"), dir.path().join("kernels")),
        (check.join("run.sh"), dir.path().join("run.sh")),
    ];
    for (from, to) in linked {
        std::os::unix::fs::symlink(from, to).expect("the test's folder is writable");
    }
    std::fs::write(dir.path().join("commit.txt"), "abc1234").expect("the test's folder is writable");
    std::fs::write(dir.path().join("config.toml"), "").expect("the test's folder is writable");
    Some(dir)
}

/// Runs a step to its end: whether it went well, and the lines that it left.
fn run(bundle: &Path, step: &str, variables: &[(&str, &str)]) -> (bool, Vec<Value>) {
    let mut command = Command::new("bash");
    command.current_dir(bundle).arg(bundle.join("run.sh")).arg(step);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LLM_ROUTER_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", bundle.join("gpus")).env("LLM_ROUTER_CONFIG", bundle.join("config.toml"));
    let output = command.envs(variables.iter().copied()).output().expect("bash is there");
    println!(
        "{step}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // One that is not known leaves no file of its name.
    let text =
        std::fs::read_to_string(bundle.join("results").join(format!("{step}.jsonl"))).unwrap_or_default();
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{step}: {e}: {line}"));
    (output.status.success(), text.lines().map(line).collect())
}

/// Of the lines those that tell of this.
fn of<'l>(lines: &'l [Value], what: &str) -> Vec<&'l Value> {
    lines.iter().filter(|line| line["what"] == what).collect()
}

#[test]
fn every_step_that_needs_no_large_model_runs() {
    let Some(bundle) = bundle() else { return };
    let dir = bundle.path();

    let (ok, lines) = run(dir, "smoke", &[]);
    let gpus: Vec<_> = of(&lines, "gpu").into_iter().map(|gpu| &gpu["name"]).collect();
    assert!(ok && gpus == ["Stand-in 0", "Stand-in 1"], "{lines:?}");
    assert!(of(&lines, "gpu").iter().all(|gpu| gpu["has_kernels"] == true), "{lines:?}");
    assert_eq!(of(&lines, "device")[0]["copied_back"], true);
    assert_eq!(of(&lines, "device")[0]["driver_bytes"], 300 << 20);
    assert_eq!((&of(&lines, "run")[0]["commit"], lines[0]["date"].is_string()), (&"abc1234".into(), true));

    let only = |words: &'static str| [("CHECK_ARGUMENTS", words)];
    let (ok, lines) = run(dir, "devices", &only("--only rmsnorm --device 1"));
    assert!(ok && of(&lines, "operator").len() == 4, "{lines:?}");
    let (ok, lines) = run(dir, "demo", &only("--only capital_low"));
    assert!(ok && of(&lines, "answer").len() == 1, "{lines:?}");

    let small = [
        ("SERVE_MODEL", "demo-model"),
        ("SERVE_STREAMS", "1 2"),
        ("SERVE_SECONDS", "1"),
        ("SERVE_TOKENS", "8"),
    ];
    let (ok, lines) = run(dir, "serve", &small);
    let served = of(&lines, "serve");
    assert!(ok && served.len() == 2, "{lines:?}");
    for (row, streams) in served.into_iter().zip([1, 2]) {
        assert_eq!((&row["streams"], &row["device"]), (&streams.into(), &"cuda:0".into()), "{row}");
        assert!(row["cases"][0]["tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    // What cannot be says why, and keeps what it has seen.
    let (ok, lines) = run(dir, "devices", &only("--device 2"));
    let end = lines.iter().rfind(|line| line["what"] == "end").expect("it says how it ended");
    assert!(!ok && end["error"].as_str().is_some_and(|why| why.contains("it has 2")), "{lines:?}");
    assert_eq!(of(&lines, "operator").len(), 4, "rows of the run before stay");
    let (ok, lines) = run(dir, "nonesuch", &[]);
    assert!(!ok && lines.is_empty());
}
