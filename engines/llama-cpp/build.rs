//! Compiles the C++ file that stops exceptions, where there is anything to stop.

#[path = "../one_symbol.rs"]
mod one_symbol;

fn main() {
    one_symbol::main();
    const FILE: &str = "src/native/guard.cpp";
    println!("cargo::rerun-if-changed={FILE}");
    if std::env::var_os("CARGO_FEATURE_CPU").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=CMAKE_CXX_COMPILER");
    let mut build = cc::Build::new();
    // The compiler of llama.cpp.
    if let Some(compiler) = std::env::var_os("CMAKE_CXX_COMPILER") {
        build.compiler(compiler);
    }
    build.cpp(true).std("c++17").warnings(true).file(FILE).compile("llmr_llama_guard");
}
