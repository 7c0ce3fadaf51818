//! Runs a program to its end, within a time; reads files into the disk cache.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpt_oss_cpu::Mapped;
use gpt_oss_cpu::mapped::TOUCH_BYTES;

const POLL: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 8 << 20;
/// What is shown of a program that failed.
const LAST_LINES: usize = 15;

/// What it prints. It is killed when it takes longer than `limit`.
#[expect(
    clippy::disallowed_methods,
    reason = "the standard library waits for a child without a deadline only"
)]
pub fn output(mut command: Command, limit: Duration) -> Result<String> {
    let name = Path::new(command.get_program()).display().to_string();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let stderr = child.stderr.take().context("its errors are piped")?;
    let [stdout, stderr] = [read_apart(stdout), read_apart(stderr)];
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            // It may end just now by itself.
            let _ = child.kill();
            child.wait()?;
            bail!("{name} took longer than {} s", limit.as_secs());
        }
        std::thread::sleep(POLL);
    };
    let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().unwrap_or_default());
    if !status.success() {
        let lines: Vec<&str> = stderr.lines().collect();
        bail!("{name} ended with {status}:\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
    }
    Ok(stdout)
}

fn read_apart(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read is better than nothing.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The file, or every file of the folder.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|e| e.path()).collect();
    files.sort();
    Ok(files)
}

/// Reads a file, or every file of a folder, through a mapping as our engine does at its load, and gives the bytes there
/// were: what was not in the cache lies in huge pages then, as after a load from the disk.
pub fn map_once(path: &Path) -> Result<u64> {
    let mut bytes = 0;
    for path in files(path)? {
        let map = || -> std::io::Result<u64> {
            let mapped = Mapped::open(&path)?;
            let length = mapped.as_ref().len();
            for start in (0..length).step_by(TOUCH_BYTES) {
                mapped.touch(start..length.min(start + TOUCH_BYTES))?;
            }
            Ok(length as u64)
        };
        bytes += map().with_context(|| format!("cannot map {}", path.display()))?;
    }
    Ok(bytes)
}

/// Reads a file, or every file of a folder, and gives the bytes there were.
pub fn read_once(path: &Path) -> Result<u64> {
    let (mut bytes, mut buffer) = (0, vec![0; READ_BYTES]);
    for path in files(path)? {
        let mut file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        loop {
            match file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))? {
                0 => break,
                n => bytes += n as u64,
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_folder_are_read_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, bytes) in [("a", READ_BYTES + 1), ("b", 5)] {
            std::fs::write(folder.path().join(name), vec![7; bytes]).expect("a writable folder");
        }
        assert_eq!(read_once(&folder.path().join("b")).expect("a file"), 5);
        assert_eq!(read_once(folder.path()).expect("a folder"), READ_BYTES as u64 + 6);
        assert!(read_once(&folder.path().join("c")).is_err());
        assert_eq!(map_once(folder.path()).expect("a folder"), READ_BYTES as u64 + 6);
        let missing = map_once(&folder.path().join("c")).expect_err("no such file").to_string();
        assert!(missing.contains("cannot map") && missing.contains('c'), "{missing}");
    }

    #[cfg(unix)]
    #[test]
    fn a_program_is_heard_or_ended() {
        let shell = |line: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", line]);
            command
        };
        let minute = Duration::from_secs(60);
        assert_eq!(output(shell("echo hello"), minute).expect("it succeeds"), "hello\n");
        let error = output(shell("echo why >&2; exit 3"), minute).expect_err("it fails").to_string();
        assert!(error.contains("why"), "{error}");
        let error = output(shell("exec sleep 60"), Duration::from_millis(50)).expect_err("it is ended");
        assert!(error.to_string().contains("took longer"), "{error}");
    }
}
