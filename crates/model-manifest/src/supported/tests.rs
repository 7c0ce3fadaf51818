//! The shipped list is sound, and an unsound one is refused.

use super::*;
use crate::Allowlist;

#[test]
fn the_shipped_list_names_models_that_can_be_registered() {
    let list = SupportedModels::parse(SHIPPED).unwrap();
    assert!(
        list.by_repository("openai/gpt-oss-20b").is_some()
            && list.by_repository("openai/gpt-oss-120b").is_some()
    );
    for model in list.models() {
        assert!(model.memory > model.size, "{}: weights do not fit in the memory named", model.id);
        assert!(!model.runtimes.is_empty() && model.context_length_max > 0, "{}", model.id);
        for artifact in &model.artifacts {
            let repo = artifact.repository.as_deref().unwrap_or(&model.repository);
            assert!(Allowlist::default().allows(repo), "{repo} is not on the allowlist we ship");
            assert!(artifact.runtimes.iter().all(|r| r.contains('/')), "{} is for one device", artifact.name);
        }
    }
}

fn list_with(artifact_repository: &str, path: &str) -> String {
    format!(
        r#"{{"schema_version": 1, "models": [{{"id": "org/a", "repository": "org/a", "format": "safetensors",
        "architecture": "gpt_oss", "size": 1, "memory": 2, "context_length_max": 3, "licence": "MIT", "runtimes": ["gpt-oss"],
        "artifacts": [{{"name": "model.metal.bin", "path": "{path}", "repository": "{artifact_repository}", "size": 1,
        "runtimes": ["gpt-oss/metal"]}}]}}]}}"#
    )
}

#[test]
fn an_artifact_may_come_from_another_repository_of_the_same_publisher() {
    let list = SupportedModels::parse(&list_with("org/b", "model.bin")).unwrap();
    assert_eq!(list.artifact_repositories("ORG/a"), ["org/b"]);
    assert_eq!(list.artifact_repositories("org/unknown"), [""; 0]);
}

#[test]
fn an_artifact_of_another_publisher_is_refused() {
    let error = SupportedModels::parse(&list_with("other/b", "model.bin")).unwrap_err();
    assert!(matches!(error, SupportedError::OtherPublisher { .. }), "{error}");
}

#[test]
fn an_artifact_outside_its_repository_is_refused() {
    let error = SupportedModels::parse(&list_with("org/b", "../model.bin")).unwrap_err();
    assert!(matches!(error, SupportedError::Name { .. }), "{error}");
}

#[test]
fn unknown_fields_and_other_versions_are_refused() {
    assert!(matches!(
        SupportedModels::parse(r#"{"schema_version": 1, "models": [], "x": 1}"#),
        Err(SupportedError::Json(_))
    ));
    assert!(matches!(
        SupportedModels::parse(r#"{"schema_version": 2, "models": []}"#),
        Err(SupportedError::Version { found: 2 })
    ));
}
