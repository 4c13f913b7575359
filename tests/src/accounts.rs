//! Every sampled token of a run is trained, masked or dropped with a reason: what `espalier show RUN` prints against what
//! is counted in an export of all its groups.

use espalier_core::ledger::reason;
use espalier_core::samples::{Excluded, ExcludedHow, Group, TokenSums, Trajectory};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Reasons that concern single tokens: they may stand in a rollout that trains.
const OF_TOKENS: [&str; 6] = [
    reason::AFTER_STOP,
    reason::DRIFT,
    reason::BRANCH_NOT_SELECTED,
    reason::HARNESS,
    reason::NO_LOGPROB,
    reason::CONTEXT_OVERFLOW,
];
/// Reasons that concern whole rollouts: they stand only where nothing trains.
const OF_ROLLOUTS: [&str; 3] = [reason::NOT_TRAINABLE, reason::ATTEMPT_ABANDONED, reason::NO_TOKEN_IDS];

/// The sums of an export, and what is excluded by `(how, reason)`.
#[derive(Debug, Default, PartialEq)]
pub struct Accounts {
    /// Over all groups.
    pub tokens: TokenSums,
    /// By status of the group.
    pub by_status: BTreeMap<&'static str, TokenSums>,
    /// Tokens by `(how, reason)`.
    pub excluded: BTreeMap<(&'static str, String), u64>,
}

impl Accounts {
    /// Counts, and checks each reason.
    pub fn of(groups: &[Group]) -> Accounts {
        let mut accounts = Accounts::default();
        for group in groups {
            let sums = accounts.by_status.entry(group.status.as_str()).or_default();
            for trajectory in group.all() {
                let own = trajectory.token_sums();
                assert!(own.close(), "{}: {own:?}", trajectory.traj_id);
                *sums += own;
                accounts.tokens += own;
                for excluded in &trajectory.excluded {
                    check_reason(trajectory, excluded);
                    let how = word(excluded.how);
                    *accounts.excluded.entry((how, excluded.reason.clone())).or_default() +=
                        u64::from(excluded.len);
                }
            }
        }
        accounts
    }

    /// Compares with `espalier show RUN --json`. The run must have no abandoned attempts, which no export holds.
    pub fn check_shown(&self, shown: &Value) {
        assert_eq!(shown["attempts_abandoned"], json!(0));
        assert_eq!(shown["tokens"], json!(self.tokens));
        for status in ["ready", "short", "stale", "failed", "filtered"] {
            let (shown, counted) = (&shown["tokens_by_group"][status], self.by_status.get(status));
            assert_eq!(*shown, counted.map_or(Value::Null, |sums| json!(sums)), "{status}");
        }
        assert!(self.tokens.close(), "{:?}", self.tokens);
        let excluded: BTreeMap<(&str, String), u64> = shown["exclusions"]
            .as_array()
            .expect("exclusions are a list")
            .iter()
            .map(|one| {
                let how = if one["how"] == "masked" { "masked" } else { "dropped" };
                let reason = one["reason"].as_str().expect("a reason is a word").to_owned();
                ((how, reason), one["tokens"].as_u64().expect("tokens are a number"))
            })
            .collect();
        assert_eq!(excluded, self.excluded);
    }
}

fn check_reason(trajectory: &Trajectory, excluded: &Excluded) {
    let reason = excluded.reason.as_str();
    let fits = OF_TOKENS.contains(&reason) || OF_ROLLOUTS.contains(&reason) && !trajectory.trainable;
    assert!(fits, "{}: {excluded:?}, trainable: {}", trajectory.traj_id, trajectory.trainable);
}

fn word(how: ExcludedHow) -> &'static str {
    match how {
        ExcludedHow::Masked => "masked",
        ExcludedHow::Dropped => "dropped",
    }
}
