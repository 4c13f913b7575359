//! Ports of the host behind which a sandbox's own are reached: a listener on the host's loopback for each, a stream of the
//! agent for each connection. All end with the sandbox's handle.

use espalier_agent_client::Agent;
use espalier_core::failure::Failure;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

/// Ports of one sandbox.
const PORTS_MAX: usize = 64;
/// Connections to one port at a time; who comes later waits.
const CONNECTIONS_MAX: usize = 64;

/// See the module.
pub(super) struct Ports {
    agent: Agent,
    open: Mutex<BTreeMap<u16, (SocketAddr, AbortHandle)>>,
}

impl Ports {
    pub(super) fn new(agent: Agent) -> Ports {
        Ports { agent, open: Mutex::default() }
    }

    /// The host's address for a port of the sandbox; the same one each time.
    pub(super) async fn open(&self, number: u16) -> Result<SocketAddr, Failure> {
        let mut open = self.open.lock().await;
        if let Some((address, _)) = open.get(&number) {
            return Ok(*address);
        }
        if open.len() >= PORTS_MAX {
            let text = format!("{PORTS_MAX} ports of the sandbox are open already");
            return Err(Failure::Other { code: "bound".to_owned(), text });
        }
        let failed = |error: io::Error| Failure::Unavailable(format!("a port of the host: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // Owned by this map, which aborts it when it is dropped; its connections end with it.
        let accepting = tokio::spawn(accept(listener, self.agent.clone(), number));
        open.insert(number, (address, accepting.abort_handle()));
        Ok(address)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        for (_, accepting) in self.open.get_mut().values() {
            accepting.abort();
        }
    }
}

async fn accept(listener: TcpListener, agent: Agent, number: u16) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        let agent = agent.clone();
        connections.spawn(async move {
            // A port on which nobody listens looks like one that closes at once.
            let carried = async { agent.forward(number, "").await?.carry(stream).await };
            if let Err(error) = carried.await {
                tracing::debug!(number, "connection to a sandbox's port: {error}");
            }
            drop(place);
        });
    }
}
