//! The version, which tests change in the built library, and what its build metadata asks for.

use engine_sdk::VersionStamp;

static STAMP: VersionStamp = VersionStamp::new(env!("CARGO_PKG_VERSION"));

pub fn version() -> &'static str {
    STAMP.version()
}

/// What goes wrong before any model is known: `0.1.0+abi-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    None,
    /// The table is of another major version.
    Abi,
    /// The table has no `step`.
    NoStep,
    /// It says another name than its manifest.
    OtherId,
    HangInOpen,
    AbortInOpen,
    /// Prints binary before it is open.
    PrintInOpen,
}

pub fn early() -> Early {
    match version().split_once('+').map(|(_, metadata)| metadata) {
        Some("abi-2") => Early::Abi,
        Some("no-step") => Early::NoStep,
        Some("other-id") => Early::OtherId,
        Some("hang-in-open") => Early::HangInOpen,
        Some("abort-in-open") => Early::AbortInOpen,
        Some("print-in-open") => Early::PrintInOpen,
        _ => Early::None,
    }
}
