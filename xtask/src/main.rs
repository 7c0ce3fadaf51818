//! The chores of this repository: `cargo xtask <verb>`.

#![forbid(unsafe_code)]

mod arrows;
mod bench;
mod build;
mod checks;
mod cuda;
mod debian;
mod demo;
mod llama_cpp;
mod metadata;
mod platforms;
mod setup;
mod shell;
mod soak;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of this repository")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what is missing, then run every check and every test
    Test(checks::TestArguments),
    /// Install what the tests need and is missing; says what and why first
    Setup,
    /// Check the tree's own rules: arrows, file heads, unsafe code, generated documents
    Tidy,
    /// Write the generated documents anew
    Docs,
    /// Check dependencies: licences, sources, banned crates
    Deny,
    /// Type-check the workspace for Windows and macOS
    CheckPlatforms,
    /// Run the tests of the cpu's kernels as code for 64-bit Arm, under qemu
    TestArm64,
    /// Run the self-test as a program for Windows, under wine: on the cpu, and on a software GPU
    TestWindows,
    /// Compile the kernels for NVIDIA GPUs into build/cuda-kernels, without a GPU; the next build of the engine has them
    CudaKernels,
    /// Make build/gpu-bundle: everything that is to be seen on a machine with an NVIDIA GPU
    GpuBundle,
    /// Add what a bundle has measured to bench/results/gpu-CARD.jsonl
    GpuRows(cuda::rows::RowsArguments),
    /// Show the whole way from registration to a token on this machine
    Demo(demo::DemoArguments),
    /// Write a checkpoint of random weights in a published shape
    Synth(build::SynthArguments),
    /// Convert a small checkpoint, such as the demo's, to the model.bin that Apple's GPUs are given
    MetalBin(build::MetalBinArguments),
    /// Build the binary and lay the engine plugins out beside it
    Build(build::BuildArguments),
    /// Build the engine llama-cpp for named devices and processors; `build` has it for the cpu of this machine
    LlamaCpp(llama_cpp::LlamaCppArguments),
    /// Measure: `host`, `router`, `path`, `limits`, `cpu`, `llama`; optimized, results in bench/results
    Bench(bench::BenchArguments),
    /// Run a mixed load while workers are killed, hung, starved and reloaded; optimized
    Soak(soak::SoakArguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The chain of causes; a backtrace of a chore helps nobody.
            eprintln!("\nfailed: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Test(arguments) => checks::test(&arguments),
        Verb::Setup => setup::install().and_then(|_| llama_cpp::install()).map(|_| ()),
        Verb::Tidy => tidy::check(),
        Verb::Docs => tidy::write_generated(),
        Verb::Deny => checks::deny(),
        Verb::CheckPlatforms => platforms::check(),
        Verb::TestArm64 => platforms::arm64::test(),
        Verb::TestWindows => platforms::wine::test(),
        Verb::CudaKernels => cuda::kernels(),
        Verb::GpuBundle => cuda::bundle(),
        Verb::GpuRows(arguments) => cuda::rows::run(&arguments),
        Verb::Demo(arguments) => demo::run(&arguments),
        Verb::Synth(arguments) => build::synth(&arguments),
        Verb::MetalBin(arguments) => build::metal_bin(&arguments),
        Verb::Build(arguments) => build::run(&arguments),
        Verb::LlamaCpp(arguments) => llama_cpp::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Soak(arguments) => soak::run(&arguments),
    }
}
