//! Which files of a manifest reach an engine.

use super::*;
use crate::{ManifestFile, Source};

fn file(name: &str, role: FileRole, optional: bool, runtimes: &[&str]) -> ManifestFile {
    ManifestFile {
        name: name.to_owned(),
        role,
        size: 7,
        sha256: "ab".repeat(32),
        git_oid: None,
        repo_path: None,
        repo: None,
        optional,
        runtimes: runtimes.iter().map(|r| (*r).to_owned()).collect(),
    }
}

fn manifest() -> Manifest {
    Manifest {
        id: "org/model".to_owned(),
        source: Source::Local { path: "/m".to_owned() },
        format: Format::Safetensors,
        architecture: "gpt_oss".to_owned(),
        runtimes: vec!["gpt-oss".to_owned()],
        primary: "model.safetensors".to_owned(),
        files: vec![
            file("config.json", FileRole::Config, false, &[]),
            file("model.metal.bin", FileRole::Artifact, true, &["gpt-oss/metal"]),
            file("model.safetensors", FileRole::Weights, false, &[]),
        ],
        context_length_max: None,
        embeds: false,
        embedding_size: None,
    }
}

fn places(names: &[&str]) -> BTreeMap<String, PathBuf> {
    let root = if cfg!(windows) { PathBuf::from("C:\\m") } else { PathBuf::from("/m") };
    names.iter().map(|n| ((*n).to_owned(), root.join(n))).collect()
}

fn names(device: &str, local: &[&str]) -> Result<Vec<String>, DescriptorError> {
    let descriptor = ModelDescriptor::new(&manifest(), "gpt-oss", device, Path::new("/m"), &places(local))?;
    Ok(descriptor.files.into_iter().map(|f| f.name).collect())
}

#[test]
fn an_artifact_reaches_the_device_it_is_for() {
    let all = ["config.json", "model.metal.bin", "model.safetensors"];
    assert_eq!(names("metal", &all).unwrap(), all);
    assert_eq!(names("cpu", &all).unwrap(), ["config.json", "model.safetensors"]);
    assert_eq!(
        names("metal", &["config.json", "model.safetensors"]).unwrap(),
        ["config.json", "model.safetensors"]
    );
}

#[test]
fn a_required_file_that_is_not_here_is_named() {
    let missing = DescriptorError::Missing { file: "model.safetensors".to_owned() };
    assert_eq!(names("cpu", &["config.json"]), Err(missing));
}

#[test]
fn a_relative_place_is_refused() {
    let local = BTreeMap::from([("config.json".to_owned(), PathBuf::from("config.json"))]);
    let error = ModelDescriptor::new(&manifest(), "gpt-oss", "cpu", Path::new("/m"), &local).unwrap_err();
    assert!(matches!(error, DescriptorError::NotAbsolute { .. }));
}
