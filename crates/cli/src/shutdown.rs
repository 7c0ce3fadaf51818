//! Ending a service when it is asked to.

use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first request to end. A second one ends the process at once: whoever asks twice
/// does not want to wait for requests in flight. With `exit_with_stdin` the end of standard input is a request too.
pub fn token(exit_with_stdin: bool) -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut asked = platform::Asked::new()?;
    tokio::spawn({
        let token = token.clone();
        async move {
            asked.wait().await;
            tracing::info!("asked to end: finishing what runs; ask again to end at once");
            token.cancel();
            asked.wait().await;
            std::process::exit(EXIT_ASKED_TWICE);
        }
    });
    if exit_with_stdin {
        let token = token.clone();
        // A thread of its own: a read of standard input cannot be called off, and the runtime would wait for it.
        std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            // What is written there is nobody's business; an error is an end too.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            tracing::info!("standard input ended: finishing what runs");
            token.cancel();
        })?;
    }
    Ok(token)
}

/// What shells expect of a process ended by Ctrl-C.
const EXIT_ASKED_TWICE: i32 = 130;

#[cfg(unix)]
mod platform {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// Ctrl-C, and the way service managers ask.
    pub struct Asked {
        interrupt: Signal,
        terminate: Signal,
    }

    impl Asked {
        pub fn new() -> std::io::Result<Self> {
            Ok(Asked {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            })
        }

        pub async fn wait(&mut self) {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
        }
    }
}

#[cfg(windows)]
mod platform {
    use tokio::signal::windows::{
        CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
    };

    /// Ctrl-C and Ctrl-Break, the closing of the window, the end of the system.
    pub struct Asked {
        c: CtrlC,
        ctrl_break: CtrlBreak,
        close: CtrlClose,
        shutdown: CtrlShutdown,
    }

    impl Asked {
        pub fn new() -> std::io::Result<Self> {
            Ok(Asked {
                c: ctrl_c()?,
                ctrl_break: ctrl_break()?,
                close: ctrl_close()?,
                shutdown: ctrl_shutdown()?,
            })
        }

        pub async fn wait(&mut self) {
            tokio::select! {
                _ = self.c.recv() => {}
                _ = self.ctrl_break.recv() => {}
                _ = self.close.recv() => {}
                _ = self.shutdown.recv() => {}
            }
        }
    }
}
