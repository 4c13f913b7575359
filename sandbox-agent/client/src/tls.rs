//! Agents behind TLS, whose certificates an authority of their backend has signed.

use crate::error::AgentError;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Where an agent is, and by what it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Its address.
    pub address: SocketAddr,
    /// The name that its certificate is for: a host name, or an address as text.
    pub name: String,
    /// Certificates, as PEM, of the authorities that may have signed it; no other counts.
    pub authority: Vec<u8>,
}

/// What connects to one agent.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    address: SocketAddr,
    name: ServerName<'static>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connector({} as {:?})", self.address, self.name)
    }
}

impl Connector {
    pub(crate) fn new(tls: &Tls) -> Result<Connector, AgentError> {
        let failed = |what: &str, error: String| AgentError::Local {
            what: format!("{what} of the agent at {}", tls.address),
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        };
        let authority = |error: String| failed("the certificate authority", error);
        let name =
            ServerName::try_from(tls.name.clone()).map_err(|error| failed("the name", error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&tls.authority) {
            let certificate = certificate.map_err(|error| authority(error.to_string()))?;
            roots.add(certificate).map_err(|error| authority(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(authority("it holds no certificate".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| authority(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Connector { tls: TlsConnector::from(Arc::new(config)), address: tls.address, name })
    }

    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        self.tls.connect(self.name.clone(), stream).await
    }
}

/// Whether whoever answered is somebody else: another attempt finds the same.
pub(crate) fn is_stranger(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}
