//! The process that renders templates, as the contract tests start it.

use std::process::ExitCode;

use template_sandbox::{CappedAllocator, worker_main};

#[global_allocator]
static ALLOCATOR: CappedAllocator = CappedAllocator;

fn main() -> ExitCode {
    worker_main(std::io::stdin().lock(), std::io::stdout().lock())
}
