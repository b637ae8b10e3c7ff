//! The name of a thing: a queue or an exchange in a virtual host, as error texts say it.

use std::borrow::Cow;
use std::fmt;

/// Names under this prefix are the broker's own; clients may use them but not create them.
pub const RESERVED_PREFIX: &[u8] = b"amq.";

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResourceKind::Queue => "queue",
            ResourceKind::Exchange => "exchange",
        })
    }
}

/// A named thing, existing or not; shown as `queue 'q' in vhost '/'`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource<'a> {
    /// What it is.
    pub kind: ResourceKind,
    /// Its name, at most 255 bytes.
    pub name: &'a [u8],
    /// Where it is.
    pub vhost: &'a str,
}

impl<'a> Resource<'a> {
    /// A queue.
    pub const fn queue(name: &'a [u8], vhost: &'a str) -> Self {
        Resource { kind: ResourceKind::Queue, name, vhost }
    }

    /// An exchange.
    pub const fn exchange(name: &'a [u8], vhost: &'a str) -> Self {
        Resource { kind: ResourceKind::Exchange, name, vhost }
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}' in vhost '{}'", self.kind, Lossy(self.name), self.vhost)
    }
}

/// Bytes that are text by convention; what is not UTF-8 shows as U+FFFD.
#[derive(Clone, Copy, Debug)]
pub struct Lossy<'a>(pub &'a [u8]);

impl fmt::Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{FFFD}")?;
            }
        }
        Ok(())
    }
}

/// A name as it is kept: without carriage returns and line feeds, which RabbitMQ drops in declare,
/// delete, bind and unbind (but not in publish, consume, get and purge).
pub fn stripped(name: &[u8]) -> Cow<'_, [u8]> {
    let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    if name.iter().any(is_line_end) {
        Cow::Owned(name.iter().copied().filter(|byte| !is_line_end(byte)).collect())
    } else {
        Cow::Borrowed(name)
    }
}

/// Whether a name is one that only the broker may create.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_leave_names() {
        assert_eq!(&*stripped(b"a\r\nb\n"), b"ab");
        assert_eq!(&*stripped(b"\r"), b"");
        assert!(matches!(stripped(b"plain"), Cow::Borrowed(b"plain")));
    }

    #[test]
    fn only_the_whole_prefix_is_reserved() {
        assert!(is_reserved(b"amq.direct"));
        assert!(is_reserved(b"amq."));
        assert!(!is_reserved(b"amq"));
        assert!(!is_reserved(b"AMQ.direct"));
    }

    #[test]
    fn bytes_that_are_no_text_still_show() {
        assert_eq!(Resource::queue(b"q\xff", "/").to_string(), "queue 'q\u{FFFD}' in vhost '/'");
    }
}
