//! Looks for engines: `<dir>/<folder>/manifest.json` and the library it names.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::manifest::MANIFEST_BYTES_MAX;
use super::{Engine, EngineManifest, EngineRegistry, RefusedEngine};

/// Folders looked into, of all directories together.
const FOLDERS_MAX: usize = 256;

/// Reads what is there now. Hashes every library, so call it off the event loop. Earlier directories win: the same id and
/// version again is refused.
pub fn scan(dirs: &[PathBuf]) -> EngineRegistry {
    let mut registry = EngineRegistry { dirs: dirs.to_vec(), ..EngineRegistry::default() };
    for folder in dirs.iter().flat_map(|dir| folders(dir)).take(FOLDERS_MAX) {
        let mut manifest = None;
        match read(&folder, &mut manifest) {
            Ok(engine) => {
                let same = |e: &&Engine| {
                    e.manifest.id == engine.manifest.id && e.manifest.version == engine.manifest.version
                };
                match registry.engines.iter().find(same) {
                    None => registry.engines.push(engine),
                    Some(first) => {
                        let reason =
                            format!("the same engine and version is used from {}", first.library.display());
                        registry.refused.push(RefusedEngine { folder, manifest, reason });
                    }
                }
            }
            Err(reason) => registry.refused.push(RefusedEngine { folder, manifest, reason }),
        }
    }
    registry
}

/// Folders with a manifest, in name order. A directory that cannot be listed has none.
fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(dir) = std::path::absolute(dir) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.join("manifest.json").is_file())
        .collect();
    folders.sort();
    folders
}

fn read(folder: &Path, parsed: &mut Option<EngineManifest>) -> Result<Engine, String> {
    let path = folder.join("manifest.json");
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(|e| format!("manifest.json cannot be opened: {e}"))?;
    file.take(MANIFEST_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("manifest.json cannot be read: {e}"))?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(format!("manifest.json is longer than {MANIFEST_BYTES_MAX} bytes"));
    }
    let manifest = EngineManifest::parse(&bytes).map_err(|e| e.to_string())?;
    *parsed = Some(manifest.clone());
    manifest.check().map_err(|e| e.to_string())?;
    let library = folder.join(&manifest.library);
    let sha256 =
        hash(&library).map_err(|e| format!("its library {} cannot be read: {e}", library.display()))?;
    Ok(Engine { manifest, library, sha256 })
}

fn hash(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    // 1 MiB: plugins are tens of megabytes.
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().iter().map(|b| format!("{b:02x}")).collect()),
            n => hasher.update(&buffer[..n]),
        }
    }
}
