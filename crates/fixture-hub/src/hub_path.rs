//! Takes a request's path apart: which repository, which revision, which file.

use percent_encoding::percent_decode_str;

/// What a path of the hub asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HubPath {
    /// `/api/models/{repo}` and `/api/models/{repo}/revision/{revision}`.
    Info { repo: String, revision: Option<String> },
    /// `/api/models/{repo}/tree/{revision}[/{folder}]`.
    Tree { repo: String, revision: String, folder: String },
    /// `/{repo}/resolve/{revision}/{path}`.
    Resolve { repo: String, revision: String, path: String },
    /// `/api/resolve-cache/models/{repo}/{commit}/{path}`, where the hub sends the readers of small files.
    ResolveCache { repo: String, commit: String, path: String },
}

impl HubPath {
    /// `None`: the hub has no such page. A revision with slashes arrives percent-encoded in one segment.
    pub fn parse(path: &str) -> Option<HubPath> {
        let segments: Vec<String> = path
            .trim_start_matches('/')
            .split('/')
            .map(|s| percent_decode_str(s).decode_utf8().map(|s| s.into_owned()).ok())
            .collect::<Option<_>>()?;
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["api", "models", org, name] => {
                Some(HubPath::Info { repo: format!("{org}/{name}"), revision: None })
            }
            ["api", "models", org, name, "revision", revision] => {
                Some(HubPath::Info { repo: format!("{org}/{name}"), revision: Some((*revision).to_owned()) })
            }
            ["api", "models", org, name, "tree", revision, folder @ ..] => Some(HubPath::Tree {
                repo: format!("{org}/{name}"),
                revision: (*revision).to_owned(),
                folder: folder.join("/"),
            }),
            ["api", "resolve-cache", "models", org, name, commit, path @ ..] if !path.is_empty() => {
                Some(HubPath::ResolveCache {
                    repo: format!("{org}/{name}"),
                    commit: (*commit).to_owned(),
                    path: path.join("/"),
                })
            }
            [org, name, "resolve", revision, path @ ..] if !path.is_empty() => Some(HubPath::Resolve {
                repo: format!("{org}/{name}"),
                revision: (*revision).to_owned(),
                path: path.join("/"),
            }),
            _ => None,
        }
    }

    pub fn repo(&self) -> &str {
        match self {
            HubPath::Info { repo, .. }
            | HubPath::Tree { repo, .. }
            | HubPath::Resolve { repo, .. }
            | HubPath::ResolveCache { repo, .. } => repo,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_hub_are_told_apart() {
        let repo = || "org/name".to_owned();
        let cases = [
            ("/api/models/org/name", Some(HubPath::Info { repo: repo(), revision: None })),
            (
                "/api/models/org/name/revision/refs%2Fpr%2F1",
                Some(HubPath::Info { repo: repo(), revision: Some("refs/pr/1".into()) }),
            ),
            (
                "/api/models/org/name/tree/main/metal",
                Some(HubPath::Tree { repo: repo(), revision: "main".into(), folder: "metal".into() }),
            ),
            (
                "/org/name/resolve/main/metal/model.bin",
                Some(HubPath::Resolve {
                    repo: repo(),
                    revision: "main".into(),
                    path: "metal/model.bin".into(),
                }),
            ),
            ("/org/name/resolve/main", None),
            ("/org/name", None),
            ("/", None),
        ];
        for (path, expected) in cases {
            assert_eq!(HubPath::parse(path), expected, "{path}");
        }
    }
}
