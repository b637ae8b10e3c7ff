//! Ours against `amq-protocol`, an independent codec that allocates: the same values in both
//! directions for well-formed input, the same verdict on malformed input.
//!
//! Where the two differ on purpose:
//!
//! | Input | amq-protocol | here | why |
//! |---|---|---|---|
//! | short string not UTF-8 | refuses | takes, but in requests without content | brokers route bytes, as RabbitMQ does |
//! | field type `U` | a short | refuses | RabbitMQ refuses it; its short is `s` |
//! | nesting deeper than 64 | recurses | refuses | the stack is finite |
//! | weight of a content header not 0 | ignores | refuses | clause 4.2.6.1; RabbitMQ refuses |
//! | property flags 1 and 0 | ignores | refuses | what they announce is undefined (4.2.6.1) |
//! | the same name twice in a table | keeps the last | keeps both | a broker copies, it does not judge |
//! | reserved arguments, `ticket` | drops | keeps | nothing is lost by keeping |

mod support;

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{self as theirs, AMQPClass};
use amq_protocol::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString,
};
use forebay_wire::{
    Array, ContentHeader, FrameKind, Method, MethodError, RawProperties, ShortStr, Table,
    TableError, Value, basic, read_frame, write_body_frame, write_properties_frame,
};
use proptest::prelude::*;
use support::every_method;
use support::fast_random::FastRandom;
use support::pool::{Draw, all_methods, pool};

/// Whether a value of ours and one of theirs mean the same.
trait Same<T: ?Sized> {
    fn same(&self, theirs: &T) -> bool;
}

/// Whether amq-protocol takes it: all short strings UTF-8.
trait Representable {
    fn representable(&self) -> bool {
        true
    }
}

macro_rules! same_when_equal {
    ($($type:ty)*) => {$(
        impl Same<$type> for $type {
            fn same(&self, theirs: &$type) -> bool {
                self == theirs
            }
        }
        impl Representable for $type {}
    )*};
}
same_when_equal! { bool u8 u16 u32 u64 }

impl Same<ShortString> for ShortStr<'_> {
    fn same(&self, theirs: &ShortString) -> bool {
        *self == theirs.as_str()
    }
}

impl Representable for ShortStr<'_> {
    fn representable(&self) -> bool {
        self.to_str().is_some()
    }
}

impl Same<LongString> for &[u8] {
    fn same(&self, theirs: &LongString) -> bool {
        *self == theirs.as_bytes()
    }
}

impl Representable for &[u8] {}

impl Same<FieldTable> for Table<'_> {
    fn same(&self, theirs: &FieldTable) -> bool {
        let theirs = theirs.inner();
        // Of a name that comes twice theirs keeps the last value.
        let mut ours = std::collections::BTreeMap::new();
        for (name, value) in self.iter() {
            ours.insert(name.to_vec(), value);
        }
        ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|((name, value), (their_name, their_value))| {
                name == their_name.as_str().as_bytes() && value.same(their_value)
            })
    }
}

impl Representable for Table<'_> {
    fn representable(&self) -> bool {
        self.iter().all(|(name, value)| name.representable() && value.representable())
    }
}

impl Same<FieldArray> for Array<'_> {
    fn same(&self, theirs: &FieldArray) -> bool {
        let ours: Vec<_> = self.iter().collect();
        let theirs = theirs.as_slice();
        ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.same(b))
    }
}

impl Representable for Array<'_> {
    fn representable(&self) -> bool {
        self.iter().all(|value| value.representable())
    }
}

impl Same<AMQPValue> for Value<'_> {
    fn same(&self, theirs: &AMQPValue) -> bool {
        match (self, theirs) {
            (Value::Bool(a), AMQPValue::Boolean(b)) => a == b,
            (Value::I8(a), AMQPValue::ShortShortInt(b)) => a == b,
            (Value::U8(a), AMQPValue::ShortShortUInt(b)) => a == b,
            (Value::I16(a), AMQPValue::ShortInt(b)) => a == b,
            (Value::U16(a), AMQPValue::ShortUInt(b)) => a == b,
            (Value::I32(a), AMQPValue::LongInt(b)) => a == b,
            (Value::U32(a), AMQPValue::LongUInt(b)) => a == b,
            (Value::I64(a), AMQPValue::LongLongInt(b)) => a == b,
            (Value::F32(a), AMQPValue::Float(b)) => a.to_bits() == b.to_bits(),
            (Value::F64(a), AMQPValue::Double(b)) => a.to_bits() == b.to_bits(),
            (
                Value::Decimal { scale, value },
                AMQPValue::DecimalValue(DecimalValue { scale: their_scale, value: their_value }),
            ) => scale == their_scale && *value as u32 == *their_value,
            (Value::LongStr(a), AMQPValue::LongString(b)) => *a == b.as_bytes(),
            (Value::Bytes(a), AMQPValue::ByteArray(b)) => *a == ByteArray::as_slice(b),
            (Value::Array(a), AMQPValue::FieldArray(b)) => a.same(b),
            (Value::Timestamp(a), AMQPValue::Timestamp(b)) => a == b,
            (Value::Table(a), AMQPValue::FieldTable(b)) => a.same(b),
            (Value::Void, AMQPValue::Void) => true,
            _ => false,
        }
    }
}

