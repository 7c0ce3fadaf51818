//! The worker alone, for tests and for authors of engines; the product runs the same code as `llm-router engine-worker`.

fn main() -> std::process::ExitCode {
    engine_worker::main()
}
