//! Tells the testkit for which target it is built; it compiles engines in C for the same.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=ENGINE_TESTKIT_TARGET={target}");
}
