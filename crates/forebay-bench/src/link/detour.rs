//! The way to a broker through a link.

use forebay_wire::AmqpUri;

/// The address in a URL, for a link to lead to.
pub(crate) fn address_of(url: &str) -> Result<String, String> {
    let uri: AmqpUri = url.parse().map_err(|error| format!("{error}"))?;
    Ok(format!("{}:{}", uri.host, uri.port))
}

const SERVER_NAME: &str = "server_name_indication";

/// The URL by way of another address.
pub(crate) fn url_through(url: &str, address: &str) -> String {
    // The authority ends where the virtual host or the query begins.
    let (scheme, rest) = url.split_once("://").unwrap_or(("amqp", url));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
    let through = format!("{scheme}://{user}{address}{path}");
    // The broker's certificate carries its own name, not that of the link.
    match url.parse::<AmqpUri>() {
        Ok(uri) if uri.tls && !path.contains(SERVER_NAME) => {
            let sign = if path.contains('?') { '&' } else { '?' };
            format!("{through}{sign}{SERVER_NAME}={}", uri.host)
        }
        _ => through,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_its_user_and_virtual_host_on_a_detour() {
        let through = |url| url_through(url, "127.0.0.1:7");
        assert_eq!(through("amqp://a:b@host:5672/%2f"), "amqp://a:b@127.0.0.1:7/%2f");
        assert_eq!(through("amqp://host?heartbeat=5"), "amqp://127.0.0.1:7?heartbeat=5");
        assert_eq!(through("amqp://host"), "amqp://127.0.0.1:7");
    }

    #[test]
    fn over_tls_the_name_in_the_certificate_stays_that_of_the_broker() {
        let through = |url| url_through(url, "127.0.0.1:7");
        let expected = "amqps://127.0.0.1:7/v?server_name_indication=host";
        assert_eq!(through("amqps://host/v"), expected);
        let named = "amqps://127.0.0.1:7?server_name_indication=other";
        assert_eq!(through("amqps://host?server_name_indication=other"), named);
    }

    #[test]
    fn the_address_of_a_url_has_a_port() {
        assert_eq!(address_of("amqp://somewhere"), Ok("somewhere:5672".to_owned()));
    }
}
