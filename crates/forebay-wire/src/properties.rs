//! Content headers: how long a body is and what it says about itself (clause 4.2.6.1).
//!
//! ```text
//!  +----------+--------+-----------+-------+---------------------------------+
//!  | class id | weight | body size | flags | the properties whose bit is set |
//!  | u16 = 60 | u16 =0 | u64       | u16   | in this order, nothing after    |
//!  +----------+--------+-----------+-------+---------------------------------+
//!                                  <----------- RawProperties -------------->
//!  bit 15 content-type     s    bit 10 correlation-id  s    bit 5 type        s
//!      14 content-encoding s         9 reply-to        s        4 user-id     s
//!      13 headers          table     8 expiration      s        3 app-id      s
//!      12 delivery-mode    u8        7 message-id      s        2 cluster-id  s   (reserved)
//!      11 priority         u8        6 timestamp       u64      1 unused, 0 "more flags follow"
//! ```
//!
//! The basic class has 14 properties (clause 1.8.2), so one flag word holds them all: bits 1 and 0
//! announce what nobody has defined and are refused. A message keeps its properties as
//! [`RawProperties`] and sends them on byte for byte.

use std::fmt;

use crate::frame::{FrameKind, begin_frame, end_frame};
use crate::method::MethodError;
use crate::reader::Reader;
use crate::{ShortStr, Table};

const CUT_SHORT: MethodError = MethodError::Malformed("the properties end too early");
const FLAG_CONTENT_TYPE: u16 = 1 << 15;
const FLAG_CONTENT_ENCODING: u16 = 1 << 14;
const FLAG_HEADERS: u16 = 1 << 13;
const FLAG_DELIVERY_MODE: u16 = 1 << 12;
const FLAGS_UNDEFINED: u16 = 0b11;

/// How a property's type is checked, read and written.
trait Property<'a>: Sized {
    fn check(from: &mut Reader<'a>) -> Result<(), MethodError>;
    fn read(from: &mut Reader<'a>) -> Option<Self>;
    fn write(self, out: &mut Vec<u8>);
}

impl<'a> Property<'a> for ShortStr<'a> {
    #[inline]
    fn check(from: &mut Reader<'a>) -> Result<(), MethodError> {
        from.shortstr().map(|_| ()).ok_or(CUT_SHORT)
    }
    #[inline]
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        from.shortstr()
    }
    fn write(self, out: &mut Vec<u8>) {
        out.push(self.len() as u8);
        out.extend_from_slice(&self);
    }
}

impl<'a> Property<'a> for u8 {
    #[inline]
    fn check(from: &mut Reader<'a>) -> Result<(), MethodError> {
        from.octet().map(|_| ()).ok_or(CUT_SHORT)
    }
    #[inline]
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        from.octet()
    }
    fn write(self, out: &mut Vec<u8>) {
        out.push(self);
    }
}

impl<'a> Property<'a> for u64 {
    #[inline]
    fn check(from: &mut Reader<'a>) -> Result<(), MethodError> {
        from.longlong().map(|_| ()).ok_or(CUT_SHORT)
    }
    #[inline]
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        from.longlong()
    }
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Property<'a> for Table<'a> {
    #[inline]
    fn check(from: &mut Reader<'a>) -> Result<(), MethodError> {
        Table::validate(from.longstr().ok_or(CUT_SHORT)?)?;
        Ok(())
    }
    #[inline]
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        from.longstr().map(Table::trusted)
    }
    fn write(self, out: &mut Vec<u8>) {
        debug_assert!(u32::try_from(self.raw().len()).is_ok(), "headers over 4 GiB");
        out.extend_from_slice(&(self.raw().len() as u32).to_be_bytes());
        out.extend_from_slice(self.raw());
    }
}

