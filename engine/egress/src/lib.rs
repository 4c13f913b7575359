//! Egress: which addresses may be reached, and the proxies that reach them. That of an allow-listed sandbox ([`serve`]) has its
//! socket in the sandbox, and its connections are the engine's: it speaks HTTP (CONNECT and plain requests) and SOCKS 5, resolves
//! names itself, and connects to the very address that was checked; services of the engine ([`Services`]) it answers. Nothing else leads out of a sandbox: it has no interface but its
//! own loopback. [`Guard`] is the same for a client library of this process that connects by itself.

mod allow;
mod guard;
mod http;
mod names;
mod services;
mod socks;

pub use allow::{Allowed, Verdict};
pub use guard::{Guard, GuardRules, Hosts};
pub use names::Shared;
pub use services::{Caller, Refusal, SERVICE_DOMAIN, Service, ServiceAnswer, ServiceBody, Services};

use names::Lookups;
use services::Granted;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, Join, Take};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Connections of one proxy at once; more wait. Each has two descriptors of the engine's.
const CONNECTIONS_MAX: usize = 64;
/// For the client's request, and for the name server.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// For a connection to the peer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest connection, idle or not: a rollout's longest wall is days, no connection's is.
const CONNECTION_MAX: Duration = Duration::from_secs(24 * 3600);

/// Where a client wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// A name or an address.
    host: String,
    port: u16,
    /// Bytes are carried as they are, or else one request of HTTP.
    tunnel: bool,
}

/// A connection to where a client wants to go; it brings so many bytes at most.
type Peer = Join<Take<OwnedReadHalf>, OwnedWriteHalf>;

/// Why there is no connection.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Whether the experiment forbids it, or the network does.
    pub forbidden: bool,
    /// In words.
    pub why: String,
}

/// What one proxy lets through.
trait Proxy: Send + Sync + 'static {
    /// Whether it speaks SOCKS too.
    const SOCKS: bool;
    /// The services of the engine that it answers for, and its rules.
    fn services(&self) -> Option<(&Granted, &Allowed)> {
        None
    }
    /// Connects, or says why not.
    fn reach(&self, target: &Target) -> impl Future<Output = Result<Peer, Refused>> + Send;
}

/// The proxy of one sandbox.
struct SandboxProxy {
    services: Granted,
    allowed: Allowed,
    lookups: Lookups,
}

impl Proxy for SandboxProxy {
    const SOCKS: bool = true;

    fn services(&self) -> Option<(&Granted, &Allowed)> {
        Some((&self.services, &self.allowed))
    }

    async fn reach(&self, target: &Target) -> Result<Peer, Refused> {
        let reached = match self.services.find(target, &self.allowed) {
            // A plain request for a service never comes here.
            Some(found) => Err(found.err().unwrap_or_else(|| Refused {
                forbidden: true,
                why: format!("{}:{} takes plain HTTP requests alone", target.host, target.port),
            })),
            None => connect(target, &self.allowed, &self.lookups, u64::MAX).await,
        };
        reached.inspect_err(|refused| {
            let (sandbox, Target { host, port, .. }) = (&self.services.sandbox, target);
            tracing::debug!(%sandbox, %host, port, why = %refused.why, "refused a connection");
        })
    }
}

/// Serves one sandbox until the task is aborted or its socket fails. Owned by whoever spawned it.
pub async fn serve(
    sandbox: String,
    listener: std::net::TcpListener,
    allowed: Allowed,
    services: Services,
    shared: Shared,
) {
    match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
        Ok(listener) => {
            let services = Granted::new(services, sandbox);
            let proxy = SandboxProxy { services, allowed, lookups: shared.lookups() };
            accept(listener, proxy, Some(shared)).await;
        }
        Err(error) => tracing::error!(%sandbox, %error, "the sandbox's proxy cannot be opened"),
    }
}

/// Serves until it is dropped, which ends all connections. `of_all` bounds them beside those of other proxies.
async fn accept<P: Proxy>(listener: TcpListener, proxy: P, of_all: Option<Shared>) {
    let proxy = Arc::new(proxy);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let of_all = match &of_all {
            Some(shared) => shared.connection().await.ok(),
            None => None,
        };
        match listener.accept().await {
            Ok((client, _)) => {
                let proxy = Arc::clone(&proxy);
                connections.spawn(async move {
                    let _places = (place, of_all);
                    let _ = timeout(CONNECTION_MAX, carry(client, &*proxy)).await;
                });
            }
            // The process is out of descriptors: others will close theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn carry<P: Proxy>(client: TcpStream, proxy: &P) {
    let until = Instant::now() + REQUEST_MAX;
    let mut first = [0];
    let Ok(Ok(1..)) = timeout(REQUEST_MAX, client.peek(&mut first)).await else { return };
    let _ = client.set_nodelay(true);
    let head_max = until.saturating_duration_since(Instant::now());
    if first != [5] {
        let _ = http::serve(client, head_max, proxy).await;
    } else if P::SOCKS {
        let _ = socks::serve(client, head_max, proxy).await;
    }
}

/// Connects to the very address that was checked.
async fn connect(
    Target { host, port, .. }: &Target,
    allowed: &Allowed,
    lookups: &Lookups,
    answer_bytes_max: u64,
) -> Result<Peer, Refused> {
    let (host, port) = (&**host, *port);
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
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    let (from, to) = stream.into_split();
                    return Ok(tokio::io::join(from.take(answer_bytes_max), to));
                }
                Ok(Err(error)) => last = failed(format!("{host}:{port}: {error}")),
                Err(_) => {
                    last = failed(format!("{host}:{port}: no connection in {} s", CONNECT_MAX.as_secs()));
                }
            },
            Verdict::NotListed => {
                last = forbidden(format!("{host}:{port} is not in the sandbox's allow-list"));
            }
            Verdict::Private => {
                last = forbidden(allowed.inner(host, address));
            }
        }
    }
    Err(last)
}

/// Where a service that takes plain requests is reached inside a sandbox, by clients that know of no proxies too.
pub fn direct_url(port: u16, service: &str) -> String {
    format!("http://127.0.0.1:{port}/{service}.{SERVICE_DOMAIN}")
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
