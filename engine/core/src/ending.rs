//! How a rollout ends: one enum of stop reasons, one row for each, one function from the evidence to the row.
//!
//! The table is the contract of the sample format `group/v1` ("How a rollout ends").

use crate::failure::{BudgetKind, Failure};
use serde::{Deserialize, Serialize};

/// Why a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The harness says it is done.
    Submitted,
    /// The harness reports that it cannot.
    GaveUp,
    /// `limits.turns`, or the harness's own `max_turns`.
    LimitTurns,
    /// `limits.tokens`, the context, or `limits.sampled_tokens`.
    LimitTokens,
    /// `limits.host_calls` or `limits.blob_bytes`.
    LimitCalls,
    /// Repeated answers that do not parse.
    LimitFormat,
    /// The rollout's time is over.
    LimitWall,
    /// `limits.turn_wall`: one turn took too long.
    LimitTurnWall,
    /// The guest went on after its budget error and its grace.
    BudgetIgnored,
    /// Panic, memory, stack, endless loop, invalid data.
    GuestTrap,
    /// `run` returned a failure of its own.
    HarnessFailure,
    /// The environment plugin failed.
    EnvironmentFailure,
    /// A command was killed for memory, and more memory can be had.
    OutOfMemory,
    /// Sandbox, browser, endpoint or store lost.
    Infrastructure,
    /// Run cancelled, or drained.
    Cancelled,
}

/// What became of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The harness ended it.
    Completed,
    /// A budget ended it.
    Truncated,
    /// The clock ended it.
    TimeExceeded,
    /// A defect of a plugin ended it.
    Failed,
    /// Nothing can be said of the policy: infrastructure, or cancelled.
    Aborted,
}

/// How a rollout with this ending may be used when a group is assembled (Orchard, Algorithm 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assembly {
    /// Positive or negative.
    Usable,
    /// The pile that fills gaps.
    Backfill,
    /// Never.
    Excluded,
}

/// Whether the rewards run on a rollout that ended so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scored {
    /// Always.
    Yes,
    /// Only where the experiment sets `score_time_exceeded`.
    IfTimeExceededIsScored,
    /// Never.
    No,
}

/// Whether another attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It would end the same way, or it is a result.
    No,
    /// With exponential backoff, up to the bound.
    WithBackoff,
    /// With more memory, up to the bound.
    WithMoreMemory,
    /// When the run is resumed; does not count against the bound.
    OnResume,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Status of the trajectory.
    pub status: Status,
    /// Whether rewards run.
    pub scored: Scored,
    /// Whether its tokens may train, given a reward.
    pub trainable: bool,
    /// Whether another attempt is made.
    pub retried: Retried,
    /// Use in group assembly.
    pub assembly: Assembly,
}

impl StopReason {
    /// All rows, in the order of the table.
    pub const ALL: [StopReason; 15] = [
        StopReason::Submitted,
        StopReason::GaveUp,
        StopReason::LimitTurns,
        StopReason::LimitTokens,
        StopReason::LimitCalls,
        StopReason::LimitFormat,
        StopReason::LimitWall,
        StopReason::LimitTurnWall,
        StopReason::BudgetIgnored,
        StopReason::GuestTrap,
        StopReason::HarnessFailure,
        StopReason::EnvironmentFailure,
        StopReason::OutOfMemory,
        StopReason::Infrastructure,
        StopReason::Cancelled,
    ];

