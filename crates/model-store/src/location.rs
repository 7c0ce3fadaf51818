//! Understands what people write for "this model": `org/repo`, an address on the hub, or a folder.

use std::path::PathBuf;

use model_manifest::paths::{check_repo_id, check_revision};
use url::Url;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Hub {
        /// `org/name`.
        repo: String,
        /// When the address named one.
        revision: Option<String>,
    },
    /// Absolute.
    Folder(PathBuf),
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
}

/// Hosts that mean the public hub, whatever mirror of it is configured.
const PUBLIC_HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];
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
            return Ok(Location::Folder(path));
        }
        if text.starts_with(['.', '~']) || text.contains('\\') {
            return Err(LocationError::Relative { text: text.to_owned() });
        }
        check_repo_id(text).map_err(|_| unknown())?;
        Ok(Location::Hub { repo: text.to_owned(), revision: None })
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
    let revision = match rest {
        [] => None,
        ["tree" | "blob" | "resolve" | "commit", revision, ..] => {
            Some(revision.replace("%2F", "/").replace("%2f", "/"))
        }
        _ => return Err(unknown()),
    };
    check_repo_id(&repo).map_err(|_| unknown())?;
    if let Some(revision) = &revision {
        check_revision(revision).map_err(|_| unknown())?;
    }
    Ok(Location::Hub { repo, revision })
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
            Ok(Location::Hub { repo: repo.to_owned(), revision: revision.map(str::to_owned) })
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
