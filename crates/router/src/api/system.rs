//! The router itself: version, health, the models it could be given, and its own API document.

use std::sync::Arc;

use admin_api::{AvailableList, AvailableModel, Health, Version};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use node_api::PROTOCOL_VERSION;

use crate::app::App;

/// What answers here.
#[utoipa::path(get, path = "/api/version", tag = "system", responses((status = 200, body = Version)))]
pub async fn version(State(app): State<Arc<App>>) -> Json<Version> {
    Json(Version {
        name: "llm-router".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node_protocol_version: PROTOCOL_VERSION,
        allow_cpu: app.config.allow_cpu,
        uptime_seconds: app.started.elapsed().as_secs(),
    })
}

/// Models that are known to work: what to register first.
#[utoipa::path(get, path = "/api/available", tag = "models", responses((status = 200, body = AvailableList)))]
pub async fn available(State(app): State<Arc<App>>) -> Json<AvailableList> {
    let describe = |model: &model_manifest::SupportedModel| AvailableModel {
        registered: app.cluster.model(&model.id).is_some(),
        id: model.id.clone(),
        repo: model.repository.clone(),
        format: model.format,
        size: model.size,
        memory: model.memory,
        runtimes: model.runtimes.clone(),
        artifacts: model.artifacts.iter().map(|a| a.name.clone()).collect(),
    };
    Json(AvailableList { models: app.supported.models().iter().map(describe).collect() })
}

/// 200 as long as the process can answer.
#[utoipa::path(get, path = "/health", tag = "system", responses((status = 200, body = Health)))]
pub async fn health(State(app): State<Arc<App>>) -> Json<Health> {
    Json(state(&app))
}

/// 200 while new requests are taken, 503 once the router ends.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "system",
    responses((status = 200, body = Health), (status = 503, body = Health, description = "The router is ending"))
)]
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Health>) {
    let status = if app.draining() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(state(&app)))
}

fn state(app: &App) -> Health {
    let ready = app.cluster.model_views().iter().filter(|m| m.state.is_ready()).count();
    Health {
        status: if app.draining() { "draining" } else { "ok" }.to_owned(),
        nodes: app.cluster.node_count().try_into().unwrap_or(u32::MAX),
        models_ready: ready.try_into().unwrap_or(u32::MAX),
    }
}

/// The OpenAPI document of `/api` and `/v1`.
#[utoipa::path(get, path = "/api/openapi.json", tag = "system", responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json")))]
pub async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(crate::openapi::document())
}

pub async fn root() -> Redirect {
    Redirect::temporary("/api/docs")
}

/// The page that shows the OpenAPI document. Nothing of it comes from elsewhere.
pub async fn docs_page() -> Response {
    asset("text/html; charset=utf-8", include_str!("../../assets/docs.html"))
}

pub async fn docs_script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("../../assets/docs.js"))
}

pub async fn docs_style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../../assets/docs.css"))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let own_only = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(own_only));
    response
}
