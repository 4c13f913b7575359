//! Sandboxes that are ready before they are asked for, each pool with a bound.

use super::{Purpose, Sandbox};
use crate::error::SandboxError;
use espalier_core::sandbox::SandboxSpec;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pools by what their sandboxes are like.
#[derive(Default)]
pub(super) struct Pools(Mutex<HashMap<String, Pool>>);

#[derive(Default)]
struct Pool {
    bound: usize,
    /// Being made.
    coming: usize,
    ready: VecDeque<Sandbox>,
}

/// All that makes one sandbox like another: spec, lease, promises.
fn key(spec: &SandboxSpec, purpose: Option<&Purpose>) -> String {
    let spec = serde_json::to_string(spec).unwrap_or_default();
    match purpose {
        None => spec,
        Some(Purpose { lease, require, .. }) => format!("{spec} {} {}", lease.as_millis(), require.join(",")),
    }
}

impl Pools {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many to keep of a spec, whatever they are made for.
    pub(super) fn bound(&self, spec: &SandboxSpec, count: usize) {
        self.lock().entry(key(spec, None)).or_default().bound = count;
    }

    /// One that is ready.
    pub(super) fn take(&self, spec: &SandboxSpec, purpose: &Purpose) -> Option<Sandbox> {
        self.lock().get_mut(&key(spec, Some(purpose)))?.ready.pop_front()
    }

    /// How many are to be made now; they count as coming from here on.
    pub(super) fn wanted(&self, spec: &SandboxSpec, purpose: &Purpose) -> usize {
        let mut pools = self.lock();
        let bound = pools.get(&key(spec, None)).map_or(0, |pool| pool.bound);
        if bound == 0 {
            return 0;
        }
        let pool = pools.entry(key(spec, Some(purpose))).or_default();
        let wanted = bound.saturating_sub(pool.ready.len() + pool.coming);
        pool.coming += wanted;
        wanted
    }

    /// One that has been made, or could not be. Given back: nobody wants it any more.
    pub(super) fn put(
        &self,
        spec: &SandboxSpec,
        purpose: &Purpose,
        made: Result<Sandbox, SandboxError>,
    ) -> Option<Sandbox> {
        let mut pools = self.lock();
        let bound = pools.get(&key(spec, None)).map_or(0, |pool| pool.bound);
        let pool = pools.entry(key(spec, Some(purpose))).or_default();
        pool.coming = pool.coming.saturating_sub(1);
        match made {
            Ok(sandbox) if pool.ready.len() < bound => {
                pool.ready.push_back(sandbox);
                None
            }
            Ok(sandbox) => Some(sandbox),
            Err(error) => {
                tracing::debug!(%error, "no warm sandbox");
                None
            }
        }
    }

    /// No more are wanted; those that are ready.
    pub(super) fn close(&self) -> Vec<Sandbox> {
        let mut pools = self.lock();
        for pool in pools.values_mut() {
            pool.bound = 0;
        }
        pools.values_mut().flat_map(|pool| std::mem::take(&mut pool.ready)).collect()
    }

    /// One has ended by itself.
    pub(super) fn forget(&self, id: &str) {
        for pool in self.lock().values_mut() {
            pool.ready.retain(|sandbox| sandbox.placed.id != id);
        }
    }
}
