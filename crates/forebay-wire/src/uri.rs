//! AMQP URIs as RabbitMQ specifies them.
//!
//! ```text
//!  amqp[s]://[user[:password]@]host[:port][,host[:port]...][/vhost][?key=value&key=value...]
//! ```
//!
//! User, password, host and vhost are percent-encoded. Without a path the vhost is not given and
//! defaults to `/`; the path `/` alone names the vhost with the empty name; `/%2f` names `/`.
//!
//! Parameters are those of RabbitMQ's clients, whether anybody here heeds them or not. Another one is refused: `cacertfiel`
//! would otherwise be a file of authorities that nobody reads.

mod shown;

use std::fmt;

/// Port of `amqp://` when none is given.
const PORT_PLAIN: u16 = 5672;
/// Port of `amqps://` when none is given.
const PORT_TLS: u16 = 5671;

/// Parameters that are kept as they are, in [`AmqpUri::other_parameters`].
const OTHER_PARAMETERS: [&str; 10] = [
    "auth_mechanism",
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
    "password",
    "depth",
    "fail_if_no_peer_cert",
    "idle_time_out",
];

/// Where a broker is and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct AmqpUri {
    /// Host name or address of the (first) broker, without the brackets of an IPv6 literal.
    pub host: String,
    /// Its port; 5672, or 5671 with TLS, when not given.
    pub port: u16,
    /// More hosts of a comma-separated list, to be tried in order.
    pub more_hosts: Vec<(String, u16)>,
    /// Whether the scheme is `amqps`.
    pub tls: bool,
    /// `guest` when not given.
    pub username: String,
    /// `guest` when no user information is given.
    pub password: String,
    /// `/` when not given; may be empty.
    pub vhost: String,
    /// `heartbeat`: the interval to ask for, in seconds; 0 = none.
    pub heartbeat_s: Option<u16>,
    /// `connection_timeout`: how long connecting may take, in milliseconds.
    pub connection_timeout_ms: Option<u32>,
    /// `channel_max`: the limit to ask for; 0 = the server's.
    pub channel_max: Option<u16>,
    /// `frame_max`: the limit to ask for, in bytes; 0 = the server's.
    pub frame_max_bytes: Option<u32>,
    /// The other query parameters that RabbitMQ's clients know, such as `cacertfile`; decoded, in order.
    pub other_parameters: Vec<(String, String)>,
}

impl Default for AmqpUri {
    /// `amqp://localhost`.
    fn default() -> Self {
        Self {
            host: "localhost".to_owned(),
            port: PORT_PLAIN,
            more_hosts: Vec::new(),
            tls: false,
            username: "guest".to_owned(),
            password: "guest".to_owned(),
            vhost: "/".to_owned(),
            heartbeat_s: None,
            connection_timeout_ms: None,
            channel_max: None,
            frame_max_bytes: None,
            other_parameters: Vec::new(),
        }
    }
}

/// Why a text is no AMQP URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UriError {
    /// It begins with neither `amqp://` nor `amqps://`.
    Scheme,
    /// A `%` is not followed by two hexadecimal digits, or the bytes are not UTF-8.
    Encoding(&'static str),
    /// A port is not a number from 1 to 65535.
    Port(String),
    /// An IPv6 address is not closed by `]`, or something other than a port follows it.
    Address(String),
    /// The path has more than one segment; a `/` in a vhost is written `%2f`.
    Path,
    /// The user name or password has a `/`, `?` or `#` in it, so what is before it was taken for the host.
    Login,
    /// A known parameter is not a number, or out of its range.
    Parameter {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: String,
    },
    /// There is no parameter of this name.
    UnknownParameter(String),
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => write!(f, "the URI must begin with amqp:// or amqps://"),
            Self::Encoding(part) => write!(f, "the {part} in the URI is not percent-encoded UTF-8"),
            Self::Port(text) => {
                write!(f, "port '{text}' in the URI is not a number from 1 to 65535")
            }
            Self::Address(text) => {
                write!(f, "'{text}' in the URI is not an IPv6 address in brackets")
            }
            Self::Path => {
                write!(f, "the vhost in the URI contains '/'; write it as %2f")
            }
            Self::Login => write!(
                f,
                "the user name or password in the URI contains '/', '?' or '#'; write them as %2f, %3f and %23"
            ),
            Self::Parameter { name, value } => {
                write!(f, "parameter {name} of the URI cannot be '{value}'")
            }
            Self::UnknownParameter(name) => write!(
                f,
                "the URL has an unknown parameter `{name}`; there are heartbeat, connection_timeout, channel_max, \
                 frame_max, {}",
                OTHER_PARAMETERS.join(", ")
            ),
        }
    }
}

impl std::error::Error for UriError {}

impl AmqpUri {
    /// Reads a URI.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Scheme)?;
        let tls = match scheme {
            _ if scheme.eq_ignore_ascii_case("amqp") => false,
            _ if scheme.eq_ignore_ascii_case("amqps") => true,
            _ => return Err(UriError::Scheme),
        };
        let mut uri = Self { tls, ..Self::default() };

