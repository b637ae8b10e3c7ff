//! Methods: what a method frame says (clause 4.2.4).
//!
//! ```text
//!  +----------+-----------+----------------------------------------------+
//!  | class id | method id | arguments, in the order of the specification |
//!  | u16      | u16       | no padding, nothing after the last one       |
//!  +----------+-----------+----------------------------------------------+
//! ```
//!
//! One table, `classes.rs`, declares every method; the macro below turns a line of it into the
//! struct, its reader and writer, a variant of [`Method`] and its name. Consecutive bits share
//! octets, lowest bit first (clause 4.2.5.2); unused bits are ignored when reading, 0 when written.

use std::fmt;

use crate::frame::{FrameKind, begin_frame, end_frame};
use crate::reader::Reader;
use crate::table::TableError;
use crate::{ReplyCode, ShortStr, Table};

/// Why a method or content header could not be read. [`method_ids`] finds what to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodError {
    /// No class and method with these ids.
    Unknown {
        /// The class id of the payload.
        class_id: u16,
        /// The method id of the payload.
        method_id: u16,
    },
    /// The bytes do not follow the layout; the text says how.
    Malformed(&'static str),
    /// A table among the arguments or properties is wrong.
    Table(TableError),
    /// A short string of a [request](Method::parse_request) is not UTF-8.
    NotText,
}

impl MethodError {
    /// What a server closes the connection with: 503 for an unknown method, 502 for bad arguments, and 501 for a name that is no text, as
    /// RabbitMQ does.
    pub const fn reply_code(&self) -> ReplyCode {
        match self {
            Self::Unknown { .. } => ReplyCode::CommandInvalid,
            Self::Malformed(_) | Self::Table(_) => ReplyCode::SyntaxError,
            Self::NotText => ReplyCode::FrameError,
        }
    }
}

impl fmt::Display for MethodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { class_id, method_id } => {
                write!(f, "unknown method {method_id} of class {class_id}")
            }
            Self::Malformed(what) => f.write_str(what),
            Self::Table(error) => error.fmt(f),
            // RabbitMQ's words.
            Self::NotText => f.write_str("Malformed UTF-8 in shortstr"),
        }
    }
}

impl std::error::Error for MethodError {}

impl From<TableError> for MethodError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

/// What every method struct can do.
pub trait WireMethod {
    /// The id of its class.
    const CLASS_ID: u16;
    /// Its id within the class.
    const METHOD_ID: u16;
    /// Its name in the specification: `basic.get-ok`.
    const NAME: &'static str;

    /// Appends class id, method id and arguments: the payload of a method frame.
    fn encode(&self, out: &mut Vec<u8>);
}

/// Appends a whole method frame; allocates only if `out` has to grow.
///
/// The specification wants methods to fit one frame: whoever passes on long tables or texts keeps
/// them within the negotiated frame-max.
#[inline]
pub fn write_method(out: &mut Vec<u8>, channel: u16, method: &impl WireMethod) {
    let start = begin_frame(out, FrameKind::Method, channel);
    method.encode(out);
    end_frame(out, start);
}

/// Class and method id at the start of a method payload, for `connection.close` after an error;
/// 0, 0 if it is too short to tell.
pub fn method_ids(payload: &[u8]) -> (u16, u16) {
    let mut reader = Reader::new(payload);
    reader.short().zip(reader.short()).unwrap_or_default()
}

/// The arguments of a method being read.
struct ArgumentReader<'a> {
    reader: Reader<'a>,
    /// The octet of the bits being read and the mask of the next one; mask 0 = take a new octet.
    octet: u8,
    bit: u8,
}

impl<'a> ArgumentReader<'a> {
    #[inline]
    fn new(reader: Reader<'a>) -> Self {
        Self { reader, octet: 0, bit: 0 }
    }

    #[inline]
    fn argument<T: Argument<'a>>(&mut self) -> Result<T, MethodError> {
        if !T::IS_BIT {
            self.bit = 0;
        }
        T::read(self)
    }

    #[inline]
    fn finish(self) -> Result<(), MethodError> {
        match self.reader.rest {
            [] => Ok(()),
            _ => Err(MethodError::Malformed("bytes follow the last argument")),
        }
    }
}

/// The arguments of a method being written.
struct ArgumentWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The mask of the next bit in the last octet of `out`; 0 = begin a new octet.
    bit: u8,
}

impl<'o> ArgumentWriter<'o> {
    #[inline]
    fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, bit: 0 }
    }

    #[inline]
    fn argument<'a, T: Argument<'a>>(&mut self, value: T) {
        if !T::IS_BIT {
            self.bit = 0;
        }
        value.write(self);
    }
}

