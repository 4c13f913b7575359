//! One attempt as it comes together: what is kept of it ([`Draft`]), and what each capability adds ([`AttemptCapability`]).
//!
//! The phases of an attempt, in the order in which the runner goes through them: link (capabilities are made), configure (the
//! harness is handed them), run, close, score, finish. A capability that outlives one call of its plugin takes part in `close` and `finish`;
//! the runner knows no more of it.

use crate::breaker::PluginReport;
use crate::ending::{Ending, Lost, Report};
use crate::journal::Edge;
use crate::judge::JudgeRecord;
use crate::samples::{Call, ErrorNote, Timing, Trajectory};
use crate::signal::Signal;
use crate::trajectory::{
    AttemptRecord, HostCall, LogLine, ModelOutput, PluginScore, SandboxUse, Step, Transcript,
};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a capability of an attempt does besides serving the harness.
#[async_trait]
pub trait AttemptCapability: Send + Sync {
    /// The harness has ended: ends what only it used, and leaves what rewards are shown. Called once, bounded by the capability's own
    /// limits.
    async fn close(&self, draft: &mut Draft) {
        let _ = draft;
    }
    /// What was lost and stayed lost, once closed: evidence for [`crate::ending::classify`].
    fn lost(&self) -> Option<Lost> {
        None
    }
    /// The attempt is scored, or will not be: leaves what the record keeps. [`Draft::ending`] stands.
    fn finish(&self, draft: &mut Draft) {
        let _ = draft;
    }
}

/// The capabilities that one attempt has, in the order in which they were linked.
#[derive(Clone, Default)]
pub struct AttemptCapabilities(Vec<Arc<dyn AttemptCapability>>);

impl AttemptCapabilities {
    /// Adds one and gives it back as its own type.
    pub fn link<C: AttemptCapability + 'static>(&mut self, capability: Arc<C>) -> Arc<C> {
        self.0.push(Arc::clone(&capability) as Arc<dyn AttemptCapability>);
        capability
    }

    /// Closes all, one after another, the last linked first.
    pub async fn close(&self, draft: &mut Draft) {
        for capability in self.0.iter().rev() {
            capability.close(draft).await;
        }
    }

    /// The first loss in the order of [`Lost`]: infrastructure, memory, the environment.
    pub fn lost(&self) -> Option<Lost> {
        self.0.iter().filter_map(|capability| capability.lost()).min_by_key(Lost::order)
    }

    /// Lets all leave what the record keeps.
    pub fn finish(&self, draft: &mut Draft) {
        self.0.iter().for_each(|capability| capability.finish(draft));
    }
}

/// For whom a plugin is called: names its model calls, and says what its seeds are drawn for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// An attempt at a rollout, by its `traj_id`.
    Attempt(String),
    /// The rollouts of a group together, by `group_id`.
    Group(String),
    /// The run itself: a generator of tasks, by `run_id`.
    Run(String),
}

impl Owner {
    /// Unique in the store.
    pub fn id(&self) -> &str {
        match self {
            Owner::Attempt(id) | Owner::Group(id) | Owner::Run(id) => id,
        }
    }
}

/// Who made an attempt, and where: what the record says of it besides what was left.
#[derive(Clone, Debug)]
pub struct AttemptPlace {
    /// Unique in the store.
    pub traj_id: String,
    /// Unique in the store.
    pub rollout_id: i64,
    /// Place in the group, from 0.
    pub rollout_index: u32,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// The session that endpoints are told.
    pub session_id: String,
    /// What the task asks for.
    pub instruction: String,
    /// How long the rollout waited for its permit.
    pub queued: Duration,
    /// Digests by alias.
    pub plugins: BTreeMap<String, String>,
}

