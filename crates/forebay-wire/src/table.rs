//! Field tables: names with typed values (clause 4.2.5.5), kept as the bytes they came in.
//!
//! ```text
//!  +--------+----------------------------------------------------------+
//!  | length | pair pair pair ...                                       |
//!  | u32    | `length` bytes = Table::raw                              |
//!  +--------+----------------------------------------------------------+
//!             pair = name (u8 length, bytes), tag u8, value (value.rs)
//! ```
//!
//! A broker hands most tables on untouched and looks at a key or two of some. So a table is checked
//! once as a whole, stays bytes, and is walked when somebody asks. A copy is exact: order, duplicate
//! names, odd integer widths and NaN bits included.

use std::fmt;

use crate::reader::Reader;
use crate::{ShortStr, Value};

/// How deep tables and arrays may nest; the outermost table is 1. RabbitMQ has no limit; real
/// headers reach 3 (`x-death` is an array of tables), so the bound only meets attacks on the stack.
pub const TABLE_DEPTH_MAX: usize = 64;

/// Why bytes are not a table. 502 `SYNTAX_ERROR` for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// A length reaches over the end of the bytes, or a pair is cut short.
    Truncated,
    /// No value type has this tag.
    UnknownTag(u8),
    /// Tables and arrays nest deeper than [`TABLE_DEPTH_MAX`].
    TooDeep,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "a field table ends in the middle of an entry"),
            Self::UnknownTag(tag) => {
                write!(f, "unknown field type '{}' in a field table", tag.escape_ascii())
            }
            Self::TooDeep => {
                write!(f, "field tables and arrays are nested deeper than {TABLE_DEPTH_MAX} levels")
            }
        }
    }
}

impl std::error::Error for TableError {}

/// A validated field table, borrowed; equal when the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Table<'a> {
    raw: &'a [u8],
}

impl<'a> Table<'a> {
    /// Checks that `raw`, the contents without the length, is a table through and through.
    #[inline]
    pub fn validate(raw: &'a [u8]) -> Result<Self, TableError> {
        Self::check(raw, 1)?;
        Ok(Self { raw })
    }

    /// Reads a table with its length in front; also returns what follows it.
    #[inline]
    pub fn parse_prefixed(input: &'a [u8]) -> Result<(Self, &'a [u8]), TableError> {
        let mut reader = Reader::new(input);
        let raw = reader.longstr().ok_or(TableError::Truncated)?;
        Ok((Self::validate(raw)?, reader.rest))
    }

    /// The contents without the length.
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are no pairs.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The pairs in order; a name may come twice.
    pub fn iter(&self) -> impl Iterator<Item = (ShortStr<'a>, Value<'a>)> + Clone + use<'a> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || Some((reader.shortstr()?, Value::read(&mut reader)?)))
    }

    /// The first value with this name.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<Value<'a>> {
        let name = name.as_ref();
        self.iter().find(|(key, _)| key.as_bytes() == name).map(|(_, value)| value)
    }

    pub(crate) fn check(raw: &[u8], depth: usize) -> Result<(), TableError> {
        let mut reader = Reader::new(raw);
        while !reader.rest.is_empty() {
            reader.shortstr().ok_or(TableError::Truncated)?;
            Value::check(&mut reader, depth)?;
        }
        Ok(())
    }

    /// Contents that were validated as part of something larger.
    pub(crate) const fn trusted(raw: &'a [u8]) -> Self {
        Self { raw }
    }
}

impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A table being built: the pairs, already encoded.
///
/// ```
/// use forebay_wire::{TableBuf, Value};
/// let inner = TableBuf::new().with("confirms", Value::Bool(true));
/// let outer = TableBuf::new()
///     .with("product", Value::LongStr(b"Forebay"))
///     .with("capabilities", Value::Table(inner.as_table()));
/// assert_eq!(outer.as_table().get("product"), Some(Value::LongStr(b"Forebay")));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct TableBuf(Vec<u8>);

