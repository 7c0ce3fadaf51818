//! Where the hub is, who we are to it, and where its cache lies: the settings that the user's other tools follow too.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

const ENDPOINT: &str = "https://huggingface.co";
/// A token file longer than this is something else.
const TOKEN_BYTES_MAX: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum HubConfigError {
    #[error("HF_ENDPOINT `{value}` is not an http or https address")]
    Endpoint { value: String },
    #[error("the hub token in {place} has characters that no token has")]
    Token { place: String },
    #[error("cannot read the hub token in {path}")]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error("neither HF_HUB_CACHE, HF_HOME nor the home folder is known")]
    NoHome,
}

/// A hub token. Never shown, never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// `place` is where it was found, for the message.
    pub fn new(text: &str, place: &str) -> Result<Option<Token>, HubConfigError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(HubConfigError::Token { place: place.to_owned() });
        }
        Ok(Some(Token(text.to_owned())))
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// How often and how long to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in a row that bring nothing, the first included.
    pub attempts: u32,
    /// Before the second try; doubles with each.
    pub pause: Duration,
    pub pause_max: Duration,
    /// A hub that asks to wait longer than this gets no second try; the caller is told how long it asked for.
    pub wait_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            attempts: 5,
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
            wait_max: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// The pause after `failures` failures in a row.
    pub(crate) fn pause_after(&self, failures: u32) -> Duration {
        self.pause.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.pause_max)
    }
}

#[derive(Debug, Clone)]
pub struct HubConfig {
    pub endpoint: Url,
    pub token: Option<Token>,
    /// The folder with `models--org--name` in it.
    pub cache_dir: PathBuf,
    pub retry: RetryPolicy,
    pub connect_timeout: Duration,
    /// Longest silence within an answer.
    pub read_timeout: Duration,
}

impl HubConfig {
    /// The defaults for an endpoint and a cache folder, without a token.
    pub fn new(endpoint: Url, cache_dir: PathBuf) -> HubConfig {
        HubConfig {
            endpoint,
            token: None,
            cache_dir,
            retry: RetryPolicy::default(),
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
        }
    }

    /// From this process's environment and home folder.
    pub fn from_process_env() -> Result<HubConfig, HubConfigError> {
        HubConfig::from_env(|name| std::env::var_os(name), std::env::home_dir())
    }

    /// `HF_ENDPOINT`, `HF_TOKEN` (else the file `HF_TOKEN_PATH`, else `token` in `HF_HOME`), `HF_HUB_CACHE`, `HF_HOME`,
    /// `XDG_CACHE_HOME`, with the older names that the hub's own client still reads. Empty values count as absent.
    pub fn from_env(
        get: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
    ) -> Result<HubConfig, HubConfigError> {
        let get = |name: &str| get(name).filter(|v| !v.is_empty());
        let folder = |name: &str| get(name).map(|v| expand_home(Path::new(&v), home.as_deref()));
        let text = get("HF_ENDPOINT").map_or(ENDPOINT.to_owned(), |v| v.to_string_lossy().into_owned());
        let endpoint = Url::parse(text.trim_end_matches('/'))
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none())
            .ok_or(HubConfigError::Endpoint { value: text })?;
        let hf_home = folder("HF_HOME").or_else(|| {
            let caches = folder("XDG_CACHE_HOME").or_else(|| home.as_ref().map(|home| home.join(".cache")));
            caches.map(|caches| caches.join("huggingface"))
        });
        let cache_dir = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hf_home.as_ref().map(|home| home.join("hub")))
            .ok_or(HubConfigError::NoHome)?;
        let mut config = HubConfig::new(endpoint, cache_dir);
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let (None, Some(value)) = (&config.token, get(name)) {
                config.token = Token::new(&value.to_string_lossy(), name)?;
            }
        }
        let token_file = folder("HF_TOKEN_PATH").or_else(|| hf_home.map(|home| home.join("token")));
        if let (None, Some(path)) = (&config.token, token_file) {
            config.token = read_token(&path)?;
        }
        Ok(config)
    }
}

fn read_token(path: &Path) -> Result<Option<Token>, HubConfigError> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(HubConfigError::TokenFile { path: path.to_owned(), source }),
    };
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|source| HubConfigError::TokenFile { path: path.to_owned(), source })?;
    Token::new(&text, &path.display().to_string())
}

fn expand_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests;
