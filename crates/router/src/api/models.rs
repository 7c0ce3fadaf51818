//! `/api/models`: what is registered.

use std::sync::Arc;

use admin_api::{Deleted, ModelDetails, ModelList, RegisterModel, UpdateModel};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use http::StatusCode;
use node_api::{ModelAction, ModelCommand};
use openai_api::ErrorBody;

use super::ask::ask_model;
use crate::app::App;
use crate::body::read_json;
use crate::cluster::{Registered, unknown_model};
use crate::error::Failure;
use crate::register::{check_settings, register};

/// A registration or a change is a few lines.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Every registered model, with its state on every node.
#[utoipa::path(get, path = "/api/models", tag = "models", responses((status = 200, body = ModelList)))]
pub async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList { models: app.cluster.model_views() })
}

/// Registers a model from the hub or from a folder of the router's machine.
///
/// The commit is pinned and every file is named with size and sha256; no weights are fetched here, the nodes do that.
#[utoipa::path(
    post,
    path = "/api/models",
    tag = "models",
    request_body = RegisterModel,
    responses(
        (status = 201, body = ModelDetails),
        (status = 400, body = ErrorBody, description = "A file is missing, ambiguous or broken; it is named"),
        (status = 403, body = ErrorBody, description = "The repository is gated"),
        (status = 404, body = ErrorBody, description = "The repository is absent, or private; the hub does not tell which"),
        (status = 409, body = ErrorBody, description = "A model with this id is registered; nothing was changed"),
        (status = 502, body = ErrorBody, description = "The hub cannot be reached"),
        (status = 503, body = ErrorBody, description = "The hub limits our requests"),
    )
)]
pub async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<(StatusCode, Json<ModelDetails>), Failure> {
    let wanted: RegisterModel = read_json(request, BODY_BYTES_MAX).await?;
    let registered = register(&app, wanted).await?;
    Ok((StatusCode::CREATED, details(&app, &registered)?))
}

/// One model with its manifest. The id may contain slashes.
#[utoipa::path(
    get,
    path = "/api/models/{*id}",
    tag = "models",
    params(("id" = String, Path, description = "Id of the model; slashes need no escaping")),
    responses((status = 200, body = ModelDetails), (status = 404, body = ErrorBody))
)]
pub async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<ModelDetails>, Failure> {
    let registered = app.cluster.model(&id).ok_or_else(|| unknown_model(&id))?;
    details(&app, &registered)
}

/// Replaces the settings of a model.
#[utoipa::path(
    patch,
    path = "/api/models/{*id}",
    tag = "models",
    params(("id" = String, Path, description = "Id of the model; slashes need no escaping")),
    request_body = UpdateModel,
    responses((status = 200, body = ModelDetails), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub async fn update(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Json<ModelDetails>, Failure> {
    let UpdateModel { settings } = read_json(request, BODY_BYTES_MAX).await?;
    let task_app = Arc::clone(&app);
    let task = app.tasks.spawn(async move {
        let _one = task_app.catalog.lock().await;
        let old = task_app.cluster.model(&id).ok_or_else(|| unknown_model(&id))?;
        check_settings(&settings, Some(&old.manifest))?;
        let stored = task_app.store.set_settings(&id, &settings).await;
        if !stored.map_err(|e| Failure::internal("store the settings", &e))? {
            return Err(unknown_model(&id));
        }
        let new = Registered { settings, ..(*old).clone() };
        task_app.cluster.set_model(new.clone());
        tracing::info!(model = id, "settings changed");
        Ok(new)
    });
    let registered = task.await.map_err(|e| Failure::internal("store the settings", &e))??;
    details(&app, &registered)
}

/// Removes a model from the router and from the nodes. Of its files in the shared cache, nodes that are connected remove those
/// that they brought themselves and that no other model needs.
#[utoipa::path(
    delete,
    path = "/api/models/{*id}",
    tag = "models",
    params(("id" = String, Path, description = "Id of the model; slashes need no escaping")),
    responses((status = 200, body = Deleted), (status = 404, body = ErrorBody))
)]
pub async fn remove(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Deleted>, Failure> {
    let task_app = Arc::clone(&app);
    let task = app.tasks.spawn(async move {
        let _one = task_app.catalog.lock().await;
        let fingerprint = task_app.cluster.model(&id).map(|model| model.fingerprint.clone());
        let deleted =
            task_app.store.delete(&id).await.map_err(|e| Failure::internal("remove the model", &e))?;
        if !deleted {
            return Err(unknown_model(&id));
        }
        if let Some(fingerprint) = fingerprint {
            discard(&task_app, &id, fingerprint).await;
        }
        task_app.cluster.remove_model(&id);
        task_app.metrics.remove_model(&id);
        tracing::info!(model = id, "model removed");
        Ok(Json(Deleted { id, deleted }))
    });
    task.await.map_err(|e| Failure::internal("remove the model", &e))?
}

/// Tells the nodes that it is an operator who wants it no more. A node that is away keeps its files.
async fn discard(app: &Arc<App>, id: &str, fingerprint: String) {
    let command = ModelCommand { model: id.to_owned(), fingerprint, action: ModelAction::Remove };
    // No node is connected: there is nobody to tell.
    let Ok(nodes) = app.cluster.commanded(None) else { return };
    for answered in ask_model(app, nodes, command).await.into_iter().flatten() {
        if let Err(error) = answered.outcome {
            tracing::info!(
                model = id,
                node = answered.node.name,
                "the node keeps the model's files: {error}"
            );
        }
    }
}

fn details(app: &App, registered: &Registered) -> Result<Json<ModelDetails>, Failure> {
    let id = &registered.manifest.id;
    let model = app.cluster.model_view(id).ok_or_else(|| unknown_model(id))?;
    Ok(Json(ModelDetails { model, manifest: registered.manifest.clone() }))
}
