//! Tells the layout test for which target it is built; Cargo says so to build scripts only.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=LAYOUT_TEST_TARGET={target}");
}
