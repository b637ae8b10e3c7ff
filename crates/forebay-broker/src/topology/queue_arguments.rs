//! Arguments of `queue.declare`: which make sense, and which this version can keep.
//!
//! ```text
//!   arguments ──► value makes sense? ──no──► 406 invalid arg 'x-max-length' for queue ...
//!                        │ yes
//!                 of a classic queue? ──no──► 406 invalid arg ... of queue type ...
//!                        │ yes
//!                 can be kept here?   ──no──► 540 argument 'x-delayed-retry-max' ... not supported
//!                        │ yes
//!                     declared (unknown arguments are kept and mean nothing)
//! ```
//!
//! A feature is never promised in silence: an argument that would change what happens to messages
//! is refused until the queue can do it. Values that ask for what happens anyway (priorities up to
//! 0) are taken.

use std::fmt;

use forebay_wire::{Table, Value};

use super::arguments::{check_arguments_equivalent, check_property_equivalent};
use super::resource::{Lossy, Resource};
use crate::balancing::{FLOW_ARGUMENT, QueueFlow};
use crate::error::AmqpError;
use crate::levels::max_priority;

/// What a redeclaration has to agree with.
#[derive(Clone, Copy, Debug)]
pub struct QueueDeclaration<'a> {
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// As received.
    pub arguments: Table<'a>,
}

/// Arguments that a redeclaration of a classic queue compares; others may differ.
const COMPARED: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
    "x-consumer-timeout",
    FLOW_ARGUMENT,
];

/// Arguments of quorum queues and streams, refused for classic queues.
const OF_OTHER_TYPES: &[&str] = &[
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-initial-cluster-size",
    "x-max-age",
    "x-max-in-memory-bytes",
    "x-max-in-memory-length",
    "x-quorum-initial-group-size",
    "x-stream-filter-size-bytes",
    "x-stream-max-segment-size-bytes",
];

/// Arguments whose values are not looked at, because any of them asks for more than there is.
const UNSUPPORTED: &[&str] = &[
    "x-consumer-disconnected-timeout",
    "x-delayed-retry-max",
    "x-delayed-retry-min",
    "x-delayed-retry-type",
    "x-name-prefix",
];

/// The longest time to live and to expiry that RabbitMQ takes, in milliseconds: ten years.
const DURATION_MAX_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// What an argument with a sensible value asks for.
enum Asks {
    /// What this version does, or what happens anyway.
    WhatThereIs,
    /// Something that this version does not do.
    Feature,
}

