//! Whom an `https` endpoint is trusted by.

use std::io;
use std::sync::Arc;

use forebay_client::Tls;
use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// TLS that trusts the authorities in a PEM file, or the system's.
///
/// # Errors
/// There are none, or the file cannot be read.
pub(super) fn trusting(file: Option<&str>) -> Result<TlsConfig, String> {
    let authorities = match file {
        Some(file) => of_file(file)?,
        None => of_system(),
    };
    if authorities.is_empty() {
        return Err(match file {
            Some(file) => format!("cannot read the certificates {file}: there is none in it"),
            None => "this system has no certificate authorities; give one with ?cacertfile=FILE in the URL".into(),
        });
    }
    let builder = TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(authorities)));
    // Not the process's default provider: which one that is would depend on who else is linked in.
    Ok(builder.unversioned_rustls_crypto_provider(Arc::new(ring::default_provider())).build())
}

fn of_file(file: &str) -> Result<Vec<Certificate<'static>>, String> {
    let unreadable = |reason: String| format!("cannot read the certificates {file}: {reason}");
    let pem = std::fs::read(file).map_err(|error| unreadable(error.to_string()))?;
    let mut authorities = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| unreadable(error.to_string()))?
        {
            authorities.push(certificate);
        }
    }
    Ok(authorities)
}

fn of_system() -> Vec<Certificate<'static>> {
    let found = rustls_native_certs::load_native_certs().certs;
    found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
}

/// Why the other side is not who it should be, if it was that.
pub(super) fn distrust(error: &io::Error) -> Option<String> {
    let why = error.get_ref()?.downcast_ref::<Error>()?;
    Some(Tls::distrust(error).unwrap_or_else(|| match why {
        Error::InvalidMessage(_) => format!("it does not speak TLS ({why}); is it http://?"),
        why => why.to_string(),
    }))
}
