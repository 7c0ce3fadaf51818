//! The secret that nodes join with: made once, kept in a file only its owner reads, compared in constant time.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use rand::RngExt as _;
use sha2::{Digest, Sha256};

/// Bytes of randomness in a secret the router makes itself.
const SECRET_BYTES: usize = 32;
/// A secret file holds one line; anything longer is some other file.
const SECRET_CHARS_MAX: usize = 1024;
/// Shorter ones can be guessed.
const SECRET_CHARS_MIN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("join secret file {} cannot be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("join secret file {} cannot be written", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(
        "join secret file {} holds {chars} characters, {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} without spaces are needed; \
         delete it to have a new one made",
        path.display()
    )]
    Form { path: PathBuf, chars: usize },
}

/// Reads the secret, or makes one when the file is not there.
pub fn load_or_create(path: &Path) -> Result<String, SecretError> {
    match std::fs::read_to_string(path) {
        Ok(text) => check_form(path, text.trim()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => create(path),
        Err(source) => Err(SecretError::Read { path: path.to_owned(), source }),
    }
}

fn check_form(path: &Path, secret: &str) -> Result<String, SecretError> {
    let chars = secret.chars().count();
    let graphic = secret.chars().all(|c| c.is_ascii_graphic());
    if !graphic || !(SECRET_CHARS_MIN..=SECRET_CHARS_MAX).contains(&chars) {
        return Err(SecretError::Form { path: path.to_owned(), chars });
    }
    Ok(secret.to_owned())
}

fn create(path: &Path) -> Result<String, SecretError> {
    let bytes: [u8; SECRET_BYTES] = rand::rng().random();
    let secret: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    // On Windows the file inherits the access list of the user's own data folder.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let write = || -> std::io::Result<()> {
        let mut file = options.open(path)?;
        file.write_all(format!("{secret}\n").as_bytes())?;
        file.sync_all()
    };
    write().map_err(|source| SecretError::Write { path: path.to_owned(), source })?;
    Ok(secret)
}

/// Whether two secrets are the same, in a time that tells nothing about where they differ.
pub fn same(a: &str, b: &str) -> bool {
    // Digests have one length, and no one can steer theirs byte by byte towards another.
    let (a, b) = (Sha256::digest(a.as_bytes()), Sha256::digest(b.as_bytes()));
    a.iter().zip(b.iter()).fold(0u8, |difference, (x, y)| difference | (x ^ y)) == 0
}

#[cfg(test)]
mod tests;
