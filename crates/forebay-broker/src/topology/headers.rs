//! The headers exchange: a binding's arguments against a message's headers.
//!
//! | `x-match` | matches when |
//! |---|---|
//! | `all`, absent | every argument is met; no arguments: always |
//! | `any` | at least one argument is met; no arguments: never |
//! | `all-with-x`, `any-with-x` | the same, with arguments whose names begin with `x-` counted too |
//!
//! Otherwise arguments beginning with `x-` are left out; `x-match` itself always is. An argument
//! without a value (void) is met by the header's presence; any other by an equal value. Numbers are
//! equal across widths, and never equal to text or truth values.

use forebay_wire::{ShortStr, Table, Value};

use super::Map;
use super::binding::BindingKey;
use super::destination::Destination;
use super::resource::Lossy;
use crate::error::AmqpError;

/// Bindings with their arguments, tried one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers {
    list: Vec<HeadersBinding>,
    index: Map<BindingKey, u32>,
}

#[derive(Clone, Debug)]
struct HeadersBinding {
    key: BindingKey,
    destination: Destination,
    pattern: Pattern,
}

/// A message's headers, sorted so that a binding finds its names quickly. Made once per message.
#[derive(Clone, Debug)]
pub(crate) struct SortedHeaders<'a>(Vec<(ShortStr<'a>, Value<'a>)>);

impl<'a> SortedHeaders<'a> {
    pub(crate) fn new(headers: Table<'a>) -> Self {
        let mut list: Vec<_> = headers.iter().collect();
        list.sort_by_key(|(name, _)| *name);
        SortedHeaders(list)
    }

    fn get(&self, name: &[u8]) -> Option<Value<'a>> {
        let at = self.0.partition_point(|(each, _)| each.as_bytes() < name);
        self.0.get(at).filter(|(each, _)| each.as_bytes() == name).map(|(_, value)| *value)
    }
}

impl Headers {
    pub(crate) fn add(&mut self, key: BindingKey, arguments: Table<'_>, destination: Destination) {
        self.index.insert(key, self.list.len() as u32);
        self.list.push(HeadersBinding { key, destination, pattern: Pattern::new(arguments) });
    }

    pub(crate) fn remove(&mut self, key: BindingKey) {
        if let Some(at) = self.index.remove(&key) {
            self.list.swap_remove(at as usize);
            if let Some(moved) = self.list.get(at as usize) {
                self.index.insert(moved.key, at);
            }
        }
    }

    /// Calls `found` for each matching binding, so a destination may come more than once.
    pub(crate) fn route(&self, headers: &SortedHeaders<'_>, mut found: impl FnMut(Destination)) {
        for binding in &self.list {
            if binding.pattern.matches(headers) {
                found(binding.destination);
            }
        }
    }
}

/// Refuses a binding whose `x-match` is none of the four.
pub(crate) fn check_binding(arguments: Table<'_>) -> Result<(), AmqpError> {
    match arguments.get("x-match") {
        None => Ok(()),
        Some(Value::LongStr(b"all" | b"any" | b"all-with-x" | b"any-with-x")) => Ok(()),
        Some(Value::LongStr(other)) => Err(AmqpError::invalid_binding(format_args!(
            "Invalid x-match field value <<\"{}\">>; expected all, any, all-with-x, or any-with-x",
            Lossy(other)
        ))),
        Some(other) => Err(AmqpError::invalid_binding(format_args!(
            "Invalid x-match field type {} (value {}); expected longstr",
            other.type_name(),
            super::arguments::ShownValue(other)
        ))),
    }
}

#[derive(Clone, Debug)]
struct Pattern {
    /// One met argument is enough.
    any: bool,
    arguments: Vec<(Box<[u8]>, Wanted)>,
}

/// What an argument asks of its header, owned.
#[derive(Clone, Debug)]
enum Wanted {
    Presence,
    Number(Number),
    Truth(bool),
    Bytes(Box<[u8]>),
    Decimal(u8, i32),
    /// Arrays and tables are equal when their bytes are.
    Array(Box<[u8]>),
    Table(Box<[u8]>),
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (*self, *other) {
            (Number::Integer(a), Number::Integer(b)) => a == b,
            (Number::Float(a), Number::Float(b)) => a == b,
            (Number::Integer(a), Number::Float(b)) | (Number::Float(b), Number::Integer(a)) => {
                a as f64 == b
            }
        }
    }
}

fn number(value: Value<'_>) -> Option<Number> {
    match value {
        Value::F32(value) => Some(Number::Float(f64::from(value))),
        Value::F64(value) => Some(Number::Float(value)),
        Value::Timestamp(seconds) => Some(Number::Integer(i128::from(seconds))),
        other => other.as_i64().map(|value| Number::Integer(i128::from(value))),
    }
}

