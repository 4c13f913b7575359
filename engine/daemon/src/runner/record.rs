//! What is kept of an attempt, and what rewards are shown of it.

use super::{GroupContext, Names, now_ms};
use crate::scheduler::AttemptStart;
use espalier_core::breaker::PluginReport;
use espalier_core::chat::{Message, Part};
use espalier_core::ending::{Ending, Report};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::samples::{ErrorNote, Timing, Trajectory};
use espalier_core::signal::Signal;
use espalier_core::trajectory::{
    AttemptRecord, HostCall, LogLine, ModelOutput, PluginScore, RolloutView, SandboxUse, Step, Transcript,
    Turn,
};
use std::time::Duration;

/// Texts longer than this are blobs in what a reward is shown, bytes.
const VIEW_TEXT_MAX: usize = 64 << 10;

/// What an attempt left, as it comes together.
pub(super) struct Draft {
    pub(super) ending: Ending,
    pub(super) report: Option<Report>,
    pub(super) steps: Vec<Step>,
    pub(super) host_calls: Vec<HostCall>,
    pub(super) logs: Vec<LogLine>,
    pub(super) log_bytes_dropped: u64,
    pub(super) signal: Signal,
    pub(super) scores: Vec<PluginScore>,
    pub(super) sandboxes: Vec<SandboxUse>,
    /// By name.
    pub(super) blobs: Vec<(String, String)>,
    pub(super) boot: Duration,
    pub(super) env_ms: u64,
    pub(super) score: Duration,
    /// What its plugins did.
    pub(super) report_of_plugins: PluginReport,
    /// ms since 1970.
    pub(super) ended_ms: u64,
}

impl Draft {
    /// An attempt that left nothing but its ending.
    pub(super) fn empty(ending: Ending) -> Self {
        Draft {
            ending,
            report: None,
            steps: Vec::new(),
            host_calls: Vec::new(),
            logs: Vec::new(),
            log_bytes_dropped: 0,
            signal: Signal::default(),
            scores: Vec::new(),
            sandboxes: Vec::new(),
            blobs: Vec::new(),
            boot: Duration::ZERO,
            env_ms: 0,
            score: Duration::ZERO,
            report_of_plugins: PluginReport::default(),
            ended_ms: now_ms(),
        }
    }

    /// The record, with what the models hand over.
    pub(super) fn into_record(
        self,
        group: &GroupContext,
        start: &AttemptStart,
        names: &Names,
        output: ModelOutput,
        trainable: bool,
    ) -> AttemptRecord {
        let stop_reason = self.ending.stop_reason;
        let own = self.ending.error.map(|text| ErrorNote { code: stop_reason.as_str().to_owned(), text });
        let trajectory = Trajectory {
            traj_id: names.traj_id.clone(),
            rollout_id: names.rollout_id,
            rollout_index: start.rollout.rollout_index,
            attempt: start.key.attempt,
            session_id: names.session_id.as_ref().to_owned(),
            status: stop_reason.row().status,
            stop_reason,
            reward: self.signal.reward,
            reward_parts: self.signal.reward_parts,
            turn_rewards: self.signal.turn_rewards,
            trainable,
            timing_ms: Timing {
                queue: millis(start.queued),
                boot: millis(self.boot),
                model: output.model_ms,
                env: self.env_ms,
                score: millis(self.score),
            },
            plugins: group.digests.clone(),
            errors: own.into_iter().chain(self.signal.errors).collect(),
            calls: output.calls,
            other_calls: output.other_calls,
            segments: output.segments,
            excluded: output.excluded,
        };
        AttemptRecord {
            trajectory,
            transcript: output.transcript,
            steps: self.steps,
            host_calls: self.host_calls,
            logs: self.logs,
            log_bytes_dropped: self.log_bytes_dropped,
            report: self.report,
            scores: self.scores,
            blobs: self.blobs,
            sandboxes: self.sandboxes,
            failures: self.report_of_plugins.failures,
            withheld: false,
        }
    }

    /// What a reward is shown. Errors: those of the blobs that take long texts.
    pub(super) async fn view(
        &self,
        group: &GroupContext,
        names: &Names,
        transcript: Transcript,
        group_model: &str,
        blobs: &dyn Blobs,
    ) -> Result<RolloutView, Failure> {
        let stop_reason = self.ending.stop_reason;
        let conversations = transcript.conversations;
        let own = |turn: &Turn| {
            conversations.get(turn.conversation as usize).is_some_and(|log| log.model == group_model)
        };
        let mut turns: Vec<Turn> = transcript.turns.into_iter().filter(own).collect();
        for turn in &mut turns {
            shorten(&mut turn.message, blobs).await?;
            for message in &mut turn.results {
                shorten(message, blobs).await?;
            }
        }
        Ok(RolloutView {
            rollout_id: names.traj_id.clone(),
            task: group.task.view(true),
            status: stop_reason.row().status.as_str().to_owned(),
            stop_reason: stop_reason.as_str().to_owned(),
            report: self.report.clone(),
            turns,
            steps: self.steps.clone(),
            blobs: self.blobs.clone(),
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