/// Declares the properties once, in wire order: name, bit, type.
macro_rules! properties {
    ($($(#[doc = $doc:literal])+ $name:ident = $bit:literal: $type:ty;)+) => {
        /// The properties of the basic class, decoded (clause 1.8.2).
        #[derive(Clone, Copy, Debug, PartialEq, Default)]
        pub struct Properties<'a> {
            $($(#[doc = $doc])+ pub $name: Option<$type>,)+
        }

        impl<'a> Properties<'a> {
            /// Appends flag word and property list, the form of [`RawProperties`].
            pub fn encode(&self, out: &mut Vec<u8>) {
                let mut flags = 0u16;
                $(flags |= u16::from(self.$name.is_some()) << $bit;)+
                out.extend_from_slice(&flags.to_be_bytes());
                $(
                    if let Some(value) = self.$name {
                        value.write(out);
                    }
                )+
            }
        }

        impl<'a> RawProperties<'a> {
            /// Checks flag word and property list; nothing may follow the last property.
            #[inline]
            pub fn validate(raw: &'a [u8]) -> Result<Self, MethodError> {
                let mut reader = Reader::new(raw);
                let flags = reader.short().ok_or(CUT_SHORT)?;
                if flags & FLAGS_UNDEFINED != 0 {
                    return Err(MethodError::Malformed("undefined property flags are set"));
                }
                $(
                    if flags & (1 << $bit) != 0 {
                        <$type as Property>::check(&mut reader)?;
                    }
                )+
                if !reader.rest.is_empty() {
                    return Err(MethodError::Malformed("bytes follow the last property"));
                }
                Ok(Self(raw))
            }

            /// Decodes every property. Does not fail: the bytes were validated.
            pub fn parse(&self) -> Properties<'a> {
                let mut properties = Properties::default();
                let mut reader = Reader::new(self.0);
                let flags = reader.short().unwrap_or(0);
                $(
                    if flags & (1 << $bit) != 0 {
                        properties.$name = <$type as Property>::read(&mut reader);
                    }
                )+
                properties
            }
        }
    };
}

properties! {
    /// MIME type of the body.
    content_type = 15: ShortStr<'a>;
    /// MIME encoding of the body.
    content_encoding = 14: ShortStr<'a>;
    /// The application's headers.
    headers = 13: Table<'a>;
    /// 1 = transient, 2 = persistent.
    delivery_mode = 12: u8;
    /// 0 to 9 by the specification, 0 to 255 in RabbitMQ's priority queues.
    priority = 11: u8;
    /// What a reply refers to.
    correlation_id = 10: ShortStr<'a>;
    /// Where replies shall go.
    reply_to = 9: ShortStr<'a>;
    /// Time to live: milliseconds as a decimal string.
    expiration = 8: ShortStr<'a>;
    /// The application's name of the message.
    message_id = 7: ShortStr<'a>;
    /// Seconds since 1970.
    timestamp = 6: u64;
    /// The application's type of the message (`type` in the specification).
    type_name = 5: ShortStr<'a>;
    /// Who published; a broker checks it against the login.
    user_id = 4: ShortStr<'a>;
    /// Which application published.
    app_id = 3: ShortStr<'a>;
    /// Reserved, formerly the cluster id.
    cluster_id = 2: ShortStr<'a>;
}

/// Flag word and property list exactly as received, validated; equal when the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawProperties<'a>(&'a [u8]);

impl<'a> RawProperties<'a> {
    /// The bytes: flag word and property list.
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// Takes bytes that were validated before, say when a stored message comes back from disk.
    ///
    /// Nothing is checked: the bytes of anything else decode to nonsense, though never to a panic.
    #[inline]
    pub const fn trusted(raw: &'a [u8]) -> Self {
        Self(raw)
    }

    /// The delivery mode alone, without decoding the rest. 2 = persistent.
    #[inline]
    pub fn delivery_mode(&self) -> Option<u8> {
        let (mut reader, flags) = self.list();
        if flags & FLAG_DELIVERY_MODE == 0 {
            return None;
        }
        for flag in [FLAG_CONTENT_TYPE, FLAG_CONTENT_ENCODING] {
            if flags & flag != 0 {
                reader.shortstr()?;
            }
        }
        if flags & FLAG_HEADERS != 0 {
            reader.longstr()?;
        }
        reader.octet()
    }

    /// The headers alone, without decoding the rest.
    #[inline]
    pub fn headers(&self) -> Option<Table<'a>> {
        Table::read(&mut self.at_headers()?)
    }

    /// The same bytes with `more` behind the headers that are there; `None` if there are none.
    pub fn with_more_headers(&self, more: Table<'_>) -> Option<Vec<u8>> {
        let mut reader = self.at_headers()?;
        let before = &self.0[..self.0.len() - reader.rest.len()];
        let headers = Table::read(&mut reader)?;
        let room = self.0.len() + more.raw().len();
        let mut raw = Vec::with_capacity(room);
        raw.extend_from_slice(before);
        raw.extend_from_slice(&((headers.raw().len() + more.raw().len()) as u32).to_be_bytes());
        raw.extend_from_slice(headers.raw());
        raw.extend_from_slice(more.raw());
        raw.extend_from_slice(reader.rest);
        debug_assert_eq!(raw.len(), room);
        Some(raw)
    }

    /// What is left to read where the headers begin, if there are any.
    #[inline]
    fn at_headers(&self) -> Option<Reader<'a>> {
        let (mut reader, flags) = self.list();
        if flags & FLAG_HEADERS == 0 {
            return None;
        }
        for flag in [FLAG_CONTENT_TYPE, FLAG_CONTENT_ENCODING] {
            if flags & flag != 0 {
                reader.shortstr()?;
            }
        }
        Some(reader)
    }

    /// Whether any property is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list().1 == 0
    }

    #[inline]
    fn list(&self) -> (Reader<'a>, u16) {
        let mut reader = Reader::new(self.0);
        let flags = reader.short().unwrap_or(0);
        (reader, flags)
    }
}

