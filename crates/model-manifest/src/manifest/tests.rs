//! A manifest from elsewhere is followed only when it is sound.

use super::*;

fn manifest() -> Manifest {
    Manifest {
        id: "org/model".to_owned(),
        source: Source::Hub {
            repo: "org/model".to_owned(),
            revision: "main".to_owned(),
            commit: "ab".repeat(20),
        },
        format: Format::Safetensors,
        architecture: "gpt_oss".to_owned(),
        runtimes: vec!["gpt-oss".to_owned()],
        primary: "model.safetensors".to_owned(),
        files: vec![ManifestFile {
            name: "model.safetensors".to_owned(),
            role: FileRole::Weights,
            size: 5,
            sha256: "ab".repeat(32),
            git_oid: None,
            repo_path: None,
            repo: None,
            optional: false,
            runtimes: Vec::new(),
        }],
        context_length_max: None,
        embeds: false,
        embedding_size: None,
    }
}

#[test]
fn a_sound_manifest_survives_json_with_its_fingerprint() {
    let manifest = manifest();
    assert_eq!(manifest.check(), Ok(()));
    let copy: Manifest = serde_json::from_str(&serde_json::to_string(&manifest).unwrap()).unwrap();
    assert_eq!((copy.fingerprint(), copy), (manifest.fingerprint(), manifest));
}

#[test]
fn hostile_manifests_are_refused() {
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 11] = [
        ("name leaves the folder", |m| m.files[0].name = "../x".to_owned()),
        ("path in the repository leaves it", |m| m.files[0].repo_path = Some("../x".to_owned())),
        ("hash is a path", |m| m.files[0].sha256 = "../../x".to_owned()),
        ("hash is upper case", |m| m.files[0].sha256 = "AB".repeat(32)),
        ("git id is a path", |m| m.files[0].git_oid = Some("../../x".to_owned())),
        ("size would overflow sums", |m| m.files[0].size = u64::MAX),
        ("repository is a path", |m| {
            m.source =
                Source::Hub { repo: "../x".to_owned(), revision: "main".to_owned(), commit: "ab".repeat(20) }
        }),
        ("revision is a path", |m| {
            m.source =
                Source::Hub { repo: "a/b".to_owned(), revision: "../x".to_owned(), commit: "ab".repeat(20) }
        }),
        ("commit is a branch", |m| {
            m.source =
                Source::Hub { repo: "a/b".to_owned(), revision: "main".to_owned(), commit: "main".to_owned() }
        }),
        ("another repository is a path", |m| {
            m.files[0].repo = Some(FileRepo { repo: "..".to_owned(), commit: "ab".repeat(20) })
        }),
        ("primary is not a file", |m| m.primary = "other".to_owned()),
    ];
    for (why, change) in cases {
        let mut bad = manifest();
        change(&mut bad);
        assert!(bad.check().is_err(), "{why}");
    }
}

#[test]
fn two_files_of_one_name_are_refused() {
    let mut twice = manifest();
    let mut second = twice.files[0].clone();
    second.name = "MODEL.safetensors".to_owned();
    twice.files.push(second);
    assert!(matches!(twice.check(), Err(ManifestError::Name(PathError::Collision { .. }))));
}

#[test]
fn a_file_for_one_device_is_for_that_device_only() {
    let mut file = manifest().files[0].clone();
    assert!(file.is_for(&["anything"]));
    file.runtimes = vec!["gpt-oss/metal".to_owned()];
    assert!(file.is_for(&["gpt-oss/metal"]));
    assert!(!file.is_for(&["gpt-oss"]) && !file.is_for(&["gpt-oss/cuda"]));
    file.runtimes = vec!["gpt-oss".to_owned()];
    assert!(file.is_for(&["gpt-oss"]) && file.is_for(&["gpt-oss/cuda"]));
    assert!(!file.is_for(&["gpt-oss-2"]));
}
