//! What a resumed run does again: what infrastructure took, and what a plugin failed that is another now.
//!
//! A group of which nothing is done again keeps the plugins that it opened with. In any other the plugin that failed is taken
//! as it is now, and no other; results with a reward stay, and name the digests that made them.

use espalier_core::ending::{Status, StopReason};
use espalier_core::group::{Again, GroupsConfig, Past, again};
use espalier_core::plugin_failure::{self, PluginFailure};
use espalier_store::{AttemptState, GroupOpened};
use std::collections::{BTreeMap, BTreeSet};

/// A group of an earlier session: open, or failed.
#[derive(Clone, Debug)]
pub(super) struct EarlierGroup {
    pub(super) opened: GroupOpened,
    /// Whether it has failed.
    pub(super) failed: bool,
    /// The results of its rollouts, by place.
    pub(super) results: Vec<EarlierResult>,
}

/// A result of an earlier session.
#[derive(Clone, Debug)]
pub(super) struct EarlierResult {
    pub(super) rollout_index: u32,
    pub(super) stop_reason: StopReason,
    /// Whether it has a reward, or was removed: nothing of it is done again.
    pub(super) rewarded: bool,
    pub(super) failures: Vec<PluginFailure>,
}

impl EarlierResult {
    /// What is done again of a rollout that has a result.
    pub(super) fn of(
        rollout_index: u32,
        state: AttemptState,
        failures: Vec<PluginFailure>,
    ) -> Option<EarlierResult> {
        let AttemptState::Final(end) = state else { return None };
        let (stop_reason, rewarded) = (end.stop_reason, end.reward.is_some() || end.removed);
        Some(EarlierResult { rollout_index, stop_reason, rewarded, failures })
    }
}

impl EarlierGroup {
    /// Whether something of it may be done again, if its plugins are others now.
    pub(super) fn may_be_redone(&self) -> bool {
        let repairable = |result: &EarlierResult| result.failures.iter().any(PluginFailure::is_repairable);
        self.results.iter().any(|result| !result.rewarded && repairable(result))
    }

    /// Whether infrastructure alone has failed it.
    pub(super) fn was_lost(&self) -> bool {
        let mut unrewarded = self.results.iter().filter(|result| !result.rewarded).peekable();
        let any = unrewarded.peek().is_some();
        self.failed && any && unrewarded.all(|result| result.stop_reason == StopReason::Infrastructure)
    }
}

/// What is done again of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redo {
    pub(super) group_index: u64,
    /// Rollouts to be run, and results to be scored again.
    pub(super) again: Again,
    /// Digests by alias from now on; `None`: they stay, and so does the group's row.
    pub(super) plugins: Option<BTreeMap<String, String>>,
}

