//! Stand-ins for the driver's libraries of two NVIDIA GPUs: where there is none, tests run whatever asks for one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// GPUs that they show.
const GPUS: u32 = 2;
/// Has the stand-in for the driver; its build says where, as this variable.
const PACKAGE: &str = "gpt-oss-cuda";
const DRIVER: &str = "STAND_IN_DRIVER";
/// Makes a failure of what is skipped otherwise.
const REQUIRED: &str = "REQUIRE_STAND_IN_GPUS";
/// What the driver looks for in a plugin, from the root of the repository.
const KERNELS: &str = "build/cuda-kernels/sm_90a.cubin";

/// Builds the stand-in for NVML, NVIDIA's library of figures, in `dir`, which is to be in `LD_LIBRARY_PATH`, with the folders that
/// say what is in use: see `stand-ins/nvml.c`.
///
/// # Panics
/// When there is no C compiler, or the folder cannot be written to.
pub fn stand_in_nvml(dir: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("stand-ins/nvml.c");
    if let Err(error) = super::c::link(&[source], &dir.join("libnvidia-ml.so.1")) {
        panic!("the stand-in for NVML cannot be built: {error:#}");
    }
    for gpu in 0..GPUS {
        std::fs::create_dir_all(folder(dir, gpu)).expect("the test's folder is writable");
    }
}

/// Has the stand-in in `dir` say that a process holds so many bytes on a GPU; `pid` is of one that runs.
///
/// # Panics
/// When the folder cannot be written to.
pub fn hold_in_stand_in(dir: &Path, gpu: u32, pid: u32, bytes: u64) {
    let file = folder(dir, gpu).join(pid.to_string());
    std::fs::write(file, bytes.to_string()).expect("the test's folder is writable");
}

/// Has the GPU fail at all it is asked to compute, or work again.
///
/// # Panics
/// When the folder cannot be written to.
pub fn break_stand_in(dir: &Path, gpu: u32, is_broken: bool) {
    let file = folder(dir, gpu).join("broken");
    let done = if is_broken { std::fs::write(file, "") } else { std::fs::remove_file(file) };
    done.expect("the test's folder is writable");
}

/// Both libraries in `dir`: for whole processes, whose plugin has the kernels for GPUs inside. `false`: that cannot be here, and
/// why is said.
///
/// # Panics
/// When they cannot be built, or `REQUIRE_STAND_IN_GPUS` is set and they cannot be.
pub fn stand_in_gpus(dir: &Path) -> bool {
    let why = if !super::workspace_root().join(KERNELS).is_file() {
        "the plugin has no kernels for GPUs: `cargo xtask cuda-kernels` compiles them"
    } else if let Some(driver) = driver() {
        stand_in_nvml(dir);
        std::fs::copy(driver.join("libcuda.so.1"), dir.join("libcuda.so.1")).expect("it was just built");
        return true;
    } else {
        "the kernels run on no processor but x86-64 under Linux with g++"
    };
    assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and {why}");
    println!("skipped: {why}");
    false
}

/// What cargo says when a build script has run, or would have to say the same again.
#[derive(Deserialize)]
struct BuildScript {
    package_id: String,
    env: Vec<(String, String)>,
}

/// The folder of the stand-in for the driver; none where this machine cannot build it.
fn driver() -> Option<PathBuf> {
    let folder = super::once(PACKAGE, || Ok(find_driver()?.unwrap_or_default()));
    Some(folder).filter(|folder| folder.is_dir())
}

fn find_driver() -> Result<Option<PathBuf>> {
    let said = super::cargo_build("gpt-oss-plugin", &["--lib"])?;
    let mut scripts = said.lines().filter_map(|line| serde_json::from_str::<BuildScript>(line).ok());
    let script = scripts.rfind(|script| script.package_id.contains(PACKAGE));
    let script = script.with_context(|| format!("cargo does not say what the build of {PACKAGE} made"))?;
    Ok(script.env.into_iter().find(|(name, _)| name == DRIVER).map(|(_, folder)| folder.into()))
}

fn folder(dir: &Path, gpu: u32) -> PathBuf {
    dir.join(format!("gpu-{gpu}"))
}
