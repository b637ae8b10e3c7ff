//! Durable topology as bytes, for the store's map of keys to values.
//!
//! ```text
//!  key    'x' bytes(vhost) name                     exchange
//!         'b' sha256(value)            32 bytes     binding (what it is is all it has)
//!         'q' u64 id                                queue
//!
//!  value  u8 version = 1
//!         exchange  u8 flags  u8 kind   vhost name arguments
//!         binding   u8 flags            vhost source destination key arguments
//!         queue     u8 flags  u64 id    vhost name arguments
//!
//!  flags  1 durable   2 auto_delete   4 internal   8 exclusive   16 destination is an exchange
//!  vhost, name, source, destination, key, arguments: u32 length, bytes
//! ```
//!
//! Integers are little-endian. `arguments` is a field table as on the wire, without its length. What
//! a version does not know (a flag, bytes at the end, a higher version) is refused, never guessed.

use std::fmt;

use forebay_wire::{ShortStr, Table, TableBuf, TableError};
use sha2::{Digest, Sha256};

use super::exchange::ExchangeKind;
use super::resource::ResourceKind;

/// The version written, and the highest that is read.
pub const RECORD_VERSION: u8 = 1;

const EXCHANGE: u8 = b'x';
const BINDING: u8 = b'b';
const QUEUE: u8 = b'q';

const DURABLE: u8 = 1;
const AUTO_DELETE: u8 = 2;
const INTERNAL: u8 = 4;
const EXCLUSIVE: u8 = 8;
const TO_EXCHANGE: u8 = 16;

/// An exchange, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeRecord {
    /// Where it is.
    pub vhost: String,
    /// At most 255 bytes.
    pub name: Box<[u8]>,
    /// Its type.
    pub kind: ExchangeKind,
    /// Survives a restart.
    pub durable: bool,
    /// Goes when the last binding from it goes.
    pub auto_delete: bool,
    /// Takes messages from other exchanges only.
    pub internal: bool,
    /// As declared.
    pub arguments: TableBuf,
}

/// A binding between an exchange and a queue or another exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingRecord {
    /// Where it is.
    pub vhost: String,
    /// The exchange it leads from.
    pub source: Box<[u8]>,
    /// Whether it leads to a queue or an exchange.
    pub destination_kind: ResourceKind,
    /// What it leads to.
    pub destination: Box<[u8]>,
    /// Routing key or pattern.
    pub routing_key: Box<[u8]>,
    /// Sorted by name.
    pub arguments: TableBuf,
}

/// A queue, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// Where it is.
    pub vhost: String,
    /// At most 255 bytes.
    pub name: Box<[u8]>,
    /// The store's id, never used twice.
    pub id: u64,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// Goes with its connection. Such queues are never durable; the flag keeps the layout complete.
    pub exclusive: bool,
    /// As declared.
    pub arguments: TableBuf,
}

/// Any of the three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An exchange.
    Exchange(ExchangeRecord),
    /// A binding.
    Binding(BindingRecord),
    /// A queue.
    Queue(QueueRecord),
}

/// Why bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The key begins with none of the known letters.
    UnknownKind(Option<u8>),
    /// Written by a newer version of Forebay.
    NewerVersion {
        /// What was found.
        found: u8,
        /// The highest that this version reads.
        supported: u8,
    },
    /// The value ends early, goes on too long, or a field is out of its range.
    Malformed(&'static str),
    /// The arguments are not a field table.
    Arguments(TableError),
    /// The key belongs to another value.
    KeyMismatch,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::UnknownKind(Some(kind)) => {
                write!(f, "no topology record has a key that begins with byte {kind}")
            }
            RecordError::UnknownKind(None) => write!(f, "a topology record has an empty key"),
            RecordError::NewerVersion { found, supported } => write!(
                f,
                "a topology record has version {found}, this version of Forebay reads up to \
                 {supported}"
            ),
            RecordError::Malformed(what) => write!(f, "a topology record is damaged: {what}"),
            RecordError::Arguments(error) => {
                write!(f, "the arguments in a topology record are damaged: {error}")
            }
            RecordError::KeyMismatch => {
                write!(f, "a topology record is kept under the key of another one")
            }
        }
    }
}

impl std::error::Error for RecordError {}

impl Record {
    /// Reads a record back. Arbitrary bytes give an error, never a panic.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader(value);
        let kind = *key.first().ok_or(RecordError::UnknownKind(None))?;
        if !matches!(kind, EXCHANGE | BINDING | QUEUE) {
            return Err(RecordError::UnknownKind(Some(kind)));
        }
        let version = reader.octet()?;
        if version != RECORD_VERSION {
            return Err(if version > RECORD_VERSION {
                RecordError::NewerVersion { found: version, supported: RECORD_VERSION }
            } else {
                RecordError::Malformed("its version is 0")
            });
        }
        let (record, expected_key) = match kind {
            EXCHANGE => {
                let record = ExchangeRecord::read(&mut reader)?;
                let key = record.key();
                (Record::Exchange(record), key)
            }
            BINDING => {
                let record = BindingRecord::read(&mut reader)?;
                let key = record.key();
                (Record::Binding(record), key)
            }
            _ => {
                let record = QueueRecord::read(&mut reader)?;
                let key = record.key();
                (Record::Queue(record), key)
            }
        };
        if !reader.0.is_empty() {
            return Err(RecordError::Malformed("bytes follow its end"));
        }
        if expected_key != key {
            return Err(RecordError::KeyMismatch);
        }
        Ok(record)
    }
}

