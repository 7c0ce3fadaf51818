//! An engine under another version: the built library with another stamp, and a manifest that agrees with it.
//!
//! A new version of an engine is a new folder with a library of other bytes. Building one for each test would take longer
//! than the test; the test subjects (`echo`, `fault`) carry their version in a marked place that is changed here
//! (`VersionStamp` in `engine-sdk`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{engine_dir, once, place, profile_dir};
use crate::manifest::Manifest;

/// As in `engine-sdk`.
const MARK: &[u8] = b"\0llm-router engine version stamp:";
/// Bytes of the stamp's text, NUL to the end.
const VERSION_BYTES: usize = 64;

/// The engine folder of `echo` or `fault` as if it were built with this version. It lies apart from those that a node of
/// the same target folder finds by itself.
///
/// # Panics
/// When it cannot be made: a test that needs it has nothing else to do.
pub fn engine_dir_as(id: &str, version: &str) -> PathBuf {
    let base = engine_dir(id);
    once(&format!("engine {id} as {version}"), || {
        let target = profile_dir()?.join("engine-versions").join(format!("{id}-{version}"));
        make(&base, version, &target)?;
        Ok(target)
    })
}

/// Puts an engine into an engines directory as an operator does: whole, under a name that nobody looks at, then renamed.
/// Gives the folder. One that is there is replaced.
///
/// # Errors
/// When the folder cannot be written.
pub fn install_engine(id: &str, version: &str, engines_dir: &Path) -> Result<PathBuf> {
    let base = engine_dir(id);
    let own = Manifest::read(&base)?.version;
    let target = engines_dir.join(format!("{id}-{version}"));
    std::fs::create_dir_all(engines_dir)
        .with_context(|| format!("cannot create {}", engines_dir.display()))?;
    let partial = tempfile::Builder::new()
        .prefix(".arriving-")
        .tempdir_in(engines_dir)
        .context("no folder for a new engine")?;
    let folder = partial.path().join("engine");
    if own == version {
        copy(&base, &folder)?;
    } else {
        make(&base, version, &folder)?;
    }
    if target.exists() {
        std::fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))?;
    }
    std::fs::rename(&folder, &target).with_context(|| format!("cannot put {} in place", target.display()))?;
    Ok(target)
}

fn copy(base: &Path, target: &Path) -> Result<()> {
    let manifest = Manifest::read(base)?;
    std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
    for name in [manifest.library.as_str(), "manifest.json"] {
        place::replace_file(&base.join(name), &target.join(name))?;
    }
    Ok(())
}

fn make(base: &Path, version: &str, target: &Path) -> Result<()> {
    let manifest_path = base.join("manifest.json");
    let text =
        std::fs::read(&manifest_path).with_context(|| format!("cannot read {}", manifest_path.display()))?;
    let mut manifest: Value = serde_json::from_slice(&text).context("the manifest is no JSON")?;
    manifest["version"] = Value::String(version.to_owned());
    let name = manifest["library"].as_str().context("the manifest names no library")?.to_owned();
    let library = base.join(&name);
    let mut bytes = std::fs::read(&library).with_context(|| format!("cannot read {}", library.display()))?;
    stamp(&mut bytes, version).with_context(|| library.display().to_string())?;
    std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
    // Other test programs may make the same one, or have it open.
    place::with_file_lock(&target.with_extension("lock"), || {
        let made = target.join(format!("{name}.made-{}", std::process::id()));
        std::fs::write(&made, &bytes).with_context(|| format!("cannot write {}", made.display()))?;
        sign(&made)?;
        place::replace_file(&made, &target.join(&name))?;
        std::fs::remove_file(&made).with_context(|| format!("cannot remove {}", made.display()))?;
        place::replace_bytes(manifest.to_string().as_bytes(), &target.join("manifest.json"))
    })
}

/// Writes the version into its one place.
fn stamp(library: &mut [u8], version: &str) -> Result<()> {
    ensure!(version.len() <= VERSION_BYTES, "the version {version} is longer than {VERSION_BYTES} bytes");
    let mut places = find_all(library, MARK);
    let (Some(mark), None) = (places.next(), places.next()) else {
        bail!("it has not exactly one version stamp: only test subjects have one");
    };
    drop(places);
    let place = library
        .get_mut(mark + MARK.len()..mark + MARK.len() + VERSION_BYTES)
        .context("the stamp is cut off")?;
    place.fill(0);
    place[..version.len()].copy_from_slice(version.as_bytes());
    Ok(())
}

fn find_all<'a>(bytes: &'a [u8], part: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes.windows(part.len()).enumerate().filter(move |(_, window)| *window == part).map(|(at, _)| at)
}

/// macOS opens only libraries whose signature holds; changing a byte breaks it.
#[cfg(target_os = "macos")]
fn sign(library: &Path) -> Result<()> {
    let signed = std::process::Command::new("codesign")
        .args(["--force", "--sign", "-"])
        .arg(library)
        .output()
        .context("codesign cannot be started")?;
    ensure!(signed.status.success(), "codesign: {}", String::from_utf8_lossy(&signed.stderr));
    Ok(())
}

/// Elsewhere a library has no signature that a loader looks at; that it can be read back is all there is to ask.
#[cfg(not(target_os = "macos"))]
fn sign(library: &Path) -> Result<()> {
    std::fs::metadata(library).map(drop).with_context(|| format!("cannot find {}", library.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(stamps: usize) -> Vec<u8> {
        let one = [b"code".as_slice(), MARK, b"0.1.0", &[0; VERSION_BYTES - 5], b"more"].concat();
        one.repeat(stamps)
    }

    #[test]
    fn the_stamp_is_replaced_whole_and_nothing_else() {
        let mut bytes = library(1);
        let length = bytes.len();
        stamp(&mut bytes, "12.0.0-rc.1+abi-2").expect("one place");
        stamp(&mut bytes, "0.2.0").expect("one place");
        let expected = [b"code".as_slice(), MARK, b"0.2.0", &[0; VERSION_BYTES - 5], b"more"].concat();
        assert_eq!((bytes.len(), bytes), (length, expected));
    }

    #[test]
    fn a_library_without_one_stamp_is_refused() {
        assert!(stamp(&mut library(0), "1.0.0").is_err());
        assert!(stamp(&mut library(2), "1.0.0").is_err());
        assert!(stamp(&mut library(1), &"1".repeat(65)).is_err());
        assert!(stamp(&mut MARK.to_vec(), "1.0.0").is_err());
    }
}