impl Wanted {
    fn new(value: Value<'_>) -> Self {
        match value {
            Value::Void => Wanted::Presence,
            Value::Bool(truth) => Wanted::Truth(truth),
            Value::LongStr(bytes) | Value::Bytes(bytes) => Wanted::Bytes(bytes.into()),
            Value::Decimal { scale, value } => Wanted::Decimal(scale, value),
            Value::Array(array) => Wanted::Array(array.raw().into()),
            Value::Table(table) => Wanted::Table(table.raw().into()),
            other => match number(other) {
                Some(number) => Wanted::Number(number),
                None => Wanted::Presence,
            },
        }
    }

    fn is_met_by(&self, value: Value<'_>) -> bool {
        match (self, value) {
            (Wanted::Presence, _) => true,
            (Wanted::Number(wanted), value) => number(value).is_some_and(|held| held == *wanted),
            (Wanted::Truth(wanted), Value::Bool(held)) => *wanted == held,
            (Wanted::Bytes(wanted), Value::LongStr(held) | Value::Bytes(held)) => **wanted == *held,
            (Wanted::Decimal(wanted_scale, wanted), Value::Decimal { scale, value }) => {
                (*wanted_scale, *wanted) == (scale, value)
            }
            (Wanted::Array(wanted), Value::Array(held)) => **wanted == *held.raw(),
            (Wanted::Table(wanted), Value::Table(held)) => **wanted == *held.raw(),
            _ => false,
        }
    }
}

impl Pattern {
    fn new(arguments: Table<'_>) -> Self {
        let (any, with_x) = match arguments.get("x-match") {
            Some(Value::LongStr(b"any")) => (true, false),
            Some(Value::LongStr(b"any-with-x")) => (true, true),
            Some(Value::LongStr(b"all-with-x")) => (false, true),
            _ => (false, false),
        };
        let arguments = arguments
            .iter()
            .filter(|(name, _)| {
                name.as_bytes() != b"x-match" && (with_x || !name.starts_with(b"x-"))
            })
            .map(|(name, value)| (name.as_bytes().into(), Wanted::new(value)))
            .collect();
        Pattern { any, arguments }
    }

