//! Finding engines in folders good and bad, and saying what is missing.

use std::fs;
use std::path::Path;

use model_manifest::{Format, Manifest, Source};
use node_api::{DeviceInfo, EngineState};
use serde_json::{Value, json};

use super::*;
use crate::WorkerProgram;

/// Without trying them: the worker program is not there, which is no fault of an engine.
async fn scan(dirs: &[PathBuf]) -> EngineRegistry {
    find(dirs, &no_program()).await.unwrap()
}

fn no_program() -> WorkerProgram {
    WorkerProgram { executable: "/there/is/no/program".into(), arguments: Vec::new() }
}

fn manifest() -> Value {
    json!({
        "id": "gpt-oss", "version": "0.1.0", "abi_version": "1.0", "library": "libengine.so",
        "runtimes": ["gpt-oss"], "architectures": ["gpt_oss"], "formats": ["safetensors"],
        "devices": ["cuda", "cpu"], "licence": "MIT"
    })
}

fn install(dir: &Path, folder: &str, manifest: &Value) {
    let folder = dir.join(folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    fs::write(folder.join("libengine.so"), b"abc").unwrap();
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut value = manifest();
    for (field, change) in changes {
        value[*field] = change.clone();
    }
    value
}

fn device(id: &str) -> DeviceInfo {
    let kind = id.split(':').next().unwrap_or_default().to_owned();
    DeviceInfo { id: id.into(), kind, name: "test".into(), memory_total: 1, driver: None }
}

fn model(architecture: &str, format: Format, runtimes: &[&str]) -> Manifest {
    Manifest {
        id: "org/model".into(),
        source: Source::Local { path: "/models/x".into() },
        format,
        architecture: architecture.into(),
        runtimes: runtimes.iter().map(|r| (*r).to_owned()).collect(),
        primary: "model.safetensors".into(),
        files: Vec::new(),
        context_length_max: None,
        embeds: false,
        embedding_size: None,
    }
}

#[tokio::test]
async fn an_engine_is_found_with_the_hash_of_its_library() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "gpt-oss-0.1.0", &manifest());
    fs::create_dir_all(dir.path().join("empty")).unwrap();
    let registry = scan(&[dir.path().join("absent"), dir.path().to_owned()]).await;
    assert!(registry.refused.is_empty(), "{registry:?}");
    assert_eq!(registry.engines[0].label(), "gpt-oss 0.1.0");
    assert_eq!(
        registry.engines[0].sha256,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[tokio::test]
async fn what_is_wrong_with_an_engine_is_said_and_it_is_not_used() {
    let cases: &[(Value, &str)] = &[
        (with(&[("abi_version", json!("2.0"))]), "built for ABI 2.0"),
        (with(&[("abi_version", json!("one"))]), "abi_version `one`"),
        (with(&[("id", json!("../x"))]), "id `../x`"),
        (with(&[("library", json!("../evil.so"))]), "library `../evil.so`"),
        (with(&[("library", json!("absent.so"))]), "absent.so cannot be read"),
        (with(&[("version", json!("1"))]), "version `1`"),
        (with(&[("devices", json!([]))]), "devices is empty"),
        (with(&[("devices", json!(["tpu"]))]), "devices `tpu`"),
        (with(&[("formats", json!(["pickle"]))]), "formats `pickle`"),
        (with(&[("log_level", json!("loud"))]), "log_level `loud`"),
        (with(&[("surprise", json!(1))]), "unknown field `surprise`"),
        (json!({"id": "x"}), "missing field"),
        (json!([1, 2]), "no manifest"),
    ];
    for (manifest, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path(), "engine", manifest);
        let registry = scan(&[dir.path().to_owned()]).await;
        assert!(registry.engines.is_empty(), "{manifest}");
        assert!(registry.refused[0].reason.contains(expected), "{expected}: {}", registry.refused[0].reason);
        assert!(matches!(registry.summaries()[0].state, EngineState::Refused { .. }));
    }
}

#[tokio::test]
async fn a_huge_manifest_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "engine", &manifest());
    fs::write(dir.path().join("engine/manifest.json"), vec![b' '; 300 << 10]).unwrap();
    assert!(scan(&[dir.path().to_owned()]).await.refused[0].reason.contains("longer than"));
}

#[tokio::test]
async fn the_same_engine_twice_is_used_from_the_first_directory() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    install(first.path(), "a", &manifest());
    install(second.path(), "b", &manifest());
    let registry = scan(&[first.path().to_owned(), second.path().to_owned()]).await;
    assert!(registry.engines[0].folder.starts_with(first.path()));
    assert!(registry.refused[0].reason.contains("is used from"), "{registry:?}");
}

#[tokio::test]
async fn the_newest_version_and_the_best_device_are_chosen() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "a", &with(&[("version", json!("0.9.0"))]));
    install(dir.path(), "b", &with(&[("version", json!("0.10.0"))]));
    install(dir.path(), "c", &with(&[("version", json!("0.10.0-rc.1"))]));
    let registry = scan(&[dir.path().to_owned()]).await;
    let choice = registry
        .choose(&model("gpt_oss", Format::Safetensors, &["gpt-oss"]), &[device("cpu"), device("cuda:0")])
        .unwrap();
    assert_eq!(choice.engine.manifest.version, "0.10.0");
    assert_eq!((choice.device.id.as_str(), choice.runtime.as_str()), ("cuda:0", "gpt-oss"));
    assert_eq!(registry.runtimes(&[device("cpu")]), ["gpt-oss/cpu"]);
}

#[tokio::test]
async fn a_model_without_a_known_runtime_goes_to_whoever_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "a", &with(&[("architectures", json!(["*"]))]));
    let registry = scan(&[dir.path().to_owned()]).await;
    let choice = registry.choose(&model("unheard_of", Format::Safetensors, &[]), &[device("cpu")]).unwrap();
    assert_eq!(choice.runtime, "gpt-oss");
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let none = scan(&[dir.path().to_owned()]).await;
    install(dir.path(), "a", &with(&[("devices", json!(["cuda"]))]));
    let registry = scan(&[dir.path().to_owned()]).await;
    let refused_dir = tempfile::tempdir().unwrap();
    install(refused_dir.path(), "a", &with(&[("abi_version", json!("2.0"))]));
    let refused = scan(&[refused_dir.path().to_owned()]).await;

    let cases: &[(&EngineRegistry, Manifest, &[&str])] = &[
        (&none, model("gpt_oss", Format::Safetensors, &["gpt-oss"]), &["no engine is installed", "gpt_oss"]),
        (
            &registry,
            model("gpt_oss", Format::Gguf, &["llama-cpp"]),
            &["format gguf", "gpt-oss 0.1.0 (safetensors)"],
        ),
        (
            &registry,
            model("llama", Format::Safetensors, &[]),
            &["architecture llama", "gpt-oss 0.1.0 (gpt_oss)"],
        ),
        (
            &registry,
            model("gpt_oss", Format::Safetensors, &["gpt-oss"]),
            &["no device", "(cuda)", "serves with cpu"],
        ),
        (&registry, model("gpt_oss", Format::Safetensors, &["other"]), &["runtime other", "gpt-oss 0.1.0"]),
        (
            &refused,
            model("gpt_oss", Format::Safetensors, &["gpt-oss"]),
            &["gpt-oss 0.1.0", "refused", "ABI 2.0"],
        ),
    ];
    for (registry, model, expected) in cases {
        let reason = registry.choose(model, &[device("cpu")]).unwrap_err();
        for part in *expected {
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }
}
