//! The results of rollouts that a store holds for good.

use espalier_store::{AttemptState, Store, StoreUrl};
use std::collections::BTreeMap;
use std::path::Path;

/// By `(group, rollout)` the hash of its record, over all runs of the store. A rollout with two results panics.
pub async fn results(store: &Path) -> BTreeMap<(u64, u32), String> {
    let mut results = BTreeMap::new();
    if !store.join("store.sqlite").exists() {
        return results;
    }
    let store = Store::open_existing(&StoreUrl::Folder(store.to_owned())).await.expect("the store opens");
    for run in store.runs().await.expect("runs are read") {
        for group in store.groups(&run.run_id).await.expect("groups are read") {
            let attempts = store.attempts(&run.run_id, group.opened.group_index).await;
            for attempt in attempts.expect("attempts are read") {
                if matches!(attempt.state, AttemptState::Final(_)) {
                    let rollout = (attempt.group_index, attempt.rollout_index);
                    let record = attempt.record.clone().expect("a result has a record");
                    assert_eq!(results.insert(rollout, record), None, "{rollout:?} has two results");
                }
            }
        }
    }
    store.close().await;
    results
}

/// The process that holds the store's only run.
pub async fn holder(store: &Path) -> Option<u32> {
    let store = Store::open_existing(&StoreUrl::Folder(store.to_owned())).await.expect("the store opens");
    let runs = store.runs().await.expect("runs are read");
    store.close().await;
    runs.first()?.lock.as_ref().map(|lock| lock.holder.pid)
}

/// Fails where a result of `before` is not there any more, or is another.
pub fn check_kept(before: &BTreeMap<(u64, u32), String>, after: &BTreeMap<(u64, u32), String>, place: &str) {
    for (rollout, record) in before {
        assert_eq!(after.get(rollout), Some(record), "{place}: the result of {rollout:?} is lost or another");
    }
}
