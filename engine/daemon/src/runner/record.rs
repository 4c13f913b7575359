//! What rewards are shown of an attempt, and where its record stands.

use super::{GroupContext, Names};
use crate::scheduler::AttemptStart;
use espalier_core::attempt::{AttemptPlace, Draft};
use espalier_core::chat::{Message, Part};
use espalier_core::ending::{Report, StopReason};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::trajectory::{AttemptRecord, RolloutView, Step, Transcript, Turn};

/// Texts longer than this are blobs in what a reward is shown, bytes.
const VIEW_TEXT_MAX: usize = 64 << 10;

/// Where the record of this attempt stands.
pub(super) fn place(group: &GroupContext, start: &AttemptStart, names: &Names) -> AttemptPlace {
    AttemptPlace {
        traj_id: names.traj_id.clone(),
        rollout_id: names.rollout_id,
        rollout_index: start.rollout.rollout_index,
        attempt: start.key.attempt,
        session_id: names.session_id.as_ref().to_owned(),
        instruction: group.task.instruction.clone(),
        queued: start.queued,
        plugins: group.digests.clone(),
    }
}

/// The parts of an attempt that rewards are shown: of one that was just run, or of a record.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    traj_id: &'a str,
    stop_reason: StopReason,
    report: &'a Option<Report>,
    transcript: &'a Transcript,
    steps: &'a [Step],
    blobs: &'a [(String, String)],
}

impl<'a> Shown<'a> {
    pub(super) fn of_draft(traj_id: &'a str, draft: &'a Draft) -> Shown<'a> {
        Shown {
            traj_id,
            stop_reason: draft.ending.stop_reason,
            report: &draft.report,
            transcript: draft.transcript(),
            steps: &draft.steps,
            blobs: &draft.blobs,
        }
    }

    pub(super) fn of_record(record: &'a AttemptRecord) -> Shown<'a> {
        Shown {
            traj_id: &record.trajectory.traj_id,
            stop_reason: record.trajectory.stop_reason,
            report: &record.report,
            transcript: &record.transcript,
            steps: &record.steps,
            blobs: &record.blobs,
        }
    }

    /// What a reward is shown. Errors: those of the blobs that take long texts.
    pub(super) async fn view(
        self,
        group: &GroupContext,
        policy: &str,
        blobs: &dyn Blobs,
    ) -> Result<RolloutView, Failure> {
        let mut turns: Vec<Turn> = self.transcript.turns_of(policy).cloned().collect();
        for turn in &mut turns {
            shorten(&mut turn.message, blobs).await?;
            for message in &mut turn.results {
                shorten(message, blobs).await?;
            }
        }
        Ok(RolloutView {
            rollout_id: self.traj_id.to_owned(),
            task: group.task.view(true),
            status: self.stop_reason.row().status.as_str().to_owned(),
            stop_reason: self.stop_reason.as_str().to_owned(),
            report: self.report.clone(),
            turns,
            steps: self.steps.to_vec(),
            blobs: self.blobs.to_vec(),
            extra: None,
        })
    }
}

/// Puts texts over [`VIEW_TEXT_MAX`] into blobs.
async fn shorten(message: &mut Message, blobs: &dyn Blobs) -> Result<(), Failure> {
    for part in &mut message.parts {
        if let Part::Text(text) = part
            && text.len() > VIEW_TEXT_MAX
        {
            let blob = blobs.put(std::mem::take(text).into_bytes(), "text/plain; charset=utf-8").await?;
            *part = Part::TextBlob(blob);
        }
    }
    Ok(())
}
