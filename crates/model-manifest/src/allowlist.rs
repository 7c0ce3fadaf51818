//! Whose optimized artifacts are used: a list of publishers that the operator trusts.

use serde::{Deserialize, Serialize};

/// Patterns for repository ids: `org/*`, or one id exactly. A folder on the router's machine counts as `local/…`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Allowlist(Vec<String>);

impl Default for Allowlist {
    fn default() -> Self {
        Allowlist(vec!["openai/*".to_owned(), "nvidia/*".to_owned()])
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is not a publisher pattern of the form org/* or org/name")]
pub struct PatternError {
    pattern: String,
}

impl Allowlist {
    /// Refuses what could match more than it seems to, such as `*` or `open*/x`.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Result<Self, PatternError> {
        let patterns: Vec<String> = patterns.into_iter().collect();
        for pattern in &patterns {
            let example = pattern.strip_suffix("/*").map(|org| format!("{org}/x"));
            let id = example.as_deref().unwrap_or(pattern);
            if crate::paths::check_repo_id(id).is_err() || !id.contains('/') {
                return Err(PatternError { pattern: pattern.clone() });
            }
        }
        Ok(Allowlist(patterns))
    }

    /// Ids are compared as the hub does, without regard to case.
    pub fn allows(&self, repo: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix("/*") {
            Some(org) => {
                repo.split_once('/').is_some_and(|(publisher, _)| publisher.eq_ignore_ascii_case(org))
            }
            None => pattern.eq_ignore_ascii_case(repo),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publisher_is_the_whole_first_part() {
        let list = Allowlist::default();
        for (repo, allowed) in [
            ("openai/gpt-oss-20b", true),
            ("OpenAI/gpt-oss-20b", true),
            ("nvidia/x", true),
            ("openai-community/gpt2", false),
            ("someone/openai", false),
            ("openai", false),
            ("local/x", false),
        ] {
            assert_eq!(list.allows(repo), allowed, "{repo}");
        }
        let one = Allowlist::new(["me/mine".to_owned()]).unwrap();
        assert!(one.allows("me/mine") && !one.allows("me/other"));
    }

    #[test]
    fn patterns_that_match_more_than_a_publisher_are_refused() {
        for pattern in ["*", "*/*", "open*/x", "", "/*", "openai", "a/b/*"] {
            assert!(Allowlist::new([pattern.to_owned()]).is_err(), "{pattern}");
        }
    }
}
