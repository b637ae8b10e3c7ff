//! The part of RabbitMQ's management API that definitions need.

use std::fmt::Write as _;
use std::io::Read;

use minreq::{Request, ResponseLazy};
use serde_json::Value;

use crate::consume::base64;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How long the broker may take; an import syncs many declarations.
const PATIENCE_S: u64 = 600;

/// A broker's HTTP endpoint.
#[derive(Debug)]
pub(super) struct Api {
    /// `http://HOST:PORT`
    base: String,
    authorization: String,
}

/// What became of an import.
pub(super) struct Imported {
    /// How much is there now; RabbitMQ does not count.
    pub(super) declared: Option<u64>,
    /// A sentence each.
    pub(super) refused: Vec<String>,
}

impl Api {
    /// From a URL as people type it; `http://` may be left out.
    pub(super) fn of(url: &str) -> Result<Api, String> {
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
        Ok(Api { base: format!("http://{host}"), authorization })
    }

    /// A broker's definitions, or those of one virtual host.
    pub(super) fn export(&self, vhost: Option<&str>) -> Result<Value, String> {
        let (code, body) = self.send(minreq::get(self.path(vhost)))?;
        match code {
            200 => serde_json::from_slice(&body).map_err(|error| {
                format!("{} does not answer with definitions: {error}", self.base)
            }),
            _ => Err(self.refusal(code, &body)),
        }
    }

    /// Declares what is in a document.
    pub(super) fn import(&self, vhost: Option<&str>, document: &Value) -> Result<Imported, String> {
        let request = minreq::post(self.path(vhost))
            .with_header("Content-Type", "application/json")
            .with_body(document.to_string());
        let (code, body) = self.send(request)?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let declared = answer["declared"].as_u64();
        match (code, answer["refused"].as_array()) {
            (200..300, _) => Ok(Imported { declared, refused: Vec::new() }),
            (_, Some(refused)) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let sentence =
                    |each: &Value| format!("{}: {}", text(&each["what"]), text(&each["reason"]));
                Ok(Imported { declared, refused: refused.iter().map(sentence).collect() })
            }
            _ => Err(self.refusal(code, &body)),
        }
    }

    fn path(&self, vhost: Option<&str>) -> String {
        let mut path = format!("{}/api/definitions", self.base);
        if let Some(vhost) = vhost {
            path.push('/');
            for byte in vhost.bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    path.push(char::from(byte));
                } else {
                    let _ = write!(path, "%{byte:02X}");
                }
            }
        }
        path
    }

    fn send(&self, request: Request) -> Result<(u16, Vec<u8>), String> {
        let unreachable = |error: minreq::Error| format!("cannot reach {}: {error}", self.base);
        let request = request
            .with_header("Authorization", &*self.authorization)
            // Otherwise the end of an answer without length or body, such as RabbitMQ's 204, is not seen.
            .with_header("Connection", "close")
            .with_follow_redirects(false)
            .with_timeout(PATIENCE_S);
        let response: ResponseLazy = request.send_lazy().map_err(unreachable)?;
        let code = response.status_code;
        let mut body = Vec::new();
        response
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut body)
            .map_err(|error| format!("{} broke off its answer: {error}", self.base))?;
        Ok((code, body))
    }

    fn refusal(&self, code: u16, body: &[u8]) -> String {
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
            let api = Api::of(url).unwrap();
            assert_eq!(api.base, "http://h:1");
            assert_eq!(api.authorization, "Basic Z3Vlc3Q6Z3Vlc3Q=");
        }
        assert_eq!(Api::of("h:1").unwrap().path(Some("/")), "http://h:1/api/definitions/%2F");
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for url in ["https://u:secret@h:1", "u:secret@h", "ftp://h:1", "u:secret%@h:1", ":1"] {
            let sentence = Api::of(url).unwrap_err();
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }
}
