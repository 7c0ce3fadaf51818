//! One GET on the hub: which address, with our token or without, and where its redirects lead.

use std::sync::Once;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Client, ClientBuilder, Response, StatusCode, redirect};
use url::Url;

use super::{HubError, Part};
use crate::config::{HubConfig, RetryPolicy, Token};

/// Hops of one request; the hub itself needs three at most (a new name, a page of its own, the content network).
const REDIRECTS_MAX: usize = 8;
/// Of an error's body, for its message.
const ERROR_BYTES_MAX: usize = 4096;

/// Makes ring the cryptography of this process, once. Every HTTPS client of the product needs it before it is built.
pub fn install_tls_provider() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // An error says that another part of the process chose one before; that one works as well.
        rustls::crypto::ring::default_provider().install_default().ok();
    });
}

#[derive(Debug)]
pub(super) struct Http {
    client: Client,
    pub endpoint: Url,
    token: Option<Token>,
    pub retry: RetryPolicy,
}

impl Http {
    pub fn new(config: &HubConfig) -> Result<Http, HubError> {
        install_tls_provider();
        let builder = || builder(config);
        // Without any certificate authority on the machine the first fails. A hub on http works all the same, and one on
        // https then says that its certificate's issuer is unknown.
        let client = builder()
            .build()
            .or_else(|first| {
                tracing::warn!(error = %first, "no certificate authorities on this machine: https will not work");
                builder().tls_certs_only([]).build()
            })
            .map_err(|e| HubError::Tls(Box::new(e)))?;
        Ok(Http {
            client,
            endpoint: config.endpoint.clone(),
            token: config.token.clone(),
            retry: config.retry,
        })
    }

    /// `{endpoint}/{before}/{repo}/{after}`, each part encoded: a slash inside a revision stays inside it.
    pub fn url(&self, before: &[&str], repo: &str, after: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        url.path_segments_mut()
            .expect("the configuration accepts addresses with a host only")
            .pop_if_empty()
            .extend(before)
            .extend(repo.split('/'))
            .extend(after);
        url
    }

    /// Follows redirects itself, so that the token is sent to the hub's origin and to no other.
    /// Of the bytes in `part` where it is given.
    pub async fn get(&self, mut url: Url, part: Option<Part>) -> Result<Response, HubError> {
        for _ in 0..REDIRECTS_MAX {
            let mut request = self.client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(token) = &self.token
                && url.origin() == self.endpoint.origin()
            {
                let mut value = HeaderValue::from_str(&token.bearer()).expect("a token is printable ASCII");
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            if let Some(Part { start, end }) = part {
                // The header names the last byte, not the one behind it.
                let last = end.map_or(String::new(), |end| end.saturating_sub(1).to_string());
                request = request.header(RANGE, format!("bytes={start}-{last}"));
            }
            let response = request.send().await.map_err(unreachable)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            url = self.next(&url, response.headers())?;
        }
        Err(HubError::Protocol { message: format!("more than {REDIRECTS_MAX} redirects") })
    }

    fn next(&self, url: &Url, headers: &HeaderMap) -> Result<Url, HubError> {
        let nonsense = |message: &str| HubError::Protocol { message: message.to_owned() };
        let location = headers.get(LOCATION).and_then(|v| v.to_str().ok());
        let location = location.ok_or_else(|| nonsense("a redirect without an address"))?;
        let next = url.join(location).map_err(|_| nonsense("a redirect to something that is no address"))?;
        match (url.scheme(), next.scheme()) {
            (_, "https") | ("http", "http") => Ok(next),
            ("https", "http") => Err(nonsense("a redirect from https to http")),
            _ => Err(nonsense("a redirect to something that is neither http nor https")),
        }
    }

    /// What a status that is no success means, by the hub's own headers.
    pub async fn refusal(
        &self,
        response: Response,
        repo: &str,
        revision: &str,
        path: Option<&str>,
    ) -> HubError {
        let status = response.status();
        let from_hub = response.url().origin() == self.endpoint.origin();
        let header =
            |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let (code, message) = (header("x-error-code"), header("x-error-message"));
        let (repo, endpoint) = (repo.to_owned(), self.endpoint.to_string());
        let revision = revision.to_owned();
        let had_token = self.token.is_some();
        if status == StatusCode::TOO_MANY_REQUESTS {
            return HubError::RateLimited { wait: wait(response.headers()) };
        }
        if !from_hub {
            return HubError::Status { status: status.as_u16() };
        }
        match (status.as_u16(), code.as_deref()) {
            (401 | 403, Some("GatedRepo")) => {
                let message = match message {
                    Some(message) => message,
                    None => error_text(response).await,
                };
                HubError::Gated { repo, endpoint, message: printable(&message), had_token }
            }
            (404, Some("RevisionNotFound")) => HubError::RevisionAbsent { repo, revision },
            (404, Some("EntryNotFound")) => {
                HubError::FileAbsent { repo, revision, path: path.unwrap_or_default().to_owned() }
            }
            (401, _) if message.as_deref().is_some_and(|m| m.starts_with("Invalid credentials")) => {
                HubError::TokenRefused { endpoint }
            }
            (401 | 404, _) => HubError::AbsentOrPrivate { repo, endpoint, had_token },
            (403, _) => {
                let message = match message {
                    Some(message) => message,
                    None => error_text(response).await,
                };
                HubError::Forbidden { repo, message: printable(&message) }
            }
            (status, _) => HubError::Status { status },
        }
    }
}

fn builder(config: &HubConfig) -> ClientBuilder {
    let builder = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(config.connect_timeout)
        .read_timeout(config.read_timeout)
        .user_agent(concat!("llm-router/", env!("CARGO_PKG_VERSION")));
    let loopback = match config.endpoint.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    // No proxy reaches this machine's own loopback address.
    if loopback { builder.no_proxy() } else { builder }
}

/// The address stays out: those of the content network are signed.
pub(super) fn unreachable(e: reqwest::Error) -> HubError {
    let endpoint = e.url().map(|url| url.origin().ascii_serialization()).unwrap_or_default();
    HubError::Unreachable { endpoint, source: Box::new(e.without_url()) }
}

/// `Retry-After` in seconds, or the time left in `RateLimit: "api";r=0;t=55`.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let after = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse().ok());
    let left = || text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse().ok());
    after.or_else(left).map(Duration::from_secs)
}

async fn error_text(mut response: Response) -> String {
    let mut text = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        text.extend_from_slice(&piece);
        if text.len() >= ERROR_BYTES_MAX {
            text.truncate(ERROR_BYTES_MAX);
            break;
        }
    }
    let field = serde_json::from_slice::<serde_json::Value>(&text)
        .ok()
        .and_then(|json| json.get("error").and_then(|e| e.as_str()).map(str::to_owned));
    field.unwrap_or_else(|| "access is restricted".to_owned())
}

/// The words of a stranger, short and without control characters.
fn printable(text: &str) -> String {
    const SHOWN: usize = 300;
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests;
