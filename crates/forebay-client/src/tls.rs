//! TLS as an `amqps` URI asks for it, with the query parameters of RabbitMQ's clients.
//!
//! | parameter | meaning |
//! |---|---|
//! | `cacertfile` | PEM file of the authorities to trust; the system's otherwise |
//! | `certfile`, `keyfile` | PEM files with our certificate chain and key, for EXTERNAL logins |
//! | `server_name_indication` | the name that the server's certificate must carry; the host otherwise |
//! | `verify` | `verify_peer`, which is all there is: a server that is not checked may be anybody |

use std::fmt;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use forebay_wire::AmqpUri;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as TokioTlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};

use crate::error::OpenError;
use crate::shell::KeptFull;
use crate::tls_stream::TlsStream;

/// How to speak TLS with the hosts of one URI: for programs that drive the [machine](crate::machine) over sockets of
/// their own. Read once, it serves any number of connections.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    server_name: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files that the URI names, or the system's authorities.
    ///
    /// # Errors
    /// A file that cannot be read or used; the sentence names it.
    pub fn from_uri(uri: &AmqpUri) -> Result<Tls, OpenError> {
        let parameter = |wanted: &str| {
            let found = uri.other_parameters.iter().rfind(|(name, _)| name == wanted);
            found.map(|(_, value)| value.as_str())
        };
        if let Some(verify) = parameter("verify").filter(|&verify| verify != "verify_peer") {
            return Err(OpenError::Parameter {
                name: "verify".into(),
                reason: format!(
                    "cannot be '{verify}': the server's certificate is always checked; give its \
                     authority with cacertfile"
                ),
            });
        }
        let roots = match parameter("cacertfile") {
            Some(path) => roots_of_file(path)?,
            None => roots_of_system()?,
        };
        // Not the process's default provider: which one that is would depend on who else is linked in.
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| tls_error(error.to_string()))?
            .with_root_certificates(roots);
        let config = match (parameter("certfile"), parameter("keyfile")) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificates), Some(key)) => {
                let chain = certificates_of(certificates)?;
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| tls_error(format!("cannot read the key {key}: {error}")))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    tls_error(format!("cannot use the certificate {certificates}: {error}"))
                })?
            }
            _ => {
                return Err(tls_error(
                    "certfile and keyfile are given together or not at all".into(),
                ));
            }
        };
        Ok(Tls {
            config: Arc::new(config),
            server_name: parameter("server_name_indication").map(str::to_owned),
        })
    }

    /// Shakes hands over `tcp`, which blocks, with `host`; afterwards it may be made non-blocking. Its read timeout
    /// is kept to.
    ///
    /// # Errors
    /// The host is not who it should be, trusts us not, or does not answer.
    pub fn connect(&self, host: &str, mut tcp: TcpStream) -> Result<TlsStream, OpenError> {
        let mut session = ClientConnection::new(self.config.clone(), self.name(host)?)
            .map_err(|error| tls_error(error.to_string()))?;
        while session.is_handshaking() {
            session.complete_io(&mut tcp).map_err(|error| no_agreement(host, &error))?;
        }
        Ok(TlsStream::new(session, tcp))
    }

    /// The same over a socket of tokio's.
    pub(crate) async fn connect_async(
        &self,
        host: &str,
        tcp: KeptFull,
    ) -> Result<TokioTlsStream<KeptFull>, OpenError> {
        let connector = TlsConnector::from(self.config.clone());
        let connected = connector.connect(self.name(host)?, tcp).await;
        connected.map_err(|error| no_agreement(host, &error))
    }

    /// Why one side of a handshake does not trust the other, if that is why it failed: a sentence for whoever wrote the
    /// URL. `error` is as the handshake returned it.
    #[must_use]
    pub fn distrust(error: &std::io::Error) -> Option<String> {
        Some(match rustls_error(error)? {
            Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => "no authority that is trusted here has signed its certificate; name its own with \
                 ?cacertfile=FILE in the URL"
                .into(),
            Error::InvalidCertificate(
                name @ (CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. }),
            ) => format!("it shows the certificate of another host: {name}"),
            Error::AlertReceived(alert) if is_about_certificates(*alert) => format!(
                "it refuses our certificate, or that there is none ({alert:?}); in an amqps URL, certfile and keyfile name one"
            ),
            _ => return None,
        })
    }

    /// What the certificate must carry.
    fn name(&self, host: &str) -> Result<ServerName<'static>, OpenError> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        ServerName::try_from(name)
            .map_err(|error| tls_error(format!("'{host}' cannot be in a certificate: {error}")))
    }
}

fn no_agreement(host: &str, error: &std::io::Error) -> OpenError {
    let why = match Tls::distrust(error) {
        Some(why) => why,
        None => match rustls_error(error) {
            Some(Error::InvalidMessage(_)) => {
                format!("it does not speak TLS ({error}); is it amqp://?")
            }
            _ => error.to_string(),
        },
    };
    tls_error(format!("no agreement with {host}: {why}"))
}

/// Why a socket failed. A server that refuses our certificate may say so after the handshake (RFC 8446 appendix E.1).
pub(crate) fn io_reason(error: &std::io::Error) -> String {
    Tls::distrust(error).unwrap_or_else(|| error.to_string())
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
    )
}

fn rustls_error(error: &std::io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn roots_of_file(path: &str) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(path)? {
        roots.add(certificate).map_err(|error| {
            tls_error(format!("{path} holds a certificate that cannot be an authority: {error}"))
        })?;
    }
    Ok(roots)
}

fn roots_of_system() -> Result<RootCertStore, OpenError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(tls_error(
            "this system has no certificate authorities; give one with cacertfile in the URL"
                .into(),
        ));
    }
    Ok(roots)
}

fn certificates_of(path: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let unreadable =
        |reason: String| tls_error(format!("cannot read the certificates {path}: {reason}"));
    let certificates = CertificateDer::pem_file_iter(Path::new(path))
        .map_err(|error| unreadable(error.to_string()))?
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(error.to_string()))?;
    if certificates.is_empty() {
        return Err(unreadable("there is none in it".into()));
    }
    Ok(certificates)
}

fn tls_error(reason: String) -> OpenError {
    OpenError::Tls { reason }
}
