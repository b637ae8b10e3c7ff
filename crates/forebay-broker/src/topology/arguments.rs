//! Arguments of queues, exchanges and bindings: equivalence on redeclaration, and a sorted form.

use std::fmt;

use forebay_wire::{Table, TableBuf, Value};

use super::resource::{Lossy, Resource};
use crate::error::AmqpError;

/// The exchange that takes what another could not route.
pub const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

/// A value as RabbitMQ's error texts show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownValue<'a>(pub(crate) Value<'a>);

impl fmt::Display for ShownValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::LongStr(bytes) | Value::Bytes(bytes) => Lossy(bytes).fmt(f),
            Value::Bool(truth) => truth.fmt(f),
            Value::F32(number) => write!(f, "{number:?}"),
            Value::F64(number) => write!(f, "{number:?}"),
            Value::Timestamp(seconds) => seconds.fmt(f),
            Value::Decimal { scale, value } => write!(f, "{{{scale},{value}}}"),
            Value::Void => f.write_str("undefined"),
            Value::Array(array) => {
                f.write_str("[")?;
                for (at, value) in array.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{{{},{}}}", value.type_name(), Self(value))?;
                }
                f.write_str("]")
            }
            Value::Table(table) => {
                f.write_str("[")?;
                for (at, (name, value)) in table.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{{{name},{},{}}}", value.type_name(), Self(value))?;
                }
                f.write_str("]")
            }
            other => match other.as_i64() {
                Some(number) => number.fmt(f),
                None => Ok(()),
            },
        }
    }
}

/// One side of an inequivalence where the other side is absent, or this one is.
struct ShownArgument<'a>(Option<Value<'a>>);

impl fmt::Display for ShownArgument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(value) => {
                write!(f, "the value '{}' of type '{}'", ShownValue(value), value.type_name())
            }
        }
    }
}

/// Whether two values are the same across the widths of their class: `10` as a byte and as a long,
/// equal bytes as text and as binary. An integer and a float never are.
fn same_value(a: Value<'_>, b: Value<'_>) -> bool {
    let integer = |value: Value<'_>| match value {
        Value::Timestamp(seconds) => Some(i128::from(seconds)),
        other => other.as_i64().map(i128::from),
    };
    let float = |value: Value<'_>| match value {
        Value::F32(number) => Some(f64::from(number)),
        Value::F64(number) => Some(number),
        _ => None,
    };
    match (a, b) {
        (Value::LongStr(a) | Value::Bytes(a), Value::LongStr(b) | Value::Bytes(b)) => a == b,
        _ => {
            a == b
                || (integer(a).is_some() && integer(a) == integer(b))
                || (float(a).is_some() && float(a) == float(b))
        }
    }
}

/// Refuses (406) a redeclaration if one of `names` has another value than before; arguments that are
/// not among `names` may differ. An absent `x-queue-type` is the same as `classic`.
pub fn check_arguments_equivalent(
    resource: Resource<'_>,
    current: Table<'_>,
    received: Table<'_>,
    names: &[&str],
) -> Result<(), AmqpError> {
    for &name in names {
        match (current.get(name), received.get(name)) {
            (None, None) => {}
            (Some(held), Some(wanted)) => {
                if !same_value(held, wanted) {
                    return Err(AmqpError::inequivalent_arg(
                        name,
                        resource,
                        format_args!("'{}'", ShownValue(wanted)),
                        format_args!("'{}'", ShownValue(held)),
                    ));
                }
            }
            (None, Some(Value::LongStr(b"classic"))) | (Some(Value::LongStr(b"classic")), None)
                if name == "x-queue-type" => {}
            (held, wanted) => {
                return Err(AmqpError::inequivalent_arg(
                    name,
                    resource,
                    ShownArgument(wanted),
                    ShownArgument(held),
                ));
            }
        }
    }
    Ok(())
}

/// Refuses (406) a redeclaration with another value of a property such as `durable`.
pub fn check_property_equivalent<T: PartialEq + fmt::Display>(
    resource: Resource<'_>,
    name: &str,
    current: T,
    received: T,
) -> Result<(), AmqpError> {
    if current == received {
        return Ok(());
    }
    Err(AmqpError::inequivalent_arg(
        name,
        resource,
        format_args!("'{received}'"),
        format_args!("'{current}'"),
    ))
}

/// The name of the alternate exchange in an exchange's arguments; 406 if it is no string.
pub fn alternate_exchange<'a>(
    exchange: Resource<'_>,
    arguments: Table<'a>,
) -> Result<Option<&'a [u8]>, AmqpError> {
    match arguments.get(ALTERNATE_EXCHANGE) {
        None => Ok(None),
        Some(Value::LongStr(name)) => Ok(Some(name)),
        Some(other) => {
            Err(AmqpError::invalid_arg_type(ALTERNATE_EXCHANGE, exchange, other.type_name()))
        }
    }
}

