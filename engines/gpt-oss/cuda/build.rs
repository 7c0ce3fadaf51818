//! Compiles the kernels for the emulated device, where there is g++ to do it, and finds those that were compiled for GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the kernels look for while they run, as g++ names it: `address,undefined` is accesses outside of what was allocated, and
/// what C++ leaves undefined, addresses that are not aligned among it; `thread` is memory that two threads use with no barrier
/// between. `cargo xtask test --long` sets it.
const SANITIZE: &str = "GPT_OSS_CUDA_SANITIZE";
/// Where `cargo xtask cuda-kernels` puts what it has compiled, from the root of the repository.
const IMAGES: &str = "build/cuda-kernels";

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=emulation");
    println!("cargo::rerun-if-env-changed={SANITIZE}");
    println!("cargo::rustc-check-cfg=cfg(emulated, stand_in_driver)");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    list_sources(&here.join("kernels"), &out.join("sources.rs"));
    list_images(&here.join("../../..").join(IMAGES), &out.join("images.rs"));
    emulate(&out);
}

fn emulate(out: &Path) {
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") != "linux" || target("ARCH") != "x86_64" {
        return;
    }
    if Command::new("g++").arg("--version").output().is_err() {
        println!(
            "cargo::warning=without g++ there is no emulated device: the tests of the CUDA kernels are skipped"
        );
        return;
    }
    let sanitize = std::env::var(SANITIZE).unwrap_or_default();
    let watches_races = sanitize.split(',').any(|s| s == "thread");
    let build = |file: &str| {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").file(file).include("emulation");
        // The compiler's own optimizations are what the tests wait for, in debug builds too. Products and sums stay apart.
        build.opt_level(2).flag("-ffp-contract=off").flag("-march=x86-64-v3").flag("-fno-strict-aliasing");
        build
    };
    let (mut machinery, mut kernels) = (build("emulation/emulation.cpp"), build("emulation/kernels.cpp"));
    if watches_races {
        // The machinery tells the sanitizer which thread goes on; its own lists are no memory of a kernel.
        machinery.define("WATCH_RACES", None);
    } else if !sanitize.is_empty() {
        watch(&mut machinery, &sanitize);
    }
    if !sanitize.is_empty() {
        watch(&mut kernels, &sanitize);
    }
    // As libraries, not as arguments of this package's own programs alone: `gpt-oss-cuda-check` runs the kernels too.
    for library in sanitize.split(',').filter_map(library_of) {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    let mut objects = kernels.compile_intermediates();
    objects.extend(machinery.compile_intermediates());
    if sanitize.is_empty() {
        objects.extend(build("emulation/driver.cpp").compile_intermediates());
        stand_in_driver(&objects, &out.join("driver"));
        objects.pop();
    }
    // With the emulation's C++ library inside: what is shipped needs no library beside the system's own.
    let mut library = cc::Build::new();
    library.cpp(true).objects(objects);
    let archive = static_libstdcxx();
    if archive.is_some() {
        library.cpp_link_stdlib(None);
    }
    library.compile("gpt_oss_cuda_emulation");
    // Behind what needs it.
    if let Some(folder) = archive {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static=stdc++");
    }
    println!("cargo::rustc-cfg=emulated");
}

/// Where g++ has its library as an archive; none where it has not.
fn static_libstdcxx() -> Option<PathBuf> {
    let output = Command::new("g++").arg("-print-file-name=libstdc++.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_absolute().then(|| path.parent().map(Path::to_path_buf)).flatten()
}

/// Links the emulation as what takes the place of the driver's library in a test.
fn stand_in_driver(objects: &[PathBuf], folder: &Path) {
    std::fs::create_dir_all(folder).expect("cargo's folder for outputs can be written to");
    let library = folder.join("libcuda.so.1");
    let linked =
        Command::new("g++").args(["-shared", "-Wl,-Bsymbolic", "-o"]).arg(library).args(objects).status();
    assert!(
        linked.is_ok_and(|status| status.success()),
        "the stand-in for the driver's library cannot be linked"
    );
    println!("cargo::rustc-cfg=stand_in_driver");
    println!("cargo::rustc-env=STAND_IN_DRIVER={}", folder.display());
}

fn watch(build: &mut cc::Build, sanitize: &str) {
    build
        .flag(format!("-fsanitize={sanitize}"))
        .flag("-fno-sanitize-recover=all")
        .flag("-fno-omit-frame-pointer");
}

fn library_of(sanitizer: &str) -> Option<&'static str> {
    match sanitizer {
        "address" => Some("asan"),
        "undefined" => Some("ubsan"),
        "thread" => Some("tsan"),
        _ => None,
    }
}

/// The kernels' text, for compiling them where the device is.
fn list_sources(kernels: &Path, to: &Path) {
    let mut text = String::from("pub const SOURCES: &[(&str, &str)] = &[\n");
    for path in files(kernels) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        text += &format!("    ({name:?}, include_str!({path:?})),\n");
    }
    write(to, &(text + "];\n"));
}

/// What was compiled ahead of time: `sm_90a.cubin`, `compute_80.ptx` and so on; nothing where that was not done.
fn list_images(images: &Path, to: &Path) {
    // A folder that is not there would count as changed at every build. It is in the repository's own `build/`.
    if std::fs::create_dir_all(images).is_ok() {
        println!("cargo::rerun-if-changed={}", images.display());
    }
    let mut text = String::from("pub const IMAGES: &[(&str, &[u8])] = &[\n");
    for path in files(images) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".cubin") || name.ends_with(".ptx") {
            text += &format!("    ({name:?}, include_bytes!({path:?})),\n");
        }
    }
    write(to, &(text + "];\n"));
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    files.sort();
    files
}

fn write(to: &Path, text: &str) {
    std::fs::write(to, text).expect("cargo's folder for outputs can be written to");
}
