//! Requests to the hub. Redirects are followed here, since the token is for the hub alone and files lie with others.

use super::{Hub, Repository};
use crate::error::{Error, brief, escape};
use crate::json;
use serde_json::{Map, Value};
use std::io::Read;
use std::thread::sleep;
use std::time::Duration;
use ureq::http::{Response, Uri, header};
use ureq::{Agent, Body};

/// Redirects that are followed; the hub itself needs two.
const MAX_REDIRECTS: usize = 8;

/// A server that is silent for so long has gone away.
const SILENCE: Duration = Duration::from_secs(30);

/// A hub that does not even say what it has is asked once more after this.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a request did not succeed.
pub(super) enum Fault {
    /// It may succeed later.
    Passing(String),
    Lasting(String),
}

impl Fault {
    fn what(self) -> String {
        let (Fault::Passing(what) | Fault::Lasting(what)) = self;
        what
    }
}

/// Requests about one repository.
pub(super) struct Client<'a> {
    hub: &'a Hub,
    name: &'a Repository,
    agent: Agent,
}

impl<'a> Client<'a> {
    pub fn new(hub: &'a Hub, name: &'a Repository) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("glimmer/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE));
        Self { hub, name, agent: config.build().new_agent() }
    }

    /// What the hub says of the revision: its commit and its files.
    pub fn describe(&self) -> Result<Map<String, Value>, Error> {
        let (endpoint, id, revision) = (&self.hub.endpoint, &self.name.id, self.name.revision());
        let url = format!("{endpoint}/api/models/{id}/revision/{}?blobs=true", encoded(revision, false));
        let ask = || {
            let mut bytes = Vec::new();
            let body = self.get(&url, None)?.into_body().into_reader();
            match body.take(json::MAX_BYTES + 1).read_to_end(&mut bytes) {
                Ok(read) if read as u64 > json::MAX_BYTES => {
                    Err(Fault::Lasting(format!("the hub's answer has more than {} bytes", json::MAX_BYTES)))
                }
                Ok(_) => Ok(bytes),
                Err(error) => Err(Fault::Passing(format!("{endpoint}: {error}"))),
            }
        };
        let answer = ask().or_else(|fault| match fault {
            Fault::Passing(_) => {
                sleep(PAUSE);
                ask()
            }
            lasting => Err(lasting),
        });
        let bytes = answer.map_err(|fault| self.hub.failure(self.name, fault.what()))?;
        json::parse_object(&escape(&url), "answer", &bytes)
    }

    /// A file of a commit, from a byte on.
    pub fn file(&self, commit: &str, file: &str, from: u64) -> Result<Response<Body>, Fault> {
        let url = format!("{}/{}/resolve/{commit}/{}", self.hub.endpoint, self.name.id, encoded(file, true));
        self.get(&url, Some(from).filter(|&from| from > 0))
    }

    fn get(&self, url: &str, from: Option<u64>) -> Result<Response<Body>, Fault> {
        let mut url: Uri = url.parse().map_err(|_| Fault::Lasting(format!("{} is no address", brief(url))))?;
        let home = origin(&url);
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some(token) = self.hub.token.as_ref().filter(|_| origin(&url) == home) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let response = request.call().map_err(|error| fault(&url, error))?;
            match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => url = redirected(&url, &response)?,
                200 | 206 | 416 => return Ok(response),
                status => return Err(self.refused(&url, status, &response)),
            }
        }
        Err(Fault::Lasting(format!("{}: more than {MAX_REDIRECTS} redirects", host(&url))))
    }

    fn refused(&self, url: &Uri, status: u16, response: &Response<Body>) -> Fault {
        let (endpoint, id) = (&self.hub.endpoint, &self.name.id);
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        Fault::Lasting(match (status, code, &self.hub.token) {
            (408 | 429 | 500.., ..) => return Fault::Passing(format!("{}: HTTP status {status}", host(url))),
            (_, "RevisionNotFound", _) => format!("there is no revision `{}`", brief(self.name.revision())),
            (_, "GatedRepo", None) | (403, _, None) => {
                format!(
                    "access is granted on request: ask at {endpoint}/{id}, then set HF_TOKEN to a token of that account"
                )
            }
            (_, "GatedRepo", Some(_)) | (403, _, Some(_)) => {
                format!("the token has no access: ask for it at {endpoint}/{id}, with the account that HF_TOKEN is of")
            }
            (401, _, None) => {
                format!("not at {endpoint}, or private: check the name, or set HF_TOKEN to a token that may read it")
            }
            (401, _, Some(_)) => {
                format!("{endpoint} does not accept the token: HF_TOKEN has to be one that may read it")
            }
            (404, ..) if url.path().starts_with("/api/") => format!("there is no such repository at {endpoint}"),
            (404, ..) => format!("{} is listed, but is not there", brief(url.path())),
            _ => format!("{}: HTTP status {status}", host(url)),
        })
    }
}

/// Where a redirect leads.
fn redirected(url: &Uri, response: &Response<Body>) -> Result<Uri, Fault> {
    let location =
        response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok()).unwrap_or_default();
    let whole = match location.starts_with('/') && !location.starts_with("//") {
        true => format!("{}{location}", origin(url)),
        false => location.into(),
    };
    match whole.parse::<Uri>() {
        Ok(next) if matches!(next.scheme_str(), Some("https" | "http")) && next.authority().is_some() => Ok(next),
        _ => Err(Fault::Lasting(format!("{}: a redirect to `{}`", host(url), brief(location)))),
    }
}

/// What a token is for: scheme, host and port.
fn origin(url: &Uri) -> String {
    format!("{}://{}", url.scheme_str().unwrap_or_default(), host(url))
}

fn host(url: &Uri) -> &str {
    url.authority().map_or("", |authority| authority.as_str())
}

/// What went wrong before there was an answer. Only what a second try cannot change is lasting.
fn fault(url: &Uri, error: ureq::Error) -> Fault {
    use ureq::Error;
    let what = format!("cannot reach {}: {error}", host(url));
    match error {
        Error::Io(_) | Error::Timeout(_) | Error::ConnectionFailed | Error::HostNotFound | Error::Protocol(_) => {
            Fault::Passing(what)
        }
        _ => Fault::Lasting(what),
    }
}

/// As a part of a path has it; with its slashes where `slashes` says so.
fn encoded(text: &str, slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
            b'/' if slashes => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b/ü?#%.json", true), "a%20b/%C3%BC%3F%23%25.json");
    }

    #[test]
    fn a_token_is_for_one_host_and_port() {
        let of = |url: &str| origin(&url.parse().unwrap());
        assert_eq!(of("https://hub.co/a"), of("https://hub.co/b?c"));
        for other in ["http://hub.co/a", "https://hub.co:8443/a", "https://hub.co.evil/a", "https://evil@hub.co/a"] {
            assert_ne!(of("https://hub.co/a"), of(other), "{other}");
        }
    }
}
