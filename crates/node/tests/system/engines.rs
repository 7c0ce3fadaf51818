//! Engine folders that come, change and go while a node runs.

use std::path::Path;

use engine_testkit::build::install_engine;
use node_api::{EngineState, EngineSummary, ModelState};
use serde_json::json;

use crate::fault::{Fault, fault};
use crate::support::{collect, rig_with};

async fn engine(lab: &Fault, version: &str, wanted: impl Fn(&EngineSummary) -> bool) -> EngineSummary {
    let find = |engines: &[EngineSummary]| {
        engines.iter().find(|e| e.id == "fault" && e.version == version && wanted(e)).cloned()
    };
    let status = lab.until(&format!("fault {version}"), |s| find(&s.engines).is_some()).await;
    find(&status.engines).unwrap()
}

fn refused(engine: &EngineSummary) -> Option<&str> {
    if let EngineState::Refused { reason } = &engine.state { Some(reason) } else { None }
}

fn manifest_of(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_arrives_is_listed_with_its_hash_beside_the_old_one_and_leaves_with_its_folder() {
    let lab = fault(json!({}), |_| {}).await;
    let old = engine(&lab, "0.1.0", |e| e.state == EngineState::Available).await;
    let folder = install_engine("fault", "0.2.0", &lab.engines).unwrap();
    let new = engine(&lab, "0.2.0", |e| e.state == EngineState::Available).await;
    assert_eq!(new.sha256.len(), 64);
    assert_ne!(new.sha256, old.sha256);
    std::fs::remove_dir_all(folder).unwrap();
    lab.until("it is gone", |s| !s.engines.iter().any(|e| e.version == "0.2.0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_changed_in_place_is_refused_and_the_known_one_goes_on() {
    let lab = fault(json!({}), |_| {}).await;
    let old = engine(&lab, "0.1.0", |e| e.state == EngineState::Available).await;
    let folder = lab.engines.join("fault-0.1.0");
    let library = folder.join(manifest_of(&folder)["library"].as_str().unwrap());
    let mut bytes = std::fs::read(&library).unwrap();
    bytes.extend_from_slice(b"changed");
    std::fs::write(&library, bytes).unwrap();
    let changed = engine(&lab, "0.1.0", |e| refused(e).is_some()).await;
    let reason = refused(&changed).unwrap();
    assert!(reason.contains("changed in place") && reason.contains("new version"), "{reason}");
    let still = engine(&lab, "0.1.0", |e| e.state == EngineState::Available).await;
    assert_eq!(still.sha256, old.sha256);
    let reply = lab.ask("hello").await;
    assert_eq!(reply.text, "hello", "{reply:?}");
    let status = lab.until("a replica", |s| s.models.iter().any(|m| !m.replicas.is_empty())).await;
    assert_eq!(status.models[0].replicas[0].library_sha256, old.sha256);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_arrives_in_pieces_counts_when_it_is_whole() {
    let lab = fault(json!({}), |_| {}).await;
    let apart = tempfile::tempdir().unwrap();
    let whole = install_engine("fault", "0.3.0", apart.path()).unwrap();
    let folder = lab.engines.join("fault-0.3.0");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(whole.join("manifest.json"), folder.join("manifest.json")).unwrap();
    let missing = engine(&lab, "0.3.0", |e| refused(e).is_some()).await;
    assert!(refused(&missing).unwrap().contains("not there"), "{missing:?}");
    let name = manifest_of(&whole)["library"].as_str().unwrap().to_owned();
    let bytes = std::fs::read(whole.join(&name)).unwrap();
    // The head alone: of a library with much to say for debuggers the first half may already be one that opens.
    std::fs::write(folder.join(&name), &bytes[..4096]).unwrap();
    engine(&lab, "0.3.0", |e| refused(e).is_some_and(|r| !r.contains("not there"))).await;
    std::fs::write(folder.join(&name), &bytes).unwrap();
    engine(&lab, "0.3.0", |e| e.state == EngineState::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_version_in_a_second_folder_is_refused_and_the_first_stays() {
    let lab = fault(json!({}), |_| {}).await;
    let apart = tempfile::tempdir().unwrap();
    let again = install_engine("fault", "0.1.0", apart.path()).unwrap();
    // First by its name: what was there before counts all the same.
    let folder = lab.engines.join("a-fault");
    std::fs::rename(&again, &folder).unwrap();
    let second = engine(&lab, "0.1.0", |e| refused(e).is_some()).await;
    assert!(refused(&second).unwrap().contains("fault-0.1.0"), "{second:?}");
    engine(&lab, "0.1.0", |e| e.state == EngineState::Available).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_others_can_write_to_is_refused_until_it_is_closed_to_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mut folder = std::path::PathBuf::new();
    let lab = fault(json!({}), |config| {
        folder = install_engine("fault", "0.4.0", &config.engine_dirs[0]).unwrap();
        mode(&folder, 0o777);
    })
    .await;
    let open = engine(&lab, "0.4.0", |e| refused(e).is_some()).await;
    assert!(refused(&open).unwrap().contains("can be written to by everybody"), "{open:?}");
    mode(&folder, 0o755);
    engine(&lab, "0.4.0", |e| e.state == EngineState::Available).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn workers_open_a_private_copy_that_nobody_else_can_reach() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut data = std::path::PathBuf::new();
    let _lab = fault(json!({}), |config| data = config.data_dir.clone()).await;
    let copies = data.join("engine-copies");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&copies), 0o700);
    let mut files = 0;
    for copy in std::fs::read_dir(&copies).unwrap().map(|e| e.unwrap().path()) {
        assert_eq!(mode(&copy), 0o700);
        for file in std::fs::read_dir(copy).unwrap().map(|e| e.unwrap().path()) {
            assert_eq!(mode(&file), 0o500, "{}", file.display());
            files += 1;
        }
    }
    assert_eq!(files, 2, "one library of echo, one of fault");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_crashes_when_it_is_tried_is_refused_and_the_node_starts() {
    let rig = rig_with(|config| {
        let folder = config.engine_dirs[0].join("dies");
        std::fs::create_dir(&folder).unwrap();
        let good = config.engine_dirs[0].join("echo");
        let mut manifest = manifest_of(&good);
        manifest["id"] = "dies".into();
        std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
        let library = manifest["library"].as_str().unwrap();
        compile_crashing(&folder.join(library));
    })
    .await;
    let status = rig.link.status().await.unwrap().next().await.unwrap().unwrap();
    let dies = status.engines.iter().find(|e| e.id == "dies").unwrap();
    let EngineState::Refused { reason } = &dies.state else { panic!("{dies:?}") };
    assert!(reason.contains("died when it was tried") && reason.contains("SIGABRT"), "{reason}");
    let fingerprint = rig.ready().await;
    assert_eq!(collect(rig.generate(&fingerprint, "good").await).await.text, "good");
    rig.wait_for("loaded", |s| matches!(s, ModelState::Loaded { .. })).await;
}

/// A library whose entry aborts.
fn compile_crashing(to: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n#include \"llmr_engine.h\"\n\
                  LLMR_EXPORT const llmr_engine_api *llmr_engine_entry(void) { abort(); }\n";
    std::fs::write(dir.path().join("dies.c"), source).unwrap();
    let built = engine_testkit::build::compile_c_engine(dir.path(), &dir.path().join("out")).unwrap();
    std::fs::copy(built, to).unwrap();
}
