//! A log file that is moved aside when it is large or old: `name.log`, then `name.1.log`, …, the oldest goes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// When a file is moved aside, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of one file.
    pub bytes_max: u64,
    pub age_max: Duration,
    /// Files kept, the current one included; at least 1.
    pub files_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { bytes_max: 64 << 20, age_max: Duration::from_secs(24 * 60 * 60), files_max: 7 }
    }
}

/// Writes whole lines: one call of `write` is never divided between two files.
#[derive(Debug)]
pub struct Rotating {
    dir: PathBuf,
    name: String,
    bounds: Bounds,
    file: File,
    bytes: u64,
    begun: SystemTime,
}

impl Rotating {
    /// Goes on with the file that is there.
    pub fn open(dir: &Path, name: &str, bounds: Bounds) -> io::Result<Rotating> {
        let (file, bytes, begun) = open(&path(dir, name, 0))?;
        Ok(Rotating { dir: dir.to_owned(), name: name.to_owned(), bounds, file, bytes, begun })
    }

    fn due(&self, more: usize, now: SystemTime) -> bool {
        let old = now.duration_since(self.begun).is_ok_and(|age| age >= self.bounds.age_max);
        self.bytes > 0 && (old || self.bytes.saturating_add(more as u64) > self.bounds.bytes_max)
    }

    /// A file that cannot be moved (another program reads it on Windows) is written on.
    fn rotate(&mut self) -> io::Result<()> {
        let kept = self.bounds.files_max.max(1);
        let _ = fs::remove_file(path(&self.dir, &self.name, kept - 1));
        for number in (0..kept - 1).rev() {
            let _ = fs::rename(path(&self.dir, &self.name, number), path(&self.dir, &self.name, number + 1));
        }
        (self.file, self.bytes, self.begun) = open(&path(&self.dir, &self.name, 0))?;
        // Not moved: it is not looked at again for a whole period and a whole file's worth.
        if self.bytes > 0 {
            (self.bytes, self.begun) = (0, SystemTime::now());
        }
        Ok(())
    }
}

impl Write for Rotating {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.due(line.len(), SystemTime::now()) {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn path(dir: &Path, name: &str, number: usize) -> PathBuf {
    match number {
        0 => dir.join(format!("{name}.log")),
        number => dir.join(format!("{name}.{number}.log")),
    }
}

/// With its length, and when it was begun; a system that does not know says when it was last written to.
fn open(path: &Path) -> io::Result<(File, u64, SystemTime)> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let about = file.metadata()?;
    let begun = about.created().or_else(|_| about.modified()).unwrap_or_else(|_| SystemTime::now());
    Ok((file, about.len(), begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn text(dir: &Path, number: usize) -> String {
        fs::read_to_string(path(dir, "node", number)).expect("a log file")
    }

    #[test]
    fn a_full_file_is_moved_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().expect("a folder");
        let bounds = Bounds { bytes_max: 10, files_max: 3, ..Bounds::default() };
        let mut log = Rotating::open(dir.path(), "node", bounds).expect("a log");
        for line in ["one 5\n", "two 5\n", "three\n", "four \n", "five \n"] {
            log.write_all(line.as_bytes()).expect("written");
        }
        assert_eq!(names(dir.path()), ["node.1.log", "node.2.log", "node.log"]);
        assert_eq!((text(dir.path(), 0), text(dir.path(), 2)), ("five \n".to_owned(), "three\n".to_owned()));
    }

    #[test]
    fn a_line_longer_than_a_file_is_written_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let bounds = Bounds { bytes_max: 4, files_max: 2, ..Bounds::default() };
        let mut log = Rotating::open(dir.path(), "node", bounds).expect("a log");
        log.write_all(b"a long line\n").expect("written");
        assert_eq!(text(dir.path(), 0), "a long line\n");
    }

    #[test]
    fn an_old_file_is_moved_aside_and_an_empty_one_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut log = Rotating::open(dir.path(), "node", Bounds::default()).expect("a log");
        let tomorrow = SystemTime::now() + Bounds::default().age_max;
        assert!(!log.due(10, tomorrow));
        log.write_all(b"line\n").expect("written");
        assert!(!log.due(10, SystemTime::now()) && log.due(10, tomorrow));
    }

    #[test]
    fn a_restart_goes_on_with_the_file_that_is_there() {
        let dir = tempfile::tempdir().expect("a folder");
        for line in [b"before\n", b"after \n"] {
            let mut log = Rotating::open(dir.path(), "node", Bounds::default()).expect("a log");
            log.write_all(line).expect("written");
        }
        assert_eq!(text(dir.path(), 0), "before\nafter \n");
    }
}