    /// The word used in samples, tables and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Submitted => "submitted",
            StopReason::GaveUp => "gave-up",
            StopReason::LimitTurns => "limit-turns",
            StopReason::LimitTokens => "limit-tokens",
            StopReason::LimitCalls => "limit-calls",
            StopReason::LimitFormat => "limit-format",
            StopReason::LimitWall => "limit-wall",
            StopReason::LimitTurnWall => "limit-turn-wall",
            StopReason::BudgetIgnored => "budget-ignored",
            StopReason::GuestTrap => "guest-trap",
            StopReason::HarnessFailure => "harness-failure",
            StopReason::EnvironmentFailure => "environment-failure",
            StopReason::OutOfMemory => "out-of-memory",
            StopReason::Infrastructure => "infrastructure",
            StopReason::Cancelled => "cancelled",
        }
    }

    /// The row of the table.
    pub fn row(self) -> Row {
        use Assembly::{Backfill, Excluded, Usable};
        use Retried::{OnResume, WithBackoff, WithMoreMemory};
        use Scored::IfTimeExceededIsScored;
        let (status, scored, trainable, retried, assembly) = match self {
            StopReason::Submitted | StopReason::GaveUp => {
                (Status::Completed, Scored::Yes, true, Retried::No, Usable)
            }
            StopReason::LimitTurns
            | StopReason::LimitTokens
            | StopReason::LimitCalls
            | StopReason::LimitFormat => (Status::Truncated, Scored::Yes, true, Retried::No, Usable),
            StopReason::LimitWall | StopReason::LimitTurnWall => {
                (Status::TimeExceeded, IfTimeExceededIsScored, false, Retried::No, Backfill)
            }
            StopReason::BudgetIgnored
            | StopReason::GuestTrap
            | StopReason::HarnessFailure
            | StopReason::EnvironmentFailure => (Status::Failed, Scored::No, false, Retried::No, Excluded),
            StopReason::OutOfMemory => (Status::Aborted, Scored::No, false, WithMoreMemory, Backfill),
            StopReason::Infrastructure => (Status::Aborted, Scored::No, false, WithBackoff, Backfill),
            StopReason::Cancelled => (Status::Aborted, Scored::No, false, OnResume, Backfill),
        };
        Row { status, scored, trainable, retried, assembly }
    }
}

impl Status {
    /// The word used in samples, tables and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Completed => "completed",
            Status::Truncated => "truncated",
            Status::TimeExceeded => "time-exceeded",
            Status::Failed => "failed",
            Status::Aborted => "aborted",
        }
    }
}

/// A limit that a harness may name in its report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Its own bound on turns.
    Turns,
    /// Tokens.
    Tokens,
    /// Host calls.
    Calls,
    /// Time.
    Wall,
    /// Answers that do not parse.
    Format,
    /// A limit newer than this list.
    Other(String),
}

/// What the harness says of its own end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Done.
    Submitted,
    /// Cannot.
    GaveUp,
    /// Met a limit.
    Limit(Limit),
    /// An outcome newer than this list; counts as submitted.
    Other(String),
}

/// What `run` returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its own word on how it ended.
    pub outcome: Outcome,
    /// The final answer, where the task asks for one.
    pub answer: Option<String>,
    /// JSON text for rewards and people.
    pub data: String,
    /// JSON text for later additions.
    pub extra: Option<String>,
}

/// How the harness's `run` came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HarnessEnd {
    /// It returned.
    Returned(Result<Report, Failure>),
    /// It trapped; the text names plugin, function, host call and message.
    Trapped(String),
    /// It went on after its budget error and its grace.
    BudgetIgnored(String),
}

/// Something the rollout stands on that was lost, and stayed lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Endpoint, sandbox, browser or store.
    Infrastructure(String),
    /// Memory of a sandbox that can be had larger: the text says whose, and how much it was.
    OutOfMemory(String),
    /// The environment plugin trapped or returned a failure; the text names it.
    Environment(String),
}

impl Lost {
    /// Rank of a loss: of several, the lowest decides how the attempt ends.
    pub(crate) fn order(&self) -> u8 {
        match self {
            Lost::Infrastructure(_) => 0,
            Lost::OutOfMemory(_) => 1,
            Lost::Environment(_) => 2,
        }
    }
}

/// The code of a harness's failure ([`Failure::Other`]) that says: the agent it ran failed, and the harness cannot tell why.
pub const AGENT_FAILED: &str = "agent-failed";

/// What an agent got from its model, where its calls were recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentCalls {
    /// Answers.
    pub answered: u32,
    /// The budget for which its last call was refused; `None`: it was not.
    pub exhausted: Option<BudgetKind>,
}

/// All that is known when an attempt is over.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The run was cancelled or drained before the harness ended.
    pub cancelled: bool,
    /// How the harness ended.
    pub harness: HarnessEnd,
    /// Policy model, environment or sandbox of the task lost: set by its host when the last call failed for
    /// infrastructure and no later one succeeded.
    pub lost: Option<Lost>,
    /// `limits.rollout_wall` was met.
    pub wall: bool,
    /// `limits.turn_wall` was met.
    pub turn_wall: bool,
    /// Where an agent's calls were recorded: what it got.
    pub agent: Option<AgentCalls>,
}

/// The ending of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Which row.
    pub stop_reason: StopReason,
    /// What happened, for people; `None` where the row says it all.
    pub error: Option<String>,
}

