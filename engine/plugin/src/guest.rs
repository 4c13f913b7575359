//! The data of one instance: its gate, its bounds, and the handles it holds.

use crate::gate::Gate;
use crate::wasi::Wasi;
use espalier_core::host::browser::BrowserSession;
use espalier_core::host::sandbox::{Process, Sandbox, Shell};
use espalier_core::host::{Capabilities, Conversation, Environment};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use std::sync::Arc;
use tokio::sync::Mutex;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, ResourceLimiter, Store, UpdateDeadline};

/// Handles a guest may hold at a time.
const HANDLES_MAX: usize = 4_096;

/// A handle of `espalier:model/conversations.conversation`.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenConversation {
    /// Shared with the call under way, so that a call that is cut leaves the conversation here.
    pub(crate) inner: Arc<Mutex<Box<dyn Conversation>>>,
}

/// A handle of `espalier:environment/environments.environment`.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenEnvironment {
    /// As in [`OpenConversation`].
    pub(crate) inner: Arc<Mutex<Box<dyn Environment>>>,
}

/// A handle of `espalier:sandbox/sandboxes.sandbox`.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenSandbox(pub(crate) Arc<dyn Sandbox>, pub(crate) OwnSandbox);

/// A handle of `espalier:sandbox/sandboxes.process`.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenProcess(
    pub(crate) Arc<dyn Process>,
    #[expect(dead_code, reason = "held, so that the place of its sandbox stays taken")] pub(crate) OwnSandbox,
);

/// A handle of `espalier:sandbox/sandboxes.shell`.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenShell(
    pub(crate) Arc<dyn Shell>,
    #[expect(dead_code, reason = "held, so that the place of its sandbox stays taken")] pub(crate) OwnSandbox,
);

/// A handle of `espalier:browser/browsers.session`.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct OpenBrowser(pub(crate) Arc<dyn BrowserSession>);

/// Held by every handle that keeps a sandbox of this guest's own alive, one that it opened fresh or created; `None`: the
/// sandbox is the rollout's.
pub(crate) type OwnSandbox = Option<Arc<()>>;

/// What a guest is given.
pub(crate) struct GuestSetup {
    pub(crate) alias: String,
    pub(crate) digest: String,
    pub(crate) gate: Gate,
    pub(crate) memory_max: u64,
    pub(crate) settings: String,
    pub(crate) seed: u64,
    pub(crate) capabilities: Capabilities,
}

/// The data behind a store.
pub(crate) struct Guest {
    pub(crate) alias: String,
    pub(crate) digest: String,
    pub(crate) gate: Gate,
    pub(crate) bounds: Bounds,
    pub(crate) table: ResourceTable,
    pub(crate) settings: String,
    pub(crate) random: ChaCha12Rng,
    pub(crate) wasi: Wasi,
    pub(crate) capabilities: Capabilities,
    /// Cloned into the handles of each sandbox of its own: those that are alive are counted by it.
    pub(crate) own_sandboxes: Vec<std::sync::Weak<()>>,
    /// Where in its source it last said that it is, and after how many host calls.
    pub(crate) position: Option<(String, u64)>,
}

/// A store for one instance, with all its limits set.
pub(crate) fn store(engine: &Engine, setup: GuestSetup) -> Store<Guest> {
    let mut table = ResourceTable::new();
    table.set_max_capacity(HANDLES_MAX);
    let guest = Guest {
        alias: setup.alias,
        digest: setup.digest,
        gate: setup.gate,
        bounds: Bounds { memory_max: setup.memory_max, memory_used: 0, calls: 0, refused: None },
        table,
        settings: setup.settings,
        random: ChaCha12Rng::seed_from_u64(setup.seed),
        wasi: Wasi::new(setup.seed),
        capabilities: setup.capabilities,
        own_sandboxes: Vec::new(),
        position: None,
    };
    let mut store = Store::new(engine, guest);
    store.limiter(|guest| {
        guest.bounds.calls = guest.gate.total();
        &mut guest.bounds
    });
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|mut context| match context.data_mut().gate.tick() {
        Ok(()) => Ok(UpdateDeadline::Yield(1)),
        Err(stop) => Err(stop.into()),
    });
    store
}

/// What an instance may grow to.
#[derive(Debug)]
pub(crate) struct Bounds {
    memory_max: u64,
    memory_used: u64,
    /// Number of host calls so far, recorded with a refused growth.
    calls: u64,
    /// Bytes refused, and the number of host calls then.
    refused: Option<(u64, u64)>,
}

/// Elements of one table. Python's are the largest known, at about 15,000.
pub(crate) const TABLE_ELEMENTS_MAX: usize = 200_000;

impl Bounds {
    /// The limit, bytes.
    pub(crate) fn memory_max(&self) -> u64 {
        self.memory_max
    }

    /// Bytes of its linear memories.
    pub(crate) fn memory_used(&self) -> u64 {
        self.memory_used
    }

    /// Bytes refused since that many host calls.
    pub(crate) fn refused_at(&self, calls: u64) -> Option<u64> {
        self.refused.filter(|(_, at)| *at == calls).map(|(wanted, _)| wanted)
    }
}

impl ResourceLimiter for Bounds {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.memory_used + (desired.saturating_sub(current)) as u64;
        if wanted > self.memory_max {
            self.refused = Some((wanted, self.calls));
            return Ok(false);
        }
        self.memory_used = wanted;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS_MAX)
    }

    fn instances(&self) -> usize {
        256
    }

    fn tables(&self) -> usize {
        256
    }

    fn memories(&self) -> usize {
        16
    }
}
