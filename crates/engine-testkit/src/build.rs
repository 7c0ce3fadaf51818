//! Builds what tests run: engine folders, the worker, the product's binary. Each once per process.
//!
//! `cargo test -p some-crate` builds no plugin, so a test that opens one asks here. Everything lands in
//! `<target>/<profile>` of the running test: engines in `engines/<id>-<version>/`, as the product expects them beside
//! its binary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::manifest::Manifest;

mod c;
mod llama_cpp;
mod place;
#[cfg(target_os = "linux")]
mod stand_in;
mod version;

pub use c::{compile_c_engine, compile_c_engine_with};
pub use llama_cpp::llama_cpp_is_missing;
use place::{replace_file, with_file_lock};
#[cfg(target_os = "linux")]
pub use stand_in::{break_stand_in, hold_in_stand_in, stand_in_gpus, stand_in_nvml};
pub use version::{engine_dir_as, install_engine};

/// The engine folder of `echo`, `echo-c`, `fault`, `gpt-oss` or `llama-cpp`, built if it is not up to date.
///
/// # Panics
/// When it cannot be built: a test that needs it has nothing else to do.
pub fn engine_dir(id: &str) -> PathBuf {
    once(&format!("engine {id}"), || build_engine(id))
}

/// The folder that holds the engine folders: what `--engines-dir` wants.
pub fn engines_dir() -> PathBuf {
    once("engines dir", || Ok(profile_dir()?.join("engines")))
}

/// The `llm-router` binary.
///
/// # Panics
/// When it cannot be built.
pub fn router_binary() -> PathBuf {
    once("llm-router", || build_binary("llm-router", "llm-router"))
}

/// The program of `run.sh` in a bundle for machines with an NVIDIA GPU.
///
/// # Panics
/// When it cannot be built.
pub fn cuda_check_binary() -> PathBuf {
    once("gpt-oss-cuda-check", || build_binary("gpt-oss-cuda-check", "gpt-oss-cuda-check"))
}

/// The worker alone, for tests that need nothing else of the product.
///
/// # Panics
/// When it cannot be built.
pub fn worker_binary() -> PathBuf {
    once("engine-worker", || build_binary("engine-worker", "engine-worker"))
}

/// Runs `work` at its first call with this key and remembers the path.
fn once(key: &str, work: impl FnOnce() -> Result<PathBuf>) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    // Held while building: a second caller waits instead of starting the same build.
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = done.get_or_insert_default();
    if let Some(path) = done.get(key) {
        return path.clone();
    }
    match work() {
        Ok(path) => done.entry(key.to_owned()).or_insert(path).clone(),
        Err(error) => panic!("cannot build {key} for a test: {error:#}"),
    }
}

/// Where the sources are. Tests run where they were built.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/engine-testkit").to_path_buf()
}

/// `<target>/<profile>` of the running program, which lies there or in `deps` below it.
pub fn profile_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("the path of this program is not known")?;
    let dir = exe.parent().context("this program lies in no folder")?;
    let inner = matches!(dir.file_name().and_then(|n| n.to_str()), Some("deps" | "examples"));
    Ok(if inner { dir.parent().context("deps lies in no folder")? } else { dir }.to_path_buf())
}

fn build_engine(id: &str) -> Result<PathBuf> {
    let source = source_dir(id)?;
    let manifest = Manifest::read(&source)?;
    let profile = profile_dir()?;
    let target = profile.join("engines").join(format!("{}-{}", manifest.id, manifest.version));
    let library = if source.join("Cargo.toml").is_file() {
        cargo_library(&package_name(&source)?)?
    } else {
        compile_c_engine(&source, &profile.join("c-engines").join(id))?
    };
    std::fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    // Several test programs may build at the same time.
    with_file_lock(&profile.join("engines").join(".lock"), || {
        replace_file(&library, &target.join(&manifest.library))?;
        replace_file(&source.join("manifest.json"), &target.join("manifest.json"))
    })?;
    Ok(target)
}

fn source_dir(id: &str) -> Result<PathBuf> {
    let engines = workspace_root().join("engines");
    let candidates = [engines.join(id), engines.join(id).join("plugin")];
    match candidates.iter().find(|dir| dir.join("manifest.json").is_file()) {
        Some(dir) => Ok(dir.clone()),
        None => bail!("no engine {id} in {}: no manifest.json", engines.display()),
    }
}

fn package_name(source: &Path) -> Result<String> {
    let text = std::fs::read_to_string(source.join("Cargo.toml"))?;
    let name =
        text.lines().find_map(|line| line.strip_prefix("name = ")).context("Cargo.toml has no name")?;
    Ok(name.trim().trim_matches('"').to_owned())
}

/// What cargo says about a thing it built; see `cargo build --message-format=json`.
#[derive(Deserialize)]
struct Artifact {
    target: ArtifactTarget,
    filenames: Vec<PathBuf>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

fn cargo_library(package: &str) -> Result<PathBuf> {
    let config = llama_cpp::config();
    let mut what = vec!["--lib"];
    if package == llama_cpp::PACKAGE {
        what.extend(["--features", "cpu", "--config"]);
        what.push(config.to_str().context("a path that is not UTF-8")?);
    }
    artifacts(&cargo_build(package, &what)?)
        .filter(|a| a.target.kind.iter().any(|k| k == "cdylib") && a.target.name == package.replace('-', "_"))
        .flat_map(|a| a.filenames)
        .find(|path| {
            let name = path.to_string_lossy();
            name.ends_with(std::env::consts::DLL_SUFFIX)
        })
        .with_context(|| format!("{package} makes no shared library; its crate-type has to be cdylib"))
}

fn build_binary(package: &str, binary: &str) -> Result<PathBuf> {
    artifacts(&cargo_build(package, &["--bin", binary])?)
        .filter(|a| a.target.name == binary)
        .find_map(|a| a.executable)
        .with_context(|| format!("{package} makes no binary {binary}"))
}

fn artifacts(said: &str) -> impl Iterator<Item = Artifact> {
    said.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Packages that are always named together, one a line: cargo compiles a dependency once for each set of features, and which
/// those are depends on the packages that a command names.
const PRODUCTS: &str = include_str!("../products.txt");

/// What `cargo xtask build --release` makes of them: with optimization at link time the kinds of targets decide too.
/// All their libraries, and these.
const OPTIMIZED_TOGETHER: [&str; 6] =
    ["--bin", "llm-router", "--bin", "fixture-hub", "--bin", "gpt-oss-selftest"];

/// What cargo says of it, a line of JSON for each thing.
fn cargo_build(package: &str, what: &[&str]) -> Result<String> {
    let profile = profile_dir()?;
    let target = profile.parent().context("the profile's folder lies in no folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root()).args(["build", "--message-format=json"]);
    let is_product = PRODUCTS.lines().any(|product| product == package);
    let together = if is_product { PRODUCTS } else { package };
    command.args(together.lines().flat_map(|package| ["--package", package]));
    command.args(what).arg("--target-dir").arg(target);
    if profile.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
        if is_product {
            command.args(OPTIMIZED_TOGETHER);
            command.args((!what.contains(&"--lib")).then_some("--lib"));
        }
    }
    let out = command.output().context("cargo cannot be started")?;
    if !out.status.success() {
        bail!("cargo build --package {package} failed:\n{}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
