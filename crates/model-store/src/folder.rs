//! Lists a folder on this machine as a hub lists a repository.

use std::path::{Path, PathBuf};

use model_manifest::listing::LISTED_FILES_MAX;
use model_manifest::{ListedFile, Snapshot, Source};

/// Folders within folders that are looked at: `metal/model.bin` and the parts of split models lie one deep.
const DEPTH_MAX: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path} is not an absolute path")]
    Relative { path: PathBuf },
    #[error("{path} is not a folder on the router's machine")]
    NotAFolder { path: PathBuf },
    #[error("{path} has a name that is not UTF-8")]
    Name { path: PathBuf },
    #[error("{path} has more than {LISTED_FILES_MAX} files")]
    TooMany { path: PathBuf },
    #[error("{path} has {size} bytes, and had {registered} when it was registered")]
    Changed { path: PathBuf, size: u64, registered: u64 },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
}

/// Follows links: a snapshot in the hub's cache is a folder of them. Names that start with a dot are left out.
pub(crate) fn list(dir: &Path) -> Result<Snapshot, FolderError> {
    if !dir.is_absolute() {
        return Err(FolderError::Relative { path: dir.to_owned() });
    }
    if !dir.is_dir() {
        return Err(FolderError::NotAFolder { path: dir.to_owned() });
    }
    let path = dir.to_str().ok_or_else(|| FolderError::Name { path: dir.to_owned() })?;
    let mut files = Vec::new();
    walk(dir, "", 0, &mut files)?;
    files.sort_by(|a: &ListedFile, b| a.path.cmp(&b.path));
    Ok(Snapshot { source: Source::Local { path: path.to_owned() }, files })
}

fn walk(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<ListedFile>) -> Result<(), FolderError> {
    let read = |source| FolderError::Read { path: dir.to_owned(), source };
    for item in std::fs::read_dir(dir).map_err(read)? {
        let item = item.map_err(read)?;
        // A name that is not UTF-8 is no model's file.
        let Ok(name) = item.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        // A link that leads nowhere is no file.
        let Ok(meta) = std::fs::metadata(item.path()) else { continue };
        let path = format!("{prefix}{name}");
        if meta.is_dir() && depth < DEPTH_MAX {
            walk(&item.path(), &format!("{path}/"), depth + 1, files)?;
        } else if meta.is_file() {
            files.push(ListedFile { path, size: meta.len(), sha256: None, git_oid: None });
        }
        if files.len() > LISTED_FILES_MAX {
            return Err(FolderError::TooMany { path: dir.to_owned() });
        }
    }
    Ok(())
}
