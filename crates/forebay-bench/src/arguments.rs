//! Arguments of queues, as people write them on a command line.

use std::fmt;
use std::str::FromStr;

use forebay_wire::{TableBuf, Value};
use serde::{Deserialize, Serialize};

/// `x-max-length=1000,x-queue-mode=lazy`: numbers and `true` or `false` are what they look like, everything
/// else is text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueArguments(Vec<(String, String)>);

impl QueueArguments {
    /// Adds them to a table.
    pub(crate) fn write(&self, table: &mut TableBuf) {
        for (name, text) in &self.0 {
            let value = match (text.parse::<i64>(), text.parse::<bool>()) {
                (Ok(number), _) => Value::I64(number),
                (_, Ok(boolean)) => Value::Bool(boolean),
                _ => Value::LongStr(text.as_bytes()),
            };
            table.push(name.as_bytes(), value);
        }
    }
}

impl FromStr for QueueArguments {
    type Err = String;

    fn from_str(text: &str) -> Result<QueueArguments, String> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty());
        let parsed = pairs.map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() && name.len() <= 255 => {
                Ok((name.to_owned(), value.to_owned()))
            }
            _ => Err(format!("`{pair}` is not NAME=VALUE, for instance x-max-length=1000")),
        });
        parsed.collect::<Result<_, _>>().map(QueueArguments)
    }
}

impl fmt::Display for QueueArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_type_they_look_like() {
        let text = "x-max-length=10,x-flag=true,x-queue-type=quorum";
        let arguments: QueueArguments = text.parse().unwrap();
        assert_eq!(arguments.to_string(), text);
        let mut table = TableBuf::new();
        arguments.write(&mut table);
        let table = table.as_table();
        assert_eq!(table.get("x-max-length"), Some(Value::I64(10)));
        assert_eq!(table.get("x-flag"), Some(Value::Bool(true)));
        assert_eq!(table.get("x-queue-type"), Some(Value::LongStr(b"quorum")));
        assert_eq!("".parse(), Ok(QueueArguments::default()));
        assert!("x-max-length".parse::<QueueArguments>().unwrap_err().contains("NAME=VALUE"));
    }
}
