//! A stored group put together again.

use super::ExportError;
use crate::error::StoreError;
use crate::query::LeftOut;
use crate::resume::AttemptState;
use crate::store::Store;
use espalier_core::ledger::{reason, withhold};
use espalier_core::samples::{Group, GroupKind, SCHEMA, judge_turn};
use espalier_core::trajectory::AttemptRecord;
use std::collections::BTreeSet;

/// A group as trainers get it, with the records of its rollouts.
#[derive(Clone, Debug)]
pub struct GroupContent {
    /// As it leaves.
    pub group: Group,
    /// In the order of `group.trajectories`, then of `group.replaced`, then of `group.not_chosen`.
    pub records: Vec<AttemptRecord>,
}

impl GroupContent {
    /// Records of the rollouts that count.
    pub fn counted(&self) -> impl Iterator<Item = &AttemptRecord> {
        self.records[..self.group.trajectories.len()].iter()
    }

    /// Records of the rollouts that were replaced, then of those that were not chosen.
    pub fn replaced(&self) -> impl Iterator<Item = &AttemptRecord> {
        self.records[self.group.trajectories.len()..].iter()
    }

    /// Takes out the groups of judges that are trained: what is sampled there is then no other call of a rollout any more.
    pub fn take_judged(&mut self) -> Vec<Group> {
        let groups: Vec<Group> =
            self.counted().flat_map(|record| judge_turn::of_rollout(&self.group, record)).collect();
        let own = groups.iter().flat_map(|group| &group.trajectories).flat_map(|one| &one.calls);
        let own: BTreeSet<&str> = own.map(|call| call.call_id.as_str()).collect();
        for trajectory in &mut self.group.trajectories {
            trajectory.other_calls.retain(|call| !own.contains(call.call_id.as_str()));
        }
        groups
    }
}

impl Store {
    /// A closed group with the results of its rollouts, by place. Abandoned attempts stay in the store.
    pub async fn group_content(&self, run_id: &str, group_index: u64) -> Result<GroupContent, StoreError> {
        let row = self.group(run_id, group_index).await?;
        let Some(status) = row.status else {
            return Err(StoreError::Invalid(format!("group {} is open", row.group_id)));
        };
        let (mut counted, mut replaced, mut not_chosen) = (Vec::new(), Vec::new(), Vec::new());
        for attempt in self.attempts(run_id, group_index).await? {
            if !matches!(attempt.state, AttemptState::Final(_)) {
                continue;
            }
            let mut record = self.record(&attempt).await?.ok_or_else(|| StoreError::Damaged {
                place: format!("attempt {}", attempt.traj_id),
                text: "it ended without a record".into(),
            })?;
            match attempt.left_out() {
                None => counted.push(record),
                Some(LeftOut::Replaced) => replaced.push(record),
                Some(LeftOut::NotChosen) => {
                    withhold(&mut record.trajectory, reason::NOT_CHOSEN);
                    not_chosen.push(record);
                }
            }
        }
        let trajectories =
            |records: &[AttemptRecord]| records.iter().map(|record| record.trajectory.clone()).collect();
        let opened = row.opened;
        let mut group = Group {
            schema: SCHEMA.to_owned(),
            images: 0,
            run_id: run_id.to_owned(),
            group_id: row.group_id,
            group_index,
            kind: GroupKind::Task,
            purpose: opened.purpose,
            model: opened.model,
            parent: None,
            task_id: opened.task_id,
            task_hash: opened.task_hash,
            environment: opened.environment,
            n_requested: opened.n_requested,
            n_ready: row.n_ready.unwrap_or_default(),
            dispatch_version: opened.dispatch_version,
            deadline_ms: opened.deadline_ms,
            status,
            drop_reason: row.drop_reason,
            trajectories: trajectories(&counted),
            replaced: trajectories(&replaced),
            not_chosen: trajectories(&not_chosen),
        };
        group.images = group.images_in_rows();
        counted.append(&mut replaced);
        counted.append(&mut not_chosen);
        Ok(GroupContent { group, records: counted })
    }
}

pub(super) fn unwritable(error: rmp_serde::encode::Error) -> ExportError {
    StoreError::Failed { place: "msgpack of a group".into(), source: Box::new(error) }.into()
}
