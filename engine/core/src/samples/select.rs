//! Curation: which rollouts of a run leave it for fine-tuning. Pure; what it is told of a rollout is a [`Candidate`].
//!
//! The rules apply in this order, each to what the ones before have left:
//!
//! 1. a rollout without a reward is never chosen;
//! 2. `dedupe`: of rollouts of a task that did the same, action by action, the best is kept;
//! 3. `pick`: which rollouts of each task;
//! 4. `per_task`: at most so many of a task, the best;
//! 5. `per_site`: tasks of at most so many for each site: the first of the run that have anything left. A task without a site is its own.
//!
//! Rollouts of a task are those with the same task id, over all groups. *Best* is the highest reward, then the fewest turns, then the fewest
//! sampled tokens, then the earlier place.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Selection {
    /// Which rollouts of each task.
    pub pick: Pick,
    /// Whether a rollout is left out that did what a better one of its task did.
    pub dedupe: bool,
    /// Most rollouts of a task; `None`: no bound.
    pub per_task: Option<u32>,
    /// Most tasks of a site; `None`: no bound.
    pub per_site: Option<u32>,
    /// The least reward of a success; `None`: 1.
    pub success: Option<f64>,
}

/// Which rollouts of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// All of them.
    #[default]
    All,
    /// Every success.
    Successes,
    /// The success with the fewest turns, of equal ones with the fewest sampled tokens (Orchard's GUI experiments).
    ShortestSuccess,
    /// The best one.
    Best,
    /// The worst one: the lowest reward, then the most turns, then the most sampled tokens, then the later place.
    Worst,
    /// The best and the worst one, where their rewards differ.
    BestAndWorst,
}

/// What is known of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its task.
    pub task_id: String,
    /// The site that its task is about.
    pub site: Option<String>,
    /// `None`: it has none.
    pub reward: Option<f64>,
    /// Answers of the model.
    pub turns: u32,
    /// Tokens of these answers.
    pub sampled: u64,
    /// What it did, in order.
    pub actions: Vec<String>,
}

/// Why a rollout is not chosen: the first rule that left it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotSelected {
    /// It has no reward.
    Unscored,
    /// `dedupe`.
    SameActions,
    /// `pick`.
    NotPicked,
    /// `per_task`.
    TaskFull,
    /// `per_site`.
    SiteFull,
}

impl NotSelected {
    /// The word of tables.
    pub fn as_str(self) -> &'static str {
        match self {
            NotSelected::Unscored => "unscored",
            NotSelected::SameActions => "same-actions",
            NotSelected::NotPicked => "not-picked",
            NotSelected::TaskFull => "task-full",
            NotSelected::SiteFull => "site-full",
        }
    }
}

impl Selection {
    /// By place of the candidates, which stand in the order of the run: why each is not chosen; `None`: it is.
    pub fn apply(&self, candidates: &[Candidate]) -> Vec<Option<NotSelected>> {
        let mut left_out: Vec<Option<NotSelected>> =
            candidates.iter().map(|one| one.reward.is_none().then_some(NotSelected::Unscored)).collect();
        let mut tasks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, one) in candidates.iter().enumerate().filter(|(_, one)| one.reward.is_some()) {
            tasks.entry(&one.task_id).or_default().push(place);
        }
        for places in tasks.values_mut() {
            places.sort_by(|a, b| best_first(&candidates[*a], &candidates[*b]).then(a.cmp(b)));
            let mut leave = |places: &mut Vec<usize>, keep: &dyn Fn(usize, usize) -> bool, why| {
                let mut rank = 0;
                places.retain(|place| {
                    let kept = keep(rank, *place);
                    rank += 1;
                    if !kept {
                        left_out[*place] = Some(why);
                    }
                    kept
                });
            };
            if self.dedupe {
                let first = firsts(candidates, places);
                leave(places, &|_, place| first.contains(&place), NotSelected::SameActions);
            }
            let picked = self.picked(candidates, places);
            leave(places, &|_, place| picked.contains(&place), NotSelected::NotPicked);
            if let Some(most) = self.per_task {
                leave(places, &|rank, _| rank < most as usize, NotSelected::TaskFull);
            }
        }
        if let Some(most) = self.per_site {
            let mut in_order: Vec<&Vec<usize>> = tasks.values().filter(|places| !places.is_empty()).collect();
            in_order.sort_by_key(|places| places.iter().min());
            let mut taken: BTreeMap<&str, u32> = BTreeMap::new();
            for places in in_order {
                let Some(site) = candidates[places[0]].site.as_deref() else { continue };
                let count = taken.entry(site).or_default();
                if *count < most {
                    *count += 1;
                } else {
                    places.iter().for_each(|place| left_out[*place] = Some(NotSelected::SiteFull));
                }
            }
        }
        left_out
    }

    /// Of the places of a task, best first.
    fn picked(&self, candidates: &[Candidate], places: &[usize]) -> BTreeSet<usize> {
        let least = self.success.unwrap_or(1.0);
        let succeeded = |place: &&usize| candidates[**place].reward.is_some_and(|reward| reward >= least);
        let ends = || places.first().zip(places.last());
        match self.pick {
            Pick::All => places.iter().copied().collect(),
            Pick::Successes => places.iter().filter(succeeded).copied().collect(),
            Pick::ShortestSuccess => {
                let shortest = places.iter().filter(succeeded).min_by_key(|place| {
                    let one = &candidates[**place];
                    (one.turns, one.sampled, **place)
                });
                shortest.copied().into_iter().collect()
            }
            Pick::Best => places.first().copied().into_iter().collect(),
            Pick::Worst => places.last().copied().into_iter().collect(),
            Pick::BestAndWorst => ends()
                .filter(|(best, worst)| candidates[**best].reward != candidates[**worst].reward)
                .map(|(best, worst)| BTreeSet::from([*best, *worst]))
                .unwrap_or_default(),
        }
    }
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    let rewards = b.reward.unwrap_or(f64::NEG_INFINITY).total_cmp(&a.reward.unwrap_or(f64::NEG_INFINITY));
    rewards.then(a.turns.cmp(&b.turns)).then(a.sampled.cmp(&b.sampled))
}

