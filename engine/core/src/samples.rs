//! `group/v1`: what the engine delivers to trainers. The records, and the invariants checked on each before it leaves.
//!
//! Numbers: token ids are `u32`; logprobs are nats, `0.0` where nothing was sampled; positions count tokens.
//! Serialised to a human-readable format the long arrays are lists of numbers; to a binary one they are byte strings of
//! little-endian elements (the JSON Lines and msgpack forms of the contract).

pub mod advantages;
mod arrays;
pub mod check;
pub mod credit;
#[cfg(test)]
pub(crate) mod fixture;
pub mod judge_turn;
pub mod per_call;
pub mod select;

use crate::ending::{Status, StopReason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of this schema; a changed meaning is a new name.
pub const SCHEMA: &str = "group/v1";

/// Where a token of a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Origin {
    /// First prompt, or past that is only context in this row.
    Prompt = 0,
    /// Sampled by the model, in this row.
    Sampled = 1,
    /// Tool results, observations, later user messages.
    Environment = 2,
    /// Markers, headers and end of turn that the template puts in.
    Template = 3,
    /// Put in the place of sampled tokens lost to drift.
    Healed = 4,
}

impl Origin {
    /// The code in a segment's `origin`, back to the origin.
    pub fn from_code(code: u8) -> Option<Origin> {
        [Origin::Prompt, Origin::Sampled, Origin::Environment, Origin::Template, Origin::Healed]
            .into_iter()
            .find(|origin| *origin as u8 == code)
    }
}

/// What a group compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupKind {
    /// Rollouts of one task.
    Task,
    /// Evaluations of one turn of a rollout by a judge that is trained.
    JudgeTurn,
}

/// What the trajectories of a group are about, where that is not its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The rollout that is judged.
    pub traj_id: String,
    /// Its turn.
    pub turn: u32,
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupStatus {
    /// Has exactly `n_requested` trajectories with a reward.
    Ready,
    /// Has fewer, but at least `min_size`.
    Short,
    /// Its deadline passed, or its version is too old.
    Stale,
    /// Has fewer than `min_size`.
    Failed,
    /// A filter rejected the group.
    Filtered,
}

impl GroupStatus {
    /// The word used in samples, tables and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupStatus::Ready => "ready",
            GroupStatus::Short => "short",
            GroupStatus::Stale => "stale",
            GroupStatus::Failed => "failed",
            GroupStatus::Filtered => "filtered",
        }
    }
}

/// What the rollouts of a group are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupPurpose {
    /// They train.
    #[default]
    Train,
    /// They say how good a model is: never leased to trainers, part of no schedule that follows rewards.
    Eval,
}

impl GroupPurpose {
    /// The word used in samples, tables and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupPurpose::Train => "train",
            GroupPurpose::Eval => "eval",
        }
    }

    fn is_train(&self) -> bool {
        *self == GroupPurpose::Train
    }
}

/// One task's rollouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Images in its rows ([`Group::images_in_rows`]); left out where there are none. A trainer that reads a number here and
    /// loads no images trains on tokens without what they stand for.
    #[serde(default, skip_serializing_if = "is_none")]
    pub images: u32,
    /// The run.
    pub run_id: String,
    /// Unique in the store.
    pub group_id: String,
    /// Place in the run, from 0.
    pub group_index: u64,
    /// What is compared.
    pub kind: GroupKind,
    /// What it is for; left out where it is `train`.
    #[serde(default, skip_serializing_if = "GroupPurpose::is_train")]
    pub purpose: GroupPurpose,
    /// Whose tokens train here: `policy`, `judge`, ...
    pub model: String,
    /// What a judge's group judges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The task.
    pub task_id: String,
    /// blake3 of the task, hex.
    pub task_hash: String,
    /// The task's environment, or the plugin's name.
    pub environment: String,
    /// `groups.size`, or what the trainer that posted the task asked for.
    pub n_requested: u32,
    /// Trajectories with a reward.
    pub n_ready: u32,
    /// Version of the policy when the group opened.
    pub dispatch_version: String,
    /// When the group is stale, ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// What became of it.
    pub status: GroupStatus,
    /// Why it is not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_reason: Option<String>,
    /// The rollouts that count.
    pub trajectories: Vec<Trajectory>,
    /// Rollouts that ended without a reward and were replaced.
    pub replaced: Vec<Trajectory>,
    /// Rollouts that do not count because others were chosen (`[groups.bar]`): with a reward, or removed. Nothing of them trains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_chosen: Vec<Trajectory>,
}

