//! The way out of an allow-listed sandbox: a proxy whose socket lies in the sandbox and whose connections are the engine's.
//! It speaks HTTP (CONNECT and plain requests) and SOCKS 5, resolves names itself, and connects to the very address that was
//! checked. Nothing else leads out: the sandbox has no interface but its own loopback.

mod allow;
mod speak;

pub use allow::{Allowed, Verdict};

use speak::{Asked, Tongue};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Connections of one sandbox at once; more wait.
const CONNECTIONS_MAX: usize = 256;
/// For the client's request, and for the name server.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// For a connection to the peer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest connection: a rollout's longest wall is days, no connection's is.
const CONNECTION_MAX: Duration = Duration::from_secs(24 * 3600);

/// Serves one sandbox until the task is aborted or its socket fails. Owned by whoever spawned it.
pub async fn serve(sandbox: String, door: std::net::TcpListener, allowed: Allowed) {
    let opened = door.set_nonblocking(true).and_then(|()| TcpListener::from_std(door));
    let door = match opened {
        Ok(door) => door,
        Err(error) => {
            tracing::error!(%sandbox, %error, "the sandbox's way out cannot be opened");
            return;
        }
    };
    let allowed = Arc::new(allowed);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Ended, with all connections, when this future is dropped.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match door.accept().await {
            Ok((client, _)) => {
                let (allowed, sandbox) = (Arc::clone(&allowed), sandbox.clone());
                connections.spawn(async move {
                    let _place = place;
                    let _ = timeout(CONNECTION_MAX, carry(&sandbox, client, &allowed)).await;
                });
            }
            // The process is out of descriptors: others will close theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(sandbox: &str, mut client: TcpStream, allowed: &Allowed) {
    // Whoever speaks no such language gets no answer in it.
    let Ok(Ok(asked)) = timeout(REQUEST_MAX, speak::listen(&mut client)).await else { return };
    let Asked { host, port, tongue, first } = asked;
    let peer = match reach(&host, port, allowed).await {
        Ok(peer) => peer,
        Err(refused) => {
            tracing::debug!(%sandbox, %host, port, why = %refused.why, "refused a way out");
            let _ = timeout(REQUEST_MAX, tongue.refuse(&mut client, &refused)).await;
            return;
        }
    };
    let mut peer = peer;
    let _ = client.set_nodelay(true);
    let _ = peer.set_nodelay(true);
    if tongue.accept(&mut client).await.is_ok() && peer.write_all(&first).await.is_ok() {
        // Ends when both sides have, or the sandbox is gone.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut peer).await;
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Whether the experiment forbids it, or the network does.
    pub(crate) forbidden: bool,
    /// In words.
    pub(crate) why: String,
}

async fn reach(host: &str, port: u16, allowed: &Allowed) -> Result<TcpStream, Refused> {
    let forbidden = |why: String| Refused { forbidden: true, why };
    let failed = |why: String| Refused { forbidden: false, why };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let addresses: Vec<SocketAddr> = match address {
        Some(address) => vec![SocketAddr::new(address, port)],
        None => {
            if !allowed.may_look_up(host, port) {
                return Err(forbidden(format!("{host}:{port} is not in the sandbox's allow-list")));
            }
            let found = timeout(REQUEST_MAX, tokio::net::lookup_host((host, port))).await;
            match found {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(error)) => return Err(failed(format!("{host}: {error}"))),
                Err(_) => return Err(failed(format!("{host}: no answer of the name server"))),
            }
        }
    };
    let name = address.is_none().then_some(host);
    let mut last = failed(format!("{host} has no address"));
    for address in addresses {
        match allowed.judge(name, address) {
            Verdict::Allowed => match timeout(CONNECT_MAX, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = failed(format!("{host}:{port}: {error}")),
                Err(_) => {
                    last = failed(format!("{host}:{port}: no connection in {} s", CONNECT_MAX.as_secs()));
                }
            },
            Verdict::NotListed => {
                last = forbidden(format!("{host}:{port} is not in the sandbox's allow-list"));
            }
            Verdict::Inner => {
                last = forbidden(format!(
                    "{host}:{port} is {}, a private or local address: those are reached only where the allow-list names the address itself",
                    address.ip()
                ));
            }
        }
    }
    Err(last)
}

/// Variables by which programs find the proxy.
pub fn environment(port: u16) -> Vec<(String, String)> {
    let http = format!("http://127.0.0.1:{port}");
    let socks = format!("socks5h://127.0.0.1:{port}");
    let own = "localhost,127.0.0.1,::1".to_owned();
    let pairs = [
        ("http_proxy", &http),
        ("https_proxy", &http),
        ("HTTP_PROXY", &http),
        ("HTTPS_PROXY", &http),
        ("all_proxy", &socks),
        ("ALL_PROXY", &socks),
        ("no_proxy", &own),
        ("NO_PROXY", &own),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

impl Tongue {
    async fn accept(&self, client: &mut TcpStream) -> std::io::Result<()> {
        client.write_all(self.acceptance()).await
    }

    async fn refuse(&self, client: &mut TcpStream, refused: &Refused) -> std::io::Result<()> {
        client.write_all(&self.refusal(refused)).await
    }
}
