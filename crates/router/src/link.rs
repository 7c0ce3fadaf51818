//! Nodes that join: who is taken, and following one for as long as it is connected.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::OnUpgrade;
use node_api::transport::{
    LinkError, LocalRouter, NodeLink, check_upgrade, error_response, switching_protocols,
};
use node_api::{ApiError, Join, NodeInfo, PROTOCOL_VERSION, SILENCE_MAX};
use tokio::time::timeout;

use crate::app::App;
use crate::cluster::{Cluster, Connection};
use crate::error::chain;
use crate::secret;

/// A join lists devices and engines; a few kilobytes are usual.
const JOIN_BYTES_MAX: usize = 1 << 20;
/// For the body of a join, and for the upgrade after the answer.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// For the ends of answers that are on their way when a node ends in order. It closes within half of that.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(5);
pub const NODES_MAX: usize = 1024;
const NAME_CHARS_MAX: usize = 256;

/// `POST /node/v1/link`
pub async fn link(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    match accept(&app, request).await {
        Ok((info, upgrade)) => {
            let cluster = Arc::clone(&app.cluster);
            keep(&app, async move {
                if let Some(link) = open(&info, upgrade).await {
                    serve(&cluster, info, link).await;
                }
            });
            switching_protocols()
        }
        Err(error) => {
            not_taken(&error);
            error_response(&error)
        }
    }
}

/// What a node of this process joins.
#[derive(Clone)]
pub struct Local(pub Arc<App>);

impl LocalRouter for Local {
    fn join(&self, node: NodeInfo, link: NodeLink) -> Result<(), ApiError> {
        let Local(app) = self;
        check_node(app, &node).inspect_err(not_taken)?;
        let cluster = Arc::clone(&app.cluster);
        keep(app, async move { serve(&cluster, node, link).await });
        Ok(())
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Local")
    }
}

/// Follows a node until it goes, or the router ends.
fn keep(app: &App, follow: impl Future<Output = ()> + Send + 'static) {
    let end = app.nodes_end.clone();
    app.tasks.spawn(async move {
        tokio::select! {
            () = follow => {}
            () = end.cancelled() => {}
        }
    });
}

fn not_taken(error: &ApiError) {
    let ApiError { status, code, message, .. } = error;
    tracing::warn!(status, code, "a node is not taken: {message}");
}

/// Whether a node has no other device than a CPU.
pub fn is_cpu_only(info: &NodeInfo) -> bool {
    info.devices.iter().all(|d| d.kind == "cpu")
}

async fn accept(app: &App, mut request: Request<Body>) -> Result<(NodeInfo, OnUpgrade), ApiError> {
    let given = check_upgrade(request.headers())?;
    if !secret::same(given, &app.join_secret) {
        return Err(refuse(
            StatusCode::UNAUTHORIZED,
            "join_secret_wrong",
            "the node's join secret is not this router's",
        )
        .with_hint("give the node the secret in the router's join-secret file"));
    }
    let upgrade = request.extensions_mut().remove::<OnUpgrade>().ok_or_else(|| {
        refuse(
            StatusCode::UPGRADE_REQUIRED,
            "upgrade_impossible",
            "nodes join over HTTP/1.1, which can be upgraded",
        )
    })?;
    let body = timeout(JOIN_TIMEOUT, Limited::new(request.into_body(), JOIN_BYTES_MAX).collect()).await;
    let body = body.ok().and_then(Result::ok).ok_or_else(|| {
        refuse(StatusCode::BAD_REQUEST, "join_unreadable", "the join did not come whole and in time")
    })?;
    let info = read_join(&body.to_bytes())?;
    check_node(app, &info)?;
    Ok((info, upgrade))
}

fn read_join(body: &[u8]) -> Result<NodeInfo, ApiError> {
    let unreadable = |e: serde_json::Error| {
        refuse(StatusCode::BAD_REQUEST, "join_unreadable", format!("the join cannot be read: {e}"))
    };
    let join: serde_json::Value = serde_json::from_slice(body).map_err(unreadable)?;
    // The version first: another version's join may well have another form.
    let version = join.get("protocol_version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(PROTOCOL_VERSION)) {
        let theirs = version.map_or_else(|| "none".to_owned(), |v| v.to_string());
        let message =
            format!("the node speaks protocol version {theirs}, this router version {PROTOCOL_VERSION}");
        return Err(refuse(StatusCode::BAD_REQUEST, "protocol_version", message)
            .with_hint("run the same version of llm-router on router and node"));
    }
    serde_json::from_value::<Join>(join).map(|j| j.node).map_err(unreadable)
}