        let rest = rest.split_once('#').map_or(rest, |(before, _fragment)| before);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, vhost) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        // A login that ends early leaves its `@` behind; what it was cut into is not for anybody to see.
        let is_cut = !authority.contains('@') && text.contains('@');
        if let Some(vhost) = vhost {
            if vhost.contains('/') {
                return Err(if is_cut { UriError::Login } else { UriError::Path });
            }
            uri.vhost = percent_decoded(vhost, "vhost")?;
        }

        let hosts = match authority.rsplit_once('@') {
            Some((user_info, hosts)) => {
                let (username, password) = user_info.split_once(':').unwrap_or((user_info, ""));
                uri.username = percent_decoded(username, "user name")?;
                uri.password = percent_decoded(password, "password")?;
                hosts
            }
            None => authority,
        };
        let mut hosts = hosts.split(',').map(|host| {
            host_and_port(host, tls).map_err(|error| if is_cut { UriError::Login } else { error })
        });
        if let Some(first) = hosts.next() {
            (uri.host, uri.port) = first?;
        }
        uri.more_hosts = hosts.collect::<Result<_, _>>()?;

        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = percent_decoded(name, "query")?;
            let value = percent_decoded(value, "query")?;
            match name.as_str() {
                "heartbeat" => uri.heartbeat_s = Some(number("heartbeat", value)?),
                "connection_timeout" => {
                    uri.connection_timeout_ms = Some(number("connection_timeout", value)?);
                }
                "channel_max" => uri.channel_max = Some(number("channel_max", value)?),
                "frame_max" => uri.frame_max_bytes = Some(number("frame_max", value)?),
                known if OTHER_PARAMETERS.contains(&known) => {
                    uri.other_parameters.push((name, value));
                }
                _ if is_cut => return Err(UriError::Login),
                _ => return Err(UriError::UnknownParameter(name)),
            }
        }
        Ok(uri)
    }

    /// All hosts with their ports, in the order given.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, u16)> {
        std::iter::once((self.host.as_str(), self.port))
            .chain(self.more_hosts.iter().map(|(host, port)| (host.as_str(), *port)))
    }

    fn shown_parameters(&self) -> Vec<(&str, &str)> {
        let hidden = |name: &str| name == "password";
        let all = self.other_parameters.iter();
        all.map(|(name, value)| (&name[..], if hidden(name) { "***" } else { value })).collect()
    }
}

impl std::str::FromStr for AmqpUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::parse(text)
    }
}

impl fmt::Debug for AmqpUri {
    /// Like the derived one, but for passwords: they shall not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpUri")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("more_hosts", &self.more_hosts)
            .field("tls", &self.tls)
            .field("username", &self.username)
            .field("password", &"***")
            .field("vhost", &self.vhost)
            .field("heartbeat_s", &self.heartbeat_s)
            .field("connection_timeout_ms", &self.connection_timeout_ms)
            .field("channel_max", &self.channel_max)
            .field("frame_max_bytes", &self.frame_max_bytes)
            .field("other_parameters", &self.shown_parameters())
            .finish()
    }
}

fn host_and_port(text: &str, tls: bool) -> Result<(String, u16), UriError> {
    let (host, port) = if let Some(literal) = text.strip_prefix('[') {
        let (host, after) =
            literal.split_once(']').ok_or_else(|| UriError::Address(text.to_owned()))?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(UriError::Address(text.to_owned())),
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        // RFC 3986 allows the colon without a port.
        None | Some("") => {
            if tls {
                PORT_TLS
            } else {
                PORT_PLAIN
            }
        }
        Some(digits) => digits
            .parse()
            .ok()
            .filter(|port| *port != 0 && digits.bytes().all(|b| b.is_ascii_digit()))
            .ok_or_else(|| UriError::Port(digits.to_owned()))?,
    };
    let host = percent_decoded(host, "host")?;
    Ok((if host.is_empty() { "localhost".to_owned() } else { host }, port))
}

fn number<T: std::str::FromStr>(name: &'static str, value: String) -> Result<T, UriError> {
    match value.parse() {
        Ok(number) if value.bytes().all(|b| b.is_ascii_digit()) => Ok(number),
        _ => Err(UriError::Parameter { name, value }),
    }
}

