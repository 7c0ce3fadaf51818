//! `/api/engines`: the plugins of the nodes, and an operator's commands for them.
//!
//! **Invariant:** only names that a node has told are sent to a node, so nothing a caller writes becomes a path there.

use std::sync::Arc;

use admin_api::{EngineAnswer, EngineAnswers, EngineDetails, EngineList, ReloadEngines, SwitchEngine};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use http::StatusCode;
use node_api::EngineCommand;
use openai_api::ErrorBody;

use super::ask::{ask_all, one_did};
use crate::app::App;
use crate::body::read_json;
use crate::error::Failure;

/// A command is a line.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Longer names are nobody's, and need not be said back whole.
const NAME_CHARS_MAX: usize = 256;

/// The engine plugins of all connected nodes, with those that were refused or disabled.
#[utoipa::path(get, path = "/api/engines", tag = "engines", responses((status = 200, body = EngineList)))]
pub async fn list(State(app): State<Arc<App>>) -> Json<EngineList> {
    Json(EngineList { engines: app.cluster.engine_views() })
}

/// One engine: its versions on the nodes, and the models in its workers.
#[utoipa::path(
    get,
    path = "/api/engines/{id}",
    tag = "engines",
    params(("id" = String, Path, description = "Id of the engine, without a version")),
    responses((status = 200, body = EngineDetails), (status = 404, body = ErrorBody))
)]
pub async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<EngineDetails>, Failure> {
    let mut engines = app.cluster.engine_views();
    engines.retain(|e| e.engine.id == id);
    if engines.is_empty() {
        return Err(unknown_engine(&id));
    }
    let mut loaded = app.cluster.loaded();
    loaded.retain(|m| m.replica.engine == id);
    Ok(Json(EngineDetails { id, engines, loaded }))
}

/// Looks at the nodes' engine folders again and hands models over to what is new there.
///
/// The answer comes when every hand-over is done or has failed; it says of each how long requests had to wait. It is 200
/// when at least one node did it. The work goes on when the caller goes away.
#[utoipa::path(
    post,
    path = "/api/engines/reload",
    tag = "engines",
    request_body = ReloadEngines,
    responses(
        (status = 200, body = EngineAnswers),
        (status = 404, body = ErrorBody, description = "No such engine or node"),
        (status = 503, body = ErrorBody, description = "No node is connected"),
    )
)]
pub async fn reload(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Json<EngineAnswers>, Failure> {
    let ReloadEngines { engine, node } = read_json(request, BODY_BYTES_MAX).await?;
    if let Some(engine) = &engine {
        known(&app, engine, None)?;
    }
    command(&app, node.as_deref(), None, EngineCommand::Reload { engine }).await
}

/// Takes an engine, or one version of it, out of use. Models go to another that can run them; those for which there is none
/// leave their workers when they are idle.
#[utoipa::path(
    post,
    path = "/api/engines/{id}/disable",
    tag = "engines",
    params(("id" = String, Path, description = "Id of the engine, without a version")),
    request_body = SwitchEngine,
    responses((status = 200, body = EngineAnswers), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody))
)]
pub async fn disable(
    State(app): State<Arc<App>>,
    Path(engine): Path<String>,
    request: Request<Body>,
) -> Result<Json<EngineAnswers>, Failure> {
    switch(&app, engine, request, |engine, version| EngineCommand::Disable { engine, version }).await
}

/// Takes a disabled engine, or one version of it, back into use.
#[utoipa::path(
    post,
    path = "/api/engines/{id}/enable",
    tag = "engines",
    params(("id" = String, Path, description = "Id of the engine, without a version")),
    request_body = SwitchEngine,
    responses((status = 200, body = EngineAnswers), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody))
)]
pub async fn enable(
    State(app): State<Arc<App>>,
    Path(engine): Path<String>,
    request: Request<Body>,
) -> Result<Json<EngineAnswers>, Failure> {
    switch(&app, engine, request, |engine, version| EngineCommand::Enable { engine, version }).await
}

async fn switch(
    app: &Arc<App>,
    engine: String,
    request: Request<Body>,
    to: impl FnOnce(String, Option<String>) -> EngineCommand,
) -> Result<Json<EngineAnswers>, Failure> {
    let SwitchEngine { version, node } = read_json(request, BODY_BYTES_MAX).await?;
    known(app, &engine, version.as_deref())?;
    command(app, node.as_deref(), Some(&engine.clone()), to(engine, version)).await
}

/// `having`: when no node is named, only nodes with this engine are asked.
async fn command(
    app: &Arc<App>,
    node: Option<&str>,
    having: Option<&str>,
    command: EngineCommand,
) -> Result<Json<EngineAnswers>, Failure> {
    let mut nodes = app.cluster.commanded(node)?;
    if let (None, Some(engine)) = (node, having) {
        let views = app.cluster.engine_views();
        nodes.retain(|n| views.iter().any(|e| e.node_id == n.id && e.engine.id == engine));
    }
    tracing::info!(?command, nodes = nodes.len(), "an operator's command for engines");
    let answers = ask_all(app, nodes, move |link| {
        let command = command.clone();
        async move { link.engines(&command).await }
    })
    .await?;
    one_did(&answers)?;
    let nodes = answers.into_iter().map(|answered| {
        let (reply, error) = match answered.outcome {
            Ok(reply) => {
                app.cluster.engines_told(&answered.node, &reply.engines);
                (Some(reply), None)
            }
            Err(error) => (None, Some(super::ask::told(error))),
        };
        EngineAnswer { node_id: answered.node.id, node_name: answered.node.name, reply, error }
    });
    Ok(Json(EngineAnswers { nodes: nodes.collect() }))
}

/// Whether some node has told of the engine, and of the version if one is given.
fn known(app: &App, engine: &str, version: Option<&str>) -> Result<(), Failure> {
    let views = app.cluster.engine_views();
    let mut versions = views.iter().filter(|e| e.engine.id == engine).peekable();
    if versions.peek().is_none() {
        return Err(unknown_engine(engine));
    }
    match version {
        Some(version) if !versions.any(|e| e.engine.version == version) => {
            let message = format!("no node has version {} of engine `{engine}`", shown(version));
            Err(Failure::new(StatusCode::NOT_FOUND, "engine_not_found", message)
                .param("version")
                .hint(format!("`llm-router engines show {engine}` lists its versions")))
        }
        _ => Ok(()),
    }
}

fn unknown_engine(id: &str) -> Failure {
    let message = format!("no connected node has an engine `{}`", shown(id));
    Failure::new(StatusCode::NOT_FOUND, "engine_not_found", message).param("engine").hint(
        "`llm-router engines ls` lists them; one that was just installed is found by `llm-router engines reload`",
    )
}

fn shown(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
