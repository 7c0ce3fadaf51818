//! A process of the product, ended with the test that started it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use crate::until;

pub struct Process {
    child: Child,
    /// While it is open the process goes on; the end of the test closes it, even one by force.
    stdin: Option<ChildStdin>,
    stdout_path: PathBuf,
    log_path: PathBuf,
}

impl Process {
    /// Starts `command` with output and log in `dir`, under `name`.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Process {
        let stdout_path = dir.join(format!("{name}.out"));
        let log_path = dir.join(format!("{name}.log"));
        let stdout = File::create(&stdout_path).expect("the test's folder is writable");
        let log = File::create(&log_path).expect("the test's folder is writable");
        command.stdin(Stdio::piped()).stdout(stdout).stderr(log);
        let mut child = command.spawn().expect("the program starts");
        let stdin = child.stdin.take();
        Process { child, stdin, stdout_path, log_path }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log_path).unwrap_or_default()
    }

    /// The first line it prints, once it is whole.
    pub async fn first_line(&mut self) -> String {
        let path = self.stdout_path.clone();
        let child = &mut self.child;
        let log_path = self.log_path.clone();
        let mut look = move || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if let Some((line, _)) = text.split_once('\n') {
                return Ok(line.to_owned());
            }
            if let Ok(Some(status)) = child.try_wait() {
                let log = std::fs::read_to_string(&log_path).unwrap_or_default();
                panic!("the process ended with {status} before it said anything:\n{log}");
            }
            Err(text)
        };
        until("the first line of a process", || std::future::ready(look())).await
    }

    /// As `kill -9`: no chance to clean up.
    pub async fn kill(mut self) -> ExitStatus {
        self.child.kill().expect("our own child can be killed");
        self.ended().await
    }

    /// As a service manager asks.
    pub async fn end(mut self) -> ExitStatus {
        self.stdin = None;
        self.ended().await
    }

    async fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        until("the end of a process", || {
            std::future::ready(
                child.try_wait().expect("our own child can be asked").ok_or("it runs".to_owned()),
            )
        })
        .await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill and nothing to wait for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process runs; one that has ended and was not yet collected does not.
pub fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|text| {
        text.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// What a process holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Private bytes in memory, pages of files left out.
    pub memory: u64,
    /// Open descriptors (Windows: handles).
    pub descriptors: u64,
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage { memory: self.memory + other.memory, descriptors: self.descriptors + other.descriptors }
    }
}

/// As `/proc` says; all 0 for a process that is gone.
#[cfg(target_os = "linux")]
pub fn usage(pid: u32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count() as u64);
    Usage { memory: kib.unwrap_or(0) << 10, descriptors }
}
