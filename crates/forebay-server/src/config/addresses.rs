//! Addresses to listen on, as configured.

use super::error::ConfigError;
use std::net::SocketAddr;

/// Whether all are addresses, and none takes what another one needs: of that the system says only that somebody is there already.
pub(super) fn check(amqp: &[String], http: Option<&str>) -> Result<(), ConfigError> {
    let all = amqp.iter().map(|address| ("amqp", address.as_str()));
    let all: Vec<(&'static str, &str)> = all.chain(http.map(|address| ("http", address))).collect();
    for (index, (key, address)) in all.iter().enumerate() {
        let error = |text: String| Err(ConfigError::value(key, text));
        if !is_one(address) {
            let such = if *key == "http" { "127.0.0.1:15672, or `off`" } else { "127.0.0.1:5672" };
            return error(format!("`{address}` is not HOST:PORT, such as {such}"));
        }
        if let Some((by, taken)) = all[..index].iter().find(|(_, other)| overlap(address, other)) {
            return error(format!("`{address}` is taken already, by `{taken}` of {by}"));
        }
    }
    Ok(())
}

fn is_one(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Whether only one of them can be had, as far as it can be told without asking for names. Port 0 is another one each time.
fn overlap(one: &str, other: &str) -> bool {
    let parsed = |text: &str| text.parse::<SocketAddr>().ok();
    let (Some(a), Some(b)) = (parsed(one), parsed(other)) else {
        return one == other && !one.ends_with(":0");
    };
    let (one, other) = (a.ip(), b.ip());
    let is_all_of_its_family = one.is_unspecified() || other.is_unspecified();
    let same_family = one.is_ipv4() == other.is_ipv4();
    a.port() != 0 && a.port() == b.port() && (one == other || same_family && is_all_of_its_family)
}

#[cfg(test)]
mod tests {
    use super::check;

    fn said(amqp: &[&str], http: &str) -> Option<String> {
        let amqp: Vec<String> = amqp.iter().map(|address| (*address).to_owned()).collect();
        check(&amqp, Some(http)).err().map(|error| error.to_string())
    }

    #[test]
    fn what_only_one_listener_can_have_is_told_of_both() {
        let http = "127.0.0.1:15672";
        let taken = |amqp: &[&str], http: &str, key: &str, what: &str, by: &str| {
            let expected = format!("configuration key {key}: `{what}` is taken already, by {by}");
            assert_eq!(said(amqp, http), Some(expected));
        };
        taken(
            &["127.0.0.1:5672"],
            "127.0.0.1:5672",
            "http",
            "127.0.0.1:5672",
            "`127.0.0.1:5672` of amqp",
        );
        taken(&["0.0.0.0:1", "10.0.0.1:1"], http, "amqp", "10.0.0.1:1", "`0.0.0.0:1` of amqp");
        taken(&["[::1]:1", "[::]:1"], http, "amqp", "[::]:1", "`[::1]:1` of amqp");
        taken(&["broker:1", "broker:1"], http, "amqp", "broker:1", "`broker:1` of amqp");
        for amqp in [
            &["127.0.0.1:0", "127.0.0.1:0", "localhost:0", "localhost:0"][..],
            &["0.0.0.0:1", "[::]:1"],
            &["127.0.0.1:1", "10.0.0.1:1", "[::1]:1", "127.0.0.1:2", "broker:1"],
        ] {
            assert_eq!(said(amqp, http), None, "{amqp:?}");
        }
    }
}
