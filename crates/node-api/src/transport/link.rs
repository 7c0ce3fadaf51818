//! The router's handle on one node.

use std::time::Duration;

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::client::Wire;
use super::local::Local;
use super::{
    ANSWER_TIMEOUT, COMMAND_TIMEOUT, GENERATE_ANSWER_TIMEOUT, Io, LineError, Lines, TOKENIZE_TIMEOUT,
};
use crate::{
    ApiError, DesiredModels, EngineCommand, EngineReply, GenerateEvent, GenerateRequest, ModelCommand,
    ModelStatus, NodeStatus, TokenizeReply, TokenizeRequest,
};

const STATUS: &str = "status";
const PUT_MODELS: &str = "the wanted models";
const GENERATE: &str = "a request";
const TOKENIZE: &str = "a text to tokenize";
const ENGINES: &str = "a command for its engines";
const MODEL: &str = "a command for a model";

/// Why a call of a node came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The node answered, and said no.
    #[error(transparent)]
    Refused(ApiError),
    #[error("the connection to the node broke")]
    Lost { source: hyper::Error },
    /// Of this very process.
    #[error("the node has ended")]
    Ended,
    #[error("the node did not answer {call} within {} s", after.as_secs())]
    Timeout { call: &'static str, after: Duration },
    #[error("the node answered {call} with {status} and no reason")]
    BadAnswer { call: &'static str, status: u16 },
    #[error("the node's answer cannot be read")]
    Line { source: LineError },
}

/// A connected node. Cheap to clone; all clones share the connection, which ends when the last is dropped.
#[derive(Debug, Clone)]
pub struct NodeLink {
    calls: Calls,
    closed: CancellationToken,
}

#[derive(Debug, Clone)]
enum Calls {
    Wire(Wire),
    /// A node of this process: [`super::local`].
    Local(Local),
}

impl NodeLink {
    /// Starts HTTP/2 on a connection on which a node waits as server.
    pub async fn open(io: impl Io) -> Result<NodeLink, LinkError> {
        let closed = CancellationToken::new();
        let wire = Wire::open(io, closed.clone()).await?;
        Ok(NodeLink { calls: Calls::Wire(wire), closed })
    }

    pub(super) fn of_local(local: Local, closed: CancellationToken) -> NodeLink {
        NodeLink { calls: Calls::Local(local), closed }
    }

    /// Returns when the connection is gone.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub fn is_closed(&self) -> bool {
        let refuses = match &self.calls {
            Calls::Wire(wire) => wire.is_closed(),
            Calls::Local(_) => false,
        };
        refuses || self.closed.is_cancelled()
    }

    /// The node's state, line after line; silence of [`crate::SILENCE_MAX`] is the caller's to notice.
    pub async fn status(&self) -> Result<Lines<NodeStatus>, LinkError> {
        match &self.calls {
            Calls::Wire(wire) => wire.status(STATUS, ANSWER_TIMEOUT).await,
            Calls::Local(local) => local.status().map(Lines::local),
        }
    }

    pub async fn put_models(&self, models: &DesiredModels) -> Result<(), LinkError> {
        match &self.calls {
            Calls::Wire(wire) => wire.put_models(models, PUT_MODELS, ANSWER_TIMEOUT).await,
            Calls::Local(local) => {
                local.ask(|node| node.put_models(models.clone()), PUT_MODELS, ANSWER_TIMEOUT).await
            }
        }
    }

    /// Drop the lines to cancel the request.
    pub async fn generate(&self, request: &GenerateRequest) -> Result<Lines<GenerateEvent>, LinkError> {
        match &self.calls {
            Calls::Wire(wire) => wire.generate(request, GENERATE, GENERATE_ANSWER_TIMEOUT).await,
            Calls::Local(local) => {
                local.generate(request.clone(), GENERATE, GENERATE_ANSWER_TIMEOUT).await.map(Lines::local)
            }
        }
    }

    pub async fn tokenize(&self, request: &TokenizeRequest) -> Result<TokenizeReply, LinkError> {
        match &self.calls {
            Calls::Wire(wire) => wire.ask("/v1/tokenize", request, TOKENIZE, TOKENIZE_TIMEOUT).await,
            Calls::Local(local) => {
                local.ask(|node| node.tokenize(request.clone()), TOKENIZE, TOKENIZE_TIMEOUT).await
            }
        }
    }

    /// Returns when the command is done, which may take a load.
    pub async fn engines(&self, command: &EngineCommand) -> Result<EngineReply, LinkError> {
        match &self.calls {
            Calls::Wire(wire) => wire.ask("/v1/engines", command, ENGINES, COMMAND_TIMEOUT).await,
            Calls::Local(local) => {
                local.ask(|node| node.engines(command.clone()), ENGINES, COMMAND_TIMEOUT).await
            }
        }
    }

    /// Returns when the command is done, which may take a load.
    pub async fn model(&self, command: &ModelCommand) -> Result<ModelStatus, LinkError> {
        match &self.calls {
            Calls::Wire(wire) => wire.ask("/v1/model", command, MODEL, COMMAND_TIMEOUT).await,
            Calls::Local(local) => {
                local.ask(|node| node.model(command.clone()), MODEL, COMMAND_TIMEOUT).await
            }
        }
    }
}

impl From<LinkError> for ApiError {
    /// As the router passes it on: a refusal word for word, anything else as 502, to be tried on another node.
    fn from(error: LinkError) -> ApiError {
        match error {
            LinkError::Refused(error) => error,
            other => ApiError {
                status: StatusCode::BAD_GATEWAY.as_u16(),
                code: "node_lost".to_owned(),
                message: other.to_string(),
                retry: true,
                ..ApiError::default()
            },
        }
    }
}
