//! A download that is cut, and a disk that is full: the model says why, and comes when it can.
#![cfg(target_os = "linux")]

use fixture_hub::Fault;
use serde_json::json;
use system_tests::{System, repos, until};

const BYTES: usize = 3 << 20;
/// Room for the file and for what the store leaves free on every disk.
const ROOM: usize = 256 << 20;

/// An echo model with so many bytes more.
fn large() -> fixture_hub::Repo {
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{BYTES}],"data_offsets":[0,{BYTES}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + BYTES, 7);
    repos::echo(repos::ECHO).without("model.safetensors").file("model.safetensors", bytes)
}

async fn answers(system: &System) {
    let body = json!({"model": repos::ECHO, "prompt": "there", "max_tokens": 64, "temperature": 0});
    let reply = system.api.post("/v1/completions", &body).await.ok();
    assert_eq!(reply["choices"][0]["text"], "there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_again_and_again_still_brings_the_model() {
    let system = System::start(vec![large()]).await;
    system.hub.fault("model.safetensors", Fault::CutAfter(700_000), 3);
    system.add(repos::ECHO).await;
    answers(&system).await;
    let resumed = system.hub.requests().iter().filter(|seen| seen.range.is_some()).count();
    assert!(resumed >= 3, "what had come was kept: {:?}", system.hub.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_the_model_comes_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(BYTES / 2) else {
        println!("skipped: this user may mount no file system");
        return;
    };
    let mut system = System::without_node(vec![large()]).await;
    let cache = disk.dir.path().join("cache");
    system.start_node_as(&system_tests::NodeSpec {
        name: "node".to_owned(),
        devices: vec!["cpu".to_owned()],
        engines_dir: engine_testkit::build::engines_dir(),
        settings: vec![("HF_HOME".to_owned(), cache.to_string_lossy().into_owned())],
    });
    system.until_nodes(1).await;
    system.api.register(&json!({"repo": repos::ECHO, "format": "safetensors"})).await.ok();
    until("the reason", || async {
        let model = system.api.model(repos::ECHO).await.to_string();
        let why = model.contains("space") || model.contains("room");
        if why && model.contains("failed") { Ok(()) } else { Err(model) }
    })
    .await;
    disk.grow(ROOM);
    system.api.until_ready(repos::ECHO).await;
    answers(&system).await;
}

/// A file system in memory with an end.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(bytes: usize) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let size = format!("size={bytes}");
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &dir.path().to_string_lossy()])
            .then_some(SmallDisk { dir })
    }

    fn grow(&self, bytes: usize) {
        let options = format!("remount,size={bytes}");
        assert!(run("mount", &["-o", &options, &self.dir.path().to_string_lossy()]), "it can be remounted");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that ends a moment later may still have a file open.
        run("umount", &["-l", &self.dir.path().to_string_lossy()]);
    }
}

fn run(program: &str, words: &[&str]) -> bool {
    let ran = std::process::Command::new(program).args(words).stderr(std::process::Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}
