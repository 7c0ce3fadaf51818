//! `/api/nodes` and `/api/engines`: who is connected, with what.

use std::sync::Arc;

use admin_api::{EngineList, NodeList};
use axum::Json;
use axum::extract::State;

use crate::app::App;

/// The connected nodes.
#[utoipa::path(get, path = "/api/nodes", tag = "nodes", responses((status = 200, body = NodeList)))]
pub async fn nodes(State(app): State<Arc<App>>) -> Json<NodeList> {
    Json(NodeList { nodes: app.cluster.node_views() })
}

/// The engine plugins of all connected nodes, with those that were refused.
#[utoipa::path(get, path = "/api/engines", tag = "nodes", responses((status = 200, body = EngineList)))]
pub async fn engines(State(app): State<Arc<App>>) -> Json<EngineList> {
    Json(EngineList { engines: app.cluster.engine_views() })
}
