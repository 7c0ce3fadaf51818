//! The thread that starts workers.
//!
//! On Linux a worker asks to die with its parent, and the kernel means the thread that started it. Threads of a runtime
//! come and go; this one stays as long as the process.

use std::sync::OnceLock;
use std::sync::mpsc;

use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Starts that wait; more than one at a time is rare.
const QUEUE_MAX: usize = 64;

type Order = (Command, Handle, oneshot::Sender<std::io::Result<Child>>);

pub async fn spawn(command: Command) -> std::io::Result<Child> {
    static STARTER: OnceLock<Option<mpsc::SyncSender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, orders) = mpsc::sync_channel::<Order>(QUEUE_MAX);
        let run = move || {
            for (mut command, runtime, reply) in orders {
                let _guard = runtime.enter();
                // A caller that has gone drops the child, which kills it.
                let _ = reply.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("worker-starter".to_owned()).spawn(run).ok().map(|_| sender)
    });
    let busy = || std::io::Error::other("the thread that starts workers is not there or has too much to do");
    let (reply, child) = oneshot::channel();
    let starter = starter.as_ref().ok_or_else(busy)?;
    starter.try_send((command, Handle::current(), reply)).map_err(|_| busy())?;
    child.await.map_err(|_| busy())?
}
