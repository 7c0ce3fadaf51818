//! The processes of the demo: started in order, ended with it, whatever ends it.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{MODEL_DIR, REPO};
use crate::{build, shell};

const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);

/// Ended in the reverse order: the node leaves before its router.
pub struct Services {
    pub hub_url: String,
    pub router_url: String,
    /// Data and logs of this run.
    pub dir: PathBuf,
    bin_dir: PathBuf,
    keep: bool,
    running: Vec<Service>,
}

struct Service {
    name: &'static str,
    child: Child,
    /// While this is open the process goes on. When we end, in whatever way, the system closes it.
    stdin: Option<ChildStdin>,
}

impl Services {
    pub fn start(bin_dir: &Path, keep: bool, date: &str) -> Result<Services> {
        // Runs side by side do not meet, and a run that was left running keeps its folder.
        let dir = shell::build_dir().join("demo").join(format!("run-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut services = Services {
            hub_url: String::new(),
            router_url: String::new(),
            dir,
            bin_dir: bin_dir.to_path_buf(),
            keep,
            running: Vec::new(),
        };
        let repo = format!("{REPO}={}", shell::root().join(MODEL_DIR).display());
        services.hub_url =
            services.spawn("hub", "fixture-hub", &["--repo", &repo], true)?.context("no address")?;

        let listen = if keep { "127.0.0.1:8411" } else { "127.0.0.1:0" };
        let router_dir = services.dir.join("router");
        let router_data = router_dir.to_string_lossy().into_owned();
        let line = services.spawn(
            "router",
            "llm-router",
            &[
                "--json",
                "--data-dir",
                &router_data,
                "serve",
                "--listen",
                listen,
                "--allow-cpu",
                "--template-clock",
                date,
            ],
            true,
        )?;
        let line = line.context("no address")?;
        let announced: Value =
            serde_json::from_str(&line).with_context(|| format!("the router said `{line}`"))?;
        services.router_url = announced["url"].as_str().context("the router gave no address")?.to_owned();

        let node_data = services.dir.join("node").to_string_lossy().into_owned();
        let secret = router_dir.join("join-secret").to_string_lossy().into_owned();
        let router_url = services.router_url.clone();
        services.spawn(
            "node",
            "llm-router",
            &[
                "--data-dir",
                &node_data,
                "node",
                "--router",
                &router_url,
                "--device",
                "cpu",
                "--join-secret-file",
                &secret,
            ],
            false,
        )?;
        Ok(services)
    }

    /// `llm-router` as a client, with nothing of this machine's own settings.
    pub fn client(&self) -> Command {
        self.clean(shell::command(self.program("llm-router")))
    }

    /// What is to go on after us must not end with the terminal it was started in, but Ctrl-C before we are done has to
    /// end it: `nohup` is just that. Windows sends nothing to those who are left when a console's first program ends.
    fn service(&self, program: &str) -> Command {
        let program = self.program(program);
        if self.keep && cfg!(unix) {
            let mut command = shell::command("nohup");
            command.arg(program);
            return self.clean(command);
        }
        self.clean(shell::command(program))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(build::binary_name(name))
    }

    fn clean(&self, mut command: Command) -> Command {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("LLM_ROUTER_") || name.starts_with("HF_") {
                command.env_remove(&name);
            }
        }
        // The demo shows a download: its cache starts empty, apart from the one that the user's other tools share.
        command
            .env("HF_ENDPOINT", &self.hub_url)
            .env("HF_HOME", self.dir.join("hub-cache"))
            .env("LLM_ROUTER_CONFIG", self.dir.join("config.toml"));
        command
    }

    /// Starts a process that logs into the run's folder, and reads its first line where it says one.
    fn spawn(
        &mut self,
        name: &'static str,
        program: &str,
        words: &[&str],
        says_line: bool,
    ) -> Result<Option<String>> {
        let config = self.dir.join("config.toml");
        if !config.exists() {
            std::fs::write(&config, "# The demo says everything by flags.\n")
                .with_context(|| format!("cannot write {}", config.display()))?;
        }
        let log_path = self.dir.join(format!("{name}.log"));
        let log = File::create(&log_path).with_context(|| format!("cannot create {}", log_path.display()))?;
        let mut command = self.service(program);
        command.args(words).stderr(log).stdout(if says_line { Stdio::piped() } else { Stdio::null() });
        if !self.keep {
            command.arg("--exit-with-stdin").stdin(Stdio::piped());
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        self.running.push(Service { name, child, stdin });
        let Some(stdout) = stdout else { return Ok(None) };
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            // Nobody waits any more: the line is not needed.
            let _ = send.send(lines.next());
        });
        match receive.recv_timeout(START_MAX) {
            Ok(Some(Ok(line))) => Ok(Some(line)),
            _ => bail!("the {name} did not start\n{}", tail(&log_path)),
        }
    }

    /// Lets everything go on after us, and notes who it is.
    pub fn keep(&mut self) -> Result<()> {
        let pids: Vec<String> = self.running.iter().map(|s| s.child.id().to_string()).collect();
        let path = self.dir.join("pids");
        std::fs::write(&path, pids.join(" ")).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn end_command(&self) -> String {
        let pids: Vec<String> = self.running.iter().map(|s| s.child.id().to_string()).collect();
        if cfg!(windows) {
            format!("taskkill /F /PID {}", pids.join(" /PID "))
        } else {
            format!("kill {}", pids.join(" "))
        }
    }

    /// Ends everything and removes the run's folder.
    pub fn stop(&mut self) {
        while let Some(service) = self.running.pop() {
            service.end();
        }
        // What stays is a few megabytes in a folder that git ignores.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Services {
    /// On a failure the logs stay, for whoever wants to know why.
    fn drop(&mut self) {
        if self.dir.join("pids").exists() {
            return;
        }
        while let Some(service) = self.running.pop() {
            service.end();
        }
    }
}

impl Service {
    fn end(mut self) {
        let asked = self.stdin.take().is_some();
        let deadline = Instant::now() + END_MAX;
        while asked && Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            let (_keep, never) = mpsc::channel::<()>();
            // A pause that is a pause: there is no event to wait for in the standard library's children.
            let _ = never.recv_timeout(POLL);
        }
        if asked {
            eprintln!("   the {} did not end in {} s and is killed", self.name, END_MAX.as_secs());
        }
        // It may have ended by itself in between; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tail(log: &Path) -> String {
    const LINES: usize = 20;
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
