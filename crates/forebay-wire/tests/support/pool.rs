//! A pool of owned values from which borrowed methods and properties are put together.
//!
//! Proptest makes (and shrinks) the pool; a [`Draw`] hands its values out in turn.

use std::cell::Cell;

use forebay_wire::{
    ArrayBuf, Method, Properties, ShortStr, Table, TableBuf, Value, access, basic, channel,
    confirm, connection, exchange, queue, tx,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::every_method;

/// A value that owns what it holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Owned {
    Plain(Plain),
    Table(Vec<(Vec<u8>, Owned)>),
    Array(Vec<Owned>),
}

/// The values without anything inside.
#[derive(Clone, Debug, PartialEq)]
pub enum Plain {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(u32),
    F64(u64),
    Decimal(u8, i32),
    LongStr(Vec<u8>),
    Bytes(Vec<u8>),
    Timestamp(u64),
    Void,
}

impl Plain {
    pub fn value(&self) -> Value<'_> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::I8(value) => Value::I8(*value),
            Self::U8(value) => Value::U8(*value),
            Self::I16(value) => Value::I16(*value),
            Self::U16(value) => Value::U16(*value),
            Self::I32(value) => Value::I32(*value),
            Self::U32(value) => Value::U32(*value),
            Self::I64(value) => Value::I64(*value),
            Self::F32(bits) => Value::F32(f32::from_bits(*bits)),
            Self::F64(bits) => Value::F64(f64::from_bits(*bits)),
            Self::Decimal(scale, value) => Value::Decimal { scale: *scale, value: *value },
            Self::LongStr(bytes) => Value::LongStr(bytes),
            Self::Bytes(bytes) => Value::Bytes(bytes),
            Self::Timestamp(seconds) => Value::Timestamp(*seconds),
            Self::Void => Value::Void,
        }
    }
}

pub fn table_buf(pairs: &[(Vec<u8>, Owned)]) -> TableBuf {
    let mut buf = TableBuf::new();
    for (name, value) in pairs {
        with_value(value, |value| buf.push(name, value));
    }
    buf
}

pub fn array_buf(values: &[Owned]) -> ArrayBuf {
    let mut buf = ArrayBuf::new();
    for value in values {
        with_value(value, |value| buf.push(value));
    }
    buf
}

fn with_value(owned: &Owned, use_it: impl FnOnce(Value<'_>)) {
    match owned {
        Owned::Plain(plain) => use_it(plain.value()),
        Owned::Table(pairs) => use_it(Value::Table(table_buf(pairs).as_table())),
        Owned::Array(values) => use_it(Value::Array(array_buf(values).as_array())),
    }
}

/// The owned form of a value read back; floats by their bits, so NaN equals itself.
pub fn owned(value: Value<'_>) -> Owned {
    Owned::Plain(match value {
        Value::Table(table) => return Owned::Table(owned_table(table)),
        Value::Array(array) => return Owned::Array(array.iter().map(owned).collect()),
        Value::Bool(value) => Plain::Bool(value),
        Value::I8(value) => Plain::I8(value),
        Value::U8(value) => Plain::U8(value),
        Value::I16(value) => Plain::I16(value),
        Value::U16(value) => Plain::U16(value),
        Value::I32(value) => Plain::I32(value),
        Value::U32(value) => Plain::U32(value),
        Value::I64(value) => Plain::I64(value),
        Value::F32(value) => Plain::F32(value.to_bits()),
        Value::F64(value) => Plain::F64(value.to_bits()),
        Value::Decimal { scale, value } => Plain::Decimal(scale, value),
        Value::LongStr(bytes) => Plain::LongStr(bytes.to_vec()),
        Value::Bytes(bytes) => Plain::Bytes(bytes.to_vec()),
        Value::Timestamp(seconds) => Plain::Timestamp(seconds),
        Value::Void => Plain::Void,
    })
}

pub fn owned_table(table: Table<'_>) -> Vec<(Vec<u8>, Owned)> {
    table.iter().map(|(name, value)| (name.to_vec(), owned(value))).collect()
}

fn plain() -> impl Strategy<Value = Plain> {
    prop_oneof![
        any::<bool>().prop_map(Plain::Bool),
        any::<i8>().prop_map(Plain::I8),
        any::<u8>().prop_map(Plain::U8),
        any::<i16>().prop_map(Plain::I16),
        any::<u16>().prop_map(Plain::U16),
        any::<i32>().prop_map(Plain::I32),
        any::<u32>().prop_map(Plain::U32),
        any::<i64>().prop_map(Plain::I64),
        any::<u32>().prop_map(Plain::F32),
        any::<u64>().prop_map(Plain::F64),
        any::<(u8, i32)>().prop_map(|(scale, value)| Plain::Decimal(scale, value)),
        vec(any::<u8>(), 0..40).prop_map(Plain::LongStr),
        vec(any::<u8>(), 0..40).prop_map(Plain::Bytes),
        any::<u64>().prop_map(Plain::Timestamp),
        Just(Plain::Void),
    ]
}

/// Names no longer than a short string, UTF-8, so that amq-protocol takes them too.
fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof!["[a-z.-]{0,12}", "\\PC{0,60}"].prop_map(String::into_bytes)
}

