//! Processes of the product, ended with whoever started them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// From its start to the first line of a process.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it logs goes to `<dir>/<name>.log`. Its input stays open as long as this lives.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Result<Process> {
        let log = dir.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", Path::new(command.get_program()).display()))?;
        Ok(Process { child, log })
    }

    /// The first line it prints.
    pub async fn first_line(&mut self) -> Result<String> {
        let stdout = self.child.stdout.take().context("the first line was read before")?;
        let reading = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        match tokio::time::timeout(FIRST_LINE_TIMEOUT, reading).await {
            Ok(Ok(Ok(line))) if !line.is_empty() => Ok(line),
            _ => bail!("it said nothing in {} s; it logged:\n{}", FIRST_LINE_TIMEOUT.as_secs(), self.log()),
        }
    }

    /// Seconds of processor time it has used, all threads together; `None` where the system does not say.
    pub fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds(&std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill and nothing to wait for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of a line of `/proc/<pid>/stat`: fields 14 and 15, counted in hundredths of a second on every Linux there is.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name in field 2 may hold anything; what follows its bracket begins with field 3.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / 100.0)
}

/// `llm-router` of `bin_dir` with folders below `dir` and none of this machine's own settings.
pub fn llm_router(bin_dir: &Path, dir: &Path, hub_url: &str) -> Result<Command> {
    let program = std::path::absolute(bin_dir)?.join(format!("llm-router{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        bail!(
            "{} is missing\nhint: `cargo xtask bench` builds it, or name its folder with --bin-dir",
            program.display()
        );
    }
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("LLM_ROUTER_") || text.starts_with("HF_") {
            command.env_remove(&name);
        }
    }
    let config = dir.join("config.toml");
    std::fs::write(&config, "").with_context(|| format!("cannot write {}", config.display()))?;
    command
        .current_dir(dir)
        .env("HF_ENDPOINT", hub_url)
        .env("HF_HOME", dir.join("hub-cache"))
        .env("LLM_ROUTER_CONFIG", config);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_user_and_system() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 4 0 100 1 1";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("7 (a"), None);
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
    }
}