/// The first places of each sequence of actions.
fn firsts(candidates: &[Candidate], places: &[usize]) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    places.iter().copied().filter(|place| seen.insert(&candidates[*place].actions)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `TASK@SITE REWARD TURNS TOKENS ACTIONS`, a rollout a line; `-`: none.
    fn candidates(lines: &str) -> Vec<Candidate> {
        let parse = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (task_id, site) = words[0].split_once('@').unwrap_or((words[0], "-"));
            Candidate {
                task_id: task_id.to_owned(),
                site: Some(site.to_owned()).filter(|site| site != "-"),
                reward: words[1].parse().ok(),
                turns: words[2].parse().unwrap(),
                sampled: words[3].parse().unwrap(),
                actions: words[4].chars().map(String::from).collect(),
            }
        };
        lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(parse).collect()
    }

    #[track_caller]
    fn check(selection: Selection, lines: &str, expected: &str) {
        let told = selection.apply(&candidates(lines)).into_iter();
        let told: Vec<&str> = told.map(|why| why.map_or("yes", NotSelected::as_str)).collect();
        assert_eq!(told.join(" "), expected, "{selection:?}");
    }

    const ROLLOUTS: &str = "
        a@s 1 9 50 xyz
        a@s 1 5 80 xz
        a@s 1 5 70 xy
        a@s 0 2 10 x
        a@s - 1 10 x
        b@s 0.5 3 10 q
        b@s 0.5 4 10 q
        c@t 0 3 10 q
        c@t 2 3 10 q";

    #[test]
    fn each_rule_by_itself() {
        let pick = |pick| Selection { pick, ..Selection::default() };
        check(pick(Pick::All), ROLLOUTS, "yes yes yes yes unscored yes yes yes yes");
        check(
            pick(Pick::Successes),
            ROLLOUTS,
            "yes yes yes not-picked unscored not-picked not-picked not-picked yes",
        );
        let shortest = "not-picked not-picked yes not-picked unscored not-picked not-picked not-picked yes";
        check(pick(Pick::ShortestSuccess), ROLLOUTS, shortest);
        check(
            pick(Pick::Best),
            ROLLOUTS,
            "not-picked not-picked yes not-picked unscored yes not-picked not-picked yes",
        );
        let worst = "not-picked not-picked not-picked yes unscored not-picked yes yes not-picked";
        check(pick(Pick::Worst), ROLLOUTS, worst);
        // Equal rewards are no contrast.
        let both = "not-picked not-picked yes yes unscored not-picked not-picked yes yes";
        check(pick(Pick::BestAndWorst), ROLLOUTS, both);
        let dedupe = Selection { dedupe: true, ..Selection::default() };
        check(dedupe, ROLLOUTS, "yes yes yes yes unscored yes same-actions same-actions yes");
        let two = Selection { per_task: Some(2), ..Selection::default() };
        check(two, ROLLOUTS, "task-full yes yes task-full unscored yes yes yes yes");
        let one = Selection { per_site: Some(1), ..Selection::default() };
        check(one, ROLLOUTS, "yes yes yes yes unscored site-full site-full yes yes");
    }

    #[test]
    fn rules_apply_to_what_is_left() {
        // The site's place is free for `b`, since nothing of `a` was picked.
        let rule = Selection { pick: Pick::ShortestSuccess, per_site: Some(1), ..Selection::default() };
        check(rule, "a@s 0 1 1 x\n b@s 1 1 1 x\n c@s 1 1 1 x", "not-picked yes site-full");
        // Tasks without a site are not counted together.
        check(rule, "a 1 1 1 x\n b 1 1 1 x", "yes yes");
        // The same actions in two passes over a task; what one task did says nothing of another.
        let rule =
            Selection { dedupe: true, pick: Pick::Successes, success: Some(0.5), ..Selection::default() };
        check(
            rule,
            "a 0.5 2 9 xy\n b 1 2 9 xy\n a 1 2 9 xy\n a 0.4 1 9 z",
            "same-actions yes yes not-picked",
        );
        // The longest of equal ones is the worst; with one rollout best and worst are no two.
        let rule = Selection { pick: Pick::Worst, ..Selection::default() };
        check(rule, "a 0 2 9 x\n a 0 3 9 y\n a 0 3 8 z", "not-picked yes not-picked");
        check(Selection { pick: Pick::BestAndWorst, ..Selection::default() }, "a 1 2 9 x", "not-picked");
    }

    /// Tasks `a` and `b` are of one site, `c` of none.
    fn any_candidate() -> impl Strategy<Value = Candidate> {
        let reward = proptest::option::weighted(0.8, (0u8..4).prop_map(|half| f64::from(half) / 2.0));
        ("[abc]", reward, 1u32..4, 1u64..4, "[xy]{0,2}").prop_map(
            |(task_id, reward, turns, sampled, actions)| Candidate {
                site: (task_id != "c").then(|| "s".to_owned()),
                task_id,
                reward,
                turns,
                sampled,
                actions: actions.chars().map(String::from).collect(),
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn bounds_hold_and_nothing_better_is_left_out(
            all in proptest::collection::vec(any_candidate(), 0..14),
            dedupe: bool, per_task in proptest::option::of(0u32..4), per_site in proptest::option::of(0u32..3),
            pick in 0usize..6,
        ) {
            let picks = [Pick::All, Pick::Successes, Pick::ShortestSuccess, Pick::Best, Pick::Worst, Pick::BestAndWorst];
            let rule = Selection { pick: picks[pick], dedupe, per_task, per_site, success: None };
            let told = rule.apply(&all);
            let chosen: Vec<usize> = (0..all.len()).filter(|place| told[*place].is_none()).collect();
            let of_task = |task: &str| chosen.iter().filter(|place| all[**place].task_id == task).count();
            let tasks: BTreeSet<&str> = all.iter().map(|one| one.task_id.as_str()).collect();
            for task in &tasks {
                let most = match rule.pick {
                    Pick::ShortestSuccess | Pick::Best | Pick::Worst => 1,
                    Pick::BestAndWorst => 2,
                    Pick::All | Pick::Successes => usize::MAX,
                };
                prop_assert!(of_task(task) <= most.min(per_task.map_or(usize::MAX, |most| most as usize)));
            }
            if let Some(most) = per_site {
                let on_site = tasks.iter().filter(|task| **task != "c" && of_task(task) > 0).count();
                prop_assert!(on_site <= most as usize);
            }
            for (place, why) in told.iter().enumerate() {
                let one = &all[place];
                prop_assert_eq!(*why == Some(NotSelected::Unscored), one.reward.is_none());
                let same = |other: usize| {
                    let is_better = best_first(&all[other], one).then(other.cmp(&place)) == Ordering::Less;
                    let of_both = all[other].task_id == one.task_id && all[other].actions == one.actions;
                    of_both && all[other].reward.is_some() && is_better
                };
                if one.reward.is_some() {
                    let is_doubled = dedupe && (0..all.len()).any(same);
                    prop_assert_eq!(*why == Some(NotSelected::SameActions), is_doubled);
                }
                // A success is not passed over for a longer one.
                if rule.pick == Pick::ShortestSuccess && why.is_none() {
                    for other in all.iter().zip(&told).filter(|(other, _)| other.task_id == one.task_id) {
                        let (other, other_why) = other;
                        if *other_why == Some(NotSelected::NotPicked) && other.reward.is_some_and(|reward| reward >= 1.0) {
                            prop_assert!((other.turns, other.sampled) >= (one.turns, one.sampled));
                        }
                    }
                }
            }
            // Choosing again out of what was chosen leaves it as it is; half of a pair is none.
            let is_halved = rule.pick == Pick::BestAndWorst && per_task.is_some_and(|most| most < 2);
            let again: Vec<Candidate> = chosen.iter().map(|place| all[*place].clone()).collect();
            prop_assert!(is_halved || rule.apply(&again).iter().all(Option::is_none));
        }
    }
}
