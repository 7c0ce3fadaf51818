//! The API document is made from the code and checked in.

use std::path::Path;

use crate::support::World;

/// Set to write the file instead of comparing it.
const UPDATE: &str = "UPDATE_OPENAPI";

#[test]
fn the_document_in_docs_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let mut now = router::openapi_document().to_pretty_json().unwrap();
    now.push('\n');
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    assert!(
        stored == now,
        "docs/openapi.json is not that of the code; run `{UPDATE}=1 cargo test -p router openapi`"
    );
}

#[tokio::test]
async fn the_router_serves_the_document() {
    let world = World::new().await;
    let (status, served) = world.get("/api/openapi.json").await;
    assert_eq!(status, 200);
    assert_eq!(served, serde_json::to_value(router::openapi_document()).unwrap());
    for path in ["/v1/chat/completions", "/v1/models/{id}", "/api/models/{id}", "/api/nodes", "/health"] {
        assert!(served["paths"].get(path).is_some(), "{path}");
    }
    for schema in ["ChatRequest", "ChatChunk", "Manifest", "ErrorBody", "NodeList"] {
        assert!(served["components"]["schemas"].get(schema).is_some(), "{schema}");
    }
}

#[test]
fn every_field_of_a_request_is_in_the_table_of_docs() {
    let table =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md")).unwrap();
    let document = serde_json::to_value(router::openapi_document()).unwrap();
    for (heading, schema) in [
        ("## Chat completions", "ChatRequest"),
        ("## Completions", "CompletionRequest"),
        ("## Embeddings", "EmbeddingRequest"),
    ] {
        let section = table.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
        for field in document["components"]["schemas"][schema]["properties"].as_object().unwrap().keys() {
            assert!(
                section.contains(&format!("`{field}`")),
                "docs/api.md says nothing of `{field}` under `{heading}`"
            );
        }
    }
}
