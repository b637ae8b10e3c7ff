//! A place that takes TLS off and passes the rest on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

/// It listens on the loopback as long as it lives.
pub struct Terminator {
    port: u16,
    authority: PathBuf,
    _runtime: Runtime,
}

impl Terminator {
    /// In front of `broker`; the certificate of `localhost` that it shows goes to `home`.
    pub fn start(home: &Path, broker: String) -> Terminator {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let authority = home.join("localhost.pem");
        std::fs::write(&authority, certificate.pem()).expect("it is written");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .expect("they belong together");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = Runtime::new().expect("threads");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, broker) = (acceptor.clone(), broker.clone());
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(stream).await else { return };
                    let mut plain = TcpStream::connect(broker).await.expect("the broker is there");
                    // How a connection ends is the test's matter.
                    let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
                });
            }
        });
        Terminator { port, authority, _runtime: runtime }
    }

    /// By which a broker's HTTP endpoint is reached, as `host`, trusting the certificate of `authority`.
    pub fn https(&self, host: &str, authority: &Path) -> String {
        format!("https://guest:guest@{host}:{}/?cacertfile={}", self.port, authority.display())
    }

    /// What the certificate is that it shows.
    pub fn authority(&self) -> &Path {
        &self.authority
    }

    /// By which the broker is reached.
    pub fn url(&self) -> String {
        let authority = self.authority.display();
        format!("amqps://guest:guest@localhost:{}/%2f?cacertfile={authority}", self.port)
    }
}
