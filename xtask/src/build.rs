//! `cargo xtask build`: the binary, and every engine plugin in the folder beside it where the binary looks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::metadata::Metadata;
use crate::{llama_cpp, shell};

#[derive(Args)]
pub struct BuildArguments {
    /// Optimize; without it the kernels are optimized and the rest is quick to build
    #[arg(long)]
    pub release: bool,
}

/// Packages that are always named together, one a line: cargo compiles a dependency once for each set of features, and which
/// those are depends on the packages that a command names.
const PRODUCTS: &str = include_str!("../../crates/engine-testkit/products.txt");

/// The packages that are engine plugins, with the folder that holds their `manifest.json`.
const PLUGINS: &[(&str, &str)] = &[("echo", "engines/echo"), ("gpt-oss-plugin", "engines/gpt-oss/plugin")];

pub fn run(arguments: &BuildArguments) -> Result<()> {
    let bin_dir = products(arguments.release)?;
    eprintln!("  built {}", bin_dir.join(binary_name("llm-router")).display());
    Ok(())
}

/// The binary, the local hub of demo and tests, and the plugins laid out; gives the folder they lie in.
pub fn products(release: bool) -> Result<PathBuf> {
    let programs = ["llm-router", "fixture-hub", "gpt-oss-selftest"];
    let targets: Vec<_> = programs.iter().flat_map(|name| ["--bin", name]).chain(["--lib"]).collect();
    let bin_dir = build_targets(release, PRODUCTS.lines(), &targets)?;
    for (package, folder) in PLUGINS {
        lay_out(package, &shell::root().join(folder), &bin_dir, &bin_dir, |_| {})?;
    }
    llama_cpp::product(release, &bin_dir)?;
    Ok(bin_dir)
}

#[derive(Args)]
pub struct SynthArguments {
    /// Shape of the model, such as 20b
    #[arg(long)]
    shape: String,
    /// Folder to write into [default: build/synth-SHAPE]
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// `cargo xtask synth`: the generator, optimized, because it writes gigabytes.
pub fn synth(arguments: &SynthArguments) -> Result<()> {
    let program = build(true, &["gpt-oss-synth"])?.join(binary_name("gpt-oss-synth"));
    let out = arguments
        .out
        .clone()
        .unwrap_or_else(|| shell::build_dir().join(format!("synth-{}", arguments.shape)));
    shell::run(
        shell::command(program)
            .args(["--shape", &arguments.shape, "--seed", &arguments.seed.to_string()])
            .arg("--out")
            .arg(out),
    )
}

#[derive(Args)]
pub struct MetalBinArguments {
    /// Folder of the checkpoint [default: assets/demo-model]
    #[arg(long)]
    from: Option<PathBuf>,
    /// File to write [default: build/model.metal.bin]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// `cargo xtask metal-bin`: the checkpoint is held in memory while it is converted.
pub fn metal_bin(arguments: &MetalBinArguments) -> Result<()> {
    let program = build(false, &["gpt-oss-synth"])?.join(binary_name("gpt-oss-synth"));
    let from = arguments.from.clone().unwrap_or_else(|| shell::root().join("assets/demo-model"));
    let out = arguments.out.clone().unwrap_or_else(|| shell::build_dir().join("model.metal.bin"));
    shell::run(shell::command(program).arg("--metal-bin").arg("--from").arg(from).arg("--out").arg(out))
}

/// One program of [`PRODUCTS`], not optimized.
pub fn program(name: &str) -> Result<PathBuf> {
    Ok(build_targets(false, PRODUCTS.lines(), &["--bin", name])?.join(binary_name(name)))
}

/// Builds these packages and gives the folder their products lie in.
pub fn build(release: bool, packages: &[&str]) -> Result<PathBuf> {
    build_targets(release, packages.iter().copied(), &[])
}

fn build_targets<'a>(
    release: bool,
    packages: impl Iterator<Item = &'a str>,
    targets: &[&str],
) -> Result<PathBuf> {
    let mut command = shell::cargo();
    command.args(["build", "--locked"]);
    for package in packages {
        command.args(["--package", package]);
    }
    command.args(targets);
    if release {
        command.arg("--release");
    }
    shell::run(&mut command)?;
    Ok(Metadata::read()?.target_directory.join(if release { "release" } else { "debug" }))
}

pub fn binary_name(stem: &str) -> String {
    format!("{stem}{}", std::env::consts::EXE_SUFFIX)
}

/// `<bin_dir>/engines/<id>-<version>/` with the manifest, after `change`, and the library it names, which lies in `built_dir`;
/// gives that folder.
pub fn lay_out(
    package: &str,
    folder: &Path,
    built_dir: &Path,
    bin_dir: &Path,
    change: impl FnOnce(&mut serde_json::Value),
) -> Result<PathBuf> {
    let manifest_path = folder.join("manifest.json");
    let text = std::fs::read_to_string(&manifest_path)
        .with_context(|| format!("cannot read {}", manifest_path.display()))?;
    let mut manifest: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", manifest_path.display()))?;
    change(&mut manifest);
    let field = |name: &str| {
        manifest[name].as_str().with_context(|| format!("{} has no {name}", manifest_path.display()))
    };
    let target = bin_dir.join("engines").join(format!("{}-{}", field("id")?, field("version")?));
    std::fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    put(&target.join("manifest.json"), |partial| std::fs::write(partial, format!("{manifest:#}\n")))?;

    let stem = package.replace('-', "_");
    let built =
        built_dir.join(format!("{}{stem}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX));
    if !built.exists() {
        bail!(
            "{package} was built and {} is not there\nhint: its crate-type has to be cdylib",
            built.display()
        );
    }
    put(&target.join(field("library")?), |partial| std::fs::copy(&built, partial).map(|_| ()))?;
    Ok(target)
}

/// Makes it beside its place and renames: a worker that has the old library open keeps it whole.
fn put(to: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let partial = to.with_extension("partial");
    make(&partial)
        .and_then(|()| std::fs::rename(&partial, to))
        .with_context(|| format!("cannot write {}", to.display()))
}
