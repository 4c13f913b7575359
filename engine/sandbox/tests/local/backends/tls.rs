//! TLS in front of agents, with a certificate authority of the tests' own.

use espalier_agent_client::{Agent, AgentError, Config, Endpoint, Secret, Tls};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

/// What the certificate is for.
const NAME: &str = "agents.test";
/// An authority, and a certificate that it has signed.
const MAKE: &str = r"set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj '/CN=authority of a test' -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN=agents' -keyout own.key -out own.csr
printf 'subjectAltName=DNS:%s\nbasicConstraints=CA:FALSE\n' $NAME > extensions
openssl x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile extensions -out own.pem
";

/// Takes connections under TLS and passes them on, as long as it lives.
pub(super) struct Gate {
    acceptor: TlsAcceptor,
    authority: Vec<u8>,
    open: Mutex<JoinSet<()>>,
}

impl Gate {
    pub(super) fn new() -> Gate {
        let folder = tempfile::tempdir().unwrap();
        let made =
            Command::new("sh").args(["-c", MAKE]).env("NAME", NAME).current_dir(&folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let at = |name: &str| folder.path().join(name);
        let chain = vec![CertificateDer::from_pem_file(at("own.pem")).unwrap()];
        let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key(&at("own.key")))
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let authority = std::fs::read(at("ca.pem")).unwrap();
        Gate { acceptor: Arc::new(config).into(), authority, open: Mutex::default() }
    }

    /// The way through it to an agent.
    pub(super) async fn open(&self, agent: SocketAddr) -> Tls {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = self.acceptor.clone();
        self.open.lock().unwrap().spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                passing.spawn(async move {
                    // Where the agent is gone, or the client wants another, the connection is cut.
                    let Ok(mut client) = acceptor.accept(stream).await else { return };
                    let Ok(mut agent) = TcpStream::connect(agent).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut agent).await;
                });
            }
        });
        Tls { address, name: NAME.to_owned(), authority: self.authority.clone() }
    }
}

fn key(file: &Path) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(file).unwrap()
}

#[tokio::test]
async fn an_agent_that_another_authority_speaks_for_is_a_stranger() {
    let (gate, other) = (Gate::new(), Gate::new());
    let nobody = "127.0.0.1:1".parse().unwrap();
    let right = gate.open(nobody).await;
    let said = async |tls: Tls| {
        let mut config = Config::new(Endpoint::Tls(tls), Secret::new("a secret of sixteen"), "test");
        config.reconnect_within = Duration::from_secs(3600);
        let connected = tokio::time::timeout(Duration::from_secs(60), Agent::connect(config)).await;
        connected.expect("at once").unwrap_err()
    };
    for stranger in [
        Tls { authority: other.authority.clone(), ..right.clone() },
        Tls { name: "elsewhere.test".to_owned(), ..right.clone() },
    ] {
        let error = said(stranger).await;
        assert!(
            matches!(&error, AgentError::Lost(loss) if loss.to_string().contains("another process")),
            "{error:?}"
        );
    }
    let error = said(Tls { authority: b"nothing".to_vec(), ..right }).await;
    assert!(matches!(error, AgentError::Local { .. }), "{error:?}");
}
