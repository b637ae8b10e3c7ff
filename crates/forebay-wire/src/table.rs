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
