//! What a repository or a folder contains, as its owner says: names, sizes and hashes, no contents.

use crate::Source;

/// Files one repository may have; the largest model repositories have a few hundred.
pub const LISTED_FILES_MAX: usize = 20_000;

/// The files of one commit, or of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub source: Source,
    pub files: Vec<ListedFile>,
}

/// A file as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Relative to the repository, `/`-separated. Not checked: it is the list of a stranger.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Lower-case hex, when the list gives it (files that the hub stores outside git).
    pub sha256: Option<String>,
    /// The git blob id of a file stored in git.
    pub git_oid: Option<String>,
}

impl Snapshot {
    pub fn file(&self, path: &str) -> Option<&ListedFile> {
        self.files.iter().find(|f| f.path == path)
    }

    /// For messages: the repository's id or the folder's path.
    pub fn name(&self) -> &str {
        match &self.source {
            Source::Hub { repo, .. } => repo,
            Source::Local { path } => path,
        }
    }
}
