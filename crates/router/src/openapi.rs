//! The OpenAPI document of `/api` and `/v1`, made from the handlers and their types.

use openai_api::chat::ChatChunk;
use utoipa::OpenApi;
use utoipa::openapi::Paths;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "llm-router",
        description = "The OpenAI-compatible API under /v1 and the router's own under /api. Errors have the same body everywhere.",
        license(name = "MIT", identifier = "MIT")
    ),
    tags(
        (name = "v1", description = "The OpenAI API"),
        (name = "models", description = "Registered models"),
        (name = "nodes", description = "Connected nodes"),
        (name = "engines", description = "Engine plugins on the nodes"),
        (name = "system", description = "The router itself")
    ),
    // One route of the server takes both, since ids have slashes.
    paths(crate::api::loaded::load, crate::api::loaded::unload),
    components(schemas(ChatChunk))
)]
pub struct Document;

/// The document as it is checked in under `docs/openapi.json`.
pub fn document() -> utoipa::openapi::OpenApi {
    let (_, mut document) = crate::routes::documented().split_for_parts();
    // axum writes a parameter that takes the rest of the path as `{*id}`, OpenAPI as `{id}`.
    let paths = std::mem::replace(&mut document.paths, Paths::new());
    document.paths.paths =
        paths.paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    document
}