impl Representable for Value<'_> {
    fn representable(&self) -> bool {
        match self {
            Value::Table(table) => table.representable(),
            Value::Array(array) => array.representable(),
            _ => true,
        }
    }
}

impl<A: Same<B>, B> Same<Option<B>> for Option<A> {
    fn same(&self, theirs: &Option<B>) -> bool {
        match (self, theirs) {
            (Some(a), Some(b)) => a.same(b),
            (None, None) => true,
            _ => false,
        }
    }
}

impl<A: Representable> Representable for Option<A> {
    fn representable(&self) -> bool {
        self.as_ref().is_none_or(Representable::representable)
    }
}

macro_rules! theirs_or_ours {
    ($ours:ident) => {
        stringify!($ours)
    };
    ($ours:ident $theirs:ident) => {
        stringify!($theirs)
    };
}

macro_rules! their_field {
    ($value:ident $ours:ident) => {
        &$value.$ours
    };
    ($value:ident $ours:ident $theirs:ident) => {
        &$value.$theirs
    };
}

macro_rules! compare_methods {
    ($($module:ident $class:ident {$(
        $variant:ident $name:ident ($($ours:ident $(= $theirs:ident)?),*)
        ($($only_ours:ident = $given:expr),*)
    )*})*) => {
        /// Field by field. `None`: theirs is another method.
        fn same_method(ours: &Method<'_>, theirs: &AMQPClass) -> Option<Result<(), String>> {
            match (ours, theirs) {
                $($(
                    #[allow(unused_variables)] // methods without arguments
                    (Method::$variant(ours), AMQPClass::$class(
                        theirs::$module::AMQPMethod::$name(value),
                    )) => {
                        $(
                            if !ours.$ours.same(their_field!(value $ours $($theirs)?)) {
                                return Some(Err(format!(
                                    "{} differs: {ours:?} / {value:?}",
                                    theirs_or_ours!($ours $($theirs)?),
                                )));
                            }
                        )*
                        Some(Ok(()))
                    }
                )*)*
                _ => None,
            }
        }

        /// Sets what amq-protocol does not expose to what it writes.
        fn canonical<'a>(method: Method<'a>) -> Method<'a> {
            match method {
                $($(
                    #[allow(unused_mut)]
                    Method::$variant(mut ours) => {
                        $(ours.$only_ours = $given;)*
                        Method::$variant(ours)
                    }
                )*)*
                Method::ForebayCommitTime(_) => method, // ours alone
            }
        }

        fn representable_method(method: &Method<'_>) -> bool {
            match method {
                $($(
                    #[allow(unused_variables)]
                    Method::$variant(ours) => true $(&& ours.$ours.representable())*
                        $(&& ours.$only_ours.representable())*,
                )*)*
                Method::ForebayCommitTime(_) => false,
            }
        }
    };
}
every_method!(compare_methods);

fn representable_properties(ours: &RawProperties<'_>) -> bool {
    let ours = ours.parse();
    let texts = [
        ours.content_type,
        ours.content_encoding,
        ours.correlation_id,
        ours.reply_to,
        ours.expiration,
        ours.message_id,
        ours.type_name,
        ours.user_id,
        ours.app_id,
        ours.cluster_id,
    ];
    texts.iter().all(Representable::representable) && ours.headers.representable()
}

