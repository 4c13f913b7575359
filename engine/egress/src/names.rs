//! What the proxies of all sandboxes of an engine share: a bound on their connections, and on the threads that ask name servers.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Names of one sandbox that are being looked up; more wait.
const LOOKUPS_EACH: usize = 4;
/// Lookups at a time, of all sandboxes of an engine. Each takes a thread until the system's resolver gives up, also when nobody waits any more.
const LOOKUPS_MAX: usize = 64;
/// Connections of all sandboxes, at the least.
const CONNECTIONS_MIN: usize = 64;

/// See the module. Clones share it.
#[derive(Clone, Debug)]
pub struct Shared {
    lookups: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

impl Default for Shared {
    /// Connections take up to half of the descriptors that this process may have: two each.
    fn default() -> Shared {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = usize::try_from(descriptors.unwrap_or(1 << 20)).unwrap_or(1 << 20) / 4;
        Shared {
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            connections: Arc::new(Semaphore::new(most.clamp(CONNECTIONS_MIN, 1 << 20))),
        }
    }
}

impl Shared {
    /// Room for a connection.
    pub(super) async fn connection(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.connections).acquire_owned().await
    }

    /// For one sandbox.
    pub(super) fn lookups(&self) -> Lookups {
        Lookups { all: Arc::clone(&self.lookups), own: Arc::new(Semaphore::new(LOOKUPS_EACH)) }
    }
}

/// Look-ups of one sandbox. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Lookups {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl Lookups {
    /// The addresses of a name.
    pub(super) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let name = host.to_owned();
        self.ask(move || (name.as_str(), port).to_socket_addrs().map(Iterator::collect)).await
    }

    /// The thread has the room, not whoever waits for it: one that gave up leaves no place for another.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let own = Arc::clone(&self.own).acquire_owned().await.map_err(io::Error::other)?;
        let all = Arc::clone(&self.all).acquire_owned().await.map_err(io::Error::other)?;
        let asked = tokio::task::spawn_blocking(move || {
            let _room = (own, all);
            ask()
        });
        asked.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn silent_name_servers_take_few_threads_of_each_sandbox() {
        let shared = Shared::default();
        let (one, other) = (shared.lookups(), shared.lookups());
        let asking = Arc::new(AtomicUsize::new(0));
        let (release, silent) = mpsc::channel::<()>();
        let silent = Arc::new(std::sync::Mutex::new(silent));
        let mut impatient = Vec::new();
        for _ in 0..256 {
            let (one, asking, silent) = (one.clone(), Arc::clone(&asking), Arc::clone(&silent));
            impatient.push(async move {
                let asked = one.ask(move || {
                    asking.fetch_add(1, Ordering::SeqCst);
                    let _ = silent.lock().map(|silent| silent.recv());
                    Ok(())
                });
                let _ = tokio::time::timeout(Duration::from_millis(100), asked).await;
            });
        }
        futures::future::join_all(impatient).await;
        assert_eq!(asking.load(Ordering::SeqCst), LOOKUPS_EACH, "given up, and still theirs");
        assert_eq!(other.ask(|| Ok(7)).await.unwrap(), 7, "another sandbox's are asked meanwhile");
        drop(release);
        assert_eq!(one.ask(|| Ok(8)).await.unwrap(), 8);
    }
}
