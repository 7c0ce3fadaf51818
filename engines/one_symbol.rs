//! The build script of every plugin in this tree: its library exports `llmr_engine_entry` and nothing else.
//!
//! Rust exports whatever a crate of a library has under a name of C's, and the crate `llguidance` has 51 such functions. A host
//! that has them too, or opens two plugins, would find one's functions in the place of another's.

/// Linkers of GNU's kind hide what comes from archives, as all crates but the plugin's own do. Those of Apple and Microsoft
/// have no such switch beside the list of exports that Rust gives them.
const LINUX: &str = "-Wl,--exclude-libs,ALL";

pub fn main() {
    // It reads nothing else; cargo sees by itself when this file changes.
    println!("cargo::rerun-if-env-changed=CARGO_CFG_TARGET_OS");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg={LINUX}");
    }
}