fn same_properties(ours: &RawProperties<'_>, theirs: &theirs::BasicProperties) -> bool {
    let ours = ours.parse();
    ours.content_type.same(theirs.content_type())
        && ours.content_encoding.same(theirs.content_encoding())
        && ours.headers.same(theirs.headers())
        && ours.delivery_mode.same(theirs.delivery_mode())
        && ours.priority.same(theirs.priority())
        && ours.correlation_id.same(theirs.correlation_id())
        && ours.reply_to.same(theirs.reply_to())
        && ours.expiration.same(theirs.expiration())
        && ours.message_id.same(theirs.message_id())
        && ours.timestamp.same(theirs.timestamp())
        && ours.type_name.same(theirs.kind())
        && ours.user_id.same(theirs.user_id())
        && ours.app_id.same(theirs.app_id())
        && ours.cluster_id.same(theirs.cluster_id())
}

fn framed(kind: FrameKind, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_body_frame(&mut out, channel, payload);
    out[0] = kind as u8;
    out
}

fn written_by_theirs(frame: &AMQPFrame) -> Vec<u8> {
    gen_frame(frame)(WriteContext::from(Vec::new())).expect("writing to a Vec").into_inner().0
}

fn read_by_theirs(bytes: &[u8]) -> Option<AMQPFrame> {
    match parse_frame(bytes) {
        Ok(([], frame)) => Some(frame),
        _ => None,
    }
}

proptest! {
    #[test]
    fn methods_mean_the_same_in_both_directions(pool in pool(), channel: u16) {
        for method in all_methods(&Draw::new(&pool)) {
            let mut payload = Vec::new();
            method.encode(&mut payload);
            let bytes = framed(FrameKind::Method, channel, &payload);
            let theirs = read_by_theirs(&bytes);
            let Some(AMQPFrame::Method(their_channel, class)) = &theirs else {
                return Err(TestCaseError::fail(format!("{method:?} was read as {theirs:?}")));
            };
            prop_assert_eq!(*their_channel, channel);
            prop_assert_eq!(same_method(&method, class), Some(Ok(())));

            // And back: what theirs writes of it is what we write, byte for byte.
            let theirs = written_by_theirs(&AMQPFrame::Method(channel, class.clone()));
            let frame = read_frame(&theirs, 0).unwrap().unwrap();
            let again = Method::parse(frame.payload).unwrap();
            prop_assert_eq!(again, canonical(method));
            let mut payload = Vec::new();
            canonical(method).encode(&mut payload);
            prop_assert_eq!(&framed(FrameKind::Method, channel, &payload), &theirs);
        }
    }

    #[test]
    fn properties_mean_the_same_in_both_directions(pool in pool(), channel: u16, size: u64) {
        let properties = Draw::new(&pool).properties();
        let mut bytes = Vec::new();
        write_properties_frame(&mut bytes, channel, 60, size, &properties);
        let Some(AMQPFrame::Header(their_channel, header)) = read_by_theirs(&bytes) else {
            return Err(TestCaseError::fail("not read as a header"));
        };
        prop_assert_eq!((their_channel, header.class_id), (channel, 60));
        prop_assert_eq!(header.body_size, size);
        let frame = read_frame(&bytes, 0).unwrap().unwrap();
        let ours = ContentHeader::parse(frame.payload).unwrap();
        prop_assert!(same_properties(&ours.properties, &header.properties));
        prop_assert_eq!(written_by_theirs(&AMQPFrame::Header(channel, header)), bytes);
    }
}

/// Verdicts of both on one frame. Returns whether both took it.
fn compare_verdicts(bytes: &[u8]) -> bool {
    let theirs = read_by_theirs(bytes);
    let frame = match read_frame(bytes, 0) {
        Ok(Some(frame)) if frame.size_bytes() == bytes.len() => frame,
        // Theirs also reads the protocol header as a frame; we read it apart.
        _ => {
            assert!(matches!(theirs, None | Some(AMQPFrame::ProtocolHeader(_))), "{theirs:?}");
            return false;
        }
    };
    match frame.kind {
        FrameKind::Method => match (Method::parse(frame.payload), theirs) {
            (Ok(ours), Some(AMQPFrame::Method(_, class))) => {
                assert_eq!(same_method(&ours, &class), Some(Ok(())));
                true
            }
            (Ok(ours), None) => {
                assert!(!representable_method(&ours), "only we take {ours:?}");
                false
            }
            (Err(_), None) => false,
            (Err(error), Some(_)) if differs_on_purpose(error, frame.payload) => false,
            (ours, theirs) => panic!("ours {ours:?}, theirs {theirs:?}"),
        },
        FrameKind::Header => match (ContentHeader::parse(frame.payload), theirs) {
            (Ok(ours), Some(AMQPFrame::Header(_, header))) => {
                assert_eq!(ours.class_id, header.class_id);
                assert_eq!(ours.body_size_bytes, header.body_size);
                assert!(same_properties(&ours.properties, &header.properties));
                true
            }
            (Ok(ours), None) => {
                assert!(!representable_properties(&ours.properties), "only we take {ours:?}");
                false
            }
            (Err(_), None) => false,
            (Err(error), Some(_)) => {
                let weight = frame.payload.get(2..4) != Some(&[0, 0]);
                let flags = frame.payload.get(13).is_some_and(|low| low & 0b11 != 0);
                assert!(
                    weight || flags || differs_on_purpose(error, frame.payload),
                    "only theirs takes it: {error}"
                );
                false
            }
            (ours, theirs) => panic!("ours {ours:?}, theirs {theirs:?}"),
        },
        FrameKind::Body => {
            assert_eq!(theirs, Some(AMQPFrame::Body(frame.channel, frame.payload.to_vec())));
            true
        }
        FrameKind::Heartbeat => {
            assert!(matches!(theirs, Some(AMQPFrame::Heartbeat | AMQPFrame::InvalidHeartbeat(_))));
            true
        }
    }
}

