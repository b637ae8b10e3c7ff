//! A broker's HTTP endpoint, as a URL names it, and questions to it.

use std::io::Read;

use minreq::{Request, ResponseLazy};
use serde_json::Value;

use crate::consume::base64;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// `--http`: the broker that a command asks.
#[derive(clap::Args, Debug)]
pub(crate) struct HttpUrl {
    /// The broker's HTTP endpoint, with the name and password of a user tagged monitoring or administrator
    #[arg(
        long,
        value_name = "URL",
        env = "FOREBAY_HTTP",
        hide_env_values = true,
        default_value = "http://guest:guest@127.0.0.1:15672"
    )]
    http: String,
}

impl HttpUrl {
    /// # Errors
    /// As [`Endpoint::of`].
    pub(crate) fn endpoint(&self) -> Result<Endpoint, String> {
        Endpoint::of(&self.http)
    }
}

/// A broker's HTTP endpoint, and who asks.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `http://HOST:PORT`
    base: String,
    authorization: String,
}

impl Endpoint {
    /// From a URL as people type it; `http://` may be left out, and the login if it is `guest:guest`.
    ///
    /// # Errors
    /// A sentence without the password.
    pub(crate) fn of(url: &str) -> Result<Endpoint, String> {
        let unreadable = |why: &str| {
            let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
            format!("cannot read the URL …{shown}: {why}")
        };
        if url.starts_with("https://") {
            return Err(unreadable("this version speaks plain HTTP only; use a tunnel"));
        }
        let rest = url.strip_prefix("http://").unwrap_or(url);
        if rest.contains("://") {
            return Err(unreadable("it must begin with http://"));
        }
        let rest = rest.split(['/', '?']).next().unwrap_or_default();
        let (login, host) = rest.rsplit_once('@').unwrap_or(("guest:guest", rest));
        let port = host.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>()));
        if !matches!(port, Some((name, Ok(_))) if !name.is_empty()) {
            return Err(unreadable("it must name HOST:PORT, such as 127.0.0.1:15672"));
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let decoded = |text: &str| decoded(text).ok_or_else(|| unreadable("bad percent-encoding"));
        let login = [decoded(user)?, b":".to_vec(), decoded(password)?].concat();
        let authorization = format!("Basic {}", base64(&login));
        Ok(Endpoint { base: format!("http://{host}"), authorization })
    }

    /// `http://HOST:PORT`, for sentences.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Asks for `path`; an answer, whatever its code, within `patience_s` seconds.
    pub(crate) fn get(&self, path: &str, patience_s: u64) -> Result<(u16, Vec<u8>), String> {
        self.send(minreq::get(self.url(path)), patience_s)
    }

    /// Sends a document to `path`.
    pub(crate) fn post(
        &self,
        path: &str,
        document: &Value,
        patience_s: u64,
    ) -> Result<(u16, Vec<u8>), String> {
        let request = minreq::post(self.url(path))
            .with_header("Content-Type", "application/json")
            .with_body(document.to_string());
        self.send(request, patience_s)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn send(&self, request: Request, patience_s: u64) -> Result<(u16, Vec<u8>), String> {
        let unreachable = |error: minreq::Error| format!("cannot reach {}: {error}", self.base);
        let request = request
            .with_header("Authorization", &*self.authorization)
            // Otherwise the end of an answer without length or body, such as RabbitMQ's 204, is not seen.
            .with_header("Connection", "close")
            .with_follow_redirects(false)
            .with_timeout(patience_s);
        let response: ResponseLazy = request.send_lazy().map_err(unreachable)?;
        let code = response.status_code;
        let mut body = Vec::new();
        response
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut body)
            .map_err(|error| format!("{} broke off its answer: {error}", self.base))?;
        Ok((code, body))
    }

    /// What an answer that is a refusal says, as a sentence.
    pub(crate) fn refusal(&self, code: u16, body: &[u8]) -> String {
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let reason = answer["reason"].as_str().unwrap_or("no reason given");
        match code {
            401 => format!("{} refused the login: {reason}", self.base),
            404 => format!("{} has not what was asked for: {reason}", self.base),
            _ => format!("{} refused: {reason} ({code})", self.base),
        }
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_people_type_them() {
        for url in ["http://h:1", "h:1", "http://guest:guest@h:1/", "gue%73t:guest@h:1"] {
            let endpoint = Endpoint::of(url).unwrap();
            assert_eq!(endpoint.base, "http://h:1");
            assert_eq!(endpoint.authorization, "Basic Z3Vlc3Q6Z3Vlc3Q=");
        }
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for url in ["https://u:secret@h:1", "u:secret@h", "ftp://h:1", "u:secret%@h:1", ":1"] {
            let sentence = Endpoint::of(url).unwrap_err();
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }
}
