//! The head of a request: its first line and its headers.
//!
//! ```text
//!   POST /api/definitions?a=b HTTP/1.1 CRLF      method, path (the query is not ours)
//!   Authorization: Basic Z3Vlc3Q6Z3Vlc3Q= CRLF
//!   Content-Length: 512 CRLF                     else there is no body
//!   Expect: 100-continue CRLF                    the body comes when it is asked for
//!   CRLF
//! ```
//!
//! Bodies of unknown length (`Transfer-Encoding`) are refused, so where a request ends is never a question:
//! RFC 9112, sections 3 and 6.

/// Largest head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most headers.
const HEADERS_MAX: usize = 64;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
    /// Nothing here answers it.
    Other,
}

/// What of a head is of use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// Without the query.
    pub(crate) path: String,
    /// The header of that name.
    pub(crate) authorization: Option<String>,
    /// Bytes that follow; nothing is yet known of whether they are too many.
    pub(crate) body_bytes: u64,
    /// The client sends the body when it is told to go on.
    pub(crate) expects_continue: bool,
}

/// A head that cannot be answered as it was meant: a status code and what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) u16, pub(crate) &'static str);

/// A head at the front of `bytes`, and its length; `None` if its end has not come yet.
///
/// # Errors
/// It is no head of HTTP/1, has more than [`HEAD_BYTES_MAX`] bytes or [`HEADERS_MAX`] headers, or does not say how long
/// its body is.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head_bytes = match request.parse(bytes) {
        Ok(httparse::Status::Complete(head_bytes)) if head_bytes <= HEAD_BYTES_MAX => head_bytes,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) => return Err(Malformed(431, "the head has more than 16 KiB")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Malformed(431, "there are more than 64 headers"));
        }
        Err(httparse::Error::Version) => {
            return Err(Malformed(505, "HTTP/1.1 and HTTP/1.0 are spoken here"));
        }
        Err(_) => return Err(Malformed(400, "this is not a request of HTTP/1.1")),
    };
    let mut head = Head {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("POST") => Method::Post,
            _ => Method::Other,
        },
        path: request.path.and_then(|path| path.split('?').next()).unwrap_or_default().to_owned(),
        authorization: None,
        body_bytes: 0,
        expects_continue: false,
    };
    let mut length = None;
    for header in request.headers {
        let is = |name| header.name.eq_ignore_ascii_case(name);
        let text = || std::str::from_utf8(header.value).unwrap_or_default().trim();
        if is("Authorization") {
            head.authorization = Some(text().to_owned());
        } else if is("Expect") {
            head.expects_continue |= text().eq_ignore_ascii_case("100-continue");
        } else if is("Transfer-Encoding") {
            return Err(Malformed(411, "the body's length must be given by Content-Length"));
        } else if is("Content-Length") {
            let digits = !text().is_empty() && text().bytes().all(|byte| byte.is_ascii_digit());
            let bytes = digits.then(|| text().parse::<u64>().unwrap_or(u64::MAX));
            if bytes.is_none() || length.is_some_and(|before| Some(before) != bytes) {
                return Err(Malformed(400, "Content-Length is not one number"));
            }
            length = bytes;
        }
    }
    head.body_bytes = length.unwrap_or(0);
    Ok(Some((head, head_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Head {
        parse(text.as_bytes()).unwrap().unwrap().0
    }

    fn code(text: &str) -> u16 {
        parse(text.as_bytes()).unwrap_err().0
    }

    #[test]
    fn the_parts_of_a_head_are_found_whatever_their_case() {
        let text = "POST /api/definitions?x=1 HTTP/1.1\r\nhost: x\r\nAUTHORIZATION: Basic abc\r\n\
                    content-length: 12\r\nexpect: 100-Continue\r\n\r\nthe body";
        let (head, bytes) = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(&text[bytes..], "the body");
        let wanted = Head {
            method: Method::Post,
            path: "/api/definitions".into(),
            authorization: Some("Basic abc".into()),
            body_bytes: 12,
            expects_continue: true,
        };
        assert_eq!(head, wanted);
        assert_eq!(parsed("HEAD / HTTP/1.0\r\n\r\n").method, Method::Head);
        assert_eq!(parsed("BREW / HTTP/1.1\r\n\r\n").method, Method::Other);
    }

    #[test]
    fn a_length_of_any_size_is_a_number_and_nothing_else_is() {
        let with = |length| format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(parsed(&with("18446744073709551615")).body_bytes, u64::MAX);
        assert_eq!(parsed(&with("99999999999999999999999")).body_bytes, u64::MAX);
        for wrong in ["", "-1", "+1", "1 2", "0x10", "1\r\nContent-Length: 2"] {
            assert_eq!(code(&with(wrong)), 400, "{wrong:?}");
        }
        assert_eq!(parsed(&with("1\r\nContent-Length: 1")).body_bytes, 1);
        assert_eq!(code("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 411);
    }

    #[test]
    fn a_head_without_end_is_given_up_at_its_largest_size() {
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(parse(&endless.as_bytes()[..HEAD_BYTES_MAX - 1]), Ok(None));
        assert_eq!(parse(&endless.as_bytes()[..HEAD_BYTES_MAX]).unwrap_err().0, 431);
        assert_eq!(code(&format!("{endless}\r\n\r\n")), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(code(&many), 431);
        assert_eq!(code("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(code("\u{16}\u{3}\u{1}\r\n\r\n"), 400, "TLS");
    }

    proptest! {
        /// Whatever comes, there is an answer, and it is the same however the bytes were cut.
        #[test]
        fn any_bytes_are_a_head_or_a_part_of_one_or_refused(bytes: Vec<u8>, cut: prop::sample::Index) {
            let whole = parse(&bytes);
            if let Ok(None) = parse(&bytes[..cut.index(bytes.len() + 1)]) {
                return Ok(());
            }
            prop_assert_eq!(parse(&bytes[..cut.index(bytes.len() + 1)]).is_err(), whole.is_err());
        }

        #[test]
        fn no_proper_front_of_a_head_is_a_head(
            name in "[a-zA-Z][a-zA-Z-]{0,20}", value in "[ -~]{0,40}", cut: prop::sample::Index,
        ) {
            let text = format!("GET /metrics HTTP/1.1\r\nX-{name}: {value}\r\n\r\n");
            prop_assert_eq!(parse(&text.as_bytes()[..cut.index(text.len())]), Ok(None));
            prop_assert_eq!(parsed(&text).path, "/metrics");
        }
    }
}
