//! Which path leads where.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http::StatusCode;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::error::Failure;
use crate::openapi::Document;
use crate::{api, guard, link, v1};

/// The routes that the OpenAPI document describes.
pub fn documented() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(v1::chat::complete))
        .routes(routes!(v1::completions::complete))
        .routes(routes!(v1::embeddings::embed))
        .routes(routes!(v1::models::list))
        .routes(routes!(v1::models::show))
        .routes(routes!(api::models::list, api::models::create))
        .routes(routes!(api::models::show, api::models::update, api::models::remove))
        .routes(routes!(api::system::available))
        .routes(routes!(api::nodes::nodes))
        .routes(routes!(api::engines::list))
        .routes(routes!(api::engines::reload))
        .routes(routes!(api::engines::show))
        .routes(routes!(api::engines::disable))
        .routes(routes!(api::engines::enable))
        .routes(routes!(api::loaded::ps))
        .routes(routes!(api::system::version))
        .routes(routes!(api::system::openapi))
        .routes(routes!(api::system::health))
        .routes(routes!(api::system::ready))
        .routes(routes!(api::system::metrics))
}

pub fn router(app: Arc<App>) -> Router {
    let (documented, _) = documented().split_for_parts();
    documented
        .route("/", get(api::system::root))
        .route("/api/docs", get(api::system::docs_page))
        .route("/api/docs/docs.js", get(api::system::docs_script))
        .route("/api/docs/docs.css", get(api::system::docs_style))
        // Described as the two paths that it takes, see `openapi.rs`.
        .route("/api/models/{*id}", post(api::loaded::command))
        .route(node_api::LINK_PATH, post(link::link))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked))
        // Handlers read bodies themselves, each with its own bound.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

async fn not_found(request: Request<Body>) -> Failure {
    let message = format!("there is no {} {}", request.method(), request.uri().path());
    Failure::new(StatusCode::NOT_FOUND, "unknown_url", message).hint("/api/docs lists what there is")
}

async fn method_not_allowed(request: Request<Body>) -> Failure {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        .hint("/api/docs lists what there is")
}

fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no words");
    let mut failure = Failure::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal_error",
        "the router made a mistake; its log says where",
    );
    failure.log = Some(format!("panic: {words}").into());
    failure.into_response()
}