/// What an attempt left, as it comes together.
#[derive(Clone, Debug)]
pub struct Draft {
    /// How it ended.
    pub ending: Ending,
    /// What `run` returned.
    pub report: Option<Report>,
    /// What the models hand over; the transcript alone until it is finished.
    pub output: ModelOutput,
    /// Whether its tokens would train, given a reward.
    pub trainable: bool,
    /// Steps in the environment.
    pub steps: Vec<Step>,
    /// Imports of the harness.
    pub host_calls: Vec<HostCall>,
    /// Lines of all plugins: harness, environment, rewards.
    pub logs: Vec<LogLine>,
    /// Bytes of logs beyond `limits.log_bytes`.
    pub log_bytes_dropped: u64,
    /// What it is worth.
    pub signal: Signal,
    /// What the rewards returned.
    pub scores: Vec<PluginScore>,
    /// The judges that were asked.
    pub judges: Vec<JudgeRecord>,
    /// Calls to the models of judges, of every try.
    pub judge_calls: Vec<Call>,
    /// Sandboxes that were made for it.
    pub sandboxes: Vec<SandboxUse>,
    /// By name.
    pub blobs: Vec<(String, String)>,
    /// From the start of the attempt to the start of the harness, and until its sandboxes and browsers were there.
    pub boot: Duration,
    /// Spent in the environment, sandboxes and browsers.
    pub env_time: Duration,
    /// Spent on scoring.
    pub score_time: Duration,
    /// What did not go as it was meant to without ending it, for [`Trajectory::errors`].
    pub notes: Vec<ErrorNote>,
    /// What its plugins did, for the circuit breaker.
    pub plugins: PluginReport,
    /// Answers from outside, where the experiment keeps them.
    pub edges: Vec<Edge>,
    /// How many there was no room for.
    pub edges_missing: u64,
    /// ms since 1970.
    pub ended_ms: u64,
}

impl Draft {
    /// An attempt that left nothing but its ending.
    pub fn empty(ending: Ending, ended_ms: u64) -> Draft {
        Draft {
            ending,
            report: None,
            output: ModelOutput::default(),
            trainable: false,
            steps: Vec::new(),
            host_calls: Vec::new(),
            logs: Vec::new(),
            log_bytes_dropped: 0,
            signal: Signal::default(),
            scores: Vec::new(),
            judges: Vec::new(),
            judge_calls: Vec::new(),
            sandboxes: Vec::new(),
            blobs: Vec::new(),
            boot: Duration::ZERO,
            env_time: Duration::ZERO,
            score_time: Duration::ZERO,
            notes: Vec::new(),
            plugins: PluginReport::default(),
            edges: Vec::new(),
            edges_missing: 0,
            ended_ms,
        }
    }

    /// Adds what the harness waited for its sandboxes and browsers: making them to [`Draft::boot`], working in them to [`Draft::env_time`].
    pub fn add_time_of_machines(&mut self) {
        for call in &self.host_calls {
            let took = Duration::from_micros(call.duration_us);
            match call.name.split_once('.') {
                Some(("sandboxes" | "browsers", "open") | ("creation", _)) => self.boot += took,
                Some(("sandboxes" | "sandbox" | "process" | "shell" | "session", _)) => self.env_time += took,
                _ => {}
            }
        }
    }

    /// What was said so far.
    pub fn transcript(&self) -> &Transcript {
        &self.output.transcript
    }

