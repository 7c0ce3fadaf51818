//! Compiles the C++ files beside llama.cpp, where that is there: one that stops exceptions, one that asks for huge pages.

#[path = "../one_symbol.rs"]
mod one_symbol;

fn main() {
    one_symbol::main();
    const GUARD: &str = "src/native/guard.cpp";
    const PAGES: &str = "src/native/pages.cpp";
    println!("cargo::rerun-if-changed={GUARD}");
    println!("cargo::rerun-if-changed={PAGES}");
    if std::env::var_os("CARGO_FEATURE_CPU").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=CMAKE_CXX_COMPILER");
    let mut build = cc::Build::new();
    // The compiler of llama.cpp.
    if let Some(compiler) = std::env::var_os("CMAKE_CXX_COMPILER") {
        build.compiler(compiler);
    }
    build.cpp(true).std("c++17").warnings(true).file(GUARD);
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        build.file(PAGES);
        // The name is undefined from the beginning, so that the function is taken whatever the order of the libraries.
        for argument in ["--wrap=posix_memalign", "--undefined=__wrap_posix_memalign"] {
            println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
        }
    }
    build.compile("llmr_llama_guard");
}
