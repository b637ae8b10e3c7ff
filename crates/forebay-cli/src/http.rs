//! A broker's HTTP endpoint, as a URL names it, and questions to it.

mod tls;

use std::io::{ErrorKind, Read};
use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder, Timeout};

use crate::consume::base64;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How long a connection may take, TLS included.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// How long a write may wait: a broker that works takes what it is sent, even if it answers later.
const WRITE_PATIENCE_S: u64 = 30;

/// How long a broker may take for an answer, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// For all of it.
    Whole(u64),
    /// Between one sign of life and the next: until the answer begins, and then for each further part. What is large may
    /// take its time.
    Silence(u64),
}

impl Patience {
    fn seconds(self) -> u64 {
        match self {
            Patience::Whole(seconds) | Patience::Silence(seconds) => seconds,
        }
    }

    fn limit<S>(self, request: RequestBuilder<S>) -> RequestBuilder<S> {
        let config = request.config();
        match self {
            Patience::Whole(whole_s) => config.timeout_global(Some(Duration::from_secs(whole_s))),
            Patience::Silence(silence_s) => config
                .timeout_per_read(Some(Duration::from_secs(silence_s)))
                .timeout_per_write(Some(Duration::from_secs(silence_s.min(WRITE_PATIENCE_S)))),
        }
        .build()
    }
}

/// `--http`: the broker that a command asks.
#[derive(clap::Args, Debug)]
pub(crate) struct HttpUrl {
    /// The broker's HTTP endpoint, with the name and password of a user tagged monitoring or administrator (for
    /// definitions administrator); `https://…?cacertfile=ca.pem` trusts the authorities in that file instead of
    /// the system's
    #[arg(
        long,
        value_name = "URL",
        env = "FOREBAY_HTTP_URL",
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

/// What is sent where no login is given: `guest:guest`.
const GUEST: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// A broker's HTTP endpoint, and who asks.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `http://HOST:PORT`, or with `https`.
    base: String,
    authorization: String,
    agent: Agent,
}

impl Endpoint {
    /// From a URL as people type it; `http://` may be left out, and the login if it is `guest:guest`. `https://` needs
    /// no port (443), and may name a PEM file of authorities to trust, `?cacertfile=FILE`.
    ///
    /// # Errors
    /// A sentence without the password.
    pub(crate) fn of(url: &str) -> Result<Endpoint, String> {
        let unreadable = |why: &str| {
            let shown = url.rsplit_once('@').map(|(_, host)| format!("…{host}"));
            format!("cannot read the URL {}: {why}", shown.as_deref().unwrap_or(url))
        };
        let (scheme, rest) = match url.strip_prefix("https://") {
            Some(rest) => ("https", rest),
            None => ("http", url.strip_prefix("http://").unwrap_or(url)),
        };
        if rest.contains("://") {
            return Err(unreadable("it must begin with http:// or https://"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let rest = rest.split('/').next().unwrap_or_default();
        let (login, host) = rest.rsplit_once('@').unwrap_or(("guest:guest", rest));
        let port = host.rsplit_once(':').filter(|_| !host.ends_with(']'));
        match port {
            Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => {}
            None if scheme == "https" && !host.is_empty() => {}
            _ => return Err(unreadable("it must name HOST:PORT, such as 127.0.0.1:15672")),
        }
        let decoded = |text: &str| decoded(text).ok_or_else(|| unreadable("bad percent-encoding"));
        let mut authorities = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("cacertfile", file)) if scheme == "https" => {
                    let file = String::from_utf8(decoded(file)?);
                    authorities = Some(file.map_err(|_| unreadable("a file's name is not UTF-8"))?);
                }
                _ => {
                    return Err(unreadable(
                        "the one parameter there is, is https's cacertfile=FILE",
                    ));
                }
            }
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_PATIENCE))
            .proxy(None);
        if scheme == "https" {
            config = config.tls_config(tls::trusting(authorities.as_deref())?);
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let login = [decoded(user)?, b":".to_vec(), decoded(password)?].concat();
        let authorization = format!("Basic {}", base64(&login));
        let agent = config.build().into();
        Ok(Endpoint { base: format!("{scheme}://{host}"), authorization, agent })
    }

    /// `http://HOST:PORT`, for sentences.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The same without `http://`, for people.
    pub(crate) fn host(&self) -> &str {
        self.base.split_once("://").map_or(&self.base, |(_, host)| host)
    }

    /// Asks for `path`; an answer, whatever its code.
    pub(crate) fn get(&self, path: &str, patience: Patience) -> Result<(u16, Vec<u8>), String> {
        let request = patience.limit(self.agent.get(self.url(path)));
        let request = request.header("Authorization", &self.authorization);
        self.taken(request.header("Connection", "close").call(), patience)
    }