/// The record one attempt at a rollout leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Unique in the store.
    pub traj_id: String,
    /// Unique in the run.
    pub rollout_id: i64,
    /// Place in the group, from 0; replacements go on from `size`.
    pub rollout_index: u32,
    /// The attempt, from 0.
    pub attempt: u32,
    /// Session for the endpoint's affinity.
    pub session_id: String,
    /// What became of it.
    pub status: Status,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// `None`: unscored, which is not 0. Always written.
    pub reward: Option<f64>,
    /// Every score by name, with the weight it had in the reward (0: recorded only).
    pub reward_parts: BTreeMap<String, RewardPart>,
    /// Scores by turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_rewards: Option<Vec<Option<f64>>>,
    /// Why the sample was removed, by a score that says so ([`crate::signal::REMOVE_SAMPLE`]) or for want of a judge. Then it has no
    /// reward, is not replaced, and all its sampled tokens are excluded as `removed: REASON`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
    /// Whether its tokens may train.
    pub trainable: bool,
    /// Where the time went.
    pub timing_ms: Timing,
    /// Plugin digests by alias.
    pub plugins: BTreeMap<String, String>,
    /// What went wrong, in order.
    pub errors: Vec<ErrorNote>,
    /// Own calls to the group's model.
    pub calls: Vec<Call>,
    /// Calls to other models; outside the sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_calls: Vec<Call>,
    /// Training rows.
    pub segments: Vec<Segment>,
    /// Sampled tokens that do not train, with the reason.
    pub excluded: Vec<Excluded>,
}

/// One score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardPart {
    /// The score.
    pub score: f64,
    /// Its weight in `reward`.
    pub weight: f64,
}

/// Milliseconds by stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Waiting for a permit.
    pub queue: u64,
    /// Instances, environments, sandboxes.
    pub boot: u64,
    /// Waiting for models.
    pub model: u64,
    /// In the environment, sandboxes and browsers.
    pub env: u64,
    /// Scoring.
    pub score: u64,
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorNote {
    /// Stable word.
    pub code: String,
    /// Sentence.
    pub text: String,
}

/// One request to a model and what it sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Unique in the store.
    pub call_id: String,
    /// The experiment's name of the model.
    pub model: String,
    /// The turn it answered.
    pub turn: u32,
    /// Prompt tokens sent.
    pub n_prompt: u32,
    /// Tokens sampled, those cut by a stop included.
    pub n_sampled: u32,
    /// Why it ended: `stop`, `length`, `tool-calls`, `filtered`.
    pub finish: String,
    /// `[offset, len, label, train_step]`: which weights sampled what.
    pub versions: Vec<(u32, u32, String, Option<i64>)>,
    /// How it was sampled.
    pub sampling: Sampling,
    /// What the logprobs are of.
    pub logprob_kind: LogprobKind,
}

/// Sampling parameters as sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// 1 is neutral.
    pub top_p: f64,
    /// 0 is neutral.
    pub top_k: u32,
    /// 0 is neutral.
    pub min_p: f64,
    /// 1 is neutral.
    pub repeat_penalty: f64,
    /// Seed of the sampler.
    pub seed: u64,
    /// Most tokens asked for.
    pub max_tokens: u32,
}

/// What a logprob is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogprobKind {
    /// The model's distribution.
    Raw,
    /// After temperature and truncation.
    Processed,
}

/// One training row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Token ids, length L.
    #[serde(with = "arrays::u32s")]
    pub tokens: Vec<u32>,
    /// Index of the first sampled token; L where there is none.
    pub prompt_len: u32,
    /// 1 where the token trains.
    #[serde(with = "arrays::u8s")]
    pub mask: Vec<u8>,
    /// Codes of [`Origin`].
    #[serde(with = "arrays::u8s")]
    pub origin: Vec<u8>,
    /// Nats; 0.0 where nothing was sampled.
    #[serde(with = "arrays::f32s")]
    pub logprobs: Vec<f32>,
    /// `[start, len, label]`, over each trained token.
    pub version_runs: Vec<(u32, u32, String)>,
    /// Which tokens are which call's.
    pub spans: Vec<Span>,
    /// Index of the segment this one branched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_segment: Option<u32>,
    /// Tokens shared with the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_at: Option<u32>,
    /// `heal`, `rewrite`, `template`, `text`, `elide`: why history differs from what was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_kind: Option<String>,
    /// By token, where the engine computes them.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "arrays::optional_f32s")]
    pub advantages: Option<Vec<f32>>,
    /// By token, where turns are scored.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "arrays::optional_f32s")]
    pub token_rewards: Option<Vec<f32>>,
    /// Where images stand: in order, without overlap.
    pub images: Vec<ImageSpan>,
}

