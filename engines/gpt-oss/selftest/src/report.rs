//! Lines of JSON, each written as soon as it is known.

use std::io::Write as _;

use serde_json::{Value, json};

#[derive(Debug, Default)]
pub struct Report {
    pub failed: u32,
}

impl Report {
    /// Does the work under its name: `found` in words and figures, or why it failed.
    pub fn check(&mut self, name: &str, work: impl FnOnce() -> Result<(String, Value), String>) {
        write(&json!({ "begin": name }));
        match work() {
            Ok((found, figures)) => {
                write(&json!({ "check": name, "verdict": "ok", "found": found, "figures": figures }));
            }
            Err(why) => {
                self.failed += 1;
                write(&json!({ "check": name, "verdict": "fail", "found": why }));
            }
        }
    }

    /// Something that is there. Nothing is tried.
    pub fn adapter(&mut self, row: &Value) {
        write(&json!({ "adapter": row }));
    }
}

fn write(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Nobody who reads is left: the exit status still tells.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
