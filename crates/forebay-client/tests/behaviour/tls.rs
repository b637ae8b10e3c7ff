//! `amqps`: the server proves who it is, and so does the client where it is asked to.

use std::path::PathBuf;
use std::sync::Arc;

use crate::rig::{Broker, soon};
use forebay_client::{Connection, OpenError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// An authority, and a directory with the PEM files that a client wants.
struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let dir = std::env::temp_dir().join(format!("forebay-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(dir.join("ca.pem"), certificate.pem()).unwrap();
        Authority { dir, issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate and key for `name`.
    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Takes TLS off and passes the rest on to the broker; returns its port.
async fn terminator(authority: &Authority, broker: String, client_certificates: bool) -> u16 {
    let (certificate, key) = authority.issue("localhost");
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if client_certificates {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, broker) = (acceptor.clone(), broker.clone());
            tokio::spawn(async move {
                // A client that trusts us not, or is not trusted, ends here.
                let Ok(mut tls) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(broker).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn a_server_with_a_trusted_certificate_is_spoken_to() {
    let (broker, authority) = (Broker::start(), Authority::new("trusted"));
    let port = terminator(&authority, broker.address(), false).await;
    let ca = authority.file("ca.pem");
    let uri = format!("amqps://guest:guest@localhost:{port}/%2f?cacertfile={ca}");
    let connection = soon("an open connection", Connection::open(&uri)).await.unwrap();
    crate::rig::declare(&connection, "q").await;
    let publisher = connection.publisher(forebay_client::Route::queue("q")).build().await.unwrap();
    let outcome = publisher.publish(vec![1; 1_000_000]).await.unwrap();
    soon("an outcome", outcome).await.unwrap();
    let mut consumer = connection.consumer("q").build().await.unwrap();
    let delivery = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    assert_eq!(delivery.body().len(), 1_000_000);
    delivery.ack();
    soon("closed", connection.close()).await.unwrap();
}

#[tokio::test]
async fn the_blocking_client_speaks_tls_too() {
    use forebay_client::blocking::{Connection, ConsumeOptions, DeclareQueue, Publication};
    let (broker, authority) = (Broker::start(), Authority::new("blocking"));
    let port = terminator(&authority, broker.address(), false).await;
    let uri = format!("amqps://localhost:{port}?cacertfile={}", authority.file("ca.pem"));
    let talk = tokio::task::spawn_blocking(move || {
        let connection = Connection::open(&uri).unwrap();
        let mut channel = connection.channel().unwrap();
        channel.declare_queue("q", DeclareQueue::default()).unwrap();
        // More than all the buffers on the way hold.
        let body = vec![7; 16_000_000];
        let publication = Publication { routing_key: "q", body: &body, ..Default::default() };
        channel.publish(&publication).unwrap();
        let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
        let message = consumer.next_message(None).unwrap().expect("it is there");
        assert!(message.body() == body, "what came back is what went");
        connection.close().unwrap();
        let stranger = Connection::open(&uri.replace("localhost", "127.0.0.1")).unwrap_err();
        assert!(matches!(stranger, OpenError::Tls { .. }), "{stranger}");
    });
    soon("the end of the talk", talk).await.unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_prove_who_it_is_is_not_spoken_to() {
    let (broker, authority) = (Broker::start(), Authority::new("unknown"));
    let stranger = Authority::new("stranger");
    let port = terminator(&authority, broker.address(), false).await;
    let (ca, other) = (authority.file("ca.pem"), stranger.file("ca.pem"));
    for (query, why) in [
        (format!("cacertfile={other}"), "no authority that is trusted here"),
        (format!("cacertfile={ca}&server_name_indication=elsewhere"), "another host"),
    ] {
        let uri = format!("amqps://localhost:{port}?{query}");
        let error = soon("an answer", Connection::open(&uri)).await.unwrap_err();
        assert!(matches!(error, OpenError::Tls { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_client_proves_who_it_is_with_its_certificate() {
    let (broker, authority) = (Broker::start(), Authority::new("client"));
    let port = terminator(&authority, broker.address(), true).await;
    let (certificate, key) = authority.issue("client");
    std::fs::write(authority.dir.join("client.pem"), certificate.pem()).unwrap();
    std::fs::write(authority.dir.join("key.pem"), key.serialize_pem()).unwrap();
    let base =
        format!("amqps://guest:guest@localhost:{port}/%2f?cacertfile={}", authority.file("ca.pem"));
    let (chain, key) = (authority.file("client.pem"), authority.file("key.pem"));
    let uri = format!("{base}&certfile={chain}&keyfile={key}");
    let connection = soon("an open connection", Connection::open(&uri)).await.unwrap();
    crate::rig::declare(&connection, "q").await;
    assert!(soon("an answer", Connection::open(&base)).await.is_err());
    let half = soon("an answer", Connection::open(&format!("{base}&certfile={chain}"))).await;
    assert!(half.unwrap_err().to_string().contains("keyfile"));
}
