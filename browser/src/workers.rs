//! Service workers and shared workers: they belong to a context, not to a page.

use crate::browser::BrowserInner;
use crate::connection::{Connection, Gate, Handler, Session};
use crate::context::{BrowserContext, ContextInner};
use crate::error::BrowserError;
use crate::network::{Failed, Finished, Network, Received, Request, WillBeSent};
use crate::protocol::{Attached, event};
use crate::queue::{EventSource, EventStream};
use chromiumoxide::cdp::browser_protocol::network::EnableParams as NetworkEnable;
use chromiumoxide::cdp::js_protocol::runtime::RunIfWaitingForDebuggerParams;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::sync::{Arc, Weak};

/// Whether pages may have service workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceWorkers {
    /// They work as elsewhere; their requests are seen and routed.
    #[default]
    Allow,
    /// Their registration is refused with an error.
    Block,
}

/// Runs in every document where service workers are blocked. Chromium has no setting for it.
pub(crate) const BLOCK: &str = "(() => {
  if (!navigator.serviceWorker) return;
  const refused = () => Promise.reject(new DOMException('service workers are blocked', 'SecurityError'));
  Object.defineProperty(ServiceWorkerContainer.prototype, 'register', { value: refused });
})()";

/// The workers of a context that are no page's.
#[derive(Default)]
pub(crate) struct Workers {
    sessions: Mutex<Vec<Arc<Session>>>,
    network: Arc<Network>,
    requests: EventSource<Request>,
}

impl Workers {
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().clone()
    }
}

impl BrowserContext {
    /// Requests of service workers and shared workers, as they end from now on.
    pub fn worker_requests(&self) -> EventStream<Request> {
        self.inner.workers.requests.subscribe()
    }
}

impl ContextInner {
    /// A worker of this context has been attached, and waits to be told to run.
    pub(crate) fn attach_worker(self: &Arc<Self>, connection: &Arc<Connection>, attached: &Attached) {
        let handler = Arc::downgrade(self) as Weak<dyn Handler>;
        let session = connection.open_session(&attached.session_id, handler, Arc::new(Gate::default()));
        self.workers.sessions.lock().push(Arc::clone(&session));
        session.post(NetworkEnable::default());
        if let Some(command) = crate::route::enable(&[&self.routes], self.auth.is_set()) {
            session.post(command);
        }
        session.post(RunIfWaitingForDebuggerParams::default());
    }
}

impl Handler for ContextInner {
    fn event(&self, session: &Arc<Session>, method: &str, params: &RawValue) {
        let network = &self.workers.network;
        match method {
            "Network.requestWillBeSent" => {
                let Some(event) = event::<WillBeSent>(method, params) else { return };
                if let (_, Some(before)) = network.will_be_sent(session, event) {
                    self.workers.requests.send(&before);
                }
            }
            "Network.responseReceived" => {
                let Some(event) = event::<Received>(method, params) else { return };
                network.received(event);
            }
            "Network.loadingFinished" => {
                let Some(event) = event::<Finished>(method, params) else { return };
                if let Some(request) = network.finished(&event) {
                    self.workers.requests.send(&request);
                }
            }
            "Network.loadingFailed" => {
                let Some(event) = event::<Failed>(method, params) else { return };
                if let Some(request) = network.failed(&event) {
                    self.workers.requests.send(&request);
                }
            }
            "Fetch.requestPaused" => crate::route::paused(&[&self.routes], network, session, method, params),
            "Fetch.authRequired" => self.auth.required(session, method, params),
            _ => {}
        }
    }

    fn ended(&self, session: &Arc<Session>, _reason: &BrowserError) {
        self.workers.sessions.lock().retain(|other| !Arc::ptr_eq(other, session));
        self.workers.network.session_ended(session);
    }
}

impl BrowserInner {
    /// Whether a target is a worker that no page owns.
    pub(crate) fn is_worker(kind: &str) -> bool {
        matches!(kind, "service_worker" | "shared_worker")
    }
}
