//! A repository as the hub stores it: commits that never change, names that point at them, and git's ids of the files.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// Files of this size or more are stored outside git, as the hub demands.
pub const LFS_SIZE_MIN: u64 = 10 << 20;
/// Endings that the hub's default `.gitattributes` stores outside git whatever their size.
const LFS_ENDINGS: [&str; 4] = [".safetensors", ".bin", ".gguf", ".onnx"];
/// A folder deeper than this is not a model repository.
const DEPTH_MAX: usize = 8;
const READ_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RepoError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is nested deeper than {DEPTH_MAX} folders")]
    TooDeep { path: PathBuf },
    #[error("{path} has a name that is not UTF-8")]
    Name { path: PathBuf },
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Memory(Bytes),
    Disk(PathBuf),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub content: Content,
    pub size: u64,
    /// Of the file, or of its pointer when it is stored outside git.
    pub git_oid: String,
    /// Set for files stored outside git.
    pub lfs_sha256: Option<String>,
}

impl Entry {
    /// What the hub calls the file's ETag: the sha256 of large files, the git blob id of small ones.
    pub fn etag(&self) -> &str {
        self.lfs_sha256.as_deref().unwrap_or(&self.git_oid)
    }
}

pub(crate) type Tree = BTreeMap<String, Entry>;

/// A repository to serve. Everything about it is decided before it is handed to the hub.
#[derive(Debug, Clone)]
pub struct Repo {
    pub(crate) id: String,
    pub(crate) private: bool,
    pub(crate) gated: bool,
    files: Tree,
    never_lfs: bool,
    revisions: Vec<String>,
}

impl Repo {
    /// An empty repository with the branch `main`. `id` is `org/name`.
    pub fn new(id: impl Into<String>) -> Self {
        Repo {
            id: id.into(),
            private: false,
            gated: false,
            files: Tree::new(),
            never_lfs: false,
            revisions: vec!["main".to_owned()],
        }
    }

    /// The files of a folder, which must not change while it is served. Names starting with a dot are left out.
    pub fn from_dir(id: impl Into<String>, dir: &Path) -> Result<Self, RepoError> {
        let mut repo = Repo::new(id);
        repo.add_dir(dir, "", 0)?;
        Ok(repo)
    }

    /// Adds a file, or replaces one.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>, content: impl Into<Bytes>) -> Self {
        let (path, content) = (path.into(), content.into());
        let lfs = self.is_lfs(&path, content.len() as u64);
        let entry = Entry {
            size: content.len() as u64,
            git_oid: git_blob_id(&content),
            lfs_sha256: lfs.then(|| hex(&Sha256::digest(&content))),
            content: Content::Memory(content),
        };
        self.files.insert(path, with_pointer_id(entry));
        self
    }

    /// Takes a file away.
    #[must_use]
    pub fn without(mut self, path: &str) -> Self {
        self.files.remove(path);
        self
    }

    /// Invisible without a token that may see it.
    #[must_use]
    pub fn private(mut self) -> Self {
        self.private = true;
        self
    }

    /// Visible, but its files are only for tokens that were granted access.
    #[must_use]
    pub fn gated(mut self) -> Self {
        self.gated = true;
        self
    }

    /// Another name for the commit, such as a tag or `refs/pr/1`.
    #[must_use]
    pub fn also_as(mut self, revision: impl Into<String>) -> Self {
        self.revisions.push(revision.into());
        self
    }

    /// Stores the files added from now on in git whatever their size, as repositories without `.gitattributes` do.
    #[must_use]
    pub fn never_lfs(mut self) -> Self {
        self.never_lfs = true;
        self
    }

    /// The commit these files make, 40 hex digits. Depends on nothing but id, names and contents.
    pub fn commit(&self) -> String {
        let mut sha = Sha1::new();
        sha.update(self.id.as_bytes());
        for (path, entry) in &self.files {
            sha.update([0]);
            sha.update(path.as_bytes());
            sha.update([0]);
            sha.update(entry.git_oid.as_bytes());
        }
        hex(&sha.finalize())
    }

    /// sha256 of a large file, git blob id of a small one; `None` when there is no such file.
    pub fn etag(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(Entry::etag)
    }

    pub(crate) fn into_parts(self) -> (Tree, Vec<String>) {
        (self.files, self.revisions)
    }

    fn is_lfs(&self, path: &str, size: u64) -> bool {
        !self.never_lfs && (size >= LFS_SIZE_MIN || LFS_ENDINGS.iter().any(|ending| path.ends_with(ending)))
    }

    fn add_dir(&mut self, dir: &Path, prefix: &str, depth: usize) -> Result<(), RepoError> {
        if depth > DEPTH_MAX {
            return Err(RepoError::TooDeep { path: dir.to_owned() });
        }
        let read = |source| RepoError::Read { path: dir.to_owned(), source };
        for item in std::fs::read_dir(dir).map_err(read)? {
            let item = item.map_err(read)?;
            let name = item.file_name().into_string().map_err(|_| RepoError::Name { path: item.path() })?;
            if name.starts_with('.') {
                continue;
            }
            // Follows links: a snapshot of the hub's cache is a folder of them.
            let meta = std::fs::metadata(item.path())
                .map_err(|source| RepoError::Read { path: item.path(), source })?;
            if meta.is_dir() {
                self.add_dir(&item.path(), &format!("{prefix}{name}/"), depth + 1)?;
            } else {
                let path = format!("{prefix}{name}");
                let entry = self.disk_entry(&path, item.path(), meta.len())?;
                self.files.insert(path, with_pointer_id(entry));
            }
        }
        Ok(())
    }

    fn disk_entry(&self, path: &str, on_disk: PathBuf, size: u64) -> Result<Entry, RepoError> {
        let read = |source| RepoError::Read { path: on_disk.clone(), source };
        let mut file = std::fs::File::open(&on_disk).map_err(read)?;
        let lfs = self.is_lfs(path, size);
        let (mut sha1, mut sha256) = (Sha1::new(), Sha256::new());
        sha1.update(format!("blob {size}\0").as_bytes());
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let n = file.read(&mut buffer).map_err(read)?;
            if n == 0 {
                break;
            }
            // One of the two only: a 14 GB checkpoint is hashed before the hub can start.
            if lfs {
                sha256.update(&buffer[..n]);
            } else {
                sha1.update(&buffer[..n]);
            }
        }
        Ok(Entry {
            content: Content::Disk(on_disk),
            size,
            git_oid: hex(&sha1.finalize()),
            lfs_sha256: lfs.then(|| hex(&sha256.finalize())),
        })
    }
}

/// git's id of a file: what `git hash-object` prints.
fn git_blob_id(content: &[u8]) -> String {
    let mut sha = Sha1::new();
    sha.update(format!("blob {}\0", content.len()).as_bytes());
    sha.update(content);
    hex(&sha.finalize())
}

/// In git, a large file is the small text that points at it.
fn with_pointer_id(mut entry: Entry) -> Entry {
    if let Some(sha256) = &entry.lfs_sha256 {
        entry.git_oid = git_blob_id(pointer(sha256, entry.size).as_bytes());
    }
    entry
}

pub(crate) fn pointer(sha256: &str, size: u64) -> String {
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
