//! Sender-selected distribution: more routing keys in the headers `CC` and `BCC` (RabbitMQ's
//! extension).

use forebay_wire::{Table, TableBuf, Value};

use crate::error::AmqpError;

/// Headers with further routing keys; the second is not shown to consumers.
const HEADERS: [&str; 2] = ["CC", "BCC"];

/// Whether there may be [`extra_routing_keys`], or what is refused in their place.
pub fn names_extra_keys(headers: Table<'_>) -> bool {
    headers.iter().any(|(name, _)| HEADERS.iter().any(|extra| name == *extra))
}

/// Routing keys beside the publish's own, from `CC` and `BCC`; empty (and nothing allocated) for
/// almost every message. 406 if one of the two is not an array. Elements that are not strings are
/// left out.
pub fn extra_routing_keys(headers: Table<'_>) -> Result<Vec<&[u8]>, AmqpError> {
    let mut keys = Vec::new();
    if headers.is_empty() {
        return Ok(keys);
    }
    for name in HEADERS {
        match headers.get(name) {
            None => {}
            Some(Value::Array(array)) => {
                keys.extend(array.iter().filter_map(|value| value.as_long_str()));
            }
            Some(other) => {
                return Err(AmqpError::bad_extra_keys(name, other.type_name()));
            }
        }
    }
    Ok(keys)
}

/// The headers without `BCC`; `None` if there is none to take out.
pub fn without_bcc(headers: Table<'_>) -> Option<TableBuf> {
    headers.get("BCC")?;
    let mut kept = TableBuf::new();
    for (name, value) in headers.iter().filter(|(name, _)| *name != "BCC") {
        kept.push(name, value);
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use forebay_wire::ArrayBuf;

    use super::*;

    #[test]
    fn both_headers_add_keys_and_bcc_is_taken_out() {
        let cc = ArrayBuf::new().with(Value::LongStr(b"a")).with(Value::I32(1));
        let bcc = ArrayBuf::new().with(Value::LongStr(b"b"));
        let headers = TableBuf::new()
            .with("BCC", Value::Array(bcc.as_array()))
            .with("x", Value::Void)
            .with("CC", Value::Array(cc.as_array()));
        assert_eq!(extra_routing_keys(headers.as_table()), Ok(vec![&b"a"[..], b"b"]));
        let kept = without_bcc(headers.as_table()).unwrap();
        let names: Vec<_> = kept.as_table().iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["x", "CC"]);
        assert_eq!(without_bcc(kept.as_table()), None);
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let headers = TableBuf::new().with("CC", Value::LongStr(b"a"));
        assert_eq!(
            extra_routing_keys(headers.as_table()).unwrap_err().reply_text(),
            "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,\"CC\",longstr}"
        );
        assert_eq!(extra_routing_keys(Table::default()), Ok(vec![]));
    }
}