/// The first row that holds: cancelled; harness trap or budget ignored; something lost, *whatever `run` returned*;
/// wall; the turn's wall; a limit reported or passed on; any other error; the report.
pub fn classify(evidence: &Evidence) -> Ending {
    let end = |stop_reason, error: Option<String>| Ending { stop_reason, error };
    if evidence.cancelled {
        return end(StopReason::Cancelled, None);
    }
    match &evidence.harness {
        HarnessEnd::Trapped(text) => return end(StopReason::GuestTrap, Some(text.clone())),
        HarnessEnd::BudgetIgnored(text) => return end(StopReason::BudgetIgnored, Some(text.clone())),
        HarnessEnd::Returned(_) => {}
    }
    match &evidence.lost {
        Some(Lost::Infrastructure(text)) => return end(StopReason::Infrastructure, Some(text.clone())),
        Some(Lost::OutOfMemory(text)) => return end(StopReason::OutOfMemory, Some(text.clone())),
        Some(Lost::Environment(text)) => return end(StopReason::EnvironmentFailure, Some(text.clone())),
        None => {}
    }
    if evidence.wall {
        return end(StopReason::LimitWall, None);
    }
    if evidence.turn_wall {
        return end(StopReason::LimitTurnWall, None);
    }
    let HarnessEnd::Returned(returned) = &evidence.harness else {
        unreachable!("traps and ignored budgets returned above")
    };
    match returned {
        Ok(report) => match &report.outcome {
            Outcome::Submitted | Outcome::Other(_) => end(StopReason::Submitted, None),
            Outcome::GaveUp => end(StopReason::GaveUp, None),
            Outcome::Limit(limit) => match limit {
                Limit::Turns => end(StopReason::LimitTurns, None),
                Limit::Tokens => end(StopReason::LimitTokens, None),
                Limit::Calls => end(StopReason::LimitCalls, None),
                Limit::Format => end(StopReason::LimitFormat, None),
                Limit::Wall => end(StopReason::LimitWall, None),
                Limit::Other(word) => {
                    end(StopReason::LimitCalls, Some(format!("limit of the harness: {word}")))
                }
            },
        },
        Err(Failure::Budget(kind)) => used_up(kind),
        Err(failure @ Failure::Other { code, .. }) if code == AGENT_FAILED => match &evidence.agent {
            Some(AgentCalls { exhausted: Some(kind), .. }) => used_up(kind),
            // The policy had a hand in it: an agent can be made to fail by what its model says.
            Some(AgentCalls { answered: 1.., .. }) => end(StopReason::GaveUp, Some(failure.to_string())),
            _ => end(StopReason::HarnessFailure, Some(failure.to_string())),
        },
        Err(failure) => end(StopReason::HarnessFailure, Some(failure.to_string())),
    }
}

