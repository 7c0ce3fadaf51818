//! Understands what people write for "this model": `org/repo`, `org/repo:Q4_K_M`, an address on the hub, a folder, or a
//! GGUF file in it.

use std::path::PathBuf;

use model_manifest::paths::{check_repo_id, check_revision};
use url::Url;

use crate::register::local_id;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Hub {
        /// `org/name`.
        repo: String,
        /// When the address named one.
        revision: Option<String>,
        /// The GGUF file that the address names.
        file: Option<String>,
        /// What stands behind the colon of `org/repo:Q4_K_M`.
        quantization: Option<String>,
    },
    /// Absolute.
    Folder(PathBuf),
    /// A GGUF file.
    File {
        /// Absolute.
        folder: PathBuf,
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    #[error("`{text}` is neither org/repo, nor an address on the hub, nor an absolute path of a folder")]
    Unknown { text: String },
    #[error("`{text}` is on {found}, and the hub is {hub}")]
    OtherHost { text: String, found: String, hub: String },
    #[error("`{text}` is not a model: it is below /{kind}")]
    NotAModel { text: String, kind: String },
    #[error("the folder `{text}` is not given by an absolute path")]
    Relative { text: String },
    #[error("`{text}`: nothing, or no single word, stands behind the colon")]
    Quantization { text: String },
}

/// Hosts that mean the public hub, whatever mirror of it is configured.
const PUBLIC_HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];
const GGUF: &str = ".gguf";
/// First parts of an address that is not a model's.
const OTHER_KINDS: [&str; 7] = ["datasets", "spaces", "api", "docs", "papers", "collections", "models"];

impl Location {
    /// Whether this is an address, with its scheme or as people copy it without: `huggingface.co/org/name`.
    pub fn is_address(text: &str) -> bool {
        let text = text.trim();
        let host = text.split_once('/').map(|(host, _)| host);
        ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
            || host.is_some_and(|host| PUBLIC_HOSTS.contains(&host))
    }

    /// The GGUF file that the address or the path names.
    pub fn file(&self) -> Option<&str> {
        match self {
            Location::Hub { file, .. } => file.as_deref(),
            Location::File { name, .. } => Some(name),
            Location::Folder(_) => None,
        }
    }

    pub fn quantization(&self) -> Option<&str> {
        match self {
            Location::Hub { quantization, .. } => quantization.as_deref(),
            Location::Folder(_) | Location::File { .. } => None,
        }
    }

    /// The id of a model that is given none, where it is not that of its repository or folder: a repository and a folder
    /// may have many files.
    pub fn id(&self) -> Option<String> {
        match self {
            Location::Hub { repo, quantization: Some(quantization), .. } => {
                Some(format!("{repo}:{quantization}"))
            }
            Location::File { name, .. } => Some(local_id(name.get(..name.len() - GGUF.len())?)),
            Location::Hub { .. } | Location::Folder(_) => None,
        }
    }