/// A run of tokens that are one call's: `[start, start+len)` of the row is `[offset, offset+len)` of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The call.
    pub call_id: String,
    /// In the call.
    pub offset: u32,
    /// In the row.
    pub start: u32,
    /// Tokens.
    pub len: u32,
    /// Whether the row holds them as sampled, or only as context.
    #[serde(rename = "use")]
    pub usage: SpanUse,
}

/// How a row holds a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanUse {
    /// As origin 1.
    Sampled,
    /// As origin 0: another row has them as sampled, or a past that no row trains.
    Reused,
}

/// An image in a row. Nothing in its range is sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpan {
    /// Its blob: blake3, hex.
    pub digest: String,
    /// In the row.
    pub start: u32,
    /// Tokens.
    pub len: u32,
}

/// Sampled tokens that do not train.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excluded {
    /// The call.
    pub call_id: String,
    /// In the call.
    pub offset: u32,
    /// Tokens.
    pub len: u32,
    /// Whether a row still holds them.
    pub how: ExcludedHow,
    /// Why: `after-stop`, `drift`, `branch-not-selected`, `harness`, `no-logprob`, `not-trainable`, `attempt-abandoned`,
    /// `context-overflow`, `no-token-ids`, `removed: ...`.
    pub reason: String,
}

/// Whether a row still holds an excluded token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExcludedHow {
    /// Stands in a row as origin 1 with mask 0.
    Masked,
    /// Stands in no row as sampled.
    Dropped,
}

/// The three sums; they close when `sampled = trained + masked + dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSums {
    /// Sampled by the model.
    pub sampled: u64,
    /// With mask 1.
    pub trained: u64,
    /// In a row with mask 0.
    pub masked: u64,
    /// In no row.
    pub dropped: u64,
}

impl TokenSums {
    /// Whether every sampled token is accounted for.
    pub fn close(&self) -> bool {
        self.sampled == self.trained + self.masked + self.dropped
    }
}

impl std::ops::AddAssign for TokenSums {
    fn add_assign(&mut self, other: TokenSums) {
        self.sampled += other.sampled;
        self.trained += other.trained;
        self.masked += other.masked;
        self.dropped += other.dropped;
    }
}

impl std::ops::SubAssign for TokenSums {
    /// Takes back sums that were added before.
    fn sub_assign(&mut self, other: TokenSums) {
        self.sampled = self.sampled.saturating_sub(other.sampled);
        self.trained = self.trained.saturating_sub(other.trained);
        self.masked = self.masked.saturating_sub(other.masked);
        self.dropped = self.dropped.saturating_sub(other.dropped);
    }
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Group {
    /// All that it holds, those that do not count included.
    pub fn all(&self) -> impl Iterator<Item = &Trajectory> {
        self.trajectories.iter().chain(&self.replaced).chain(&self.not_chosen)
    }

    /// Places of images over the rows of all trajectories, replaced ones included: an image that stands in two rows counts twice.
    pub fn images_in_rows(&self) -> u32 {
        let rows = self.all().flat_map(|one| &one.segments);
        rows.map(|segment| segment.images.len() as u32).sum()
    }
}

impl Trajectory {
    /// The sums over own calls to the group's model.
    pub fn token_sums(&self) -> TokenSums {
        let trained = |segment: &Segment| segment.mask.iter().filter(|bit| **bit == 1).count() as u64;
        let mut sums = TokenSums {
            sampled: self.calls.iter().map(|call| u64::from(call.n_sampled)).sum(),
            trained: self.segments.iter().map(trained).sum(),
            ..TokenSums::default()
        };
        for excluded in &self.excluded {
            match excluded.how {
                ExcludedHow::Masked => sums.masked += u64::from(excluded.len),
                ExcludedHow::Dropped => sums.dropped += u64::from(excluded.len),
            }
        }
        sums
    }
}
