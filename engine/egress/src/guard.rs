//! A way out for a client library that connects by itself: it is told of a proxy on the loopback address, and what is not let
//! through there is not reached, wherever names, redirects and challenges lead. Others on this machine who find it reach no more than
//! they would by themselves.

use super::names::{Lookups, Shared};
use super::protocol::{self, Protocol, ProxyRequest};
use super::{Allowed, CONNECTION_MAX, REQUEST_MAX, Refused, one_request, reach};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Connections at once; more wait.
const CONNECTIONS_MAX: usize = 64;

/// Which hosts may be asked at all, by name, port, and whether it is by TLS; `Err` says why not.
pub type Hosts = dyn Fn(&str, u16, bool) -> Result<(), String> + Send + Sync;

/// Where it lets connections through to.
#[derive(Clone)]
pub struct GuardRules {
    /// Which addresses.
    pub addresses: Allowed,
    /// `None`: every host.
    pub hosts: Option<Arc<Hosts>>,
    /// Bytes that one connection may bring.
    pub answer_bytes_max: u64,
}

/// See the module. It ends when this is dropped.
pub struct Guard {
    url: String,
    shared: Arc<GuardState>,
    serving: AbortHandle,
}

struct GuardState {
    rules: Mutex<GuardRules>,
    /// The last connection that was not let through, or could not be made.
    refused: Mutex<Option<Refused>>,
}

impl Guard {
    /// Inside a runtime, which carries it. Threads that look names up are those of `all`.
    pub async fn start(rules: GuardRules, all: &Shared) -> io::Result<Guard> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(GuardState { rules: Mutex::new(rules), refused: Mutex::default() });
        // Owner: the guard, which aborts it.
        let serving = tokio::spawn(serve(listener, Arc::clone(&shared), all.lookups())).abort_handle();
        Ok(Guard { url: format!("http://{address}"), shared, serving })
    }

    /// The proxy's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From the next connection on.
    pub fn set_hosts(&self, hosts: Option<Arc<Hosts>>) {
        lock(&self.shared.rules).hosts = hosts;
    }

    /// Why the last connection was refused, told once.
    pub fn take_refusal(&self) -> Option<Refused> {
        lock(&self.shared.refused).take()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, state: Arc<GuardState>, lookups: Lookups) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Ended, with all connections, when this future is dropped.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let (state, lookups) = (Arc::clone(&state), lookups.clone());
                connections.spawn(async move {
                    let _place = place;
                    let _ = timeout(CONNECTION_MAX, carry(client, &state, &lookups)).await;
                });
            }
            // The process is out of descriptors: others will close theirs.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(mut client: TcpStream, state: &GuardState, lookups: &Lookups) -> io::Result<()> {
    let Ok(asked) = timeout(REQUEST_MAX, protocol::listen(&mut client)).await else { return Ok(()) };
    let ProxyRequest { host, port, protocol, first, rest } = asked?;
    if protocol == Protocol::Socks {
        return Ok(());
    }
    let rules = lock(&state.rules).clone();
    let known =
        rules.hosts.as_ref().map_or(Ok(()), |hosts| hosts(&host, port, protocol == Protocol::Connect));
    let reached = match known {
        Ok(()) => reach(&host, port, &rules.addresses, lookups).await,
        Err(why) => Err(Refused { forbidden: true, why }),
    };
    let mut peer = match reached {
        Ok(peer) => peer,
        Err(refused) => {
            tracing::debug!(%host, port, why = %refused.why, "not let through");
            let answer = protocol.refusal(&refused);
            *lock(&state.refused) = Some(refused);
            return client.write_all(&answer).await;
        }
    };
    let _ = (client.set_nodelay(true), peer.set_nodelay(true));
    client.write_all(protocol.acceptance()).await?;
    peer.write_all(&first).await?;
    if let Protocol::Plain(body) = protocol {
        return one_request(&mut client, &mut peer, body, rest, rules.answer_bytes_max).await;
    }
    peer.write_all(&rest).await?;
    let ((mut from_client, mut to_client), (from_peer, mut to_peer)) = (client.split(), peer.split());
    let mut from_peer = tokio::io::AsyncReadExt::take(from_peer, rules.answer_bytes_max);
    let ask = async {
        tokio::io::copy(&mut from_client, &mut to_peer).await?;
        to_peer.shutdown().await
    };
    let answer = async {
        tokio::io::copy(&mut from_peer, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::try_join!(ask, answer).map(drop)
}
