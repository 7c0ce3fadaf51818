//! A plugin exports one symbol, so that nothing else of it can be taken for a function of somebody else's.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use engine_testkit::build::{engine_dir, llama_cpp_is_missing};
use engine_testkit::manifest::Manifest;

/// The names that a library offers; `nm` comes with the linker that made it.
fn exported(library: &Path) -> Vec<String> {
    let out = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library).output();
    let out = out.expect("binutils are there, for Rust links with them");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("names");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn every_plugin_exports_its_entry_and_nothing_else() {
    let mut engines = vec!["echo", "echo-c", "fault", "gpt-oss"];
    if !llama_cpp_is_missing() {
        engines.push("llama-cpp");
    }
    for engine in engines {
        let dir = engine_dir(engine);
        let library = dir.join(Manifest::read(&dir).expect("it was laid out").library);
        assert_eq!(exported(&library), ["llmr_engine_entry"], "{engine}");
    }
}