/// The table with its names in order; equal names stay in theirs.
pub(crate) fn sorted(arguments: Table<'_>) -> TableBuf {
    let mut list: Vec<_> = arguments.iter().collect();
    list.sort_by_key(|(name, _)| *name);
    let mut sorted = TableBuf::new();
    for (name, value) in list {
        sorted.push(name, value);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Resource<'static> = Resource::queue(b"q", "/");

    fn redeclare(held: Option<Value<'_>>, wanted: Option<Value<'_>>) -> Result<(), String> {
        let table = |value: Option<Value<'_>>| {
            value.map_or_else(TableBuf::new, |value| TableBuf::new().with("x-max-length", value))
        };
        check_arguments_equivalent(
            QUEUE,
            table(held).as_table(),
            table(wanted).as_table(),
            &["x-max-length"],
        )
        .map_err(|error| error.reply_text())
    }

    #[test]
    fn numbers_are_compared_by_value_over_integer_widths() {
        assert_eq!(redeclare(Some(Value::I32(10)), Some(Value::I64(10))), Ok(()));
        assert_eq!(redeclare(Some(Value::U8(10)), Some(Value::I16(10))), Ok(()));
        assert_eq!(redeclare(Some(Value::F32(0.5)), Some(Value::F64(0.5))), Ok(()));
        assert_eq!(redeclare(None, None), Ok(()));
        assert_eq!(
            redeclare(Some(Value::I32(10)), Some(Value::F64(10.0))).unwrap_err(),
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
             received '10.0' but current is '10'"
        );
        assert!(redeclare(Some(Value::I32(10)), Some(Value::LongStr(b"10"))).is_err());
    }

    #[test]
    fn an_absent_argument_is_none_and_a_present_one_has_a_type() {
        assert_eq!(
            redeclare(None, Some(Value::I32(10))).unwrap_err(),
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
             received the value '10' of type 'signedint' but current is none"
        );
        assert_eq!(
            redeclare(Some(Value::LongStr(b"a")), None).unwrap_err(),
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
             received none but current is the value 'a' of type 'longstr'"
        );
        assert_eq!(
            redeclare(Some(Value::I32(10)), Some(Value::I32(20))).unwrap_err(),
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
             received '20' but current is '10'"
        );
    }

    #[test]
    fn unknown_arguments_are_not_compared_and_classic_is_the_absent_type() {
        let classic = TableBuf::new()
            .with("x-queue-type", Value::LongStr(b"classic"))
            .with("x-mine", Value::I32(1));
        let names = ["x-queue-type"];
        let none = Table::default();
        let held = classic.as_table();
        assert_eq!(check_arguments_equivalent(QUEUE, held, none, &names), Ok(()));
        assert_eq!(check_arguments_equivalent(QUEUE, none, held, &names), Ok(()));
        let quorum = TableBuf::new().with("x-queue-type", Value::LongStr(b"quorum"));
        assert!(check_arguments_equivalent(QUEUE, none, quorum.as_table(), &names).is_err());
    }

    #[test]
    fn properties_show_both_values() {
        assert_eq!(
            check_property_equivalent(QUEUE, "durable", true, false).unwrap_err().reply_text(),
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': \
             received 'false' but current is 'true'"
        );
        assert_eq!(check_property_equivalent(QUEUE, "durable", true, true), Ok(()));
    }

    #[test]
    fn an_alternate_exchange_is_a_string() {
        let exchange = Resource::exchange(b"x", "/");
        let named = TableBuf::new().with(ALTERNATE_EXCHANGE, Value::LongStr(b"ae"));
        assert_eq!(alternate_exchange(exchange, named.as_table()), Ok(Some(&b"ae"[..])));
        assert_eq!(alternate_exchange(exchange, Table::default()), Ok(None));
        let number = TableBuf::new().with(ALTERNATE_EXCHANGE, Value::I32(1));
        assert_eq!(
            alternate_exchange(exchange, number.as_table()).unwrap_err().reply_text(),
            "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in \
             exchange 'x' in vhost '/'"
        );
    }

    #[test]
    fn order_makes_no_difference_to_the_sorted_form() {
        let ab = TableBuf::new().with("a", Value::Bool(true)).with("b", Value::Void);
        let ba = TableBuf::new().with("b", Value::Void).with("a", Value::Bool(true));
        assert_eq!(sorted(ab.as_table()), sorted(ba.as_table()));
    }
}