impl Default for RawProperties<'_> {
    /// No property set.
    fn default() -> Self {
        Self(&[0, 0])
    }
}

impl fmt::Debug for RawProperties<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parse().fmt(f)
    }
}

/// The payload of a header frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// The class of the method it belongs to: 60, as only basic has content. Not checked here.
    pub class_id: u16,
    /// Bytes of the body, all its frames together.
    pub body_size_bytes: u64,
    /// The properties, read as those of basic.
    pub properties: RawProperties<'a>,
}

impl<'a> ContentHeader<'a> {
    /// Reads the payload of a header frame. A weight other than 0 is refused (clause 4.2.6.1).
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Result<Self, MethodError> {
        const CUT_SHORT: MethodError = MethodError::Malformed("the content header is too short");
        let mut reader = Reader::new(payload);
        let class_id = reader.short().ok_or(CUT_SHORT)?;
        let weight = reader.short().ok_or(CUT_SHORT)?;
        let body_size_bytes = reader.longlong().ok_or(CUT_SHORT)?;
        if weight != 0 {
            return Err(MethodError::Malformed("the weight of a content header is not 0"));
        }
        let properties = RawProperties::validate(reader.rest)?;
        Ok(Self { class_id, body_size_bytes, properties })
    }
}

/// Appends a header frame with the properties as they are.
#[inline]
pub fn write_header_frame(
    out: &mut Vec<u8>,
    channel: u16,
    class_id: u16,
    body_size_bytes: u64,
    properties: RawProperties<'_>,
) {
    let start = begin_header(out, channel, class_id, body_size_bytes);
    out.extend_from_slice(properties.0);
    end_frame(out, start);
}

/// Appends a header frame, encoding `properties` into it.
pub fn write_properties_frame(
    out: &mut Vec<u8>,
    channel: u16,
    class_id: u16,
    body_size_bytes: u64,
    properties: &Properties<'_>,
) {
    let start = begin_header(out, channel, class_id, body_size_bytes);
    properties.encode(out);
    end_frame(out, start);
}

