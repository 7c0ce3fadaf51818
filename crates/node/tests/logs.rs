//! Prompts and answers are in no log, whatever is logged: everything at TRACE, through a whole request.
#![expect(clippy::unwrap_used, reason = "tests, and helpers that only they use")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

#[path = "system/support.rs"]
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
mod support;

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Kept {
    type Writer = Kept;

    fn make_writer(&'a self) -> Kept {
        self.clone()
    }
}

const SENTINEL: &str = "zanzibar-manatee-quixotic";

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_and_its_answer_are_in_no_line() {
    let kept = Kept::default();
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(kept.clone()).init();
    let rig = support::rig_with(|config| {
        // The engine logs all it can.
        let path = config.engine_dirs[0].join("echo/manifest.json");
        let mut manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        manifest["log_level"] = "trace".into();
        std::fs::write(path, manifest.to_string()).unwrap();
    })
    .await;
    let settings = node_api::ModelSettings { context_length: Some(64), ..node_api::ModelSettings::default() };
    let fingerprint = rig.put(&rig.manifest(), settings).await;
    rig.wait_for("ready", node_api::ModelState::is_ready).await;
    let reply = support::collect(rig.generate(&fingerprint, SENTINEL).await).await;
    assert_eq!(reply.text, SENTINEL, "the answer is the prompt: {reply:?}");
    // One that is refused, too.
    let refused = support::collect(rig.generate(&fingerprint, &SENTINEL.repeat(10)).await).await;
    assert_eq!(refused.failed.unwrap().code, "context_length_exceeded");

    let text = String::from_utf8_lossy(&kept.0.lock().unwrap()).into_owned();
    assert!(
        text.contains("a request is done") && text.contains("TRACE"),
        "the log is there: {} bytes",
        text.len()
    );
    // Escaped or in part it would still be there.
    for part in [SENTINEL, "zanzibar", "manatee", "quixotic"] {
        let line = text.lines().find(|line| line.contains(part));
        assert_eq!(line, None, "a line has the prompt");
    }
}
