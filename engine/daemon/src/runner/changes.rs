//! What a rollout changed in its sandboxes, kept for the rewards of its group: these run when its sandboxes are gone.

use super::attempt::ScoringResources;
use super::{GroupContext, Runner};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::Draft;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::limits::DurationText;
use espalier_core::trajectory::{LogLine, LogSource};

/// The name of the blob is this and the sandbox's name.
pub(super) const CHANGES: &str = "changes:";
/// Behind the name of a blob that stands for changes which could not be taken: no fault of the rollout.
const UNAVAILABLE: &str = ":unavailable";
/// Most bytes of the content of one sandbox's changes, as `sandbox.changes` takes them.
const CHANGES_BYTES_MAX: u64 = 64 << 20;

impl Runner {
    /// Whether a reward of groups may see them.
    pub(crate) fn keeps_changes(&self) -> bool {
        self.rewards.iter().any(|reward| reward.sees_changes)
    }

    /// Puts the changes of every sandbox that was opened among the blobs of the draft, within `limits.scoring_wall`. What cannot be
    /// had is told in its log; where the infrastructure is why, also by a blob, for the rewards of its group.
    pub(super) async fn keep_changes(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        resources: &ScoringResources,
        draft: &mut Draft,
    ) {
        let Some(sandboxes) = &resources.sandboxes else { return };
        resources.now_scored(false);
        let wall = group.limits.scoring_wall;
        let until = tokio::time::Instant::now() + wall;
        for (name, sandbox) in sandboxes.rollout.open_sandboxes() {
            let taken = tokio::select! {
                taken = tokio::time::timeout_at(until, sandbox.changes(None, CHANGES_BYTES_MAX)) => taken,
                () = start.cancel.cancelled() => return,
            };
            let taken = taken.unwrap_or_else(|_| {
                Err(Failure::Unavailable(format!(
                    "not taken within limits.scoring_wall = {}",
                    DurationText(wall)
                )))
            });
            match taken {
                Ok(changes) => draft.blobs.push((format!("{CHANGES}{name}"), changes.blob)),
                Err(failure) => {
                    let text = format!("the changes of sandbox {name} are not kept: {failure}");
                    if matches!(failure, Failure::Unavailable(_))
                        && let Ok(blob) =
                            resources.blobs.put(text.clone().into_bytes(), "text/plain; charset=utf-8").await
                    {
                        draft.blobs.push((format!("{CHANGES}{name}{UNAVAILABLE}"), blob));
                    }
                    draft.logs.push(LogLine {
                        at_us: 0,
                        plugin: "changes".to_owned(),
                        source: LogSource::Warn,
                        text,
                        fields: None,
                        turn: None,
                        call: None,
                    });
                }
            }
        }
    }
}