fn percent_decoded(text: &str, part: &'static str) -> Result<String, UriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [] => break,
            [b'%', high, low, after @ ..] => {
                let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
                let (high, low) = digit(*high).zip(digit(*low)).ok_or(UriError::Encoding(part))?;
                bytes.push(high << 4 | low);
                rest = after;
            }
            [b'%', ..] => return Err(UriError::Encoding(part)),
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| UriError::Encoding(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scheme aside, what the examples in RabbitMQ's specification come to.
    #[track_caller]
    fn check(text: &str, user: &str, password: &str, host: &str, port: u16, vhost: &str) {
        let uri = AmqpUri::parse(text).unwrap();
        assert_eq!((uri.username.as_str(), uri.password.as_str()), (user, password));
        assert_eq!((uri.host.as_str(), uri.port, uri.vhost.as_str()), (host, port, vhost));
    }

    #[test]
    fn a_password_that_is_not_escaped_is_not_shown() {
        for text in [
            "amqp://shop:se/cret@host",
            "amqp://shop:se?cret@host",
            "amqp://shop:5?cret=@host",
            "amqp://a:b/c/d@host",
        ] {
            assert_eq!(AmqpUri::parse(text), Err(UriError::Login), "{text}");
        }
        check("amqp://host/v@x", "guest", "guest", "host", 5672, "v@x");
    }

    #[test]
    fn the_parts_are_as_rabbitmq_specifies() {
        check("amqp://user:pass@host:10000/vhost", "user", "pass", "host", 10000, "vhost");
        check(
            "amqp://user%61:%61pass@ho%61st:10000/v%2fhost",
            "usera",
            "apass",
            "hoast",
            10000,
            "v/host",
        );
        check("amqp://", "guest", "guest", "localhost", 5672, "/");
        check("amqp://:@/", "", "", "localhost", 5672, "");
        check("amqp://user@", "user", "", "localhost", 5672, "/");
        check("amqp://user:pass@", "user", "pass", "localhost", 5672, "/");
        check("amqp://host", "guest", "guest", "host", 5672, "/");
        check("amqp://:10000", "guest", "guest", "localhost", 10000, "/");
        check("amqp:///vhost", "guest", "guest", "localhost", 5672, "vhost");
        check("amqp://host/", "guest", "guest", "host", 5672, "");
        check("amqp://host/%2F", "guest", "guest", "host", 5672, "/");
        check("amqp://[::1]", "guest", "guest", "::1", 5672, "/");
        check("amqp://[::1]:5673/%2f", "guest", "guest", "::1", 5673, "/");
        check("amqps://host", "guest", "guest", "host", 5671, "/");
        check("AMQP://host:", "guest", "guest", "host", 5672, "/");
        check("amqp://u:p@ss@host", "u", "p@ss", "host", 5672, "/");
    }

    #[test]
    fn parameters_are_read_with_their_units() {
        let uri = AmqpUri::parse(
            "amqp://host?heartbeat=10&connection_timeout=30000&channel_max=7&frame_max=4096&password=%26",
        )
        .unwrap();
        assert_eq!(uri.heartbeat_s, Some(10));
        assert_eq!(uri.connection_timeout_ms, Some(30_000));
        assert_eq!((uri.channel_max, uri.frame_max_bytes), (Some(7), Some(4096)));
        assert_eq!(uri.other_parameters, [("password".to_owned(), "&".to_owned())]);
        assert_eq!(uri.vhost, "/");
    }

    #[test]
    fn parameters_of_rabbitmqs_clients_are_taken_and_others_are_not() {
        for name in OTHER_PARAMETERS {
            let uri = AmqpUri::parse(&format!("amqps://host?{name}=x")).unwrap();
            assert_eq!(uri.other_parameters, [(name.to_owned(), "x".to_owned())]);
        }
        let error = AmqpUri::parse("amqps://host?heartbeat=5&cacertfiel=ca.pem").unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("the URL has an unknown parameter `cacertfiel`; there are "));
        assert!(message.contains(" heartbeat, ") && message.contains(" cacertfile, "), "{message}");
    }

    #[test]
    fn several_hosts_share_the_rest() {
        let uri: AmqpUri = "amqps://u:p@a,b:1,[::1]:2/v".parse().unwrap();
        assert!(uri.tls);
        let hosts: Vec<_> = uri.hosts().collect();
        assert_eq!(hosts, [("a", 5671), ("b", 1), ("::1", 2)]);
        assert_eq!(uri.vhost, "v");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, message) in [
            ("localhost", "the URI must begin with amqp:// or amqps://"),
            ("http://host", "the URI must begin with amqp:// or amqps://"),
            ("amqp://host:0", "port '0' in the URI is not a number from 1 to 65535"),
            ("amqp://host:+1", "port '+1' in the URI is not a number from 1 to 65535"),
            ("amqp://host:65536", "port '65536' in the URI is not a number from 1 to 65535"),
            ("amqp://[::1", "'[::1' in the URI is not an IPv6 address in brackets"),
            ("amqp://[::1]x", "'[::1]x' in the URI is not an IPv6 address in brackets"),
            ("amqp://host/a/b", "the vhost in the URI contains '/'; write it as %2f"),
            ("amqp://%zz@host", "the user name in the URI is not percent-encoded UTF-8"),
            ("amqp://host/%f", "the vhost in the URI is not percent-encoded UTF-8"),
            ("amqp://host/%ff", "the vhost in the URI is not percent-encoded UTF-8"),
            ("amqp://h?heartbeat=x", "parameter heartbeat of the URI cannot be 'x'"),
            ("amqp://h?heartbeat=70000", "parameter heartbeat of the URI cannot be '70000'"),
        ] {
            assert_eq!(AmqpUri::parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let uri = AmqpUri::parse("amqps://u:sesame@host?keyfile=k&password=sesame").unwrap();
        assert!(!format!("{uri:?}").contains("sesame"));
    }
}
