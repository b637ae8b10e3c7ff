//! One value of a table or array: a type tag and what it announces.
//!
//! ```text
//!  tag  bytes after it        RabbitMQ's name    Value
//!  't'  u8, 0 = false         bool               Bool
//!  'b'  i8                    byte               I8
//!  'B'  u8                    unsignedbyte       U8
//!  's'  i16                   short              I16       (the specification's short string: nobody
//!  'u'  u16                   unsignedshort      U16        uses it, every client follows RabbitMQ)
//!  'I'  i32                   signedint          I32
//!  'i'  u32                   unsignedint        U32
//!  'l'  i64                   long               I64       (written)
//!  'L'  i64                   long               I64       (read like 'l')
//!  'f'  IEEE 754 single       float              F32
//!  'd'  IEEE 754 double       double             F64
//!  'D'  u8 scale, 32 bits     decimal            Decimal
//!  'S'  u32 length, bytes     longstr            LongStr
//!  'x'  u32 length, bytes     binary             Bytes
//!  'A'  u32 length, values    array              Array
//!  'T'  u64 seconds           timestamp          Timestamp
//!  'F'  u32 length, pairs     table              Table
//!  'V'  nothing               void               Void
//! ```
//!
//! The tags are those RabbitMQ reads; where the grammar of clause 4.2.1 differs (`U`, `s`, `l`) its
//! errata say that implementations do as above.

use crate::reader::Reader;
use crate::table::{Table, TableError};
use crate::{Array, TABLE_DEPTH_MAX};

