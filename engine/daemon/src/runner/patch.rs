//! The work of an attempt as a patch, kept with it where the experiment asks for that.

use super::attempt::ScoringResources;
use super::{GroupContext, Runner};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::Draft;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::limits::DurationText;
use espalier_core::sandbox::MAIN;
use espalier_core::trajectory::{LogLine, LogSource, PATCH};

/// Files named that are not in a patch.
const LEFT_OUT_SHOWN: usize = 20;

impl Runner {
    /// Whether attempts keep one.
    pub(crate) fn keeps_patches(&self) -> bool {
        self.sandboxes.as_ref().is_some_and(|sandboxes| sandboxes.keep_patch)
    }

    /// Puts the patch among the blobs of the draft, within `limits.scoring_wall`. What cannot be had is told in its log: it is no
    /// reason to lose a rollout.
    pub(super) async fn keep_patch(
        &self,
        group: &GroupContext,
        start: &AttemptStart,
        resources: &ScoringResources,
        draft: &mut Draft,
    ) {
        let Some(sandboxes) = &resources.sandboxes else { return };
        resources.now_scored(false);
        let wall = group.limits.scoring_wall;
        let made = tokio::select! {
            made = tokio::time::timeout(wall, sandboxes.rollout.patch(MAIN)) => made,
            () = start.cancel.cancelled() => return,
        };
        let made = made.unwrap_or_else(|_| {
            Err(Failure::Unavailable(format!("not made within limits.scoring_wall = {}", DurationText(wall))))
        });
        let told = match made {
            Ok(None) => None,
            Ok(Some(patch)) => {
                match resources.blobs.put(patch.text.into_bytes(), "text/x-diff; charset=utf-8").await {
                    Ok(blob) => {
                        draft.blobs.push((PATCH.to_owned(), blob));
                        let mut left_out = patch.left_out;
                        left_out.truncate(LEFT_OUT_SHOWN);
                        (!left_out.is_empty()).then(|| format!("not in the patch: {}", left_out.join(", ")))
                    }
                    Err(failure) => Some(format!("no patch is kept: {failure}")),
                }
            }
            Err(failure) => Some(format!("no patch is kept: {failure}")),
        };
        draft.logs.extend(told.map(|text| LogLine {
            at_us: 0,
            plugin: "patch".to_owned(),
            source: LogSource::Warn,
            text,
            fields: None,
            turn: None,
            call: None,
        }));
    }
}
