//! Speaks to a router over HTTP.

pub mod stream;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::{Method, RequestBuilder, Response};
use serde::{Serialize, de::DeserializeOwned};
use url::Url;

use crate::output::ApiFailure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer that is no stream. A registration waits for the hub.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// An operator's command, which loads models on nodes; a little longer than the router gives them.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(930);
/// Between two parts of a stream; the router says something more often than this while it works.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub struct Client {
    http: reqwest::Client,
    base: Url,
}

impl Client {
    pub fn new(base: &str) -> Result<Client> {
        Client::build(base, false)
    }

    /// For commands that take as long as loading a model does.
    pub fn patient(base: &str) -> Result<Client> {
        Client::build(base, true)
    }

    fn build(base: &str, patient: bool) -> Result<Client> {
        let base =
            Url::parse(base).ok().filter(|url| url.has_host() && !url.cannot_be_a_base()).with_context(
                || format!("`{base}` is no address of a router\nhint: it looks like http://127.0.0.1:8411"),
            )?;
        // Each request has its own deadline; this one is for streams, which have none.
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
        if !patient {
            http = http.read_timeout(SILENCE_MAX.max(ANSWER_TIMEOUT));
        }
        if is_loopback(&base) {
            // A proxy on the way to this machine itself could only be a mistake.
            http = http.no_proxy();
        }
        Ok(Client { http: http.build().context("cannot set up HTTP")?, base })
    }

    pub fn base(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        read(self.send(self.request(Method::GET, path)?.timeout(ANSWER_TIMEOUT)).await?).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T> {
        read(self.send(self.request(Method::POST, path)?.json(body).timeout(ANSWER_TIMEOUT)).await?).await
    }

    /// A command for nodes, on a patient client.
    pub async fn command<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T> {
        read(self.send(self.request(Method::POST, path)?.json(body).timeout(COMMAND_TIMEOUT)).await?).await
    }

    pub async fn patch<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T> {
        read(self.send(self.request(Method::PATCH, path)?.json(body).timeout(ANSWER_TIMEOUT)).await?).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        read(self.send(self.request(Method::DELETE, path)?.timeout(ANSWER_TIMEOUT)).await?).await
    }

    /// A chat whose reply comes in parts.
    pub async fn chat(&self, body: &serde_json::Value) -> Result<stream::Events> {
        let response =
            self.send(self.request(Method::POST, &["v1", "chat", "completions"])?.json(body)).await?;
        Ok(stream::Events::new(response.bytes_stream()))
    }

    /// Words of the path may hold slashes, as ids of models do; those stay slashes.
    fn request(&self, method: Method, path: &[&str]) -> Result<RequestBuilder> {
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => {
                segments.pop_if_empty().extend(path.iter().flat_map(|word| word.split('/')));
            }
            Err(()) => bail!("{} is no base for paths", self.base),
        }
        Ok(self.http.request(method, url))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|e| self.unreachable(e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let text = response.text().await.unwrap_or_default();
        let failure = match serde_json::from_str::<openai_api::ErrorBody>(&text) {
            Ok(body) => ApiFailure {
                status,
                message: body.error.message,
                code: body.error.code,
                hint: body.error.hint,
            },
            Err(_) => ApiFailure {
                status,
                message: format!("{} answered {status} without an error body of ours", self.base()),
                code: None,
                hint: Some("check that this is the address of a router".to_owned()),
            },
        };
        Err(failure.into())
    }

    fn unreachable(&self, error: reqwest::Error) -> anyhow::Error {
        let what = if error.is_connect() {
            format!(
                "no router answers at {}\nhint: start one with `llm-router up`, or name another with --url",
                self.base()
            )
        } else {
            format!("the request to {} failed", self.base())
        };
        anyhow::Error::new(error.without_url()).context(what)
    }
}

/// Whether an address is of this machine itself.
pub fn is_loopback(address: &Url) -> bool {
    match address.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T> {
    let text = response.text().await.context("the answer broke off")?;
    serde_json::from_str(&text).context("the router answered something this version does not understand")
}
