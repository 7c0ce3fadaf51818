//! The program that tries things: found, started, read line by line, and ended when it says nothing any more.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::{AdapterLine, Check};

const PROGRAM: &str = "gpt-oss-selftest";
/// A driver that wakes a GPU takes seconds.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two lines, unless something else is asked for: the longest is what a software adapter takes for the demo model's
/// answers.
pub const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Lines of a run at most; there are some forty.
const LINES_MAX: usize = 10_000;
/// Bytes of what it says besides, of which the end is kept.
const WORDS_BYTES_MAX: usize = 4096;

/// A line of the program.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Begin { begin: String },
    Check(Check),
    Adapter { adapter: AdapterLine },
}

/// The program, which is there.
pub struct Program {
    path: PathBuf,
    /// How long it may say nothing.
    silence_max: Duration,
}

/// What the engine of this product sees; `None` where its program is not beside this one.
pub async fn adapters() -> Option<Result<Vec<AdapterLine>, String>> {
    let program = Program::find(None, SILENCE_MAX).ok()?;
    Some(program.adapters().await)
}

/// Limits of an adapter in words.
pub fn limits(limits: &Value) -> String {
    let Some(object) = limits.as_object() else { return "no limits known".to_owned() };
    object.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

impl Program {
    /// The one that is named, or the one beside this program. It may say nothing for so long.
    pub fn find(named: Option<&Path>, silence_max: Duration) -> Result<Program> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => {
                let own = std::env::current_exe().context("cannot find this program's own file")?;
                own.with_file_name(format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX))
            }
        };
        if !path.is_file() {
            bail!(
                "{} is not there\nhint: it comes with the product; from sources `cargo xtask build` makes it",
                path.display()
            );
        }
        Ok(Program { path, silence_max })
    }

    /// Every device that the engine sees, in the order in which they are offered. Otherwise why it cannot be told.
    pub async fn adapters(&self) -> Result<Vec<AdapterLine>, String> {
        let mut command = self.command(&["adapters"]);
        let output = timeout(LIST_TIMEOUT, command.output()).await;
        let output = output
            .map_err(|_| format!("it said nothing within {} s", LIST_TIMEOUT.as_secs()))?
            .map_err(|error| format!("{} cannot be started: {error}", self.path.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(format!("it ended with {}: {}", output.status, words.trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().filter_map(|line| match serde_json::from_str(line) {
            Ok(Line::Adapter { adapter }) => Some(adapter),
            _ => None,
        });
        Ok(lines.collect())
    }

    /// Everything there is to try on a device. A death or a silence is a failed check of what was at work.
    pub async fn run(&self, device: &str) -> Vec<Check> {
        let mut child = match self.command(&["run", "--device", device]).spawn() {
            Ok(child) => child,
            Err(error) => {
                return vec![Check::failed(
                    "start",
                    format!("{} cannot be started: {error}", self.path.display()),
                )];
            }
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(mut stderr)) = (stdout, stderr) else {
            unreachable!("both were asked for as pipes")
        };
        // Read beside it: a full pipe would stop the program.
        let words = tokio::spawn(async move {
            let mut words = Vec::new();
            // What could be read counts.
            let _ = stderr.read_to_end(&mut words).await;
            let start = words.len().saturating_sub(WORDS_BYTES_MAX);
            String::from_utf8_lossy(&words[start..]).trim().to_owned()
        });
        let mut lines = BufReader::new(stdout).lines();
        let (mut checks, mut at_work) = (Vec::new(), None);
        for _ in 0..LINES_MAX {
            match timeout(self.silence_max, lines.next_line()).await {
                Err(_) => {
                    let what = at_work.take().unwrap_or_else(|| "start".to_owned());
                    let seconds = self.silence_max.as_secs();
                    checks.push(Check::failed(what, format!("it hung: nothing was heard for {seconds} s")));
                    // It is killed with its handle at the latest.
                    let _ = child.kill().await;
                    return checks;
                }
                Ok(Ok(Some(line))) => match serde_json::from_str(&line) {
                    Ok(Line::Begin { begin }) => at_work = Some(begin),
                    Ok(Line::Check(check)) => {
                        at_work = None;
                        checks.push(check);
                    }
                    // A driver may write to stdout whatever it likes.
                    Ok(Line::Adapter { .. }) | Err(_) => {}
                },
                Ok(Ok(None) | Err(_)) => break,
            }
        }
        let status = match timeout(self.silence_max, child.wait()).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => {
                checks.push(Check::failed("end", format!("its end cannot be told: {error}")));
                return checks;
            }
            Err(_) => {
                checks.push(Check::failed("end", "it closed its output and did not end"));
                return checks;
            }
        };
        let told = checks.iter().any(Check::is_failed);
        // What it started may hold the pipe open for longer than it lived.
        let words =
            async { timeout(self.silence_max, words).await.ok().and_then(Result::ok).unwrap_or_default() };
        if let Some(what) = at_work {
            let words = words.await;
            checks.push(Check::failed(what, format!("the program ended with {status}: {words}")));
        } else if !status.success() && !told {
            let words = words.await;
            checks.push(Check::failed("device", words));
        }
        checks
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}
