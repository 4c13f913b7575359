//! The recording proxies of a run, reached from its sandboxes: which sandbox belongs to which attempt, and the key that each has.

use async_trait::async_trait;
use espalier_core::attempt::{AttemptCapability, Draft};
use espalier_core::ending::AgentCalls;
use espalier_core::host::Models;
use espalier_proxy::wire::{Api, Refused};
use espalier_proxy::{ProxyOptions, RolloutProxy};
use espalier_sandbox::local::{Caller, Service};
use parking_lot::Mutex;
use rand::RngExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// For an answer of the model: more than `limits.import_wall` may be, which ends a call before.
const WITHIN: Duration = Duration::from_secs(3_660);

/// The attempts of a run whose agents may ask the model, by their sandboxes.
#[derive(Default)]
pub(crate) struct RunProxies(Mutex<HashMap<String, Arc<RolloutProxy>>>);

impl RunProxies {
    /// The service that answers for all of them: each sandbox speaks to its own attempt's.
    pub(crate) fn service(self: &Arc<Self>) -> Service {
        let proxies = Arc::clone(self);
        Service::streaming(move |request| {
            let caller = request.extensions().get::<Caller>();
            let proxy = caller.and_then(|caller| proxies.0.lock().get(&caller.sandbox).cloned());
            let api = Api::of_path(request.uri().path());
            async move {
                match proxy {
                    Some(proxy) => proxy.answer(request).await,
                    None => api.refusal(&Refused::key()),
                }
            }
        })
        .within(WITHIN)
        .direct()
        .refusing(|status, why| Api::Chat.refusal(&Refused::of_proxy(status, why)))
    }
}

/// The proxy of one attempt.
pub(crate) struct AttemptProxy {
    run: Arc<RunProxies>,
    own: Arc<RolloutProxy>,
    /// What programs of its sandboxes find in their environment.
    environment: Vec<(String, String)>,
    sandboxes: Mutex<Vec<String>>,
}

impl AttemptProxy {
    /// `url`: where its sandboxes reach it; `make`: with a key that is its own.
    pub(crate) fn new(
        run: Arc<RunProxies>,
        url: &str,
        make: impl FnOnce(String) -> (Arc<dyn Models>, ProxyOptions),
    ) -> AttemptProxy {
        let key = format!("sk-espalier-{:032x}", rand::rng().random::<u128>());
        let openai = format!("{url}/v1");
        let environment = [
            ("OPENAI_BASE_URL", openai.as_str()),
            ("OPENAI_API_BASE", &openai),
            ("OPENAI_API_KEY", &key),
            ("ANTHROPIC_BASE_URL", url),
            ("ANTHROPIC_API_KEY", &key),
            // Of the sandbox's proxy, which speaks HTTP too: the HTTP client of the vendors' own SDKs stops where it finds a SOCKS proxy
            // and no package for it, whatever it is to reach.
            ("ALL_PROXY", ""),
            ("all_proxy", ""),
        ];
        let environment =
            environment.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let (models, options) = make(key);
        let own = Arc::new(RolloutProxy::new(models, options));
        AttemptProxy { run, own, environment, sandboxes: Mutex::default() }
    }

    /// A sandbox is the attempt's: its programs may ask. What they find in their environment.
    pub(crate) fn admit(&self, sandbox: &str) -> Vec<(String, String)> {
        self.run.0.lock().insert(sandbox.to_owned(), Arc::clone(&self.own));
        self.sandboxes.lock().push(sandbox.to_owned());
        self.environment.clone()
    }

    /// What the agent got.
    pub(crate) fn calls(&self) -> AgentCalls {
        self.own.calls()
    }
}

#[async_trait]
impl AttemptCapability for AttemptProxy {
    /// The key ends, and with it whatever a program of the sandbox still asks for.
    async fn close(&self, _draft: &mut Draft) {
        self.forget();
        self.own.close().await;
    }
}

impl AttemptProxy {
    fn forget(&self) {
        let mut run = self.run.0.lock();
        for sandbox in self.sandboxes.lock().drain(..) {
            run.remove(&sandbox);
        }
    }
}

impl Drop for AttemptProxy {
    fn drop(&mut self) {
        self.forget();
    }
}
