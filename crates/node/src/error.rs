//! Why a node does not start. What goes wrong later is in its log and its status.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("{url} is no address of a router: it has to be http://host:port")]
    RouterUrl { url: String },
    #[error("cannot {what} {}", path.display())]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} does not hold a node's id; remove it to get a new one", path.display())]
    Identity { path: PathBuf },
    #[error(
        "this machine has no device {asked}; it has {found}\nhint: an adapter that computes on the processor, such as \
         Mesa's lavapipe, is used only with --allow-software"
    )]
    Device { asked: String, found: String },
    #[error(
        "{refusal}\nhint: the gpt-oss engine has its own kernels for these GPUs: `--device vulkan`, or `--device d3d12`"
    )]
    DirectMl { refusal: String },
    #[error("the worker program {} is not there", path.display())]
    Worker { path: PathBuf },
    #[error("the hub cannot be used")]
    Hub(#[from] model_store::HubError),
    #[error("the model store cannot be opened")]
    Store(#[from] model_store::StoreError),
    #[error("the node did not end in order: {reason}")]
    Ended { reason: String },
    #[error("this machine cannot be looked at: {reason}")]
    Looking { reason: String },
}
