//! Egress: which addresses may be reached, and the proxies that reach them. That of an allow-listed sandbox ([`serve`]) has its
//! socket in the sandbox, and its connections are the engine's: it speaks HTTP (CONNECT and plain requests) and SOCKS 5, resolves
//! names itself, and connects to the very address that was checked. Nothing else leads out of a sandbox: it has no interface but its
//! own loopback. [`Guard`] is the same for a client library of this process that connects by itself.

mod allow;
mod guard;
mod names;
mod protocol;
mod request;

pub use allow::{Allowed, Verdict};
pub use guard::{Guard, GuardRules, Hosts};
pub use names::Shared;

use names::Lookups;
use protocol::{Protocol, ProxyRequest};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Connections of one sandbox at once; more wait. Each has two descriptors of the engine's.
const CONNECTIONS_MAX: usize = 64;
/// For the client's request, and for the name server.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// For a connection to the peer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest connection: a rollout's longest wall is days, no connection's is.
const CONNECTION_MAX: Duration = Duration::from_secs(24 * 3600);

/// Serves one sandbox until the task is aborted or its socket fails. Owned by whoever spawned it.
pub async fn serve(sandbox: String, listener: std::net::TcpListener, allowed: Allowed, shared: Shared) {
    let opened = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let listener = match opened {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%sandbox, %error, "the sandbox's way out cannot be opened");
            return;
        }
    };
    let allowed = Arc::new(allowed);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let lookups = shared.lookups();
    // Ended, with all connections, when this future is dropped.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok(of_all) = shared.connection().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let (allowed, sandbox, lookups) = (Arc::clone(&allowed), sandbox.clone(), lookups.clone());
                connections.spawn(async move {
                    let _places = (place, of_all);
                    let _ = timeout(CONNECTION_MAX, carry(&sandbox, client, &allowed, &lookups)).await;
                });
            }
            // The process is out of descriptors: others will close theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(sandbox: &str, mut client: TcpStream, allowed: &Allowed, lookups: &Lookups) {
    // Whoever speaks no such language gets no answer in it.
    let Ok(Ok(asked)) = timeout(REQUEST_MAX, protocol::listen(&mut client)).await else { return };
    let ProxyRequest { host, port, protocol, first, rest } = asked;
    let peer = match reach(&host, port, allowed, lookups).await {
        Ok(peer) => peer,
        Err(refused) => {
            tracing::debug!(%sandbox, %host, port, why = %refused.why, "refused a way out");
            let _ = timeout(REQUEST_MAX, protocol.refuse(&mut client, &refused)).await;
            return;
        }
    };
    let mut peer = peer;
    let _ = client.set_nodelay(true);
    let _ = peer.set_nodelay(true);
    if protocol.accept(&mut client).await.is_err() || peer.write_all(&first).await.is_err() {
        return;
    }
    // Each ends when both sides have, or the sandbox is gone.
    if let Protocol::Plain(body) = protocol {
        let _ = one_request(&mut client, &mut peer, body, rest, u64::MAX).await;
    } else if peer.write_all(&rest).await.is_ok() {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut peer).await;
    }
}

/// The request's body, and its answer until the peer closes. What the client says after its request leads nowhere.
async fn one_request(
    client: &mut TcpStream,
    peer: &mut TcpStream,
    body: protocol::Body,
    rest: Vec<u8>,
    answer_bytes_max: u64,
) -> std::io::Result<()> {
    let (from_client, mut to_client) = client.split();
    let (from_peer, mut to_peer) = peer.split();
    let mut from_peer = from_peer.take(answer_bytes_max);
    let mut heard = BufReader::new(std::io::Cursor::new(rest).chain(from_client));
    let ask = async {
        request::carry(body, &mut heard, &mut to_peer).await?;
        tokio::io::copy_buf(&mut heard, &mut tokio::io::sink()).await?;
        // The client says no more.
        to_peer.shutdown().await
    };
    let answer = async {
        tokio::io::copy(&mut from_peer, &mut to_client).await?;
        to_client.shutdown().await
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answered = &mut answer => answered,
        asked = ask => match asked {
            Ok(()) => answer.await,
            Err(error) => Err(error),
        },
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub struct Refused {
    /// Whether the experiment forbids it, or the network does.
    pub forbidden: bool,
    /// In words.
    pub why: String,
}

async fn reach(host: &str, port: u16, allowed: &Allowed, lookups: &Lookups) -> Result<TcpStream, Refused> {
    let forbidden = |why: String| Refused { forbidden: true, why };
    let failed = |why: String| Refused { forbidden: false, why };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let addresses: Vec<SocketAddr> = match address {
        Some(address) => vec![SocketAddr::new(address, port)],
        None => {
            if !allowed.may_look_up(host, port) {
                return Err(forbidden(format!("{host}:{port} is not in the sandbox's allow-list")));
            }
            let found = timeout(REQUEST_MAX, lookups.addresses(host, port)).await;
            match found {
                Ok(Ok(found)) => found,
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
                last = forbidden(allowed.inner(host, address));
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

impl Protocol {
    async fn accept(self, client: &mut TcpStream) -> std::io::Result<()> {
        client.write_all(self.acceptance()).await
    }

    async fn refuse(self, client: &mut TcpStream, refused: &Refused) -> std::io::Result<()> {
        client.write_all(&self.refusal(refused)).await
    }
}