    /// Sends a document to `path`.
    pub(crate) fn post(
        &self,
        path: &str,
        document: &Value,
        patience: Patience,
    ) -> Result<(u16, Vec<u8>), String> {
        let request = patience.limit(self.agent.post(self.url(path)));
        let request = request.header("Authorization", &self.authorization);
        let request = request.header("Connection", "close");
        let request = request.header("Content-Type", "application/json");
        self.taken(request.send(document.to_string()), patience)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn taken(
        &self,
        answer: Result<Response<Body>, ureq::Error>,
        patience: Patience,
    ) -> Result<(u16, Vec<u8>), String> {
        let answer = answer.map_err(|error| {
            format!("cannot reach {}: {}", self.base, sentence(&error, patience))
        })?;
        let code = answer.status().as_u16();
        let mut body = Vec::new();
        let mut reader = answer.into_body().into_reader().take(ANSWER_BYTES_MAX);
        let read = reader.read_to_end(&mut body);
        read.map_err(|error| match ureq::Error::from(error) {
            ureq::Error::Timeout(_) => {
                let seconds = patience.seconds();
                format!("{} broke off its answer: nothing more within {seconds} s", self.base)
            }
            error => format!("{} broke off its answer: {}", self.base, sentence(&error, patience)),
        })?;
        Ok((code, body))
    }

    /// What an answer that is a refusal says, as a sentence.
    pub(crate) fn refusal(&self, code: u16, body: &[u8]) -> String {
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let reason = answer["reason"].as_str().unwrap_or("no reason given");
        match code {
            300..=399 => format!(
                "{} sends its visitors elsewhere ({code}): give the URL that it really has, perhaps with https://",
                self.base
            ),
            // Most often nobody was named, and the broker has users of its own.
            401 if self.authorization == GUEST => format!(
                "{} refused the login: {reason}; that was guest's, `--http http://USER:PASSWORD@HOST:PORT` is another's",
                self.base
            ),
            401 => format!("{} refused the login: {reason}", self.base),
            404 => format!("{} has not what was asked for: {reason}", self.base),
            _ => format!("{} refused: {reason} ({code})", self.base),
        }
    }
}

/// Why nothing was answered.
fn sentence(error: &ureq::Error, patience: Patience) -> String {
    match error {
        ureq::Error::Io(io) if io.kind() == ErrorKind::ConnectionRefused => format!(
            "{io}; is a broker with its HTTP endpoint there? `forebay serve` starts one; `--http` or FOREBAY_HTTP_URL \
             names another"
        ),
        ureq::Error::Io(io) => tls::distrust(io).unwrap_or_else(|| io.to_string()),
        ureq::Error::Timeout(Timeout::Connect) => {
            let seconds = CONNECT_PATIENCE.as_secs();
            format!(
                "no connection within {seconds} s; if it is there, does it speak TLS (https) or not (http)?"
            )
        }
        ureq::Error::Protocol(_) => format!(
            "it does not speak HTTP ({error}); is it the AMQP port? `--http` names the HTTP endpoint, at port 15672 by default"
        ),
        ureq::Error::Timeout(Timeout::PerWrite) => {
            format!("it has taken nothing of the request for {WRITE_PATIENCE_S} s")
        }
        ureq::Error::Timeout(_) => format!("no answer within {} s", patience.seconds()),
        error => error.to_string(),
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
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    #[test]
    fn who_named_nobody_and_is_refused_is_told_how_to() {
        let refused = br#"{"reason":"login failed"}"#;
        let told = |url: &str| Endpoint::of(url).unwrap().refusal(401, refused);
        assert!(told("h:1").contains("`--http http://USER:PASSWORD@HOST:PORT`"), "{}", told("h:1"));
        assert!(told("http://ops:secret@h:1").ends_with("refused the login: login failed"));
    }

    #[test]
    fn urls_are_read_as_people_type_them() {
        for url in ["http://h:1", "h:1", "http://guest:guest@h:1/", "gue%73t:guest@h:1"] {
            let endpoint = Endpoint::of(url).unwrap();
            assert_eq!(endpoint.base, "http://h:1");
            assert_eq!(endpoint.authorization, GUEST);
        }
    }

    #[test]
    fn who_is_silent_is_told_after_the_patience_that_there_was() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::of(&silent.local_addr().unwrap().to_string()).unwrap();
        for patience in [Patience::Whole(1), Patience::Silence(1)] {
            let sentence = endpoint.get("/", patience).unwrap_err();
            assert!(sentence.ends_with(": no answer within 1 s"), "{sentence}");
        }
    }

    /// An endpoint that answers with these parts, half a second before each, and then says no more.
    fn slow(parts: &'static [&'static str]) -> (Endpoint, thread::JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::of(&listener.local_addr().unwrap().to_string()).unwrap();
        let answering = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            for part in parts {
                thread::sleep(Duration::from_millis(500));
                // Who asked may have gone.
                let _ = socket.write_all(part.as_bytes());
            }
            socket
        });
        (endpoint, answering)
    }

    #[test]
    fn a_large_answer_may_take_its_time_as_long_as_it_goes_on() {
        const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        let (endpoint, _answering) = slow(&[HEAD, "a", "b", "c", "d"]);
        let answer = endpoint.get("/", Patience::Silence(2)).unwrap();
        assert_eq!(answer, (200, b"abcd".to_vec()));
        let (endpoint, _answering) = slow(&[HEAD, "a", "b"]);
        let sentence = endpoint.get("/", Patience::Silence(2)).unwrap_err();
        assert!(sentence.ends_with(": nothing more within 2 s"), "{sentence}");
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for url in [
            "u:secret@h",
            "ftp://u:secret@h:1",
            "u:secret%@h:1",
            "https://u:secret@h:x",
            "https://u:secret@h?cacertfile=none.pem",
            "u:secret@h:1?cacertfile=ca.pem",
            "https://u:secret@h?verify=verify_none",
            ":1",
        ] {
            let sentence = Endpoint::of(url).unwrap_err();
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }
}
