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