/// Why a value makes no sense, as RabbitMQ prints it.
enum Reason {
    ExpectedInteger(&'static str),
    UnacceptableType(&'static str),
    ValueNegative(i64),
    ValueZero,
    ValueTooLarge(i64),
    MaxValueExceeded(i64),
    Name(&'static str),
    Sentence(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::ExpectedInteger(type_name) => {
                write!(f, "\"expected integer, got {type_name}\"")
            }
            Reason::UnacceptableType(type_name) => write!(f, "{{unacceptable_type,{type_name}}}"),
            Reason::ValueNegative(value) => write!(f, "{{value_negative,{value}}}"),
            Reason::ValueZero => f.write_str("{value_zero,0}"),
            Reason::ValueTooLarge(value) => write!(f, "{{value_too_large,{value}}}"),
            Reason::MaxValueExceeded(value) => write!(f, "{{max_value_exceeded,{value}}}"),
            Reason::Name(name) => f.write_str(name),
            Reason::Sentence(sentence) => write!(f, "\"{sentence}\""),
        }
    }
}

fn integer(value: Value<'_>) -> Result<i64, Reason> {
    value.as_i64().ok_or(Reason::ExpectedInteger(value.type_name()))
}

fn not_negative(value: Value<'_>) -> Result<i64, Reason> {
    match integer(value)? {
        number @ 0.. => Ok(number),
        number => Err(Reason::ValueNegative(number)),
    }
}

fn duration_ms(value: Value<'_>) -> Result<i64, Reason> {
    match not_negative(value)? {
        number if number > DURATION_MAX_MS => Err(Reason::ValueTooLarge(number)),
        number => Ok(number),
    }
}

fn text(value: Value<'_>) -> Result<&[u8], Reason> {
    match value {
        Value::LongStr(bytes) => Ok(bytes),
        other => Err(Reason::UnacceptableType(other.type_name())),
    }
}

/// Checks the value of a known argument; unknown ones ask for no more than there is.
fn asks(name: &[u8], value: Value<'_>, arguments: Table<'_>) -> Result<Asks, Reason> {
    Ok(match name {
        b"x-expires" => match duration_ms(value)? {
            0 => return Err(Reason::ValueZero),
            _ => Asks::WhatThereIs,
        },
        b"x-message-ttl" => {
            duration_ms(value)?;
            Asks::WhatThereIs
        }
        b"x-max-length" | b"x-max-length-bytes" => {
            not_negative(value)?;
            Asks::WhatThereIs
        }
        b"x-max-priority" => match not_negative(value)? {
            0..=255 => Asks::WhatThereIs,
            number => return Err(Reason::MaxValueExceeded(number)),
        },
        b"x-dead-letter-exchange" => {
            text(value)?;
            Asks::WhatThereIs
        }
        b"x-dead-letter-routing-key" => {
            text(value)?;
            if arguments.get("x-dead-letter-exchange").is_none() {
                return Err(Reason::Name("routing_key_but_no_dlx_defined"));
            }
            Asks::WhatThereIs
        }
        b"x-overflow" => match text(value)? {
            b"drop-head" | b"reject-publish" | b"reject-publish-dlx" => Asks::WhatThereIs,
            _ => return Err(Reason::Name("invalid_overflow")),
        },
        b"x-single-active-consumer" => match value {
            Value::Bool(_) => Asks::WhatThereIs,
            other => return Err(Reason::UnacceptableType(other.type_name())),
        },
        b"x-queue-mode" => match text(value)? {
            b"default" => Asks::WhatThereIs,
            // Every queue keeps its backlog on disk; RabbitMQ ignores the mode since 3.12 too.
            b"lazy" => Asks::WhatThereIs,
            mode => {
                return Err(Reason::Sentence(format!("unsupported queue mode '{}'", Lossy(mode))));
            }
        },
        b"x-flow" => match text(value)? {
            b"balance" if max_priority(arguments) > 0 => {
                let sentence = "a queue with priorities cannot balance".to_owned();
                return Err(Reason::Sentence(sentence));
            }
            name if QueueFlow::named(name).is_some() => Asks::WhatThereIs,
            name => {
                return Err(Reason::Sentence(format!(
                    "flow mode '{}' is neither 'absorb' nor 'balance'",
                    Lossy(name)
                )));
            }
        },
        b"x-queue-version" => match not_negative(value)? {
            1 | 2 => Asks::WhatThereIs,
            version => {
                return Err(Reason::Sentence(format!("unsupported queue version '{version}'")));
            }
        },
        b"x-queue-leader-locator" => match text(value)? {
            b"client-local" | b"balanced" | b"random" | b"least-leaders" => Asks::WhatThereIs,
            _ => return Err(Reason::Name("invalid_queue_locator_arg")),
        },
        _ if UNSUPPORTED.iter().any(|each| each.as_bytes() == name) => Asks::Feature,
        _ => Asks::WhatThereIs,
    })
}

/// Refuses arguments that make no sense (406), belong to another type of queue (406), or ask for
/// what this version does not have (540). For queues that do not exist yet.
pub fn check_queue_arguments(queue: Resource<'_>, arguments: Table<'_>) -> Result<(), AmqpError> {
    let invalid = |name: &[u8], reason: Reason| {
        AmqpError::invalid_arg(&String::from_utf8_lossy(name), queue, reason)
    };
    if let Some(value) = arguments.get("x-dead-letter-exchange")
        && value.as_long_str().is_none()
    {
        let name = "x-dead-letter-exchange";
        return Err(AmqpError::invalid_arg_type(name, queue, value.type_name()));
    }
    match arguments.get("x-queue-type").map(text) {
        None | Some(Ok(b"classic")) => {}
        Some(Ok(queue_type @ (b"quorum" | b"stream"))) => {
            return Err(AmqpError::unsupported_queue_type(queue_type, queue));
        }
        Some(Ok(other)) => {
            let sentence = format!("unsupported queue type '{}'", Lossy(other));
            return Err(invalid(b"x-queue-type", Reason::Sentence(sentence)));
        }
        Some(Err(reason)) => return Err(invalid(b"x-queue-type", reason)),
    }
    let mut unsupported = None;
    for (name, value) in arguments.iter() {
        match asks(&name, value, arguments).map_err(|reason| invalid(&name, reason))? {
            Asks::WhatThereIs => {}
            Asks::Feature => {
                unsupported.get_or_insert(name);
            }
        }
    }
    if let Some(name) = OF_OTHER_TYPES.iter().find(|name| arguments.get(name).is_some()) {
        return Err(AmqpError::invalid_arg_of_queue_type(name, queue));
    }
    match unsupported {
        Some(name) => Err(AmqpError::unsupported_arg(&name.to_string(), queue)),
        None => Ok(()),
    }
}

/// Refuses (406) a redeclaration that is not equivalent. Exclusivity is compared before, by whoever
/// knows the connection that asks.
pub fn check_queue_equivalent(
    queue: Resource<'_>,
    current: QueueDeclaration<'_>,
    received: QueueDeclaration<'_>,
) -> Result<(), AmqpError> {
    check_property_equivalent(queue, "durable", current.durable, received.durable)?;
    check_property_equivalent(queue, "auto_delete", current.auto_delete, received.auto_delete)?;
    check_arguments_equivalent(queue, current.arguments, received.arguments, COMPARED)
}

#[cfg(test)]
mod tests {
    use forebay_wire::TableBuf;

    use super::*;

    const QUEUE: Resource<'static> = Resource::queue(b"q", "/");

    fn check(name: &str, value: Value<'_>) -> Result<(), String> {
        check_queue_arguments(QUEUE, TableBuf::new().with(name, value).as_table())
            .map_err(|error| error.reply_text())
    }

    fn text(value: &str) -> Value<'_> {
        Value::LongStr(value.as_bytes())
    }

    #[test]
    fn values_that_make_no_sense_are_406() {
        let cases = [
            ("x-expires", Value::I32(0), "{value_zero,0}"),
            ("x-expires", Value::I32(-1), "{value_negative,-1}"),
            ("x-message-ttl", Value::I64(-1), "{value_negative,-1}"),
            ("x-expires", Value::I64(315_360_000_001), "{value_too_large,315360000001}"),
            ("x-message-ttl", Value::I64(315_360_000_001), "{value_too_large,315360000001}"),
            ("x-message-ttl", text("1"), "\"expected integer, got longstr\""),
            ("x-max-length", Value::I32(-1), "{value_negative,-1}"),
            ("x-max-length-bytes", Value::F64(1.0), "\"expected integer, got double\""),
            ("x-max-priority", Value::I32(256), "{max_value_exceeded,256}"),
            ("x-max-priority", Value::I32(-1), "{value_negative,-1}"),
            ("x-overflow", text("drop-tail"), "invalid_overflow"),
            ("x-overflow", Value::I32(1), "{unacceptable_type,signedint}"),
            ("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
            ("x-single-active-consumer", text("yes"), "{unacceptable_type,longstr}"),
            ("x-queue-type", text("bag"), "\"unsupported queue type 'bag'\""),
            ("x-queue-type", Value::I32(1), "{unacceptable_type,signedint}"),
            ("x-queue-mode", text("eager"), "\"unsupported queue mode 'eager'\""),
            ("x-queue-version", Value::I32(3), "\"unsupported queue version '3'\""),
            ("x-queue-leader-locator", text("here"), "invalid_queue_locator_arg"),
            ("x-flow", text("swing"), "\"flow mode 'swing' is neither 'absorb' nor 'balance'\""),
            ("x-flow", Value::Bool(true), "{unacceptable_type,bool}"),
        ];
        for (name, value, reason) in cases {
            assert_eq!(
                check(name, value).unwrap_err(),
                format!(
                    "PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '/': {reason}"
                )
            );
        }
        assert_eq!(
            check("x-dead-letter-exchange", Value::I32(1)).unwrap_err(),
            "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in \
             queue 'q' in vhost '/'"
        );
    }

    #[test]
    fn features_that_are_not_there_are_540_and_named() {
        let cases = [("x-delayed-retry-type", text("all")), ("x-name-prefix", text("q"))];
        for (name, value) in cases {
            assert_eq!(
                check(name, value).unwrap_err(),
                format!(
                    "NOT_IMPLEMENTED - argument '{name}' for queue 'q' in vhost '/' is not \
                     supported by this version of Forebay"
                )
            );
        }
        for queue_type in ["quorum", "stream"] {
            let error = check("x-queue-type", text(queue_type)).unwrap_err();
            assert!(error.starts_with("NOT_IMPLEMENTED - queue type '"), "{error}");
            assert!(error.contains("x-queue-type"), "{error}");
        }
    }

    #[test]
    fn a_bad_value_is_told_before_a_missing_feature() {
        let arguments = TableBuf::new()
            .with("x-delayed-retry-max", Value::I32(10))
            .with("x-message-ttl", Value::I32(-1));
        let error = check_queue_arguments(QUEUE, arguments.as_table()).unwrap_err();
        assert!(error.text.starts_with("invalid arg 'x-message-ttl'"), "{error}");
    }

    #[test]
    fn arguments_of_other_types_of_queue_are_406() {
        assert_eq!(
            check("x-delivery-limit", Value::I32(3)).unwrap_err(),
            "PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue 'q' in vhost '/' of \
             queue type rabbit_classic_queue"
        );
    }

    #[test]
    fn what_happens_anyway_may_be_asked_for() {
        for (name, value) in [
            ("x-expires", Value::I32(1)),
            ("x-message-ttl", Value::I32(0)),
            ("x-dead-letter-exchange", text("")),
            ("x-max-length", Value::I32(10)),
            ("x-max-length-bytes", Value::I64(10)),
            ("x-queue-type", text("classic")),
            ("x-queue-version", Value::I32(2)),
            ("x-queue-master-locator", text("min-masters")),
            ("x-queue-leader-locator", text("balanced")),
            ("x-max-priority", Value::I32(0)),
            ("x-max-priority", Value::U8(255)),
            ("x-overflow", text("drop-head")),
            ("x-overflow", text("reject-publish")),
            ("x-overflow", text("reject-publish-dlx")),
            ("x-single-active-consumer", Value::Bool(true)),
            ("x-single-active-consumer", Value::Bool(false)),
            ("x-queue-mode", text("default")),
            ("x-consumer-timeout", Value::I32(1)),
            ("x-flow", text("balance")),
            ("x-something-of-mine", Value::Void),
            ("plain", Value::I32(1)),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_redeclaration_agrees_in_everything_known() {
        let empty = TableBuf::new();
        let with_version = TableBuf::new().with("x-queue-version", Value::I32(1));
        let same = TableBuf::new().with("x-queue-version", Value::I64(1)).with("mine", Value::Void);
        let declaration = |durable, auto_delete, arguments: &'static str| QueueDeclaration {
            durable,
            auto_delete,
            arguments: match arguments {
                "version" => with_version.as_table(),
                "same" => same.as_table(),
                _ => empty.as_table(),
            },
        };
        let current = declaration(true, false, "version");
        let check =
            |received| check_queue_equivalent(QUEUE, current, received).map_err(|error| error.text);
        assert_eq!(check(declaration(true, false, "same")), Ok(()));
        assert_eq!(
            check(declaration(false, false, "same")).unwrap_err(),
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current \
             is 'true'"
        );
        assert!(check(declaration(true, true, "same")).unwrap_err().contains("'auto_delete'"));
        assert_eq!(
            check(declaration(true, false, "")).unwrap_err(),
            "inequivalent arg 'x-queue-version' for queue 'q' in vhost '/': received none but \
             current is the value '1' of type 'signedint'"
        );
    }
}
