//! From wanted to ready, and what keeps a model from it.

use std::time::Duration;

use fixture_hub::Fault;
use model_manifest::Source;
use node_api::{DesiredModels, ModelAction, ModelCommand, ModelSettings, ModelState};

use crate::support::{collect, files, manifest, rig, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_downloaded_with_progress_and_then_ready() {
    let rig = rig().await;
    let slow = Fault::Slow { piece_bytes: 20_000, pause: Duration::from_millis(200) };
    // Wherever the bytes come from: large files are redirected to the content network.
    rig.hub.fault("model.safetensors", slow.clone(), 1);
    let weights = rig.manifest().file("model.safetensors").unwrap().sha256.clone();
    rig.hub.fault(&weights, slow, 1);
    rig.put(&rig.manifest(), ModelSettings::default()).await;
    let part = |state: &ModelState| matches!(state, ModelState::Downloading { bytes_done, bytes_total, .. } if 0 < *bytes_done && bytes_done < bytes_total);
    rig.wait_for("a part of it", part).await;
    let ready = rig.wait_for("ready", ModelState::is_ready).await;
    assert!(matches!(ready, ModelState::Ready { engine, device, .. } if engine == "echo" && device == "cpu"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_a_model_is_unsupported_and_the_reason_names_what_is_missing() {
    let rig = rig().await;
    let mut model = rig.manifest();
    model.architecture = "llama".into();
    model.runtimes = Vec::new();
    let fingerprint = rig.put(&model, ModelSettings::default()).await;
    let state = rig.wait_for("unsupported", |s| matches!(s, ModelState::Unsupported { .. })).await;
    let ModelState::Unsupported { reason } = state else { panic!("waited for it") };
    assert!(reason.contains("llama") && reason.contains("echo"), "{reason}");
    let refused = rig.link.generate(&crate::support::request(&fingerprint, "x")).await.unwrap_err();
    let refused = node_api::ApiError::from(refused);
    assert_eq!((refused.status, refused.code.as_str()), (503, "model_unsupported"));
    assert!(refused.message.contains("llama"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_the_hub_has_not_fails_the_model_by_name() {
    let rig = rig().await;
    let mut model = rig.manifest();
    model.files[1].sha256 = "00".repeat(32);
    rig.put(&model, ModelSettings::default()).await;
    let state = rig.wait_for("failed", |s| matches!(s, ModelState::Failed { .. })).await;
    let ModelState::Failed { reason, .. } = state else { panic!("waited for it") };
    assert!(reason.contains("model.safetensors"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_folder_is_used_in_place_and_a_change_of_it_is_noticed_before_the_load() {
    let rig = rig().await;
    let folder = tempfile::tempdir().unwrap();
    for (name, _, bytes) in files() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let model = manifest(Source::Local { path: folder.path().display().to_string() });
    let fingerprint = rig.put(&model, ModelSettings::default()).await;
    rig.wait_for("ready", ModelState::is_ready).await;
    std::fs::write(folder.path().join("model.safetensors"), b"another").unwrap();
    let reply = collect(rig.generate(&fingerprint, "hello").await).await;
    let failed = reply.failed.expect("the file changed");
    assert_eq!(failed.status, 503, "{failed}");
    assert!(failed.message.contains("model.safetensors"), "{failed}");
    let state = rig.wait_for("out of ready", |s| matches!(s, ModelState::Failed { .. })).await;
    assert!(matches!(state, ModelState::Failed { retrying: false, .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_with_another_fingerprint_is_refused() {
    let rig = rig().await;
    let model = node_api::DesiredModel {
        fingerprint: "00".into(),
        manifest: rig.manifest(),
        settings: ModelSettings::default(),
    };
    let refused = rig.link.put_models(&node_api::DesiredModels { models: vec![model] }).await.unwrap_err();
    assert_eq!(node_api::ApiError::from(refused).code, "fingerprint_wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_removal_takes_what_was_downloaded_and_a_lost_wish_does_not() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let blobs = rig._folders.path().join("cache/models--org--echo/blobs");
    let count = || std::fs::read_dir(&blobs).into_iter().flatten().count();
    let brought = count();
    assert!(brought >= 3, "{brought} files");
    // The router names no model any more, as after the loss of its database.
    rig.link.put_models(&DesiredModels { models: Vec::new() }).await.unwrap();
    rig.ready().await;
    assert_eq!(count(), brought);
    let command = ModelCommand { model: "org/echo".into(), fingerprint, action: ModelAction::Remove };
    rig.link.model(&command).await.unwrap();
    assert_eq!(count(), brought, "it is still wanted");
    rig.link.put_models(&DesiredModels { models: Vec::new() }).await.unwrap();
    let mut status = rig.link.status().await.unwrap();
    within("the files are gone", async {
        // Each line is a look; they come at least once a second.
        while count() > 0 {
            status.next().await.unwrap().unwrap();
        }
    })
    .await;
}