impl ExchangeRecord {
    /// Key in the store: at most 261 bytes more than the virtual host's name.
    pub fn key(&self) -> Vec<u8> {
        let mut key = vec![EXCHANGE];
        put_bytes(&mut key, self.vhost.as_bytes());
        key.extend_from_slice(&self.name);
        key
    }

    /// Value in the store.
    pub fn encode(&self) -> Vec<u8> {
        let flags = flag(self.durable, DURABLE)
            | flag(self.auto_delete, AUTO_DELETE)
            | flag(self.internal, INTERNAL);
        let mut out = vec![RECORD_VERSION, flags, self.kind as u8];
        put_bytes(&mut out, self.vhost.as_bytes());
        put_bytes(&mut out, &self.name);
        put_bytes(&mut out, self.arguments.as_table().raw());
        out
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, RecordError> {
        let flags = reader.flags(DURABLE | AUTO_DELETE | INTERNAL)?;
        let kind = ExchangeKind::from_number(reader.octet()?)
            .ok_or(RecordError::Malformed("unknown exchange type"))?;
        Ok(ExchangeRecord {
            vhost: reader.text()?,
            name: reader.name()?,
            kind,
            durable: flags & DURABLE != 0,
            auto_delete: flags & AUTO_DELETE != 0,
            internal: flags & INTERNAL != 0,
            arguments: reader.arguments()?,
        })
    }
}

impl BindingRecord {
    /// Key in the store: 33 bytes.
    pub fn key(&self) -> Vec<u8> {
        let mut key = vec![BINDING];
        key.extend_from_slice(&Sha256::digest(self.encode()));
        key
    }

    /// Value in the store.
    pub fn encode(&self) -> Vec<u8> {
        let flags = DURABLE | flag(self.destination_kind == ResourceKind::Exchange, TO_EXCHANGE);
        let mut out = vec![RECORD_VERSION, flags];
        put_bytes(&mut out, self.vhost.as_bytes());
        put_bytes(&mut out, &self.source);
        put_bytes(&mut out, &self.destination);
        put_bytes(&mut out, &self.routing_key);
        put_bytes(&mut out, self.arguments.as_table().raw());
        out
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, RecordError> {
        let flags = reader.flags(DURABLE | TO_EXCHANGE)?;
        if flags & DURABLE == 0 {
            return Err(RecordError::Malformed("a binding that is not durable"));
        }
        let destination_kind =
            if flags & TO_EXCHANGE != 0 { ResourceKind::Exchange } else { ResourceKind::Queue };
        Ok(BindingRecord {
            vhost: reader.text()?,
            source: reader.name()?,
            destination_kind,
            destination: reader.name()?,
            routing_key: reader.name()?,
            arguments: reader.arguments()?,
        })
    }
}

impl QueueRecord {
    /// Virtual host and name.
    pub(crate) fn place(&self) -> (&str, &[u8]) {
        (&self.vhost, &self.name)
    }

    /// Key in the store: 9 bytes.
    pub fn key(&self) -> Vec<u8> {
        let mut key = vec![QUEUE];
        key.extend_from_slice(&self.id.to_le_bytes());
        key
    }

    /// Value in the store.
    pub fn encode(&self) -> Vec<u8> {
        let flags = flag(self.durable, DURABLE)
            | flag(self.auto_delete, AUTO_DELETE)
            | flag(self.exclusive, EXCLUSIVE);
        let mut out = vec![RECORD_VERSION, flags];
        out.extend_from_slice(&self.id.to_le_bytes());
        put_bytes(&mut out, self.vhost.as_bytes());
        put_bytes(&mut out, &self.name);
        put_bytes(&mut out, self.arguments.as_table().raw());
        out
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, RecordError> {
        let flags = reader.flags(DURABLE | AUTO_DELETE | EXCLUSIVE)?;
        let id = u64::from_le_bytes(*reader.take::<8>()?);
        Ok(QueueRecord {
            vhost: reader.text()?,
            name: reader.name()?,
            id,
            durable: flags & DURABLE != 0,
            auto_delete: flags & AUTO_DELETE != 0,
            exclusive: flags & EXCLUSIVE != 0,
            arguments: reader.arguments()?,
        })
    }
}

const fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(u32::try_from(bytes.len()).is_ok(), "a frame holds less");
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The rest of a value.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], RecordError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(taken)
    }

    fn octet(&mut self) -> Result<u8, RecordError> {
        Ok(self.take::<1>()?[0])
    }

