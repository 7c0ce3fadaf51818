//! `/api/nodes`: who is connected, with what, and how they are.

use std::sync::Arc;

use admin_api::NodeList;
use axum::Json;
use axum::extract::State;

use crate::app::App;

/// The connected nodes: devices, engines, memory, alerts, and what has happened on them.
#[utoipa::path(get, path = "/api/nodes", tag = "nodes", responses((status = 200, body = NodeList)))]
pub async fn nodes(State(app): State<Arc<App>>) -> Json<NodeList> {
    Json(NodeList { nodes: app.cluster.node_views() })
}
