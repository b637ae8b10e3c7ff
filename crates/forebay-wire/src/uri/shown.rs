//! URIs as people may see them, in errors and records.

use super::{AmqpUri, percent_decoded};

/// What stands for a password.
const HIDDEN: &str = "…";

impl AmqpUri {
    /// A URI, whether it can be read or not, without the password of its login and the value of its `password`
    /// parameter; where it is not clear what belongs to them, with less.
    pub fn shown(text: &str) -> String {
        // One that cannot be read may have no scheme, and a password that ends nowhere: all up to the last `@` may be part of it.
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (format!("{scheme}://"), rest),
            None => (String::new(), text),
        };
        let shown = without_parameter(rest);
        if !rest.contains('@') {
            return scheme + &shown;
        }
        let user = rest.split([':', '/', '?', '#', '@']).next().unwrap_or_default();
        // With its only `@` in what was hidden, a login may have ended there.
        let host = shown.rfind('@').map_or("", |at| &shown[at..]);
        format!("{scheme}{user}:{HIDDEN}{host}")
    }
}

fn without_parameter(rest: &str) -> String {
    let hidden = |piece: &str| {
        let (name, end) = match piece.split_once('=') {
            Some((name, value)) => (name, &value[value.trim_end_matches(['?', '&']).len()..]),
            None => return piece.to_owned(),
        };
        match percent_decoded(name, "query") {
            Ok(decoded) if decoded.eq_ignore_ascii_case("password") => {
                format!("{name}={HIDDEN}{end}")
            }
            _ => piece.to_owned(),
        }
    };
    rest.split_inclusive(['?', '&']).map(hidden).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_shown_without_its_passwords() {
        for (text, shown) in [
            ("amqp://guest:sesame@h:1/v", "amqp://guest:…@h:1/v"),
            ("amqp://h:1/v", "amqp://h:1/v"),
            ("amqps://h/v?keyfile=k&password=sesame", "amqps://h/v?keyfile=k&password=…"),
            ("amqps://h/v?p%61ssword=sesame&verify=x", "amqps://h/v?p%61ssword=…&verify=x"),
            ("amqps://u:p@h/v?password=sesame&keyfile=k", "amqps://u:…@h/v?password=…&keyfile=k"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(AmqpUri::shown(text), shown, "{text}");
        }
    }

    #[test]
    fn nothing_of_a_password_with_signs_in_it_is_shown() {
        for text in [
            "amqps://h/v?password=ses@me",
            "amqps://u:ses@h/v?password=ses@me",
            "amqp://u:ses?password=me@h",
            "amqp://u:ses?x&me@h",
            "amqp://u:ses/me@h",
            "u:ses:me@h",
        ] {
            let shown = AmqpUri::shown(text);
            assert!(!shown.contains("ses") && !shown.contains("me"), "{text}: {shown}");
        }
    }
}