#[inline]
fn begin_header(out: &mut Vec<u8>, channel: u16, class_id: u16, body_size_bytes: u64) -> usize {
    let start = begin_frame(out, FrameKind::Header, channel);
    out.extend_from_slice(&class_id.to_be_bytes());
    out.extend_from_slice(&0u16.to_be_bytes());
    out.extend_from_slice(&body_size_bytes.to_be_bytes());
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableError;
    use crate::{TableBuf, Value};

    fn raw(properties: &Properties<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        properties.encode(&mut out);
        out
    }

    #[test]
    fn more_headers_come_behind_those_that_are_there() {
        let headers = TableBuf::new().with("a", Value::Void);
        let some = Properties {
            content_type: Some(ShortStr::truncated("a/b")),
            headers: Some(headers.as_table()),
            app_id: Some(ShortStr::truncated("app")),
            ..Default::default()
        };
        let more = TableBuf::new().with("b", Value::I64(7)).with("a", Value::Bool(true));
        let all = more
            .as_table()
            .iter()
            .fold(headers.clone(), |all, (name, value)| all.with(name, value));
        let bytes = raw(&some);
        let longer = RawProperties::trusted(&bytes).with_more_headers(more.as_table());
        assert_eq!(longer, Some(raw(&Properties { headers: Some(all.as_table()), ..some })));
        let bytes = raw(&Properties { headers: None, ..some });
        assert_eq!(RawProperties::trusted(&bytes).with_more_headers(more.as_table()), None);
    }

    #[test]
    fn the_list_follows_the_flags_in_order() {
        let headers = TableBuf::new().with("k", Value::Void);
        let properties = Properties {
            content_type: Some(ShortStr::truncated("a/b")),
            headers: Some(headers.as_table()),
            delivery_mode: Some(2),
            timestamp: Some(1),
            cluster_id: Some(ShortStr::default()),
            ..Default::default()
        };
        let bytes = raw(&properties);
        assert_eq!(bytes, b"\xb0\x44\x03a/b\0\0\0\x03\x01kV\x02\0\0\0\0\0\0\0\x01\0");
        let list = RawProperties::validate(&bytes).unwrap();
        assert_eq!(list.parse(), properties);
        assert_eq!(list.delivery_mode(), Some(2));
        assert_eq!(list.headers(), Some(headers.as_table()));
        assert_eq!(list.raw(), bytes);
        assert!(!list.is_empty());
    }

    #[test]
    fn none_at_all_is_the_default() {
        let list = RawProperties::default();
        assert_eq!(RawProperties::validate(list.raw()), Ok(list));
        assert_eq!(raw(&Properties::default()), list.raw());
        assert_eq!((list.delivery_mode(), list.headers(), list.is_empty()), (None, None, true));
    }

    #[test]
    fn every_property_alone_is_found_again() {
        for bit in 2..16 {
            // Zeroes are an empty string, an empty table, or the number 0, of enough bytes.
            let length = match bit {
                13 => 4,
                12 | 11 => 1,
                6 => 8,
                _ => 1,
            };
            let mut bytes = (1u16 << bit).to_be_bytes().to_vec();
            bytes.resize(2 + length, 0);
            let list = RawProperties::validate(&bytes).unwrap();
            assert_eq!(raw(&list.parse()), bytes);
            assert_eq!(list.delivery_mode().is_some(), bit == 12);
            assert_eq!(list.headers().is_some(), bit == 13);
            bytes.pop();
            assert_eq!(RawProperties::validate(&bytes), Err(CUT_SHORT));
        }
    }

    #[test]
    fn undefined_flags_and_trailing_bytes_are_refused() {
        for bytes in [&[0, 1][..], &[0, 1, 0, 0], &[0, 2], &[0, 0, 0], &[0], &[]] {
            let error = RawProperties::validate(bytes).unwrap_err();
            assert!(matches!(error, MethodError::Malformed(_)), "{bytes:?}");
        }
        let broken_headers = b"\x20\0\0\0\0\x03\x01k?";
        assert_eq!(
            RawProperties::validate(broken_headers),
            Err(MethodError::Table(TableError::UnknownTag(b'?')))
        );
    }

    #[test]
    fn a_content_header_has_class_size_and_no_weight() {
        let bytes = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0x10, 0, 1];
        let header = ContentHeader::parse(&bytes).unwrap();
        assert_eq!((header.class_id, header.body_size_bytes), (60, 258));
        assert_eq!(header.properties.delivery_mode(), Some(1));
        for cut in 0..bytes.len() {
            assert!(ContentHeader::parse(&bytes[..cut]).is_err());
        }
        let mut weighty = bytes;
        weighty[3] = 1;
        assert!(ContentHeader::parse(&weighty).is_err());

        let mut out = Vec::new();
        write_header_frame(&mut out, 5, 60, 258, header.properties);
        assert_eq!(out[7..out.len() - 1], bytes);
        let mut same = Vec::new();
        write_properties_frame(&mut same, 5, 60, 258, &header.properties.parse());
        assert_eq!(out, same);
    }

    #[test]
    fn trusted_nonsense_decodes_to_nonsense_without_panic() {
        let list = RawProperties::trusted(&[0xff, 0xff, 9]);
        assert_eq!(list.parse(), Properties::default());
        assert_eq!((list.delivery_mode(), list.headers()), (None, None));
    }
}