/// A table or array value, borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `t`: any octet but 0 is true.
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`, and `L` when reading.
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: `value / 10^scale`.
    Decimal {
        /// Places after the decimal point.
        scale: u8,
        /// All digits, as the 32 bits on the wire. The specification calls them unsigned, clients
        /// write signed ones; a copy keeps every bit either way.
        value: i32,
    },
    /// `S`: text by convention, any bytes in truth.
    LongStr(&'a [u8]),
    /// `x`
    Bytes(&'a [u8]),
    /// `A`
    Array(Array<'a>),
    /// `T`: seconds since 1970.
    Timestamp(u64),
    /// `F`
    Table(Table<'a>),
    /// `V`: a key without a value.
    Void,
}

impl<'a> Value<'a> {
    /// RabbitMQ's name of the type, as its error texts quote it.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::LongStr(_) => "longstr",
            Self::Bytes(_) => "binary",
            Self::Array(_) => "array",
            Self::Timestamp(_) => "timestamp",
            Self::Table(_) => "table",
            Self::Void => "void",
        }
    }

    /// The number, for integers of every width; `None` for other types (timestamps included).
    pub const fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value as i64),
            Self::U8(value) => Some(value as i64),
            Self::I16(value) => Some(value as i64),
            Self::U16(value) => Some(value as i64),
            Self::I32(value) => Some(value as i64),
            Self::U32(value) => Some(value as i64),
            Self::I64(value) => Some(value),
            _ => None,
        }
    }

    /// The bytes of a long string; `None` for other types.
    pub const fn as_long_str(&self) -> Option<&'a [u8]> {
        match *self {
            Self::LongStr(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a long string that is UTF-8; `None` otherwise.
    pub fn as_str(&self) -> Option<&'a str> {
        std::str::from_utf8(self.as_long_str()?).ok()
    }

    /// The truth value of a `bool`; `None` for other types.
    pub const fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Appends tag and value.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Bool(value) => out.extend_from_slice(&[b't', u8::from(value)]),
            Self::I8(value) => out.extend_from_slice(&[b'b', value as u8]),
            Self::U8(value) => out.extend_from_slice(&[b'B', value]),
            Self::I16(value) => encode_fixed(out, b's', &value.to_be_bytes()),
            Self::U16(value) => encode_fixed(out, b'u', &value.to_be_bytes()),
            Self::I32(value) => encode_fixed(out, b'I', &value.to_be_bytes()),
            Self::U32(value) => encode_fixed(out, b'i', &value.to_be_bytes()),
            Self::I64(value) => encode_fixed(out, b'l', &value.to_be_bytes()),
            Self::F32(value) => encode_fixed(out, b'f', &value.to_bits().to_be_bytes()),
            Self::F64(value) => encode_fixed(out, b'd', &value.to_bits().to_be_bytes()),
            Self::Decimal { scale, value } => {
                out.extend_from_slice(&[b'D', scale]);
                out.extend_from_slice(&value.to_be_bytes());
            }
            Self::LongStr(bytes) => encode_counted(out, b'S', bytes),
            Self::Bytes(bytes) => encode_counted(out, b'x', bytes),
            Self::Array(array) => encode_counted(out, b'A', array.raw()),
            Self::Timestamp(seconds) => encode_fixed(out, b'T', &seconds.to_be_bytes()),
            Self::Table(table) => encode_counted(out, b'F', table.raw()),
            Self::Void => out.push(b'V'),
        }
    }

    /// Reads one value of a container that was validated before, so nothing is checked twice:
    /// nested containers are taken as they are. `None` at the end of the bytes.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        Some(match reader.octet()? {
            b't' => Self::Bool(reader.octet()? != 0),
            b'b' => Self::I8(reader.octet()? as i8),
            b'B' => Self::U8(reader.octet()?),
            b's' => Self::I16(reader.short()? as i16),
            b'u' => Self::U16(reader.short()?),
            b'I' => Self::I32(reader.long()? as i32),
            b'i' => Self::U32(reader.long()?),
            b'l' | b'L' => Self::I64(reader.longlong()? as i64),
            b'f' => Self::F32(f32::from_bits(reader.long()?)),
            b'd' => Self::F64(f64::from_bits(reader.longlong()?)),
            b'D' => Self::Decimal { scale: reader.octet()?, value: reader.long()? as i32 },
            b'S' => Self::LongStr(reader.longstr()?),
            b'x' => Self::Bytes(reader.longstr()?),
            b'A' => Self::Array(Array::trusted(reader.longstr()?)),
            b'T' => Self::Timestamp(reader.longlong()?),
            b'F' => Self::Table(Table::trusted(reader.longstr()?)),
            b'V' => Self::Void,
            _ => return None,
        })
    }

    /// Steps over one value, checking tag and lengths. `depth` is that of the container it lies in;
    /// it bounds the recursion through nested containers.
    #[inline]
    pub(crate) fn check(reader: &mut Reader<'a>, depth: usize) -> Result<(), TableError> {
        let tag = reader.octet().ok_or(TableError::Truncated)?;
        let bytes = match tag {
            b'S' | b'x' => reader.long().ok_or(TableError::Truncated)? as usize,
            b't' | b'b' | b'B' => 1,
            b's' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'l' | b'L' | b'd' | b'T' => 8,
            b'D' => 5,
            b'V' => 0,
            b'F' | b'A' => {
                if depth >= TABLE_DEPTH_MAX {
                    return Err(TableError::TooDeep);
                }
                let raw = reader.longstr().ok_or(TableError::Truncated)?;
                return match tag {
                    b'F' => Table::check(raw, depth + 1),
                    _ => Array::check(raw, depth + 1),
                };
            }
            _ => return Err(TableError::UnknownTag(tag)),
        };
        reader.take(bytes).map(|_| ()).ok_or(TableError::Truncated)
    }
}

fn encode_fixed(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

fn encode_counted(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    debug_assert!(u32::try_from(bytes.len()).is_ok(), "field value over 4 GiB");
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], value: Value<'_>, type_name: &str) {
        let mut reader = Reader::new(bytes);
        assert_eq!(Value::check(&mut reader, 1), Ok(()));
        assert!(reader.rest.is_empty());
        assert_eq!(Value::read(&mut Reader::new(bytes)), Some(value));
        assert_eq!(value.type_name(), type_name);
        let mut again = Vec::new();
        value.encode(&mut again);
        assert_eq!(again, bytes);
        for cut in 0..bytes.len() {
            assert_eq!(
                Value::check(&mut Reader::new(&bytes[..cut]), 1),
                Err(TableError::Truncated)
            );
        }
    }

    #[test]
    fn every_type_is_laid_out_as_rabbitmq_has_it() {
        check(b"t\x01", Value::Bool(true), "bool");
        check(b"b\xff", Value::I8(-1), "byte");
        check(b"B\xff", Value::U8(255), "unsignedbyte");
        check(b"s\xff\xfe", Value::I16(-2), "short");
        check(b"u\xff\xfe", Value::U16(65534), "unsignedshort");
        check(b"I\xff\xff\xff\xfd", Value::I32(-3), "signedint");
        check(b"i\xff\xff\xff\xfd", Value::U32(4_294_967_293), "unsignedint");
        check(b"l\xff\xff\xff\xff\xff\xff\xff\xfc", Value::I64(-4), "long");
        check(b"f\x3f\xc0\0\0", Value::F32(1.5), "float");
        check(b"d\xc0\x04\0\0\0\0\0\0", Value::F64(-2.5), "double");
        check(b"D\x02\0\0\x01\x3a", Value::Decimal { scale: 2, value: 314 }, "decimal");
        check(b"S\0\0\0\x02hi", Value::LongStr(b"hi"), "longstr");
        check(b"x\0\0\0\x02\0\xff", Value::Bytes(b"\0\xff"), "binary");
        check(b"A\0\0\0\x02t\0", Value::Array(Array::validate(b"t\0").unwrap()), "array");
        check(b"T\0\0\0\0\0\0\0\x09", Value::Timestamp(9), "timestamp");
        check(b"F\0\0\0\x03\x01aV", Value::Table(Table::validate(b"\x01aV").unwrap()), "table");
        check(b"V", Value::Void, "void");
    }

    #[test]
    fn only_the_known_tags_are_taken() {
        for tag in 0..=255u8 {
            let bytes = [[tag].as_slice(), &[0; 16]].concat();
            let known = b"tbBsuIilLfdDSxATFV".contains(&tag);
            let checked = Value::check(&mut Reader::new(&bytes), 1);
            assert_eq!(checked, if known { Ok(()) } else { Err(TableError::UnknownTag(tag)) });
            assert_eq!(Value::read(&mut Reader::new(&bytes)).is_some(), known);
        }
    }

    #[test]
    fn the_unsigned_long_tag_is_read_as_signed() {
        let bytes = b"L\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(Value::read(&mut Reader::new(bytes)), Some(Value::I64(-1)));
    }

    #[test]
    fn conversions_take_only_their_type() {
        assert_eq!(Value::LongStr(b"classic").as_str(), Some("classic"));
        assert_eq!(Value::LongStr(b"\xff").as_str(), None);
        assert_eq!(Value::Bytes(b"x").as_long_str(), None);
        assert_eq!(Value::Bool(true).as_bool(), Some(true));
        assert_eq!(Value::Bool(true).as_i64(), None);
        assert_eq!(Value::F64(1.0).as_i64(), None);
    }
}