/// Tables with sorted, unique names: what amq-protocol's map can represent.
pub fn pairs() -> impl Strategy<Value = Vec<(Vec<u8>, Owned)>> {
    let value = plain().prop_map(Owned::Plain).prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            btree_map(name(), inner.clone(), 0..4)
                .prop_map(|map| Owned::Table(map.into_iter().collect())),
            vec(inner, 0..4).prop_map(Owned::Array),
        ]
    });
    btree_map(name(), value, 0..6).prop_map(|map| map.into_iter().collect())
}

/// Owned raw material for methods and properties.
#[derive(Clone, Debug)]
pub struct Pool {
    pub names: Vec<Vec<u8>>,
    pub long_strings: Vec<Vec<u8>>,
    pub tables: Vec<TableBuf>,
    pub numbers: Vec<u64>,
}

pub fn pool() -> impl Strategy<Value = Pool> {
    (
        vec(prop_oneof![9 => name(), 1 => Just(vec![b'x'; 255])], 1..6),
        vec(vec(any::<u8>(), 0..80), 1..3),
        vec(pairs().prop_map(|pairs| table_buf(&pairs)), 1..3),
        vec(any::<u64>(), 1..8),
    )
        .prop_map(|(names, long_strings, tables, numbers)| Pool {
            names,
            long_strings,
            tables,
            numbers,
        })
}

/// Hands out the values of a pool, each kind in turn.
pub struct Draw<'a> {
    pool: &'a Pool,
    turn: Cell<usize>,
}

impl<'a> Draw<'a> {
    pub fn new(pool: &'a Pool) -> Self {
        Self { pool, turn: Cell::new(0) }
    }

    fn turn(&self) -> usize {
        self.turn.replace(self.turn.get() + 1)
    }

    fn number(&self) -> u64 {
        let turn = self.turn();
        let number = self.pool.numbers[turn % self.pool.numbers.len()];
        number.rotate_left(turn as u32)
    }

    fn option<T: Drawn<'a>>(&self) -> Option<T> {
        (!self.number().is_multiple_of(3)).then(|| T::drawn(self))
    }

    pub fn properties(&self) -> Properties<'a> {
        Properties {
            content_type: self.option(),
            content_encoding: self.option(),
            headers: self.option(),
            delivery_mode: self.option(),
            priority: self.option(),
            correlation_id: self.option(),
            reply_to: self.option(),
            expiration: self.option(),
            message_id: self.option(),
            timestamp: self.option(),
            type_name: self.option(),
            user_id: self.option(),
            app_id: self.option(),
            cluster_id: self.option(),
        }
    }
}

/// What can be drawn from a pool.
pub trait Drawn<'a>: Sized {
    fn drawn(from: &Draw<'a>) -> Self;
}

macro_rules! drawn {
    ($($type:ty: |$from:ident| $value:expr;)*) => {$(
        impl<'a> Drawn<'a> for $type {
            fn drawn($from: &Draw<'a>) -> Self {
                $value
            }
        }
    )*};
}

drawn! {
    bool: |from| from.number() & 1 == 1;
    u8: |from| from.number() as u8;
    u16: |from| from.number() as u16;
    u32: |from| from.number() as u32;
    u64: |from| from.number();
    ShortStr<'a>: |from| {
        let name = &from.pool.names[from.turn() % from.pool.names.len()];
        let text = std::str::from_utf8(name).expect("names are UTF-8");
        ShortStr::truncated(text)
    };
    &'a [u8]: |from| &from.pool.long_strings[from.turn() % from.pool.long_strings.len()];
    Table<'a>: |from| from.pool.tables[from.turn() % from.pool.tables.len()].as_table();
}

macro_rules! draw_methods {
    ($($module:ident $class:ident {$(
        $variant:ident $name:ident ($($ours:ident $(= $theirs:ident)?),*)
        ($($only_ours:ident = $given:expr),*)
    )*})*) => {
        /// One of each method, every argument drawn from the pool, also those that amq-protocol
        /// does not expose.
        pub fn all_methods<'a>(draw: &Draw<'a>) -> Vec<Method<'a>> {
            vec![$($(
                Method::$variant($module::$name {
                    $($ours: Drawn::drawn(draw),)*
                    $($only_ours: Drawn::drawn(draw),)*
                }),
            )*)*]
        }
    };
}
every_method!(draw_methods);
