//! Names that come from outside: paths of files in a repository, ids of repositories, revisions.
//!
//! All of them become paths on some machine's disk. What passes here stays below the folder it is put into, on Linux,
//! macOS and Windows alike, and means one file on each of them.

use std::collections::BTreeMap;

use model_formats::{FileNameError, check_file_name};

/// The hub's own limit for `org/name`.
pub const REPO_ID_BYTES_MAX: usize = 96;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error(transparent)]
    Name(#[from] FileNameError),
    #[error("file name {path:?} contains {character:?}, which is not ASCII")]
    NotAscii { path: String, character: char },
    #[error("files `{first}` and `{second}` are one file where case does not count")]
    Collision { first: String, second: String },
    #[error("`{id}` is not a repository id of the form org/name")]
    RepoId { id: String },
    #[error("`{revision}` is not a revision")]
    Revision { revision: String },
}

/// Accepts a relative, `/`-separated path that is safe to create below a folder on every system.
pub fn check_path(path: &str) -> Result<(), PathError> {
    check_file_name(path)?;
    // What macOS normalizes and Windows folds beyond ASCII then cannot make two names one.
    match path.chars().find(|c| !c.is_ascii()) {
        Some(character) => Err(PathError::NotAscii { path: path.to_owned(), character }),
        None => Ok(()),
    }
}

/// [`check_path`] for each, and no two that are one file on a system that ignores case, nor a file that is also a folder.
pub fn check_paths<'a>(paths: impl IntoIterator<Item = &'a str>) -> Result<(), PathError> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for path in paths {
        check_path(path)?;
        if let Some(first) = seen.insert(path.to_ascii_lowercase(), path) {
            return Err(PathError::Collision { first: first.to_owned(), second: path.to_owned() });
        }
    }
    for (folded, path) in &seen {
        let folders = folded.match_indices('/').map(|(at, _)| &folded[..at]);
        if let Some(file) = folders.filter_map(|folder| seen.get(folder)).next() {
            return Err(PathError::Collision { first: (*file).to_owned(), second: (*path).to_owned() });
        }
    }
    Ok(())
}

/// Accepts `org/name` or `name` as the hub allows them, so that the cache's folder `models--org--name` is unambiguous.
pub fn check_repo_id(id: &str) -> Result<(), PathError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let parts: Vec<&str> = id.split('/').collect();
    let good_part = |part: &&str| {
        !part.is_empty()
            && part.chars().all(allowed)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("--")
            && !part.contains("..")
    };
    let good = id.len() <= REPO_ID_BYTES_MAX && parts.len() <= 2 && parts.iter().all(good_part);
    if good { Ok(()) } else { Err(PathError::RepoId { id: shortened(id) }) }
}

/// Accepts a branch, a tag, a commit, or a reference such as `refs/pr/1`.
pub fn check_revision(revision: &str) -> Result<(), PathError> {
    check_path(revision).map_err(|_| PathError::Revision { revision: printable(&shortened(revision)) })
}

/// 40 lower-case hex digits.
pub fn is_commit(revision: &str) -> bool {
    is_hex(revision, 40)
}

/// 64 lower-case hex digits.
pub fn is_sha256(text: &str) -> bool {
    is_hex(text, 64)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The first bytes of what is too long to repeat.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 80;
    if text.chars().count() <= SHOWN {
        text.to_owned()
    } else {
        text.chars().take(SHOWN).chain(['…']).collect()
    }
}

/// Control characters must not reach a terminal by way of an error.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests;
