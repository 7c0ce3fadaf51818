//! `/api/ps`, and loading and unloading a model on request.

use std::sync::Arc;

use admin_api::{LoadedList, ModelAnswer, ModelAnswers, ModelPlace};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use http::{Method, StatusCode};
use node_api::{ModelAction, ModelCommand};
use openai_api::ErrorBody;

use super::ask::{ask_model, one_did, told};
use crate::app::App;
use crate::body::read_json;
use crate::cluster::{Commanded, Registered, on_node, unknown_model};
use crate::error::Failure;

/// A command is a line.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What is in memory where: engine, device, memory granted and used, last use.
#[utoipa::path(get, path = "/api/ps", tag = "models", responses((status = 200, body = LoadedList)))]
pub async fn ps(State(app): State<Arc<App>>) -> Json<LoadedList> {
    Json(LoadedList { models: app.cluster.loaded() })
}

/// Loads a model into a worker, as its first request would. The answer comes when it is there.
#[utoipa::path(
    post,
    path = "/api/models/{id}/load",
    tag = "models",
    params(("id" = String, Path, description = "Id of the model; slashes need no escaping")),
    request_body = ModelPlace,
    responses(
        (status = 200, body = ModelAnswers),
        (status = 404, body = ErrorBody, description = "No such model or node"),
        (status = 503, body = ErrorBody, description = "The model is not ready, or could not be loaded"),
        (status = 507, body = ErrorBody, description = "The model does not fit into the memory"),
    )
)]
pub async fn load(
    app: &Arc<App>,
    model: &Registered,
    place: ModelPlace,
) -> Result<Json<ModelAnswers>, Failure> {
    let id = &model.manifest.id;
    let node = match place.node {
        Some(node) => node,
        None => app.cluster.best_to_load(id).ok_or_else(|| app.cluster.not_ready(id))?,
    };
    let nodes = app.cluster.commanded(Some(&node))?;
    ask(app, model, nodes, ModelAction::Load).await
}

/// Takes a model out of its workers once they are idle; it stays ready, and the next request loads it again.
#[utoipa::path(
    post,
    path = "/api/models/{id}/unload",
    tag = "models",
    params(("id" = String, Path, description = "Id of the model; slashes need no escaping")),
    request_body = ModelPlace,
    responses(
        (status = 200, body = ModelAnswers),
        (status = 404, body = ErrorBody, description = "No such model or node"),
    )
)]
pub async fn unload(
    app: &Arc<App>,
    model: &Registered,
    place: ModelPlace,
) -> Result<Json<ModelAnswers>, Failure> {
    let nodes = match place.node {
        Some(node) => app.cluster.commanded(Some(&node))?,
        None => {
            let loaded = app.cluster.loaded();
            let id = &model.manifest.id;
            let has = |node: &Commanded| loaded.iter().any(|m| m.model == *id && m.node_id == node.id);
            // No node at all: it is loaded nowhere, as was asked for.
            let mut nodes = app.cluster.commanded(None).unwrap_or_default();
            nodes.retain(has);
            nodes
        }
    };
    ask(app, model, nodes, ModelAction::Unload).await
}

/// `POST /api/models/{id}/load` and `…/unload`: ids have slashes, so the last word of the path is looked for here.
pub async fn command(
    State(app): State<Arc<App>>,
    Path(path): Path<String>,
    request: Request<Body>,
) -> Result<Json<ModelAnswers>, Failure> {
    match path.rsplit_once('/') {
        Some((id, "load")) => {
            let (model, place) = read(&app, id, request).await?;
            load(&app, &model, place).await
        }
        Some((id, "unload")) => {
            let (model, place) = read(&app, id, request).await?;
            unload(&app, &model, place).await
        }
        _ => {
            let message = format!("/api/models/{path} does not take {}", Method::POST);
            Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
                .hint("a model takes POST at /load and /unload below it"))
        }
    }
}

async fn read(app: &App, id: &str, request: Request<Body>) -> Result<(Arc<Registered>, ModelPlace), Failure> {
    let place = read_json(request, BODY_BYTES_MAX).await?;
    let model = app.cluster.model(id).ok_or_else(|| unknown_model(id))?;
    Ok((model, place))
}

async fn ask(
    app: &Arc<App>,
    model: &Registered,
    nodes: Vec<Commanded>,
    action: ModelAction,
) -> Result<Json<ModelAnswers>, Failure> {
    let id = &model.manifest.id;
    tracing::info!(model = id, ?action, nodes = nodes.len(), "an operator's command for a model");
    let command = ModelCommand { model: id.clone(), fingerprint: model.fingerprint.clone(), action };
    let answers = ask_model(app, nodes, command).await?;
    one_did(&answers)?;
    let nodes = answers.into_iter().map(|answered| {
        let (node_id, node_name) = (answered.node.id.clone(), answered.node.name.clone());
        match answered.outcome {
            Ok(status) => {
                let model = Some(on_node(&answered.node, status));
                ModelAnswer { node_id, node_name, model, error: None }
            }
            Err(error) => ModelAnswer { node_id, node_name, model: None, error: Some(told(error)) },
        }
    });
    Ok(Json(ModelAnswers { id: id.clone(), nodes: nodes.collect() }))
}
