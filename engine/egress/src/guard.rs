//! A proxy for a client library that connects by itself: it is told of a proxy on the loopback address, and what is not let
//! through there is not reached, wherever names, redirects and challenges lead. Others on this machine who find it reach no more than
//! they would by themselves.

use super::names::{Lookups, Shared};
use super::{Allowed, Peer, Proxy, Refused, Target, accept, connect};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

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
        let proxy = GuardProxy { state: Arc::clone(&shared), lookups: all.lookups() };
        // Owner: the guard, which aborts it.
        let serving = tokio::spawn(accept(listener, proxy, None)).abort_handle();
        Ok(Guard { url: format!("http://{address}"), shared, serving })
    }

    /// The proxy's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From the next connection on.
    pub fn set_hosts(&self, hosts: Option<Arc<Hosts>>) {
        self.shared.rules.lock().hosts = hosts;
    }

    /// Why the last connection was refused, told once.
    pub fn take_refusal(&self) -> Option<Refused> {
        self.shared.refused.lock().take()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct GuardProxy {
    state: Arc<GuardState>,
    lookups: Lookups,
}

impl Proxy for GuardProxy {
    const SOCKS: bool = false;

    async fn reach(&self, target: &Target) -> Result<Peer, Refused> {
        let rules = self.state.rules.lock().clone();
        let Target { host, port, tunnel } = target;
        let known = rules.hosts.as_ref().map_or(Ok(()), |hosts| hosts(host, *port, *tunnel));
        let reached = match known {
            Ok(()) => connect(target, &rules.addresses, &self.lookups, rules.answer_bytes_max).await,
            Err(why) => Err(Refused { forbidden: true, why }),
        };
        reached.inspect_err(|refused| {
            tracing::debug!(%host, port, why = %refused.why, "not let through");
            *self.state.refused.lock() = Some(refused.clone());
        })
    }
}