    /// `endpoint` is the hub in use, whose addresses are understood beside those of the public one.
    pub fn parse(text: &str, endpoint: &Url) -> Result<Location, LocationError> {
        let text = text.trim();
        let unknown = || LocationError::Unknown { text: text.to_owned() };
        if Location::is_address(text) {
            let whole = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
            let url = Url::parse(&whole).map_err(|_| unknown())?;
            return parse_address(text, &url, endpoint);
        }
        let path = PathBuf::from(text);
        if path.is_absolute() {
            let name = path.file_name().and_then(|name| name.to_str()).filter(|name| is_gguf(name));
            return Ok(match (name, path.parent()) {
                (Some(name), Some(folder)) if !path.is_dir() => {
                    Location::File { folder: folder.to_owned(), name: name.to_owned() }
                }
                _ => Location::Folder(path),
            });
        }
        if text.starts_with(['.', '~']) || text.contains('\\') {
            return Err(LocationError::Relative { text: text.to_owned() });
        }
        let (repo, quantization) = match text.split_once(':') {
            Some((repo, quantization)) => (repo, Some(quantization)),
            None => (text, None),
        };
        check_repo_id(repo).map_err(|_| unknown())?;
        let is_word = |word: &str| {
            !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        if quantization.is_some_and(|quantization| !is_word(quantization)) {
            return Err(LocationError::Quantization { text: text.to_owned() });
        }
        let quantization = quantization.map(str::to_owned);
        Ok(Location::Hub { repo: repo.to_owned(), revision: None, file: None, quantization })
    }
}

fn parse_address(text: &str, url: &Url, endpoint: &Url) -> Result<Location, LocationError> {
    let unknown = || LocationError::Unknown { text: text.to_owned() };
    let host = url.host_str().unwrap_or_default();
    if url.origin() != endpoint.origin() && !PUBLIC_HOSTS.contains(&host) {
        return Err(LocationError::OtherHost {
            text: text.to_owned(),
            found: url.origin().ascii_serialization(),
            hub: endpoint.origin().ascii_serialization(),
        });
    }
    let mut parts: Vec<&str> =
        url.path_segments().map(|s| s.filter(|p| !p.is_empty()).collect()).unwrap_or_default();
    // A mirror may live below a path of its own.
    if url.origin() == endpoint.origin() {
        for prefix in endpoint.path_segments().into_iter().flatten().filter(|p| !p.is_empty()) {
            if parts.first() == Some(&prefix) {
                parts.remove(0);
            }
        }
    }
    if let Some(kind) = parts.first().filter(|kind| OTHER_KINDS.contains(kind)) {
        return Err(LocationError::NotAModel { text: text.to_owned(), kind: (*kind).to_owned() });
    }
    let (repo, rest) = match parts.as_slice() {
        [org, name, rest @ ..] => (format!("{org}/{name}"), rest),
        _ => return Err(unknown()),
    };
    let (revision, path) = match rest {
        [] => (None, None),
        [kind @ ("tree" | "blob" | "resolve" | "commit"), revision, path @ ..] => {
            let path = path.join("/");
            let names_file = ["blob", "resolve"].contains(kind) && is_gguf(&path);
            (Some(revision.replace("%2F", "/").replace("%2f", "/")), names_file.then_some(path))
        }
        _ => return Err(unknown()),
    };
    check_repo_id(&repo).map_err(|_| unknown())?;
    if let Some(revision) = &revision {
        check_revision(revision).map_err(|_| unknown())?;
    }
    Ok(Location::Hub { repo, revision, file: path, quantization: None })
}

fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(GGUF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, LocationError> {
        Location::parse(text, &Url::parse("http://127.0.0.1:8000/").unwrap())
    }

    #[test]
    fn what_people_write_is_understood() {
        let hub = |repo: &str, revision: Option<&str>| {
            let revision = revision.map(str::to_owned);
            Ok(Location::Hub { repo: repo.to_owned(), revision, file: None, quantization: None })
        };
        assert_eq!(parse("openai/gpt-oss-20b"), hub("openai/gpt-oss-20b", None));
        assert_eq!(parse(" gpt2 "), hub("gpt2", None));
        assert_eq!(parse("https://huggingface.co/openai/gpt-oss-20b"), hub("openai/gpt-oss-20b", None));
        assert_eq!(parse("https://huggingface.co/openai/gpt-oss-20b/"), hub("openai/gpt-oss-20b", None));
        assert_eq!(parse("https://hf.co/a/b/tree/main"), hub("a/b", Some("main")));
        assert_eq!(parse("huggingface.co/a/b"), hub("a/b", None));
        assert_eq!(parse("hf.co/a/b/tree/v1"), hub("a/b", Some("v1")));
        assert_eq!(parse("http://127.0.0.1:8000/a/b/blob/v1/config.json"), hub("a/b", Some("v1")));
        assert_eq!(parse("https://huggingface.co/a/b/tree/refs%2Fpr%2F1"), hub("a/b", Some("refs/pr/1")));
    }

    #[test]
    fn a_gguf_file_is_named_by_quantization_address_or_path() {
        let chosen = |file: Option<&str>, quantization: Option<&str>, revision: Option<&str>| {
            let [file, quantization, revision] = [file, quantization, revision].map(|t| t.map(str::to_owned));
            Ok(Location::Hub { repo: "a/b".to_owned(), revision, file, quantization })
        };
        assert_eq!(parse("a/b:Q4_K_M"), chosen(None, Some("Q4_K_M"), None));
        let file = Some("sub/m-Q8_0.gguf");
        assert_eq!(
            parse("hf.co/a/b/resolve/main/sub/m-Q8_0.gguf?download=true"),
            chosen(file, None, Some("main"))
        );
        assert_eq!(
            parse("https://huggingface.co/a/b/blob/v1/sub/m-Q8_0.gguf"),
            chosen(file, None, Some("v1"))
        );
        for text in ["a/b:", "a/b:Q4 K", "a/b:x:y", "a/b:x/y"] {
            assert!(matches!(parse(text), Err(LocationError::Quantization { .. })), "{text}");
        }
        let (path, folder) = if cfg!(windows) { ("C:\\m\\x.gguf", "C:\\m") } else { ("/m/x.gguf", "/m") };
        let file = Location::File { folder: PathBuf::from(folder), name: "x.gguf".to_owned() };
        assert_eq!(parse(path), Ok(file));
    }

    #[test]
    fn folders_are_absolute() {
        let folder = if cfg!(windows) { "C:\\models\\x" } else { "/models/x" };
        assert_eq!(parse(folder), Ok(Location::Folder(PathBuf::from(folder))));
        for text in ["./x", "../x", "~/x", ".\\x"] {
            assert!(matches!(parse(text), Err(LocationError::Relative { .. })), "{text}");
        }
    }

    #[test]
    fn what_is_no_model_is_refused() {
        assert!(matches!(parse("https://example.com/a/b"), Err(LocationError::OtherHost { .. })));
        assert!(matches!(parse("https://huggingface.co.evil.com/a/b"), Err(LocationError::OtherHost { .. })));
        assert!(matches!(parse("https://huggingface.co/datasets/a/b"), Err(LocationError::NotAModel { .. })));
        for text in
            ["", "a/b/c", "https://huggingface.co/", "https://huggingface.co/a/b/discussions/1", "a b/c"]
        {
            assert!(matches!(parse(text), Err(LocationError::Unknown { .. })), "{text}");
        }
    }
}
