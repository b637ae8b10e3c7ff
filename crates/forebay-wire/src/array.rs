//! Field arrays: values one after the other (clause 4.2.5.5), kept as the bytes they came in.

use std::fmt;

use crate::Value;
use crate::reader::Reader;
use crate::table::TableError;

/// A validated field array, borrowed; equal when the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Array<'a> {
    raw: &'a [u8],
}

impl<'a> Array<'a> {
    /// Checks that `raw`, the contents without the length, is an array through and through.
    pub fn validate(raw: &'a [u8]) -> Result<Self, TableError> {
        Self::check(raw, 1)?;
        Ok(Self { raw })
    }

    /// The contents without the length.
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are no values.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + Clone + use<'a> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || Value::read(&mut reader))
    }

    pub(crate) fn check(raw: &[u8], depth: usize) -> Result<(), TableError> {
        let mut reader = Reader::new(raw);
        while !reader.rest.is_empty() {
            Value::check(&mut reader, depth)?;
        }
        Ok(())
    }

    /// Contents that were validated as part of something larger.
    pub(crate) const fn trusted(raw: &'a [u8]) -> Self {
        Self { raw }
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// An array being built: the values, already encoded.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct ArrayBuf(Vec<u8>);

impl ArrayBuf {
    /// An empty array.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a value. Depth is not checked, as in [`TableBuf::push`](crate::TableBuf::push).
    pub fn push(&mut self, value: Value<'_>) {
        value.encode(&mut self.0);
    }

    /// [`push`](Self::push) as a chain.
    #[must_use]
    pub fn with(mut self, value: Value<'_>) -> Self {
        self.push(value);
        self
    }

    /// What has been built so far.
    pub const fn as_array(&self) -> Array<'_> {
        Array { raw: self.0.as_slice() }
    }

    /// Whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Array<'_>> for ArrayBuf {
    fn from(array: Array<'_>) -> Self {
        Self(array.raw.to_vec())
    }
}

impl fmt::Debug for ArrayBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_array().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TABLE_DEPTH_MAX, TableBuf};

    #[test]
    fn values_come_back_in_order() {
        let inner = TableBuf::new().with("k", Value::I16(-1));
        let buf = ArrayBuf::new().with(Value::Void).with(Value::Table(inner.as_table()));
        let array = Array::validate(buf.as_array().raw()).unwrap();
        let values: Vec<_> = array.iter().collect();
        assert_eq!(values, [Value::Void, Value::Table(inner.as_table())]);
        assert_eq!(format!("{array:?}"), r#"[Void, Table({"k": I16(-1)})]"#);
        assert_eq!(ArrayBuf::from(array), buf);
        assert!(ArrayBuf::new().is_empty() && Array::default().is_empty());
    }

    #[test]
    fn arrays_count_towards_the_depth_like_tables() {
        let mut buf = ArrayBuf::new();
        for _ in 1..TABLE_DEPTH_MAX {
            buf = ArrayBuf::new().with(Value::Array(buf.as_array()));
        }
        assert!(Array::validate(buf.as_array().raw()).is_ok());
        let deeper = ArrayBuf::new().with(Value::Array(buf.as_array()));
        assert_eq!(Array::validate(deeper.as_array().raw()), Err(TableError::TooDeep));
    }

    #[test]
    fn a_value_cut_short_is_refused() {
        assert_eq!(Array::validate(b"I\0\0"), Err(TableError::Truncated));
        assert_eq!(Array::validate(b"?"), Err(TableError::UnknownTag(b'?')));
    }
}