    fn matches(&self, headers: &SortedHeaders<'_>) -> bool {
        let mut met = self
            .arguments
            .iter()
            .map(|(name, wanted)| headers.get(name).is_some_and(|value| wanted.is_met_by(value)));
        if self.any { met.any(|met| met) } else { met.all(|met| met) }
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::TableBuf;
    use proptest::prelude::*;

    use super::*;

    fn matches(arguments: &TableBuf, headers: &TableBuf) -> bool {
        Pattern::new(arguments.as_table()).matches(&SortedHeaders::new(headers.as_table()))
    }

    fn with_match(kind: &'static str) -> TableBuf {
        TableBuf::new().with("x-match", Value::LongStr(kind.as_bytes()))
    }

    fn text(value: &'static str) -> Value<'static> {
        Value::LongStr(value.as_bytes())
    }

    #[test]
    fn all_wants_every_argument_and_is_what_absent_means() {
        let headers = TableBuf::new().with("b", text("2")).with("a", text("1"));
        for arguments in [TableBuf::new(), with_match("all")] {
            assert!(matches(&arguments, &headers), "no arguments: everything");
            let one = arguments.with("a", text("1"));
            assert!(matches(&one, &headers));
            assert!(matches(&one.clone().with("b", text("2")), &headers));
            assert!(!matches(&one.clone().with("b", text("3")), &headers));
            assert!(!matches(&one.with("c", text("3")), &headers));
        }
        assert!(matches(&TableBuf::new(), &TableBuf::new()));
    }

    #[test]
    fn any_wants_one_argument_and_without_arguments_matches_nothing() {
        let headers = TableBuf::new().with("a", text("1"));
        assert!(!matches(&with_match("any"), &headers));
        assert!(matches(&with_match("any").with("a", text("1")).with("b", text("2")), &headers));
        assert!(!matches(&with_match("any").with("a", text("2")), &headers));
    }

    #[test]
    fn names_with_x_count_only_with_x() {
        let headers = TableBuf::new().with("x-a", text("1"));
        assert!(matches(&with_match("all").with("x-a", text("2")), &headers), "left out");
        assert!(!matches(&with_match("all-with-x").with("x-a", text("2")), &headers));
        assert!(matches(&with_match("all-with-x").with("x-a", text("1")), &headers));
        assert!(!matches(&with_match("any").with("x-a", text("1")), &headers));
        assert!(matches(&with_match("any-with-x").with("x-a", text("1")), &headers));
        let x_match_header = TableBuf::new().with("x-match", text("any-with-x"));
        assert!(!matches(&with_match("any-with-x"), &x_match_header), "never x-match itself");
    }

    #[test]
    fn void_asks_for_presence() {
        let arguments = TableBuf::new().with("a", Value::Void);
        assert!(matches(&arguments, &TableBuf::new().with("a", text("anything"))));
        assert!(matches(&arguments, &TableBuf::new().with("a", Value::Void)));
        assert!(!matches(&arguments, &TableBuf::new().with("b", text("anything"))));
    }

    #[test]
    fn one_is_one_in_every_width_and_nothing_else() {
        let wants_one = TableBuf::new().with("a", Value::I32(1));
        for same in [
            Value::I8(1),
            Value::U8(1),
            Value::I16(1),
            Value::U32(1),
            Value::I64(1),
            Value::F64(1.0),
            Value::Timestamp(1),
        ] {
            assert!(matches(&wants_one, &TableBuf::new().with("a", same)), "{same:?}");
        }
        for other in [
            text("1"),
            Value::Bool(true),
            Value::I32(2),
            Value::Void,
            Value::Decimal { scale: 0, value: 1 },
        ] {
            assert!(!matches(&wants_one, &TableBuf::new().with("a", other)), "{other:?}");
        }
    }

    #[test]
    fn invalid_x_match_is_refused_with_its_value() {
        let refused = |arguments: TableBuf| check_binding(arguments.as_table()).unwrap_err();
        assert_eq!(
            refused(with_match("most")).reply_text(),
            "PRECONDITION_FAILED - Invalid x-match field value <<\"most\">>; expected all, any, \
             all-with-x, or any-with-x"
        );
        assert_eq!(
            refused(TableBuf::new().with("x-match", Value::I32(1))).reply_text(),
            "PRECONDITION_FAILED - Invalid x-match field type signedint (value 1); expected longstr"
        );
        for kind in ["all", "any", "all-with-x", "any-with-x"] {
            assert_eq!(check_binding(with_match(kind).as_table()), Ok(()));
        }
        assert_eq!(check_binding(TableBuf::new().as_table()), Ok(()));
    }

    #[test]
    fn removing_a_binding_keeps_the_others() {
        let mut headers = Headers::default();
        let destination = |key| Destination::Queue(super::super::destination::QueueKey(key));
        for key in 0..5 {
            headers.add(BindingKey(key), TableBuf::new().as_table(), destination(key));
        }
        for removed in [0, 4, 2] {
            headers.remove(BindingKey(removed));
        }
        headers.remove(BindingKey(2));
        let mut found = Vec::new();
        headers.route(&SortedHeaders::new(Table::default()), |each| found.push(each));
        found.sort();
        assert_eq!(found, [destination(1), destination(3)]);
    }

    fn value() -> impl Strategy<Value = Value<'static>> {
        prop_oneof![
            Just(Value::Void),
            (0i64..3).prop_map(Value::I64),
            (0i8..3).prop_map(Value::I8),
            any::<bool>().prop_map(Value::Bool),
            prop::sample::select(vec!["0", "1", "true"]).prop_map(text),
            Just(Value::Bytes(b"1")),
            Just(Value::F64(1.0)),
        ]
    }

    fn table() -> impl Strategy<Value = Vec<(&'static str, Value<'static>)>> {
        prop::collection::btree_map(
            prop::sample::select(vec!["a", "b", "c", "x-a", "x-b"]),
            value(),
            0..5,
        )
        .prop_map(|map| map.into_iter().collect())
        .prop_shuffle()
    }

    fn class(value: Value<'_>) -> (u8, Vec<u8>) {
        match value {
            Value::Bool(truth) => (1, vec![u8::from(truth)]),
            Value::LongStr(bytes) | Value::Bytes(bytes) => (2, bytes.to_vec()),
            Value::F64(value) => (3, vec![value as u8]),
            Value::Void => (4, Vec::new()),
            other => (3, vec![other.as_i64().unwrap() as u8]),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_sentence(
            kind in prop::sample::select(vec![None, Some("all"), Some("any"), Some("all-with-x"), Some("any-with-x")]),
            arguments in table(),
            headers in table(),
        ) {
            let counted: Vec<_> = arguments
                .iter()
                .filter(|(name, _)| kind.is_some_and(|kind| kind.ends_with("-x")) || !name.starts_with("x-"))
                .collect();
            let met = counted
                .iter()
                .filter(|(name, wanted)| headers.iter().any(|(header, held)| {
                    header == name && (*wanted == Value::Void || class(*held) == class(*wanted))
                }))
                .count();
            let expected = match kind {
                Some("any" | "any-with-x") => met > 0,
                _ => met == counted.len(),
            };
            let mut wanted = kind.map_or_else(TableBuf::new, with_match);
            arguments.iter().for_each(|(name, value)| wanted.push(name, *value));
            let mut held = TableBuf::new();
            headers.iter().for_each(|(name, value)| held.push(name, *value));
            prop_assert_eq!(matches(&wanted, &held), expected);
        }
    }
}
