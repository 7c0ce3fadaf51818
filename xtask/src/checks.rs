//! `cargo xtask test`: every check in the order in which failures are cheapest to find, with the time each took.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use crate::{build, cuda, llama_cpp, platforms, setup, shell, tidy};

/// The kernels for NVIDIA GPUs run on the processor there, and stand-ins for the driver with them.
const HAS_STAND_IN_GPUS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

#[derive(Args)]
pub struct TestArguments {
    /// Also what takes long: the demo model on a software GPU and on the emulated one, the CUDA kernels under sanitizers
    #[arg(long)]
    long: bool,
}

pub fn test(arguments: &TestArguments) -> Result<()> {
    let mut steps = Steps::default();
    let tools = steps.step("set-up", setup::install)?;
    let llama_cpp = llama_cpp::install()?;
    steps.step("format", || shell::run(shell::cargo().args(["fmt", "--all", "--check"])))?;
    steps.step("lints", || {
        shell::run(
            shell::cargo()
                .args(["clippy", "--workspace", "--all-targets", "--locked", "--quiet"])
                .args(["--", "-D", "warnings"]),
        )
    })?;
    if let Some(config) = &llama_cpp {
        steps.step("lints of llama-cpp", || {
            let mut command = shell::cargo();
            command.args(["clippy", "--all-targets", "--quiet"]).args(llama_cpp::arguments(config, "cpu"));
            shell::run(command.args(["--", "-D", "warnings"]))
        })?;
    }
    steps.step("dependencies", || run_deny(&tools))?;
    steps.step("cuda kernels", cuda::kernels)?;
    steps.step("binary and plugins", || build::run(&build::BuildArguments { release: false }))?;
    steps.step("tidy", tidy::check)?;
    if let Some(config) = &llama_cpp {
        steps.step("tests in llama-cpp", || {
            shell::run(shell::cargo().args(["test", "--lib"]).args(llama_cpp::arguments(config, "cpu")))
        })?;
    }
    steps.step("tests", || {
        let mut command = shell::cargo();
        if llama_cpp.is_some() {
            command.env("REQUIRE_LLAMA_CPP", "1");
        }
        shell::run(
            command
                .args(["test", "--workspace", "--locked", "--no-fail-fast"])
                .env("LLM_ROUTER_TEST_PYTHON", &tools.python)
                .env("LLM_ROUTER_TEST_NODE", &tools.node)
                .env("LLM_ROUTER_TEST_NODE_DIR", &tools.node_dir)
                // What is missing after the set-up is a failure, not a skip.
                .env("REQUIRE_CLIENTS", "1")
                .envs(HAS_STAND_IN_GPUS.then_some(("REQUIRE_STAND_IN_GPUS", "1"))),
        )
    })?;
    if arguments.long {
        steps.step("long tests", || {
            let packages = ["-p", "gpt-oss-wgpu", "-p", "gpt-oss-cuda", "-p", "system-tests"];
            shell::run(shell::cargo().arg("test").args(packages).args(["--locked", "--", "--ignored"]))
        })?;
    }
    if arguments.long && HAS_STAND_IN_GPUS {
        steps.step("cuda kernels, sanitized", cuda::sanitized_tests)?;
        steps.step("cuda kernels, races", cuda::raced_kernels)?;
    }
    steps.step("other platforms", platforms::check)?;
    steps.report();
    Ok(())
}

/// `cargo xtask deny`.
pub fn deny() -> Result<()> {
    run_deny(&setup::install()?)
}

/// Without `advisories`: that check needs a database from a place that CI does not reach.
fn run_deny(tools: &setup::Tools) -> Result<()> {
    shell::run(
        shell::command(&tools.cargo_deny)
            .args(["--log-level", "warn", "--workspace", "check", "--hide-inclusion-graph"])
            .args(["bans", "licenses", "sources"]),
    )
}

#[derive(Default)]
struct Steps {
    done: Vec<(&'static str, Duration)>,
}

impl Steps {
    fn step<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let result = work().with_context(|| format!("the step \"{name}\" failed"))?;
        self.done.push((name, start.elapsed()));
        Ok(result)
    }

    fn report(&self) {
        eprintln!("\n== all passed");
        for (name, took) in &self.done {
            eprintln!("{:>7.1} s  {name}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        eprintln!("{:>7.1} s  in all", total.as_secs_f64());
    }
}
