//! Lines of JSON, each written as soon as something was seen, so that a run that is cut short loses nothing.

use std::io::Write as _;

use serde_json::{Value, json};

#[derive(Debug, Default)]
pub struct Report {
    pub rows: u32,
    pub failed: u32,
}

impl Report {
    pub fn seen(&mut self, what: &str, row: Value) {
        self.write(what, true, row);
    }

    pub fn failed(&mut self, what: &str, row: Value) {
        self.failed += 1;
        self.write(what, false, row);
    }

    fn write(&mut self, what: &str, ok: bool, row: Value) {
        self.rows += 1;
        let mut line = json!({ "what": what, "ok": ok });
        if let (Some(line), Value::Object(row)) = (line.as_object_mut(), row) {
            line.extend(row);
        }
        // One write, so that a run that is cut short leaves no part of a line.
        let line = format!("{line}\n");
        let mut out = std::io::stdout().lock();
        // Nobody who reads is left: the exit status still tells.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}