/// The differences of tables, see the top of the file.
fn differs_on_purpose(error: MethodError, payload: &[u8]) -> bool {
    match error {
        MethodError::Table(TableError::UnknownTag(b'U')) => payload.contains(&b'U'),
        MethodError::Table(TableError::TooDeep) => true,
        _ => false,
    }
}

#[test]
fn mutated_frames_meet_the_same_verdict() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut random = FastRandom::from_environment();
    let mut runner = TestRunner::deterministic();
    let mut taken = 0;
    for _ in 0..40 {
        let pool = pool().new_tree(&mut runner).expect("a pool").current();
        let draw = Draw::new(&pool);
        let mut frames: Vec<Vec<u8>> = all_methods(&draw)
            .iter()
            .map(|method| {
                let mut payload = Vec::new();
                method.encode(&mut payload);
                framed(FrameKind::Method, 1, &payload)
            })
            .collect();
        for _ in 0..30 {
            let mut header = Vec::new();
            write_properties_frame(&mut header, 1, 60, 5, &draw.properties());
            frames.push(header);
        }
        for _ in 0..3000 {
            let frame = &frames[random.below(frames.len())];
            let other = &frames[random.below(frames.len())];
            // Mutate the payload and frame it anew, or the frame as it is: most would stop at a
            // wrong size otherwise.
            let bytes = if random.below(4) == 0 {
                let mut bytes = frame.clone();
                random.mutate(&mut bytes, other);
                bytes
            } else {
                let mut payload = frame[7..frame.len() - 1].to_vec();
                random.mutate(&mut payload, other);
                let kind = FrameKind::from_octet(frame[0]).expect("a kind");
                framed(kind, 1, &payload)
            };
            let verdict = std::panic::catch_unwind(|| compare_verdicts(&bytes));
            match verdict {
                Ok(both) => taken += usize::from(both),
                Err(panic) => {
                    println!("input {}", bytes.escape_ascii());
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
    // Otherwise the comparison of values would have been skipped.
    assert!(taken > 10_000, "only {taken} inputs were taken by both");
}

#[test]
fn the_documented_differences_are_as_documented() {
    // A short string that is not UTF-8.
    let deliver =
        basic::Deliver { routing_key: ShortStr::new(b"\xff").unwrap(), ..Default::default() };
    let mut bytes = Vec::new();
    forebay_wire::write_method(&mut bytes, 1, &deliver);
    assert!(read_by_theirs(&bytes).is_none());
    let frame = read_frame(&bytes, 0).unwrap().unwrap();
    assert_eq!(Method::parse(frame.payload), Ok(Method::BasicDeliver(deliver)));

    let header = |payload: &[u8]| {
        let bytes = framed(FrameKind::Header, 1, payload);
        (ContentHeader::parse(payload).map(|_| ()), read_by_theirs(&bytes).is_some())
    };
    let well_formed = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(header(&well_formed), (Ok(()), true));
    for (at, value) in [(3, 1), (13, 1), (13, 2)] {
        let mut payload = well_formed;
        payload[at] = value;
        let (ours, theirs) = header(&payload);
        assert!(ours.is_err() && theirs, "octet {at} = {value}");
    }

    // Field type `U`.
    assert_eq!(Table::validate(b"\x01aU\0\x07"), Err(TableError::UnknownTag(b'U')));
    let headers =
        [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 5][..], b"\x01aU\0\x07"];
    let (ours, theirs) = header(&headers.concat());
    assert!(ours.is_err() && theirs);
}
