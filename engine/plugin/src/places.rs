//! Room for instances: how many there are at a time, and who waits.
//!
//! The engine keeps stacks and linear memories ready and uses them again ([`crate::engine`]), a fixed number of each.
//! Whoever makes an instance takes a place first and gives it back when the instance is gone, so that a pool is never
//! found empty: who comes too late waits here, in order of arrival. A host whose bound is twice the rollouts that run at
//! once lets none of them wait (each has a harness and an environment, or one reward), but for instances that outlive
//! their rollout until their own limits end them.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::component::Component;

/// Linear memories and tables that come with one place: what the largest component known has (a JavaScript guest has two
/// memories). One that has more takes several places.
pub(crate) const MEMORIES: u32 = 2;
/// As [`MEMORIES`].
pub(crate) const TABLES: u32 = 8;
/// Least places of a host: what the largest component may need that [`crate::guest::Bounds`] lets in.
const PLACES_LEAST: u32 = 32;

/// The places of one host.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    all: u32,
}

/// The place of one instance. Dropped after the instance's store.
#[must_use]
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// Room for so many instances, or a few more.
    pub(crate) fn new(instances: u32) -> Places {
        let all = instances.max(PLACES_LEAST);
        Places { free: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.all
    }

    /// Takes what an instance needs, as [`needed`] says; one that needs more than there is takes all.
    pub(crate) async fn take(&self, needed: u32) -> Place {
        let free = Arc::clone(&self.free);
        let permit = free.acquire_many_owned(needed.clamp(1, self.all)).await;
        Place { _permit: permit.expect("the places are never closed") }
    }
}

/// Places that an instance of this component takes.
pub(crate) fn needed(component: &Component) -> u32 {
    component.resources_required().map_or(1, |needs| {
        needs.num_memories.div_ceil(MEMORIES).max(needs.num_tables.div_ceil(TABLES)).max(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_comes_late_waits_for_a_place() {
        let places = Places::new(3);
        let most = places.take(places.count() - 1).await;
        let one = places.take(0).await;
        let mut late = std::pin::pin!(places.take(u32::MAX));
        assert!(futures_ready(&mut late).await.is_none());
        drop(most);
        assert!(futures_ready(&mut late).await.is_none());
        drop(one);
        assert!(futures_ready(&mut late).await.is_some());
    }

    /// The value, where it is there at once.
    async fn futures_ready<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = std::future::ready(()) => None,
        }
    }
}