/// Decides for each group, given the digests of now by alias.
pub(super) fn plan(
    config: &GroupsConfig,
    groups: &[EarlierGroup],
    now: &BTreeMap<String, String>,
) -> Vec<Redo> {
    let changed = |failure: &PluginFailure| {
        failure.is_repairable() && now.get(&failure.plugin).is_some_and(|digest| *digest != failure.digest)
    };
    let failing: BTreeSet<(&str, &str)> = (groups.iter())
        .flat_map(|group| group.results.iter().filter(|result| !result.rewarded))
        .flat_map(|result| result.failures.iter().filter(|failure| failure.is_repairable()))
        .map(|failure| (failure.plugin.as_str(), failure.digest.as_str()))
        .collect();
    let past = |group: &EarlierGroup, result: &EarlierResult| {
        if result.rewarded {
            return Past::Rewarded;
        }
        if result.failures.iter().any(changed) {
            let by_reward = |failure: &PluginFailure| plugin_failure::is_scoring(&failure.world);
            let scored = result.stop_reason.row().status != Status::Failed;
            let only_rewards = scored && result.failures.iter().all(by_reward);
            return if only_rewards { Past::ScoreAgain } else { Past::RunAgain };
        }
        let lost = group.failed && result.stop_reason == StopReason::Infrastructure;
        if lost { Past::RunAgain } else { Past::Unrewarded }
    };
    let mut redos = Vec::new();
    for group in groups {
        let pasts: Vec<(u32, Past)> =
            group.results.iter().map(|result| (result.rollout_index, past(group, result))).collect();
        if group.failed && pasts.iter().any(|(_, past)| *past == Past::Unrewarded) {
            continue;
        }
        let again = again(config, &pasts);
        if group.failed && again.is_empty() {
            continue;
        }
        let mut plugins = group.opened.plugins.clone();
        let unrewarded = group.results.iter().filter(|result| !result.rewarded);
        for failure in unrewarded.flat_map(|result| &result.failures).filter(|failure| changed(failure)) {
            plugins.insert(failure.plugin.clone(), now[&failure.plugin].clone());
        }
        if !group.failed && group.results.iter().all(|result| !result.rewarded) {
            // Nothing was made with them yet that counts: what failed elsewhere is not begun with.
            for (alias, digest) in &mut plugins {
                if let Some(new) = now.get(alias).filter(|_| failing.contains(&(alias, digest))) {
                    digest.clone_from(new);
                }
            }
        }
        let same = plugins == group.opened.plugins && again.run.is_empty() && !group.failed;
        if same && again.score.is_empty() {
            continue;
        }
        let plugins = (!same).then_some(plugins);
        redos.push(Redo { group_index: group.opened.group_index, again, plugins });
    }
    redos
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_core::plugin_failure::PluginFailureClass;

    fn digests(harness: &str, reward: &str) -> BTreeMap<String, String> {
        [("h", harness), ("r", reward)].map(|(alias, digest)| (alias.to_owned(), digest.to_owned())).into()
    }

    fn failure(world: &str, digest: &str, class: PluginFailureClass) -> PluginFailure {
        PluginFailure {
            world: world.into(),
            plugin: world[..1].into(),
            digest: digest.into(),
            export: "x".into(),
            class,
            place: None,
            message: String::new(),
            excused: false,
        }
    }

    /// How one rollout ended.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Rewarded,
        /// The reward of this digest panicked.
        Unscored(&'static str),
        /// The harness of this digest did.
        Trapped(&'static str),
        /// It used up a limit.
        OverLimit,
        /// Its harness of this digest returned a failure.
        Refused(&'static str),
        /// Its reward of this digest used up a limit.
        UnscoredInTime(&'static str),
        Lost,
    }

    fn group(failed: bool, plugins: BTreeMap<String, String>, ends: &[End]) -> EarlierGroup {
        use PluginFailureClass::{Cpu, Memory, Panic, Returned};
        let result = |(index, end): (usize, &End)| {
            let (stop_reason, failures) = match end {
                End::Rewarded => (StopReason::Submitted, vec![]),
                End::Unscored(digest) => (StopReason::Submitted, vec![failure("reward", digest, Panic)]),
                End::Trapped(digest) => (StopReason::GuestTrap, vec![failure("harness", digest, Panic)]),
                End::OverLimit => (StopReason::GuestTrap, vec![failure("harness", "h1", Memory)]),
                End::Refused(digest) => {
                    (StopReason::HarnessFailure, vec![failure("harness", digest, Returned)])
                }
                End::UnscoredInTime(digest) => (StopReason::Submitted, vec![failure("reward", digest, Cpu)]),
                End::Lost => (StopReason::Infrastructure, vec![]),
            };
            let rewarded = matches!(end, End::Rewarded);
            EarlierResult { rollout_index: index as u32, stop_reason, rewarded, failures }
        };
        let opened = GroupOpened {
            group_index: 0,
            model: "policy".into(),
            task_id: "t".into(),
            task_hash: "00".into(),
            task_text: None,
            repeat: 0,
            purpose: Default::default(),
            endpoint: None,
            environment: String::new(),
            n_requested: 2,
            dispatch_version: String::new(),
            deadline_ms: None,
            step_budget: None,
            plugins,
            opened_ms: 0,
        };
        EarlierGroup { opened, failed, results: ends.iter().enumerate().map(result).collect() }
    }

    #[test]
    fn only_what_a_repaired_plugin_or_infrastructure_failed_is_done_again() {
        use End::{Lost, OverLimit, Refused, Rewarded, Trapped, Unscored, UnscoredInTime};
        let config = GroupsConfig { size: 2, ..GroupsConfig::default() };
        let old = || digests("h1", "r1");
        type Case<'a> = (
            &'a str,
            bool,
            &'a [End],
            BTreeMap<String, String>,
            Option<(&'a [u32], &'a [u32], Option<BTreeMap<String, String>>)>,
        );
        let cases: [Case<'_>; 14] = [
            (
                "a repaired reward",
                false,
                &[Unscored("r1"), Unscored("r1"), Unscored("r1")],
                digests("h1", "r2"),
                Some((&[2], &[0, 1], Some(digests("h1", "r2")))),
            ),
            (
                "of a failed group, too",
                true,
                &[Unscored("r1"), Unscored("r1")],
                digests("h1", "r2"),
                Some((&[], &[0, 1], Some(digests("h1", "r2")))),
            ),
            ("nothing is repaired", true, &[Unscored("r1"), Trapped("h1")], old(), None),
            ("another plugin is", true, &[Unscored("r1"), Unscored("r1")], digests("h2", "r1"), None),
            (
                "a repaired harness, and only it",
                false,
                &[Trapped("h1"), Rewarded],
                digests("h2", "r2"),
                Some((&[0], &[], Some(digests("h2", "r1")))),
            ),
            (
                "a failure that it returned is repaired like a defect",
                true,
                &[Refused("h1"), Trapped("h1")],
                digests("h2", "r1"),
                Some((&[0, 1], &[], Some(digests("h2", "r1")))),
            ),
            (
                "a reward that used up its time scores again",
                true,
                &[UnscoredInTime("r1"), UnscoredInTime("r1")],
                digests("h1", "r2"),
                Some((&[], &[0, 1], Some(digests("h1", "r2")))),
            ),
            ("and not as it was", true, &[UnscoredInTime("r1"), Refused("h1")], old(), None),
            ("another cause besides", true, &[Trapped("h1"), OverLimit], digests("h2", "r1"), None),
            (
                "in an open group it stays",
                false,
                &[Trapped("h1"), OverLimit],
                digests("h2", "r1"),
                Some((&[0], &[], Some(digests("h2", "r1")))),
            ),
            ("infrastructure", true, &[Lost, Rewarded], old(), Some((&[0], &[], Some(old())))),
            ("infrastructure of an open group was its result", false, &[Lost, Rewarded], old(), None),
            (
                "both",
                true,
                &[Lost, Trapped("h1")],
                digests("h2", "r1"),
                Some((&[0, 1], &[], Some(digests("h2", "r1")))),
            ),
            ("full", false, &[Rewarded, Rewarded], digests("h2", "r2"), None),
        ];
        for (name, failed, ends, now, expect) in cases {
            let redos = plan(&config, &[group(failed, old(), ends)], &now);
            let expect: Vec<Redo> = expect
                .into_iter()
                .map(|(run, score, plugins)| Redo {
                    group_index: 0,
                    again: Again { run: run.to_vec(), score: score.to_vec() },
                    plugins,
                })
                .collect();
            assert_eq!(redos, expect, "{name}");
        }
    }

    #[test]
    fn what_was_decided_once_is_decided_alike_after_a_kill() {
        let config = GroupsConfig { size: 2, ..GroupsConfig::default() };
        let now = digests("h1", "r2");
        let before = group(true, digests("h1", "r1"), &[End::Unscored("r1"), End::Unscored("r1")]);
        let first = plan(&config, std::slice::from_ref(&before), &now);
        let after = EarlierGroup { failed: false, ..before };
        let opened = GroupOpened { plugins: now.clone(), ..after.opened.clone() };
        let second = plan(&config, &[EarlierGroup { opened, ..after }], &now);
        assert_eq!(second[0].again, first[0].again);
        assert_eq!(second[0].plugins, None, "there is nothing left to write");
    }

    #[test]
    fn a_group_that_has_not_begun_does_not_begin_with_what_failed_elsewhere() {
        let config = GroupsConfig { size: 2, ..GroupsConfig::default() };
        let fresh = group(false, digests("h1", "r1"), &[]);
        let failed = group(false, digests("h1", "r1"), &[End::Trapped("h1")]);
        let redos = plan(&config, &[failed, fresh.clone()], &digests("h2", "r2"));
        assert_eq!(redos[1].plugins, Some(digests("h2", "r1")));
        assert_eq!(plan(&config, &[fresh], &digests("h2", "r2")), []);
    }
}