    fn flags(&mut self, known: u8) -> Result<u8, RecordError> {
        match self.octet()? {
            flags if flags & !known == 0 => Ok(flags),
            _ => Err(RecordError::Malformed("unknown flags")),
        }
    }

    fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let length = u32::from_le_bytes(*self.take::<4>()?) as usize;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<String, RecordError> {
        String::from_utf8(self.bytes()?.to_vec())
            .map_err(|_| RecordError::Malformed("a virtual host whose name is not UTF-8"))
    }

    fn name(&mut self) -> Result<Box<[u8]>, RecordError> {
        match self.bytes()? {
            name if name.len() <= ShortStr::MAX_BYTES => Ok(name.into()),
            _ => Err(RecordError::Malformed("a name over 255 bytes")),
        }
    }

    fn arguments(&mut self) -> Result<TableBuf, RecordError> {
        Table::validate(self.bytes()?).map(TableBuf::from).map_err(RecordError::Arguments)
    }
}

const ENDS_EARLY: RecordError = RecordError::Malformed("it ends early");

#[cfg(test)]
mod tests {
    use forebay_wire::Value;
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = Box<[u8]>> {
        prop::collection::vec(any::<u8>(), 0..=255).prop_map(Vec::into_boxed_slice)
    }

    fn arguments() -> impl Strategy<Value = TableBuf> {
        prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), any::<i64>()), 0..4)
            .prop_map(|pairs| {
                pairs.iter().fold(TableBuf::new(), |table, (name, value)| {
                    table.with(name, Value::I64(*value))
                })
            })
    }

    fn record() -> impl Strategy<Value = Record> {
        (
            (0..3u8, "\\PC{0,40}", name(), name(), name()),
            (any::<u64>(), 0..5u8, any::<[bool; 3]>(), arguments()),
        )
            .prop_map(
                |((which, vhost, name, other, key), (id, kind, [a, b, c], arguments))| match which {
                    0 => Record::Exchange(ExchangeRecord {
                        vhost,
                        name,
                        kind: ExchangeKind::from_number(kind).unwrap(),
                        durable: a,
                        auto_delete: b,
                        internal: c,
                        arguments,
                    }),
                    1 => Record::Binding(BindingRecord {
                        vhost,
                        source: name,
                        destination_kind: if a {
                            ResourceKind::Queue
                        } else {
                            ResourceKind::Exchange
                        },
                        destination: other,
                        routing_key: key,
                        arguments,
                    }),
                    _ => Record::Queue(QueueRecord {
                        vhost,
                        name,
                        id,
                        durable: a,
                        auto_delete: b,
                        exclusive: c,
                        arguments,
                    }),
                },
            )
    }

    fn encoded(record: &Record) -> (Vec<u8>, Vec<u8>) {
        match record {
            Record::Exchange(record) => (record.key(), record.encode()),
            Record::Binding(record) => (record.key(), record.encode()),
            Record::Queue(record) => (record.key(), record.encode()),
        }
    }

    #[test]
    fn a_queue_record_looks_like_this() {
        let record = QueueRecord {
            vhost: "/".to_owned(),
            name: (*b"jobs").into(),
            id: 258,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments: TableBuf::new().with("v", Value::I8(2)),
        };
        assert_eq!(record.key(), b"q\x02\x01\0\0\0\0\0\0");
        assert_eq!(
            record.encode(),
            b"\x01\x01\x02\x01\0\0\0\0\0\0\x01\0\0\0/\x04\0\0\0jobs\x04\0\0\0\x01vb\x02"
        );
    }

    #[test]
    fn newer_records_and_other_keys_are_told_apart_from_damage() {
        assert_eq!(
            Record::decode(b"q12345678", b"\x02"),
            Err(RecordError::NewerVersion { found: 2, supported: 1 })
        );
        assert_eq!(Record::decode(b"z", b"\x01"), Err(RecordError::UnknownKind(Some(b'z'))));
        assert_eq!(Record::decode(b"", b"\x01"), Err(RecordError::UnknownKind(None)));
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were(record in record()) {
            let (key, value) = encoded(&record);
            prop_assert_eq!(Record::decode(&key, &value), Ok(record));
        }

        #[test]
        fn a_record_under_another_key_or_cut_short_is_refused(
            first in record(),
            second in record(),
            cut in any::<prop::sample::Index>(),
        ) {
            let ((key, value), (other_key, _)) = (encoded(&first), encoded(&second));
            if key != other_key {
                prop_assert!(Record::decode(&other_key, &value).is_err());
            }
            prop_assert!(Record::decode(&key, &value[..cut.index(value.len())]).is_err());
            let longer = [&value[..], b"\0"].concat();
            prop_assert!(Record::decode(&key, &longer).is_err());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            kind in prop::sample::select(b"xbqz".to_vec()),
            mut value in prop::collection::vec(any::<u8>(), 0..200),
            versioned in any::<bool>(),
        ) {
            if versioned && let Some(version) = value.first_mut() {
                *version = RECORD_VERSION;
            }
            let _ = Record::decode(&[kind], &value);
        }
    }
}
