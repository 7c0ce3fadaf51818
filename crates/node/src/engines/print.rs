//! What can be seen of an engine's folder without reading it: a cheap look tells whether anything changed.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::copy::FILES_MAX;

/// Folders looked into, of all directories together.
const FOLDERS_MAX: usize = 256;

/// A folder with a manifest, and the directory of engines it is in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which of the directories; earlier ones win.
    pub order: usize,
    pub dir: PathBuf,
    pub folder: PathBuf,
}

/// Of the folder's files, by name, and of who may write to the folder and the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Print {
    files: Vec<(String, FilePrint)>,
    above: Vec<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FilePrint {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Number, change of owner or mode, in seconds and nanoseconds; 0 where there are none.
    inode: u64,
    changed: (i64, i64),
}

/// What is there now, in order: directories as they were named, folders by name. A directory that cannot be listed has none.
pub fn look(dirs: &[PathBuf]) -> Vec<(Place, Print)> {
    let mut found = Vec::new();
    for (order, dir) in dirs.iter().enumerate() {
        let Ok(dir) = std::path::absolute(dir) else { continue };
        let mut folders: Vec<PathBuf> = fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path.join("manifest.json").is_file())
            .collect();
        folders.sort();
        for folder in folders {
            let print = Print::of(&dir, &folder);
            found.push((Place { order, dir: dir.clone(), folder }, print));
        }
    }
    found.truncate(FOLDERS_MAX);
    found
}

impl Print {
    fn of(dir: &Path, folder: &Path) -> Print {
        let mut files: Vec<(String, FilePrint)> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .take(FILES_MAX + 2)
            .filter_map(|entry| {
                let about = fs::metadata(entry.path()).ok()?;
                Some((entry.file_name().to_string_lossy().into_owned(), FilePrint::of(&about)))
            })
            .collect();
        files.sort_by(|a, b| a.0.cmp(&b.0));
        let above =
            [dir, folder].iter().filter_map(|path| fs::metadata(path).ok()).map(|a| rights(&a)).collect();
        Print { files, above }
    }
}

impl FilePrint {
    fn of(about: &Metadata) -> FilePrint {
        #[cfg(unix)]
        let (inode, changed) = {
            use std::os::unix::fs::MetadataExt as _;
            (about.ino(), (about.ctime(), about.ctime_nsec()))
        };
        #[cfg(windows)]
        let (inode, changed) = {
            use std::os::windows::fs::MetadataExt as _;
            (about.creation_time(), (0, 0))
        };
        FilePrint { bytes: about.len(), modified: about.modified().ok(), inode, changed }
    }
}

/// Owner and mode.
#[cfg(unix)]
fn rights(about: &Metadata) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    (about.uid(), about.mode())
}

#[cfg(windows)]
fn rights(about: &Metadata) -> (u32, u32) {
    use std::os::windows::fs::MetadataExt as _;
    (0, about.file_attributes())
}