fn used_up(kind: &BudgetKind) -> Ending {
    let (stop_reason, error) = match kind {
        BudgetKind::Turns => (StopReason::LimitTurns, None),
        BudgetKind::Tokens | BudgetKind::SampledTokens => (StopReason::LimitTokens, None),
        BudgetKind::HostCalls | BudgetKind::BlobBytes => (StopReason::LimitCalls, None),
        BudgetKind::Wall => (StopReason::LimitWall, None),
        BudgetKind::Other(word) => (StopReason::LimitCalls, Some(format!("budget {word}"))),
    };
    Ending { stop_reason, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> HarnessEnd {
        HarnessEnd::Returned(Ok(Report { outcome, answer: None, data: "null".into(), extra: None }))
    }

    fn failure(failure: Failure) -> HarnessEnd {
        HarnessEnd::Returned(Err(failure))
    }

    fn quiet(harness: HarnessEnd) -> Evidence {
        Evidence { cancelled: false, harness, lost: None, wall: false, turn_wall: false, agent: None }
    }

    #[test]
    fn the_first_row_that_holds_wins() {
        use StopReason as R;
        let trap = || HarnessEnd::Trapped("panicked".into());
        let infrastructure = || Some(Lost::Infrastructure("endpoint gone".into()));
        let all = |harness| Evidence {
            cancelled: true,
            harness,
            lost: infrastructure(),
            wall: true,
            turn_wall: true,
            agent: None,
        };
        let failed = |agent| Evidence {
            agent,
            ..quiet(failure(Failure::Other { code: AGENT_FAILED.into(), text: "exit code 1".into() }))
        };
        let got = |answered, exhausted| Some(AgentCalls { answered, exhausted });
        let cases: Vec<(&str, Evidence, R)> = vec![
            ("cancelled before all else", all(trap()), R::Cancelled),
            ("a trap before an outage", Evidence { cancelled: false, ..all(trap()) }, R::GuestTrap),
            (
                "an ignored budget before an outage",
                Evidence { cancelled: false, ..all(HarnessEnd::BudgetIgnored("17 calls".into())) },
                R::BudgetIgnored,
            ),
            (
                "an outage, whatever run returned",
                Evidence { cancelled: false, ..all(report(Outcome::Submitted)) },
                R::Infrastructure,
            ),
            (
                "an outage that the harness swallowed",
                Evidence { lost: infrastructure(), ..quiet(report(Outcome::GaveUp)) },
                R::Infrastructure,
            ),
            (
                "a command that died of memory",
                Evidence {
                    lost: Some(Lost::OutOfMemory("main".into())),
                    ..quiet(report(Outcome::Submitted))
                },
                R::OutOfMemory,
            ),
            (
                "the environment before the wall",
                Evidence {
                    lost: Some(Lost::Environment("trap".into())),
                    wall: true,
                    ..quiet(report(Outcome::Submitted))
                },
                R::EnvironmentFailure,
            ),
            (
                "the wall before the budget error that tells of it",
                Evidence { wall: true, ..quiet(failure(Failure::Budget(BudgetKind::Turns))) },
                R::LimitWall,
            ),
            (
                "the rollout's time before the turn's",
                Evidence { wall: true, turn_wall: true, ..quiet(report(Outcome::Submitted)) },
                R::LimitWall,
            ),
            (
                "a turn that took too long, whatever run returned",
                Evidence { turn_wall: true, ..quiet(report(Outcome::Submitted)) },
                R::LimitTurnWall,
            ),
            ("turns passed on", quiet(failure(Failure::Budget(BudgetKind::Turns))), R::LimitTurns),
            ("tokens passed on", quiet(failure(Failure::Budget(BudgetKind::Tokens))), R::LimitTokens),
            (
                "sampled tokens passed on",
                quiet(failure(Failure::Budget(BudgetKind::SampledTokens))),
                R::LimitTokens,
            ),
            ("host calls passed on", quiet(failure(Failure::Budget(BudgetKind::HostCalls))), R::LimitCalls),
            ("blob bytes passed on", quiet(failure(Failure::Budget(BudgetKind::BlobBytes))), R::LimitCalls),
            ("own turns", quiet(report(Outcome::Limit(Limit::Turns))), R::LimitTurns),
            ("own tokens", quiet(report(Outcome::Limit(Limit::Tokens))), R::LimitTokens),
            ("own calls", quiet(report(Outcome::Limit(Limit::Calls))), R::LimitCalls),
            ("own wall", quiet(report(Outcome::Limit(Limit::Wall))), R::LimitWall),
            ("own format", quiet(report(Outcome::Limit(Limit::Format))), R::LimitFormat),
            (
                "unavailable that did not last",
                quiet(failure(Failure::Unavailable("x".into()))),
                R::HarnessFailure,
            ),
            ("an agent failed that nobody recorded", failed(None), R::HarnessFailure),
            ("an agent failed before its model said anything", failed(got(0, None)), R::HarnessFailure),
            ("an agent failed after its model spoke", failed(got(1, None)), R::GaveUp),
            ("an agent failed for want of turns", failed(got(9, Some(BudgetKind::Turns))), R::LimitTurns),
            (
                "an agent failed since its prompt was too long from the start",
                failed(got(0, Some(BudgetKind::Tokens))),
                R::LimitTokens,
            ),
            (
                "an agent failed since its model was lost",
                Evidence { lost: infrastructure(), ..failed(got(3, None)) },
                R::Infrastructure,
            ),
            ("a failure of its own", quiet(failure(Failure::Invalid("x".into()))), R::HarnessFailure),
            ("submitted", quiet(report(Outcome::Submitted)), R::Submitted),
            ("gave up", quiet(report(Outcome::GaveUp)), R::GaveUp),
        ];
        for (name, evidence, expect) in &cases {
            assert_eq!(classify(evidence).stop_reason, *expect, "{name}");
        }
        let reached: std::collections::BTreeSet<R> = cases.iter().map(|(_, _, reason)| *reason).collect();
        assert_eq!(reached.len(), R::ALL.len(), "each row is reached");
    }

    #[test]
    fn nothing_that_says_nothing_of_the_policy_is_scored_or_trains() {
        for reason in StopReason::ALL {
            let row = reason.row();
            if matches!(row.status, Status::Failed | Status::Aborted) {
                assert_eq!((row.scored, row.trainable), (Scored::No, false), "{}", reason.as_str());
            }
            assert_eq!(row.assembly == Assembly::Usable, row.trainable, "{}", reason.as_str());
        }
    }
}
