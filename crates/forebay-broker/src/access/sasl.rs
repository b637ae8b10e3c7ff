//! Login responses: `PLAIN` (RFC 4616) and RabbitMQ's `AMQPLAIN`. `EXTERNAL` is not offered.
//!
//! ```text
//!   PLAIN      authzid NUL name NUL password        authzid empty, or the name again
//!   AMQPLAIN   a field table without its length:    LOGIN longstr, PASSWORD longstr
//! ```

use std::fmt;

use forebay_wire::Table;

/// Mechanisms for `connection.start`, separated by spaces.
pub const MECHANISMS: &[u8] = b"PLAIN AMQPLAIN";

/// A name and a password, as a client sent them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user's name.
    pub name: &'a [u8],
    /// The password.
    pub password: &'a [u8],
}

impl fmt::Debug for Credentials<'_> {
    /// Shows the name, never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(self.name);
        f.debug_struct("Credentials").field("name", &name).finish_non_exhaustive()
    }
}

/// Why a response gives no credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslError {
    /// The mechanism was not offered.
    UnknownMechanism,
    /// The response does not have the mechanism's form.
    Malformed,
}

/// Takes name and password out of the response in `start-ok`.
pub fn read_response<'a>(
    mechanism: &[u8],
    response: &'a [u8],
) -> Result<Credentials<'a>, SaslError> {
    match mechanism {
        b"PLAIN" => plain(response),
        b"AMQPLAIN" => amqplain(response),
        _ => return Err(SaslError::UnknownMechanism),
    }
    .ok_or(SaslError::Malformed)
}

fn plain(response: &[u8]) -> Option<Credentials<'_>> {
    let mut parts = response.split(|&byte| byte == 0);
    let (acts_for, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && (acts_for.is_empty() || acts_for == name);
    whole.then_some(Credentials { name, password })
}

fn amqplain(response: &[u8]) -> Option<Credentials<'_>> {
    let table = Table::validate(response).ok()?;
    Some(Credentials {
        name: table.get("LOGIN")?.as_long_str()?,
        password: table.get("PASSWORD")?.as_long_str()?,
    })
}

#[cfg(test)]
mod tests {
    use forebay_wire::{TableBuf, Value};
    use proptest::prelude::*;

    use super::*;

    const GUEST: Credentials<'static> = Credentials { name: b"guest", password: b"secret" };

    #[test]
    fn plain_is_three_parts() {
        assert_eq!(read_response(b"PLAIN", b"\0guest\0secret"), Ok(GUEST));
        assert_eq!(read_response(b"PLAIN", b"guest\0guest\0secret"), Ok(GUEST));
        let empty = Credentials { name: b"guest", password: b"" };
        assert_eq!(read_response(b"PLAIN", b"\0guest\0"), Ok(empty));
        for bad in
            [&b""[..], b"guest", b"\0guest", b"root\0guest\0secret", b"\0guest\0secret\0more"]
        {
            assert_eq!(read_response(b"PLAIN", bad), Err(SaslError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn amqplain_is_a_table_without_its_length() {
        let table = TableBuf::new()
            .with("LOGIN", Value::LongStr(b"guest"))
            .with("PASSWORD", Value::LongStr(b"secret"));
        assert_eq!(read_response(b"AMQPLAIN", table.as_table().raw()), Ok(GUEST));
        let partial = TableBuf::new().with("LOGIN", Value::LongStr(b"guest"));
        let number = partial.clone().with("PASSWORD", Value::I32(1));
        for bad in [partial.as_table().raw(), number.as_table().raw(), b"\x05LO", b""] {
            assert_eq!(read_response(b"AMQPLAIN", bad), Err(SaslError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn what_was_not_offered_is_not_taken() {
        for mechanism in [&b"EXTERNAL"[..], b"plain", b"", b"RABBIT-CR-DEMO"] {
            assert_eq!(
                read_response(mechanism, b"\0guest\0secret"),
                Err(SaslError::UnknownMechanism)
            );
        }
    }

    #[test]
    fn passwords_do_not_show() {
        assert!(!format!("{GUEST:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn arbitrary_responses_do_not_panic(
            response in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = read_response(b"PLAIN", &response);
            let _ = read_response(b"AMQPLAIN", &response);
        }
    }
}
