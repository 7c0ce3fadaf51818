//! `manifest.json` beside an engine's library; `include/engine/manifest.schema.json` says the same in JSON Schema.

use serde::Deserialize;

/// The ABI's major version of this build.
pub const ABI_MAJOR: u32 = 1;
/// Bytes of a manifest at most.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 10;
const NAMES_MAX: usize = 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineManifest {
    #[serde(default, rename = "$schema")]
    pub schema: Option<String>,
    pub id: String,
    pub version: String,
    pub abi_version: String,
    pub library: String,
    pub runtimes: Vec<String>,
    /// `*`: whatever the file holds.
    pub architectures: Vec<String>,
    pub formats: Vec<String>,
    /// Kinds, best first.
    pub devices: Vec<String>,
    #[serde(default)]
    pub capabilities: Vec<String>,
    pub licence: String,
    #[serde(default)]
    pub log_level: Option<String>,
    #[serde(default)]
    pub description: Option<String>,
}

/// Why a manifest is refused, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestProblem {
    #[error("manifest.json is no manifest: {0}")]
    Json(String),
    #[error("manifest.json: {field} `{value}` is not allowed")]
    Field { field: &'static str, value: String },
    #[error("manifest.json: {field} is empty or too long")]
    Count { field: &'static str },
    #[error(
        "it was built for ABI {found}, this node has ABI {ABI_MAJOR}; install a build of the engine for that"
    )]
    Abi { found: String },
}

impl EngineManifest {
    pub fn parse(bytes: &[u8]) -> Result<EngineManifest, ManifestProblem> {
        serde_json::from_slice(bytes).map_err(|e| ManifestProblem::Json(e.to_string()))
    }

    /// Checks every field, then the ABI.
    pub fn check(&self) -> Result<(), ManifestProblem> {
        let text = |field, value: &str, allowed: fn(&str) -> bool| {
            if allowed(value) { Ok(()) } else { Err(ManifestProblem::Field { field, value: shorten(value) }) }
        };
        let list = |field, values: &[String], min: usize, allowed: fn(&str) -> bool| {
            if values.len() < min || values.len() > NAMES_MAX {
                return Err(ManifestProblem::Count { field });
            }
            values.iter().try_for_each(|value| text(field, value, allowed))
        };
        text("id", &self.id, is_name)?;
        text("version", &self.version, is_version)?;
        text("abi_version", &self.abi_version, |v| abi_major(v).is_some())?;
        text("library", &self.library, is_file_name)?;
        list("runtimes", &self.runtimes, 1, is_name)?;
        list("architectures", &self.architectures, 1, |v| v == "*" || is_mixed_name(v, 64))?;
        list("formats", &self.formats, 1, |v| ["safetensors", "gguf"].contains(&v))?;
        list("devices", &self.devices, 1, |v| {
            ["cpu", "cuda", "metal", "vulkan", "d3d12", "sim"].contains(&v)
        })?;
        list("capabilities", &self.capabilities, 0, is_name)?;
        text("licence", &self.licence, |v| !v.is_empty() && v.chars().count() <= 128)?;
        text("log_level", self.log_level.as_deref().unwrap_or("info"), |v| {
            ["error", "warn", "info", "debug", "trace"].contains(&v)
        })?;
        text("description", self.description.as_deref().unwrap_or(""), |v| v.chars().count() <= 512)?;
        match abi_major(&self.abi_version) {
            Some(ABI_MAJOR) => Ok(()),
            _ => Err(ManifestProblem::Abi { found: self.abi_version.clone() }),
        }
    }
}

/// The major of `major.minor`.
fn abi_major(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let digits = |s: &str| !s.is_empty() && s.len() <= 7 && s.bytes().all(|b| b.is_ascii_digit());
    (digits(major) && digits(minor) && !major.starts_with('0')).then(|| major.parse().ok()).flatten()
}

fn is_name(text: &str) -> bool {
    is_mixed_name(text, 64) && !text.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_file_name(text: &str) -> bool {
    is_mixed_name(text, 128)
}

/// Letters and digits, then also `.`, `_` and `-`: never a path, never hidden.
fn is_mixed_name(text: &str, bytes_max: usize) -> bool {
    text.len() <= bytes_max
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_version(text: &str) -> bool {
    text.len() <= 64 && semver::Version::parse(text).is_ok()
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