fn check_node(app: &App, info: &NodeInfo) -> Result<(), ApiError> {
    for (name, value) in [("id", &info.id), ("name", &info.name)] {
        let chars = value.chars().count();
        if chars == 0 || chars > NAME_CHARS_MAX || value.chars().any(char::is_control) {
            let message = format!("the node's {name} must have 1 to {NAME_CHARS_MAX} printable characters");
            return Err(refuse(StatusCode::BAD_REQUEST, "node_name", message));
        }
    }
    if is_cpu_only(info) && !app.config.allow_cpu {
        let message = format!("node {} has no GPU, and this router takes none without", info.name);
        return Err(refuse(StatusCode::FORBIDDEN, "gpu_required", message).with_hint(
            "to serve with its CPU, start the node with `--device cpu` and the router with `--allow-cpu`; on one \
             machine `llm-router up --device cpu` does both",
        ));
    }
    if app.cluster.node_count() >= NODES_MAX {
        let message = format!("{NODES_MAX} nodes are connected already");
        return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "too_many_nodes", message));
    }
    if app.draining() {
        return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "router_ending", "this router is ending"));
    }
    Ok(())
}

/// The connection that a node was promised.
async fn open(info: &NodeInfo, upgrade: OnUpgrade) -> Option<NodeLink> {
    let (node, name) = (&info.id, &info.name);
    let upgraded = match timeout(JOIN_TIMEOUT, upgrade).await {
        Ok(Ok(upgraded)) => upgraded,
        Ok(Err(error)) => {
            tracing::warn!(node, name, error = chain(&error), "a node left while joining");
            return None;
        }
        Err(_) => {
            tracing::warn!(node, name, "a node did not take up its connection");
            return None;
        }
    };
    let opened = NodeLink::open(upgraded).await;
    opened.inspect_err(|e| tracing::warn!(node, name, error = chain(e), "a node does not speak HTTP/2")).ok()
}

/// Follows a node until its connection ends.
async fn serve(cluster: &Cluster, info: NodeInfo, link: NodeLink) {
    let (id, name) = (info.id.clone(), info.name.clone());
    let member = Member { cluster, id: &id, connection: cluster.join(info.clone(), link.clone()) };
    tracing::info!(node = id, name, "node connected");
    let gone = member.connection.gone.clone();
    let ended = tokio::select! {
        ended = follow(&member, &link) => ended,
        ended = push_models(cluster, &info, &link) => ended,
        () = link.closed() => "its connection closed".to_owned(),
        () = gone.cancelled() => "it joined again".to_owned(),
    };
    tracing::warn!(node = id, name, reason = ended, "node gone");
}

/// A connected node; leaves when dropped, however its task ends.
struct Member<'a> {
    cluster: &'a Cluster,
    id: &'a str,
    connection: Connection,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.cluster.leave(self.id, &self.connection);
    }
}

/// Reads the node's states until there are no more; says why.
async fn follow(member: &Member<'_>, link: &NodeLink) -> String {
    let mut lines = match link.status().await {
        Ok(lines) => lines,
        Err(error) => return chain(&error),
    };
    loop {
        match timeout(SILENCE_MAX, lines.next()).await {
            Ok(Some(Ok(status))) => member.cluster.heard(member.id, &member.connection, status),
            Ok(Some(Err(error))) => return chain(&error),
            Ok(None) => {
                // A node that ends closes its status first: whoever leaves now loses answers that are complete.
                let _ = timeout(LAST_ANSWERS_MAX, link.closed()).await;
                return "it ended".to_owned();
            }
            Err(_) => return format!("nothing was heard of it for {} s", SILENCE_MAX.as_secs()),
        }
    }
}

/// Tells the node what it should have, now and at every change; says why that ended.
async fn push_models(cluster: &Cluster, info: &NodeInfo, link: &NodeLink) -> String {
    let mut revision = cluster.subscribe();
    loop {
        revision.mark_unchanged();
        match link.put_models(&cluster.desired(info)).await {
            Ok(()) => {}
            // The node is there and said no: it keeps what it has, and gets the next change.
            Err(LinkError::Refused(error)) => {
                tracing::warn!(
                    node = info.id,
                    name = info.name,
                    code = error.code,
                    "the node refuses its models: {error}"
                );
            }
            Err(error) => return chain(&error),
        }
        if revision.changed().await.is_err() {
            return "the router ends".to_owned();
        }
    }
}

fn refuse(status: StatusCode, code: &str, message: impl Into<String>) -> ApiError {
    ApiError {
        status: status.as_u16(),
        code: code.to_owned(),
        message: message.into(),
        ..ApiError::default()
    }
}

trait WithHint {
    fn with_hint(self, hint: &str) -> Self;
}

impl WithHint for ApiError {
    fn with_hint(mut self, hint: &str) -> ApiError {
        self.hint = Some(hint.to_owned());
        self
    }
}