    /// The record.
    pub fn into_record(self, place: AttemptPlace) -> AttemptRecord {
        let (stop_reason, output) = (self.ending.stop_reason, self.output);
        let own = self.ending.error.map(|text| ErrorNote { code: stop_reason.as_str().to_owned(), text });
        let trajectory = Trajectory {
            traj_id: place.traj_id,
            rollout_id: place.rollout_id,
            rollout_index: place.rollout_index,
            attempt: place.attempt,
            session_id: place.session_id,
            status: stop_reason.row().status,
            stop_reason,
            reward: self.signal.reward,
            reward_parts: self.signal.reward_parts,
            turn_rewards: self.signal.turn_rewards,
            removed: self.signal.removed,
            trainable: self.trainable,
            timing_ms: Timing {
                queue: millis(place.queued),
                boot: millis(self.boot),
                model: output.model_ms,
                env: millis(self.env_time),
                score: millis(self.score_time),
            },
            plugins: place.plugins,
            errors: own.into_iter().chain(self.signal.errors).chain(self.notes).collect(),
            calls: output.calls,
            other_calls: output.other_calls.into_iter().chain(self.judge_calls).collect(),
            segments: output.segments,
            excluded: output.excluded,
        };
        AttemptRecord {
            instruction: Some(place.instruction),
            trajectory,
            transcript: output.transcript,
            steps: self.steps,
            host_calls: self.host_calls,
            logs: self.logs,
            log_bytes_dropped: self.log_bytes_dropped,
            report: self.report,
            scores: self.scores,
            judges: self.judges,
            blobs: self.blobs,
            sandboxes: self.sandboxes,
            failures: self.plugins.failures,
            withheld: false,
            seed: None,
            edges: self.edges,
            edges_missing: self.edges_missing,
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::StopReason;
    use crate::journal::Verdict;

    #[test]
    fn what_machines_took_is_told_apart_from_what_models_took() {
        let call = |name: &'static str, ms: u64| HostCall {
            number: 0,
            name: name.into(),
            start_us: 0,
            duration_us: ms * 1_000,
            bytes_in: 0,
            bytes_out: 0,
            failure: None,
            clock_ms: 0,
            asked: None,
            told: None,
            verdict: Verdict::default(),
            note: None,
            payload: None,
        };
        let mut draft = Draft::empty(Ending { stop_reason: StopReason::Submitted, error: None }, 0);
        draft.boot = Duration::from_millis(1);
        draft.host_calls = vec![
            call("browsers.open", 10),
            call("sandboxes.open", 20),
            call("creation.create", 40),
            call("session.act", 100),
            call("sandbox.exec", 200),
            call("process.wait", 400),
            call("shell.run", 800),
            call("sandboxes.wait-any", 1_600),
            call("conversation.complete", 5_000),
            // What the environment took it says itself.
            call("environment.step", 7_000),
        ];
        draft.add_time_of_machines();
        assert_eq!((draft.boot.as_millis(), draft.env_time.as_millis()), (71, 3_100));
    }

    struct Part(&'static str, Option<Lost>);

    #[async_trait]
    impl AttemptCapability for Part {
        async fn close(&self, draft: &mut Draft) {
            draft.blobs.push((format!("close {}", self.0), String::new()));
        }

        fn lost(&self) -> Option<Lost> {
            self.1.clone()
        }

        fn finish(&self, draft: &mut Draft) {
            draft.blobs.push((format!("finish {}", self.0), String::new()));
        }
    }

    #[test]
    fn phases_reach_every_capability_and_the_gravest_loss_counts() {
        let infrastructure = Lost::Infrastructure("gone".to_owned());
        let parts = [
            ("models", None),
            ("environment", Some(Lost::Environment("trap".to_owned()))),
            ("sandboxes", Some(infrastructure.clone())),
        ];
        let mut capabilities = AttemptCapabilities::default();
        for (name, lost) in parts {
            capabilities.link(Arc::new(Part(name, lost)));
        }
        let mut draft = Draft::empty(Ending { stop_reason: StopReason::Submitted, error: None }, 0);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::pin!(capabilities.close(&mut draft)).poll(&mut context).is_ready());
        capabilities.finish(&mut draft);
        let order: Vec<&str> = draft.blobs.iter().map(|(name, _)| name.as_str()).collect();
        let expect = [
            "close sandboxes",
            "close environment",
            "close models",
            "finish models",
            "finish environment",
            "finish sandboxes",
        ];
        assert_eq!(order, expect);
        assert_eq!(capabilities.lost(), Some(infrastructure));
        assert_eq!(AttemptCapabilities::default().lost(), None);
    }
}