const CUT_SHORT: MethodError = MethodError::Malformed("the arguments end too early");

/// A type that stands for a domain of clause 4.2.5.
trait Argument<'a>: Copy {
    /// Whether neighbours share an octet.
    const IS_BIT: bool = false;
    /// Whether it is no short string, or one that is UTF-8.
    #[inline]
    fn is_text(self) -> bool {
        true
    }
    fn read(from: &mut ArgumentReader<'a>) -> Result<Self, MethodError>;
    fn write(self, to: &mut ArgumentWriter<'_>);
}

impl<'a> Argument<'a> for bool {
    const IS_BIT: bool = true;

    #[inline]
    fn read(from: &mut ArgumentReader<'a>) -> Result<Self, MethodError> {
        if from.bit == 0 {
            from.octet = from.reader.octet().ok_or(CUT_SHORT)?;
            from.bit = 1;
        }
        let value = from.octet & from.bit != 0;
        from.bit <<= 1;
        Ok(value)
    }

    #[inline]
    fn write(self, to: &mut ArgumentWriter<'_>) {
        if to.bit == 0 {
            to.out.push(0);
            to.bit = 1;
        }
        if let Some(octet) = to.out.last_mut()
            && self
        {
            *octet |= to.bit;
        }
        to.bit <<= 1;
    }
}

macro_rules! integer_argument {
    ($($type:ty: $read:ident)*) => {$(
        impl<'a> Argument<'a> for $type {
            #[inline]
            fn read(from: &mut ArgumentReader<'a>) -> Result<Self, MethodError> {
                from.reader.$read().ok_or(CUT_SHORT)
            }

            #[inline]
            fn write(self, to: &mut ArgumentWriter<'_>) {
                to.out.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integer_argument! { u8: octet u16: short u32: long u64: longlong }

impl<'a> Argument<'a> for ShortStr<'a> {
    #[inline]
    fn is_text(self) -> bool {
        self.to_str().is_some()
    }

    #[inline]
    fn read(from: &mut ArgumentReader<'a>) -> Result<Self, MethodError> {
        from.reader.shortstr().ok_or(CUT_SHORT)
    }

    #[inline]
    fn write(self, to: &mut ArgumentWriter<'_>) {
        to.out.push(self.len() as u8);
        to.out.extend_from_slice(&self);
    }
}

impl<'a> Argument<'a> for &'a [u8] {
    #[inline]
    fn read(from: &mut ArgumentReader<'a>) -> Result<Self, MethodError> {
        from.reader.longstr().ok_or(CUT_SHORT)
    }

    #[inline]
    fn write(self, to: &mut ArgumentWriter<'_>) {
        debug_assert!(u32::try_from(self.len()).is_ok(), "long string over 4 GiB");
        to.out.extend_from_slice(&(self.len() as u32).to_be_bytes());
        to.out.extend_from_slice(self);
    }
}

impl<'a> Argument<'a> for Table<'a> {
    #[inline]
    fn read(from: &mut ArgumentReader<'a>) -> Result<Self, MethodError> {
        let raw = from.reader.longstr().ok_or(CUT_SHORT)?;
        Ok(Table::validate(raw)?)
    }

    #[inline]
    fn write(self, to: &mut ArgumentWriter<'_>) {
        self.raw().write(to);
    }
}

/// Declares classes: `module = class id { Variant => Struct = method id, "name" { arguments } }`.
/// A method followed by `+content` is followed on the wire by a content header and body.
macro_rules! classes {
    ($lifetime:lifetime $(
        $(#[doc = $class_doc:literal])+
        $class:ident = $class_id:literal {$(
            $(#[doc = $doc:literal])+
            $variant:ident => $name:ident $(<$lt:lifetime>)? = $method_id:literal, $text:literal
            $(+ $content:ident)? {
                $($argument:ident: $type:ty),* $(,)?
            }
        )+}
    )+) => {
        $(
            $(#[doc = $class_doc])+
            pub mod $class {
                #[allow(unused_imports)] // not every class has strings or tables, or arguments at all
                use {super::super::Argument, crate::{ShortStr, Table}};
                use super::super::{ArgumentReader, ArgumentWriter, MethodError, WireMethod};

                /// The class id.
                pub const CLASS_ID: u16 = $class_id;

                $(
                    #[doc = concat!("`", $text, "`:")]
                    $(#[doc = $doc])+
                    #[derive(Clone, Copy, Debug, PartialEq, Default)]
                    pub struct $name $(<$lt>)? {
                        $(
                            #[doc = concat!("Argument `", stringify!($argument), "`.")]
                            pub $argument: $type,
                        )*
                    }

                    impl<$lifetime> $name $(<$lt>)? {
                        #[inline]
                        pub(super) fn read(
                            mut from: ArgumentReader<$lifetime>,
                        ) -> Result<Self, MethodError> {
                            $(let $argument = from.argument()?;)*
                            from.bit = 0;
                            from.finish()?;
                            Ok(Self { $($argument),* })
                        }

                        #[inline]
                        pub(super) fn is_text(&self) -> bool {
                            true $(&& self.$argument.is_text())*
                        }
                    }

                    impl $(<$lt>)? WireMethod for $name $(<$lt>)? {
                        const CLASS_ID: u16 = $class_id;
                        const METHOD_ID: u16 = $method_id;
                        const NAME: &'static str = $text;

                        #[inline]
                        fn encode(&self, out: &mut Vec<u8>) {
                            const IDS: u32 = ($class_id << 16) | $method_id;
                            let mut to = ArgumentWriter::new(out);
                            to.argument(IDS);
                            $(to.argument(self.$argument);)*
                        }
                    }
                )+
            }
        )+

        /// Any method, read from the payload of a method frame.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Method<$lifetime> {
            $($(
                #[doc = concat!("`", $text, "`")]
                $variant($class::$name $(<$lt>)?),
            )+)+
        }

        impl<$lifetime> Method<$lifetime> {
            /// Reads the payload of a method frame. Every argument is checked, tables through and
            /// through, and nothing may follow the last one.
            #[inline]
            pub fn parse(payload: &$lifetime [u8]) -> Result<Self, MethodError> {
                let mut reader = Reader::new(payload);
                let Some((class_id, method_id)) = reader.short().zip(reader.short()) else {
                    return Err(MethodError::Malformed("the method frame is shorter than its ids"));
                };
                let from = ArgumentReader::new(reader);
                match (class_id, method_id) {
                    $($(
                        ($class_id, $method_id) => $class::$name::read(from).map(Self::$variant),
                    )+)+
                    _ => Err(MethodError::Unknown { class_id, method_id }),
                }
            }

            /// Reads it as a server does: what a client declares, binds, consumes and asks for has names that are UTF-8
            /// (clause 4.2.5.3), or they could not be told to others. With content they are any bytes, which are routed as they
            /// are; RabbitMQ draws the same line.
            #[inline]
            pub fn parse_request(payload: &$lifetime [u8]) -> Result<Self, MethodError> {
                let method = Self::parse(payload)?;
                if method.has_content() || method.is_text() {
                    Ok(method)
                } else {
                    Err(MethodError::NotText)
                }
            }

            /// Whether all its short strings are UTF-8.
            #[inline]
            fn is_text(&self) -> bool {
                match self {
                    $($(Self::$variant(method) => method.is_text(),)+)+
                }
            }

            /// The id of the method's class.
            pub const fn class_id(&self) -> u16 {
                match self {
                    $($(Self::$variant(_) => $class_id,)+)+
                }
            }

            /// The method's id within its class.
            pub const fn method_id(&self) -> u16 {
                match self {
                    $($(Self::$variant(_) => $method_id,)+)+
                }
            }

            /// The name in the specification: `basic.publish`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $($(Self::$variant(_) => $text,)+)+
                }
            }

            /// Whether a content header and body follow on the wire.
            pub const fn has_content(&self) -> bool {
                match self {
                    $($(Self::$variant(_) => false $(|| has_content!($content))?,)+)+
                }
            }

            /// Appends class id, method id and arguments: the payload of a method frame.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $($(Self::$variant(method) => method.encode(out),)+)+
                }
            }
        }

        $($(
            impl<$lifetime> From<$class::$name $(<$lt>)?> for Method<$lifetime> {
                #[inline]
                fn from(method: $class::$name $(<$lt>)?) -> Self {
                    Self::$variant(method)
                }
            }
        )+)+
    };
}

/// The only flag a method can carry in the table.
macro_rules! has_content {
    (content) => {
        true
    };
}

// After the macros, as a macro is known to what follows it.
mod classes;
pub use classes::{
    Method, access, basic, channel, confirm, connection, exchange, forebay, queue, tx,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TableBuf, Value};

    fn payload(method: &impl WireMethod) -> Vec<u8> {
        let mut out = Vec::new();
        method.encode(&mut out);
        out
    }

    #[test]
    fn bits_share_an_octet_lowest_first() {
        let declare = queue::Declare {
            queue: ShortStr::truncated("q"),
            durable: true,
            auto_delete: true,
            ..Default::default()
        };
        let bytes = payload(&declare);
        assert_eq!(bytes, b"\0\x32\0\x0a\0\0\x01q\x0a\0\0\0\0");
        assert_eq!(Method::parse(&bytes), Ok(declare.into()));
    }

    #[test]
    fn bits_apart_have_an_octet_each() {
        let deliver = basic::Deliver { redelivered: true, delivery_tag: 5, ..Default::default() };
        assert_eq!(payload(&deliver), b"\0\x3c\0\x3c\0\0\0\0\0\0\0\0\x05\x01\0\0");
    }

    #[test]
    fn unused_bits_are_ignored() {
        let ack = basic::Ack { delivery_tag: 1, multiple: true };
        let mut bytes = payload(&ack);
        *bytes.last_mut().unwrap() |= 0xfe;
        assert_eq!(Method::parse(&bytes), Ok(ack.into()));
    }

    #[test]
    fn our_own_class_is_far_from_the_specifications() {
        let told = forebay::CommitTime { commit_us: 8_000, publishers: 20, part_permille: 700 };
        let bytes = payload(&told);
        assert_eq!(bytes, [0xff, 0x46, 0, 10, 0, 0, 0x1f, 0x40, 0, 0, 0, 20, 0, 0, 2, 0xbc]);
        assert_eq!(Method::parse(&bytes), Ok(told.into()));
    }

    #[test]
    fn unknown_methods_name_their_ids() {
        for (class_id, method_id) in [(60, 99), (0, 0), (85, 12), (40, 41)] {
            let ids = (u32::from(class_id) << 16 | u32::from(method_id)).to_be_bytes();
            let error = MethodError::Unknown { class_id, method_id };
            assert_eq!(Method::parse(&ids), Err(error));
            assert_eq!(method_ids(&ids), (class_id, method_id));
            assert_eq!(error.reply_code(), ReplyCode::CommandInvalid);
        }
        assert_eq!(method_ids(&[0, 60, 0]), (0, 0));
        assert!(matches!(Method::parse(&[0, 60, 0]), Err(MethodError::Malformed(_))));
    }

    #[test]
    fn bad_arguments_are_a_syntax_error() {
        let table = TableBuf::new().with("a", Value::Void);
        let bytes = payload(&queue::Declare { arguments: table.as_table(), ..Default::default() });
        let mut broken = bytes.clone();
        *broken.last_mut().unwrap() = b'?';
        let error = Method::parse(&broken).unwrap_err();
        assert_eq!(error, MethodError::Table(TableError::UnknownTag(b'?')));
        assert_eq!(error.reply_code(), ReplyCode::SyntaxError);
        for cut in 4..bytes.len() {
            assert_eq!(Method::parse(&bytes[..cut]).unwrap_err().reply_code().code(), 502);
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(
            Method::parse(&longer).unwrap_err().to_string(),
            "bytes follow the last argument"
        );
    }

    #[test]
    fn names_in_requests_are_text_and_routing_keys_of_content_are_bytes() {
        let bytes = ShortStr::new(b"k\xff").unwrap();
        let declare = queue::Declare { queue: bytes, ..Default::default() };
        let bind = queue::Bind { routing_key: bytes, ..Default::default() };
        let consume = basic::Consume { consumer_tag: bytes, ..Default::default() };
        for wrong in [payload(&declare), payload(&bind), payload(&consume)] {
            let error = Method::parse_request(&wrong).unwrap_err();
            assert_eq!((error, error.reply_code()), (MethodError::NotText, ReplyCode::FrameError));
            assert!(Method::parse(&wrong).is_ok(), "a client reads what its server says");
        }
        let named = queue::Declare { queue: ShortStr::truncated("ä"), ..declare };
        assert_eq!(Method::parse_request(&payload(&named)), Ok(named.into()));
        let publish = basic::Publish { exchange: bytes, routing_key: bytes, ..Default::default() };
        assert_eq!(Method::parse_request(&payload(&publish)), Ok(publish.into()));
    }

    #[test]
    fn names_ids_and_content_are_the_specifications() {
        let check = |method: Method<'_>, ids: (u16, u16), name: &str, content: bool| {
            assert_eq!((method.class_id(), method.method_id()), ids);
            assert_eq!((method.name(), method.has_content()), (name, content));
        };
        check(basic::Publish::default().into(), (60, 40), "basic.publish", true);
        check(basic::Return::default().into(), (60, 50), "basic.return", true);
        check(basic::Deliver::default().into(), (60, 60), "basic.deliver", true);
        check(basic::GetOk::default().into(), (60, 71), "basic.get-ok", true);
        check(basic::GetEmpty::default().into(), (60, 72), "basic.get-empty", false);
        check(exchange::UnbindOk::default().into(), (40, 51), "exchange.unbind-ok", false);
        check(confirm::Select::default().into(), (85, 10), "confirm.select", false);
        assert_eq!(connection::UpdateSecretOk::NAME, "connection.update-secret-ok");
    }
}