impl TableBuf {
    /// An empty table.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a pair. A name over 255 bytes is cut there. Depth is not checked: whoever nests
    /// deeper than [`TABLE_DEPTH_MAX`] builds a table that readers refuse.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: Value<'_>) {
        let name = name.as_ref();
        let name = &name[..name.len().min(ShortStr::MAX_BYTES)];
        self.0.push(name.len() as u8);
        self.0.extend_from_slice(name);
        value.encode(&mut self.0);
    }

    /// [`push`](Self::push) as a chain.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<[u8]>, value: Value<'_>) -> Self {
        self.push(name, value);
        self
    }

    /// What has been built so far.
    pub const fn as_table(&self) -> Table<'_> {
        Table { raw: self.0.as_slice() }
    }

    /// Whether there are no pairs.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Table<'_>> for TableBuf {
    fn from(table: Table<'_>) -> Self {
        Self(table.raw.to_vec())
    }
}

impl fmt::Debug for TableBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_table().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> Vec<u8> {
        let mut raw = Vec::new();
        for _ in 1..levels {
            let mut outer = b"\x01nF".to_vec();
            outer.extend_from_slice(&(raw.len() as u32).to_be_bytes());
            outer.extend_from_slice(&raw);
            raw = outer;
        }
        raw
    }

    #[test]
    fn a_copy_is_exact_in_order_duplicates_and_odd_encodings() {
        // true as 7, a NaN with a payload, 'L', a name twice.
        let raw = b"\x01at\x07\x01af\x7f\xc0\0\x01\x01bL\0\0\0\0\0\0\0\x01";
        let table = Table::validate(raw).unwrap();
        assert_eq!(table.raw(), raw);
        assert_eq!(table.get("a"), Some(Value::Bool(true)));
        assert_eq!(table.get("b"), Some(Value::I64(1)));
        assert_eq!(table.get("c"), None);
        assert_eq!(table.iter().count(), 3);
        assert_eq!(TableBuf::from(table).as_table(), table);
    }

    #[test]
    fn nesting_is_allowed_to_the_limit_and_no_further() {
        let deepest = nested(TABLE_DEPTH_MAX);
        assert!(Table::validate(&deepest).is_ok());
        assert_eq!(Table::validate(&nested(TABLE_DEPTH_MAX + 1)), Err(TableError::TooDeep));
        // No stack is spent on what lies below.
        assert_eq!(Table::validate(&nested(3_000)), Err(TableError::TooDeep));
    }

    #[test]
    fn lengths_are_checked_inside_and_out() {
        for raw in [
            &b"\x05a"[..],             // name over the end
            b"\x01a",                  // no tag
            b"\x01aS\0\0\0\x05abc",    // string over the end
            b"\x01aF\0\0\0\x02\x01bV", // nested table cut by its own length
            b"\x01aA\0\0\0\x01tt",     // nested array likewise
            b"\x01aS\xff\xff\xff\xffabc",
        ] {
            assert_eq!(Table::validate(raw), Err(TableError::Truncated), "{}", raw.escape_ascii());
        }
        assert_eq!(Table::parse_prefixed(b"\0\0\0\x04\x01aV"), Err(TableError::Truncated));
        let (table, rest) = Table::parse_prefixed(b"\0\0\0\x03\x01aV!").unwrap();
        assert_eq!((table.raw(), rest), (&b"\x01aV"[..], &b"!"[..]));
    }

    #[test]
    fn a_name_over_255_bytes_is_cut_when_building() {
        let buf = TableBuf::new().with("n".repeat(300), Value::Void);
        let table = Table::validate(buf.as_table().raw()).unwrap();
        assert_eq!(table.iter().next().unwrap().0.len(), 255);
    }

    #[test]
    fn shows_as_a_map() {
        let buf = TableBuf::new().with("a", Value::U8(1)).with("b", Value::Void);
        assert!(!buf.is_empty());
        assert_eq!(format!("{buf:?}"), r#"{"a": U8(1), "b": Void}"#);
        assert_eq!(
            TableError::UnknownTag(b'U').to_string(),
            "unknown field type 'U' in a field table"
        );
    }
}
