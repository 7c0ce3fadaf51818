//! The node's own copies of engines: what workers open, out of everybody else's reach.
//!
//! A copy has the library and the files beside it (libraries it needs, kernels), in a folder named by its content. The
//! copy is what is hashed, so that nothing can change between the hash and the opening.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use sha2::{Digest, Sha256};

/// Files of one engine.
pub const FILES_MAX: usize = 64;
/// Of all files of one engine together. An engine with kernels for every GPU has some hundred megabytes.
const BYTES_MAX: u64 = 4 << 30;
const MANIFEST: &str = "manifest.json";

/// A copy. A retired one is deleted with its last holder: a worker, or a registry.
#[derive(Debug)]
pub struct Copy {
    dir: PathBuf,
    retired: AtomicBool,
}

impl Copy {
    /// Nothing new is opened from it, unless the same content comes again.
    pub fn retire(&self, retired: bool) {
        self.retired.store(retired, Ordering::Relaxed);
    }
}

impl PartialEq for Copy {
    fn eq(&self, other: &Copy) -> bool {
        self.dir == other.dir
    }
}

impl Eq for Copy {}

impl Drop for Copy {
    fn drop(&mut self) {
        if self.retired.load(Ordering::Relaxed) {
            // Windows keeps a library that a worker still has open; the next start deletes it.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// What was copied.
#[derive(Debug, Clone)]
pub struct Copied {
    pub copy: Arc<Copy>,
    pub library: PathBuf,
    /// Of the library, lower-case hex.
    pub sha256: String,
    /// Of names and hashes of all its files.
    pub content: String,
}

/// The place of all copies. A folder's name is its content and a number that is never used twice in a run: an old copy
/// that is being deleted is not in the way of a new one.
#[derive(Debug)]
pub struct Copies {
    dir: PathBuf,
    made: u64,
    /// By content.
    held: HashMap<String, Weak<Copy>>,
}

impl Copies {
    /// Deletes what an earlier run left. The data folder belongs to one node at a time.
    pub fn open(dir: PathBuf) -> io::Result<Copies> {
        make_private(&dir)?;
        for entry in fs::read_dir(&dir)?.filter_map(Result::ok) {
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "an old copy of an engine stays");
            }
        }
        Ok(Copies { dir, made: 0, held: HashMap::new() })
    }

    /// Copies an engine. Blocks: reads the whole library twice.
    pub fn make(&mut self, folder: &Path, library: &str) -> Result<Copied, String> {
        self.made += 1;
        let new = self.dir.join(format!("new-{}", self.made));
        let made = self.fill(&new, folder, library);
        if made.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        made
    }

    fn fill(&mut self, new: &Path, folder: &Path, library: &str) -> Result<Copied, String> {
        let place = self.dir.display().to_string();
        let private = |e: io::Error| format!("no copy of it can be made in {place}: {e}");
        make_private(new).map_err(private)?;
        let (mut names, mut bytes) = (Vec::new(), 0);
        let real = fs::canonicalize(folder).map_err(|e| unreadable(folder, &e))?;
        for entry in fs::read_dir(&real).map_err(|e| unreadable(folder, &e))? {
            let path = entry.map_err(|e| unreadable(folder, &e))?.path();
            let about = fs::metadata(&path).map_err(|e| unreadable(&path, &e))?;
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
                return Err(format!("{} has a name that is no text", path.display()));
            };
            if name == MANIFEST || !about.is_file() {
                continue;
            }
            // A link is a name for another file of the same folder, or nothing of this engine.
            let target = fs::canonicalize(&path).map_err(|e| unreadable(&path, &e))?;
            if target.parent() != Some(&real) {
                return Err(format!(
                    "{} leads out of the engine's folder; copy the file into it",
                    path.display()
                ));
            }
            bytes += about.len();
            names.push(name.to_owned());
            if names.len() > FILES_MAX || bytes > BYTES_MAX {
                return Err(format!("its folder has over {FILES_MAX} files or {BYTES_MAX} bytes"));
            }
        }
        names.sort();
        let mut content = Sha256::new();
        let mut sha256 = None;
        for name in &names {
            let copy = new.join(name);
            fs::copy(real.join(name), &copy).map_err(private)?;
            let hash = hash(&copy).map_err(private)?;
            restrict(&copy).map_err(private)?;
            content.update(format!("{name}\n{hash}\n"));
            if name == library {
                sha256 = Some(hash);
            }
        }
        let absent =
            || format!("its library {} cannot be read: it is not there", folder.join(library).display());
        let sha256 = sha256.ok_or_else(absent)?;
        let content = hex(&content.finalize());
        self.held.retain(|_, copy| copy.strong_count() > 0);
        let copy = match self.held.get(&content).and_then(Weak::upgrade) {
            Some(copy) => {
                fs::remove_dir_all(new).map_err(private)?;
                copy.retire(false);
                copy
            }
            None => {
                let dir = self.dir.join(format!("{content}-{}", self.made));
                fs::rename(new, &dir).map_err(private)?;
                let copy = Arc::new(Copy { dir, retired: AtomicBool::new(false) });
                self.held.insert(content.clone(), Arc::downgrade(&copy));
                copy
            }
        };
        let library = copy.dir.join(library);
        Ok(Copied { copy, library, sha256, content })
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}

/// A folder only the service's user can look into.
fn make_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)?;
    #[cfg(unix)]
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(())
}

/// Read and execute, for the service's user alone.
fn restrict(file: &Path) -> io::Result<()> {
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o500);
    #[cfg(windows)]
    let permissions = {
        let mut permissions = fs::metadata(file)?.permissions();
        // A read-only file could not be deleted there; the folder's access list, inherited from the user's own, guards it.
        permissions.set_readonly(false);
        permissions
    };
    fs::set_permissions(file, permissions)
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    // 1 MiB: plugins are tens of megabytes.
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
