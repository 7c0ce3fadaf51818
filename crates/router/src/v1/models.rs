//! `/v1/models`: the models that are ready on some node.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use node_api::ModelState;
use openai_api::ErrorBody;
use openai_api::models::{Model, ModelList};

use crate::app::App;
use crate::cluster::unknown_model;
use crate::error::Failure;

/// The models that take requests now.
#[utoipa::path(get, path = "/v1/models", tag = "v1", responses((status = 200, body = ModelList)))]
pub async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let data = app.cluster.model_views().into_iter().filter(|m| m.state.is_ready()).map(describe).collect();
    Json(ModelList { object: "list".to_owned(), data })
}

/// One model, if it is ready. The id may contain slashes.
#[utoipa::path(
    get,
    path = "/v1/models/{*id}",
    tag = "v1",
    params(("id" = String, Path, description = "Id of the model; slashes need no escaping")),
    responses(
        (status = 200, body = Model),
        (status = 404, body = ErrorBody, description = "No such model"),
        (status = 503, body = ErrorBody, description = "Registered and not ready, with the reason"),
    )
)]
pub async fn show(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Model>, Failure> {
    let model = app.cluster.model_view(&id).ok_or_else(|| unknown_model(&id))?;
    if !model.state.is_ready() {
        return Err(app.cluster.not_ready(&id));
    }
    Ok(Json(describe(model)))
}

fn describe(model: admin_api::Model) -> Model {
    let lengths = model.nodes.iter().filter_map(|n| match n.state {
        ModelState::Loaded { context_length, .. } => Some(context_length),
        _ => None,
    });
    Model {
        owned_by: model.id.split_once('/').map_or("llm-router", |(publisher, _)| publisher).to_owned(),
        object: "model".to_owned(),
        created: model.created,
        max_model_len: lengths.max(),
        id: model.id,
    }
}
