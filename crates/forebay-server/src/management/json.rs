//! Argument tables as JSON, and back, as RabbitMQ's definitions have them.
//!
//! JSON knows fewer types: integers come back as 64 bits, binary as text. Declarations compare integers by
//! value, so that makes no difference to them.

use forebay_wire::{Array, ArrayBuf, Table, TableBuf, Value as Field};
use serde_json::{Map, Value, json};

pub(super) fn from_table(table: Table<'_>) -> Value {
    table
        .iter()
        .map(|(name, field)| (name.to_string(), from_field(field)))
        .collect::<Map<_, _>>()
        .into()
}

fn from_field(field: Field<'_>) -> Value {
    match field {
        Field::Bool(value) => value.into(),
        Field::F32(value) => json!(value),
        Field::F64(value) => json!(value),
        Field::Decimal { scale, value } => json!(f64::from(value) / 10_f64.powi(i32::from(scale))),
        Field::LongStr(bytes) | Field::Bytes(bytes) => String::from_utf8_lossy(bytes).into(),
        Field::Array(array) => from_array(array),
        Field::Timestamp(seconds) => seconds.into(),
        Field::Table(table) => from_table(table),
        Field::Void => Value::Null,
        integer => integer.as_i64().into(),
    }
}

fn from_array(array: Array<'_>) -> Value {
    array.iter().map(from_field).collect::<Vec<_>>().into()
}

/// `Err`: what cannot be said in AMQP.
pub(super) fn to_table(value: &Value) -> Result<TableBuf, String> {
    let mut table = TableBuf::new();
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                if name.len() > 255 {
                    return Err(format!("an argument's name has {} bytes", name.len()));
                }
                with_field(value, &mut |field| table.push(name, field))?;
            }
        }
        // RabbitMQ writes an empty table as [] at times.
        Value::Array(array) if array.is_empty() => {}
        Value::Null => {}
        _ => return Err("arguments must be an object".to_owned()),
    }
    Ok(table)
}

fn with_field(value: &Value, then: &mut dyn FnMut(Field<'_>)) -> Result<(), String> {
    match value {
        Value::Null => then(Field::Void),
        Value::Bool(value) => then(Field::Bool(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => then(Field::I64(integer)),
            None => then(Field::F64(number.as_f64().ok_or("a number is too large")?)),
        },
        Value::String(text) => then(Field::LongStr(text.as_bytes())),
        Value::Object(_) => then(Field::Table(to_table(value)?.as_table())),
        Value::Array(values) => {
            let mut array = ArrayBuf::new();
            for value in values {
                with_field(value, &mut |field| array.push(field))?;
            }
            then(Field::Array(array.as_array()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_can_say_comes_back() {
        let value = json!({
            "x-match": "all", "level": 3, "big": true, "none": null, "share": 0.5,
            "list": [1, "two", [false]], "table": { "n": i64::MIN },
        });
        assert_eq!(from_table(to_table(&value).unwrap().as_table()), value);
        assert_eq!(to_table(&json!([])).unwrap(), TableBuf::new());
        assert!(to_table(&json!([1])).is_err());
    }
}
