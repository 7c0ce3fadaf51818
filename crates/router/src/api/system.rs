//! The router itself: version, health, the models it could be given, and its own API document.

use std::sync::Arc;

use admin_api::{AvailableList, AvailableModel, Health, HealthState, Version};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use node_api::PROTOCOL_VERSION;

use crate::app::App;
use crate::error::Failure;
use crate::metrics::Snapshot;

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

/// 200 as long as the process can answer: for what restarts a dead one.
#[utoipa::path(get, path = "/health", tag = "system", responses((status = 200, body = Health)))]
pub async fn health(State(app): State<Arc<App>>) -> Json<Health> {
    let (models_ready, _) = count_models(&app);
    Json(Health {
        status: if app.draining() { HealthState::Draining } else { HealthState::Ok },
        reason: None,
        nodes: app.cluster.node_count().try_into().unwrap_or(u32::MAX),
        models_ready,
    })
}

/// 200 while requests can be served, 503 with the reason otherwise: for what sends them here.
///
/// It is 503 while no node is there, while models are registered and none of them is ready anywhere, and once the router
/// was told to end. A router without any model is ready: it can be given one.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "system",
    responses((status = 200, body = Health), (status = 503, body = Health, description = "Not now; `reason` says why"))
)]
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Health>) {
    let nodes = app.cluster.serving_node_count();
    let (models_ready, models) = count_models(&app);
    let (state, reason) = if app.draining() {
        (HealthState::Draining, Some("the router is ending".to_owned()))
    } else if nodes == 0 {
        let reason = format!("{}; start one with `llm-router node`", app.cluster.nobody_serves());
        (HealthState::NotReady, Some(reason))
    } else if models > 0 && models_ready == 0 {
        let reason = format!("none of {models} registered models is ready; `llm-router models ls` says why");
        (HealthState::NotReady, Some(reason))
    } else {
        (HealthState::Ok, None)
    };
    let status = if state == HealthState::Ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let nodes = nodes.try_into().unwrap_or(u32::MAX);
    (status, Json(Health { status: state, reason, nodes, models_ready }))
}

/// Ready and registered models.
fn count_models(app: &App) -> (u32, usize) {
    let models = app.cluster.model_views();
    let ready = models.iter().filter(|m| m.state.is_ready()).count();
    (ready.try_into().unwrap_or(u32::MAX), models.len())
}

/// Figures for monitoring, in Prometheus' text format; docs/operations.md lists them.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "system",
    responses((status = 200, description = "Prometheus text format 0.0.4", content_type = "text/plain"))
)]
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let snapshot = Snapshot {
        nodes: app.cluster.node_views(),
        models: app.cluster.model_views(),
        uptime: app.started.elapsed(),
        draining: app.draining(),
    };
    let text = app.metrics.render(&snapshot).map_err(|e| Failure::internal("collect its figures", &e))?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(crate::metrics::CONTENT_TYPE))], text).into_response())
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
