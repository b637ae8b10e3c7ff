//! Short strings: a length octet and up to 255 bytes (clause 4.2.5.3).

use std::fmt;
use std::ops::Deref;

/// A short string, at most 255 bytes, borrowed. AMQP says UTF-8, and [names in requests](crate::Method::parse_request) are; routing
/// keys of messages are whatever their publishers say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ShortStr<'a>(&'a [u8]);

impl<'a> ShortStr<'a> {
    /// The longest short string, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Takes `bytes` as they are; `None` if there are more than 255.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() <= Self::MAX_BYTES { Some(Self(bytes)) } else { None }
    }

    /// The longest beginning of `text` that fits, cut between characters.
    pub const fn truncated(text: &'a str) -> Self {
        if text.len() <= Self::MAX_BYTES {
            return Self(text.as_bytes());
        }
        let mut end = Self::MAX_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(text.as_bytes().split_at(end).0)
    }

    /// The bytes, with the lifetime of what they were read from.
    #[inline]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The text, if it is UTF-8.
    pub const fn to_str(&self) -> Option<&'a str> {
        match std::str::from_utf8(self.0) {
            Ok(text) => Some(text),
            Err(_) => None,
        }
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes known to have been counted by one octet.
    #[inline]
    pub(crate) const fn counted(bytes: &'a [u8]) -> Self {
        debug_assert!(bytes.len() <= Self::MAX_BYTES);
        Self(bytes)
    }
}

impl Deref for ShortStr<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl AsRef<[u8]> for ShortStr<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

impl PartialEq<str> for ShortStr<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for ShortStr<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for ShortStr<'_> {
    /// The text; bytes that are not UTF-8 show as U+FFFD.
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

impl fmt::Debug for ShortStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_up_to_255_bytes_of_anything() {
        let bytes = [0xff; 256];
        assert_eq!(ShortStr::new(&bytes), None);
        let longest = ShortStr::new(&bytes[..255]).unwrap();
        assert_eq!(longest.len(), 255);
        assert_eq!(longest.to_str(), None);
        assert!(ShortStr::default().is_empty());
    }

    #[test]
    fn truncation_keeps_characters_whole() {
        assert_eq!(ShortStr::truncated("short"), "short");
        let text = "ä".repeat(128); // 256 bytes
        let cut = ShortStr::truncated(&text);
        assert_eq!(cut.to_str(), Some("ä".repeat(127).as_str()));
        assert_eq!(ShortStr::truncated(&"x".repeat(255)).len(), 255);
        assert_eq!(ShortStr::truncated(&"x".repeat(300)).len(), 255);
    }

    #[test]
    fn shows_what_is_not_text_without_failing() {
        let name = ShortStr::new(b"a\xffb").unwrap();
        assert_eq!(name.to_string(), "a\u{FFFD}b");
        assert_eq!(format!("{name:?}"), "\"a\u{FFFD}b\"");
    }
}
