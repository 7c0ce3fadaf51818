use model_manifest::{FileRole, Format, ManifestFile, Source};

use super::*;

fn model(id: &str) -> StoredModel {
    let file = ManifestFile {
        name: "model.safetensors".into(),
        role: FileRole::Weights,
        size: 1,
        sha256: "0".repeat(64),
        git_oid: None,
        repo_path: None,
        repo: None,
        optional: false,
        runtimes: Vec::new(),
    };
    StoredModel {
        manifest: Manifest {
            id: id.into(),
            source: Source::Local { path: "/models/x".into() },
            format: Format::Safetensors,
            architecture: "echo".into(),
            runtimes: vec!["echo".into()],
            primary: "model.safetensors".into(),
            files: vec![file],
            context_length_max: Some(8),
            embeds: false,
            embedding_size: None,
        },
        settings: ModelSettings::default(),
        control_tokens: chat::ControlTokens::new(["<|end|>".to_owned()], ["<think>".to_owned()]),
        files: BTreeMap::from([("chat_template.jinja".into(), "{{ messages }}".into())]),
        created: 7,
        header_version: 1,
    }
}

#[tokio::test]
async fn what_is_stored_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("router.db");
    let store = Store::open(&path).await.unwrap();
    store.insert(&model("b/one")).await.unwrap();
    store.insert(&model("a/two")).await.unwrap();
    store.close().await;

    let store = Store::open(&path).await.unwrap();
    assert_eq!(store.models().await.unwrap(), [model("a/two"), model("b/one")]);
    let settings = ModelSettings { context_length: Some(99), ..ModelSettings::default() };
    assert!(store.set_settings("a/two", &settings).await.unwrap());
    assert!(!store.set_settings("a/three", &settings).await.unwrap());
    assert_eq!(store.models().await.unwrap()[0].settings, settings);
    assert!(store.delete("a/two").await.unwrap());
    assert!(!store.delete("a/two").await.unwrap());
    assert_eq!(store.models().await.unwrap(), [model("b/one")]);
}

#[tokio::test]
async fn what_is_replaced_keeps_its_settings_and_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("router.db")).await.unwrap();
    store.insert(&model("b/one")).await.unwrap();
    let mut new = model("b/one");
    new.manifest.embeds = true;
    new.files = BTreeMap::from([("tokenizer_config.json".into(), "{}".into())]);
    new.control_tokens = chat::ControlTokens::default();
    new.header_version = 2;
    let settings = ModelSettings { context_length: Some(99), ..ModelSettings::default() };
    let given = StoredModel { settings, created: 8, ..new.clone() };
    assert!(store.replace(&given).await.unwrap());
    assert_eq!(store.models().await.unwrap(), [new]);
    assert!(!store.replace(&model("a/two")).await.unwrap());
}

#[tokio::test]
async fn the_second_of_the_same_id_changes_nothing_also_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("router.db")).await.unwrap();
    let variants: Vec<StoredModel> = (0..8).map(|created| StoredModel { created, ..model("m") }).collect();
    let results = futures_util::future::join_all(variants.iter().map(|m| store.insert(m))).await;
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
    for error in results.into_iter().filter_map(Result::err) {
        assert!(matches!(&error, StoreError::Duplicate { id } if id == "m"), "{error:?}");
    }
    assert_eq!(store.models().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("router.db");
    let store = Store::open(&path).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'from the future', true, x'00', 0)",
    )
    .execute(&store.pool)
    .await
    .unwrap();
    store.close().await;
    let error = Store::open(&path).await.unwrap_err().to_string();
    assert!(
        error.contains("newer version") && error.contains("9999") && error.contains("router.db"),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("router.db");
    std::fs::write(
        &path,
        "this is a text, and long enough to be looked at as a header of one hundred bytes or more....",
    )
    .unwrap();
    let error = Store::open(&path).await.unwrap_err().to_string();
    assert!(error.contains("router.db"), "{error}");
}
