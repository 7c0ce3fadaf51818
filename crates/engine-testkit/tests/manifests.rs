//! Every manifest in the tree keeps to the schema, and the schema refuses what a manifest must not be.

use std::path::{Path, PathBuf};

use engine_testkit::build::workspace_root;
use serde_json::{Value, json};

fn schema() -> jsonschema::Validator {
    let path = workspace_root().join("include/engine/manifest.schema.json");
    let text = std::fs::read(&path).expect("the schema is there");
    jsonschema::validator_for(&serde_json::from_slice(&text).expect("JSON")).expect("a schema")
}

/// All `manifest.json` below `engines/` that lie beside a crate or C files.
fn manifests(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            manifests(&path, out);
        } else if path.file_name().is_some_and(|name| name == "manifest.json") {
            out.push(path);
        }
    }
}

#[test]
fn every_engine_in_the_tree_has_a_manifest_of_the_schema() {
    let schema = schema();
    let mut found = Vec::new();
    manifests(&workspace_root().join("engines"), &mut found);
    assert!(found.len() >= 2, "{found:?}");
    for path in found {
        let manifest: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        let errors: Vec<String> = schema.iter_errors(&manifest).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
    }
}

#[test]
fn the_schema_refuses_what_a_manifest_must_not_be() {
    let schema = schema();
    let good = json!({
        "id": "x", "version": "1.2.3", "abi_version": "1.0", "library": "x.plugin", "runtimes": ["x"],
        "architectures": ["*"], "formats": ["gguf"], "devices": ["cpu"], "licence": "MIT",
    });
    assert!(schema.is_valid(&good));
    for (field, bad) in [
        ("id", json!("../up")),
        ("id", json!("Upper")),
        ("version", json!("1.2")),
        ("version", json!("1.2.3/../../x")),
        ("abi_version", json!("1")),
        ("abi_version", json!(1.0)),
        ("library", json!("../../lib.so")),
        ("library", json!("/lib.so")),
        ("library", json!("")),
        ("runtimes", json!([])),
        ("formats", json!(["pickle"])),
        ("devices", json!(["toaster"])),
        ("log_level", json!("loud")),
        ("unknown", json!(true)),
    ] {
        let mut manifest = good.clone();
        manifest[field] = bad;
        assert!(!schema.is_valid(&manifest), "{manifest}");
    }
    for field in ["id", "version", "abi_version", "library", "runtimes", "licence"] {
        let mut manifest = good.clone();
        manifest.as_object_mut().expect("an object").remove(field);
        assert!(!schema.is_valid(&manifest), "without {field}");
    }
}
