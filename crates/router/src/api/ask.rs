//! One command for several nodes at once, with what each of them made of it.

use std::sync::Arc;

use admin_api::CommandError;
use futures_util::future::join_all;
use http::StatusCode;
use node_api::transport::{LinkError, NodeLink};
use node_api::{ApiError, ModelCommand, ModelStatus};

use crate::app::App;
use crate::cluster::Commanded;
use crate::error::Failure;

/// A node with its answer.
pub struct Answered<T> {
    pub node: Commanded,
    pub outcome: Result<T, ApiError>,
}

/// Asks all nodes side by side. Each answer has the link's deadline and ends with its node; the work goes on when the caller
/// goes away, since half of a command would help nobody.
pub async fn ask_all<T, F>(
    app: &Arc<App>,
    nodes: Vec<Commanded>,
    call: impl Fn(NodeLink) -> F,
) -> Result<Vec<Answered<T>>, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, LinkError>> + Send + 'static,
{
    let asked: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let (answer, cut) = (call(node.link.clone()), app.cut.clone());
            async move {
                let outcome = tokio::select! {
                    biased;
                    answer = answer => answer.map_err(ApiError::from),
                    () = node.gone.cancelled() => Err(error(StatusCode::BAD_GATEWAY, "node_lost", "the node is gone")),
                    () = cut.cancelled() => {
                        Err(error(StatusCode::SERVICE_UNAVAILABLE, "router_ending", "the router is ending"))
                    }
                };
                Answered { node, outcome }
            }
        })
        .collect();
    let task = app.tasks.spawn(async move { join_all(asked).await });
    task.await.map_err(|e| Failure::internal("ask the nodes", &e))
}

/// A command for a model.
pub async fn ask_model(
    app: &Arc<App>,
    nodes: Vec<Commanded>,
    command: ModelCommand,
) -> Result<Vec<Answered<ModelStatus>>, Failure> {
    ask_all(app, nodes, move |link| {
        let command = command.clone();
        async move { link.model(&command).await }
    })
    .await
}

/// An error when every node that was asked failed: the first one's.
pub fn one_did<T>(answers: &[Answered<T>]) -> Result<(), Failure> {
    let mut failed = answers.iter().filter_map(|a| Some((&a.node, a.outcome.as_ref().err()?)));
    match failed.next() {
        Some((node, first)) if failed.count() + 1 == answers.len() => {
            let mut failure = Failure::from(first.clone());
            failure.message = format!("node {}: {}", node.name, failure.message);
            Err(failure)
        }
        _ => Ok(()),
    }
}

/// For an answer in which other nodes did it.
pub fn told(error: ApiError) -> CommandError {
    CommandError { status: error.status, code: error.code, message: error.message, hint: error.hint }
}

fn error(status: StatusCode, code: &str, message: &str) -> ApiError {
    ApiError {
        status: status.as_u16(),
        code: code.to_owned(),
        message: message.to_owned(),
        retry: true,
        ..ApiError::default()
    }
}
