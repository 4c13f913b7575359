//! `[step_budget]`: turns that rollouts may take, in stages. A stage lasts until the rewards have stopped rising.
//!
//! The rule, exactly. A group belongs to the stage in which it opened, and is worth the mean reward of its rollouts that count (the
//! filtered ones too; a group without any reward is worth nothing and is passed over). The groups of the present stage are taken in
//! the order of their index, each when it and all before it have closed. Once `2 * window` of them have been taken, the stage ends
//! when the mean of the last `window` is less than `rise` above the mean of the `window` before these; groups that open from then on
//! are of the next stage. Order of closing and clock play no part, so a run that was killed comes to the same stage again from
//! what its store says. Orchard's GUI experiments go from 15 turns to 30 so.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// `[step_budget]` of an experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepBudgetConfig {
    /// Turns of a rollout by stage, ascending, each 1 to 10,000: `[15, 30]`. A task may lower them.
    pub turns: Vec<u32>,
    /// Groups that are averaged. 1 to 10,000, default 8.
    #[serde(default = "eight")]
    pub window: u32,
    /// The least rise of the mean reward from one window to the next that keeps a stage going. Default 0.01.
    #[serde(default = "hundredth")]
    pub rise: f64,
}

fn eight() -> u32 {
    8
}

fn hundredth() -> f64 {
    0.01
}

impl StepBudgetConfig {
    /// Finds what the form alone cannot: the key with what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let within = |turns: &u32| (1..=10_000).contains(turns);
        let ascends = self.turns.windows(2).all(|pair| pair[0] < pair[1]);
        if self.turns.is_empty() || !self.turns.iter().all(within) || !ascends {
            return Err(("turns", format!("is {:?}, expected numbers of 1 to 10000, ascending", self.turns)));
        }
        if !(1..=10_000).contains(&self.window) {
            return Err(("window", format!("is {}, expected 1 to 10000", self.window)));
        }
        if !self.rise.is_finite() {
            return Err(("rise", format!("is {}, expected a finite number", self.rise)));
        }
        Ok(())
    }
}

/// A group as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetedGroup {
    /// Place in the run.
    pub group_index: u64,
    /// The turns that it opened with; `None`: it opened when the experiment had no step budget.
    pub turns: Option<u32>,
    /// `None`: it is open. Else its mean reward, where it has one.
    pub closed: Option<Option<f64>>,
}

/// Where a run stands.
#[derive(Clone, Debug)]
pub struct StepBudget {
    config: StepBudgetConfig,
    stage: usize,
    /// Groups of the present stage that were not taken yet; `None`: open.
    waiting: BTreeMap<u64, Option<Option<f64>>>,
    /// What the last ones taken are worth, at most two windows.
    taken: VecDeque<f64>,
}

impl StepBudget {
    /// After these groups, in the order of their index; none of a new run.
    pub fn resume(config: StepBudgetConfig, groups: &[BudgetedGroup]) -> StepBudget {
        let stage_of = |group: &BudgetedGroup| {
            let turns = group.turns?;
            config.turns.iter().position(|of_stage| *of_stage == turns)
        };
        // A stage that a group has opened in is not gone back from.
        let stage = groups.iter().filter_map(stage_of).max().unwrap_or(0);
        let of_stage = groups.iter().filter(|group| stage_of(group) == Some(stage));
        let mut waiting: BTreeMap<_, _> = of_stage.map(|group| (group.group_index, group.closed)).collect();
        // What a kill has left out opens again, and is waited for.
        let first = if stage == 0 { 0 } else { waiting.keys().next().copied().unwrap_or(0) };
        let stored: BTreeSet<u64> = groups.iter().map(|group| group.group_index).collect();
        let last = stored.last().copied().unwrap_or(0);
        for missing in (first..last).filter(|index| !stored.contains(index)) {
            waiting.insert(missing, None);
        }
        let mut budget = StepBudget { config, stage, waiting, taken: VecDeque::new() };
        budget.take();
        budget
    }

    /// A group opens; the turns that its rollouts have. Groups open in the order of their index.
    pub fn open(&mut self, group_index: u64) -> u32 {
        self.waiting.insert(group_index, None);
        self.turns()
    }

    /// A group has closed with this mean reward; one of an earlier stage says nothing.
    pub fn close(&mut self, group_index: u64, mean_reward: Option<f64>) {
        if let Some(group) = self.waiting.get_mut(&group_index) {
            *group = Some(mean_reward);
            self.take();
        }
    }

    /// Turns of the present stage.
    pub fn turns(&self) -> u32 {
        self.config.turns[self.stage]
    }

    fn take(&mut self) {
        while let Some(first) = self.waiting.first_entry()
            && let Some(mean) = *first.get()
        {
            first.remove();
            self.taken.extend(mean);
            if self.is_saturated() {
                self.stage += 1;
                self.waiting.clear();
                self.taken.clear();
            }
        }
    }

    fn is_saturated(&mut self) -> bool {
        let window = self.config.window as usize;
        while self.taken.len() > 2 * window {
            self.taken.pop_front();
        }
        if self.taken.len() < 2 * window || self.stage + 1 == self.config.turns.len() {
            return false;
        }
        let before: f64 = self.taken.iter().take(window).sum();
        let last: f64 = self.taken.iter().skip(window).sum();
        (last - before) / (window as f64) < self.config.rise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(turns: &[u32]) -> StepBudgetConfig {
        StepBudgetConfig { turns: turns.to_vec(), window: 2, rise: 0.1 }
    }

    /// Groups that open one after another, each when the one before has closed; the turns of each.
    fn play(budget: &mut StepBudget, from: u64, rewards: &[Option<f64>]) -> Vec<u32> {
        let group = |(index, mean): (u64, &Option<f64>)| {
            let turns = budget.open(index);
            budget.close(index, *mean);
            turns
        };
        (from..).zip(rewards).map(group).collect()
    }

    #[test]
    fn a_stage_lasts_as_long_as_the_rewards_rise() {
        let mut budget = StepBudget::resume(config(&[15, 30]), &[]);
        // 0, 0.1 -> 0.3, 0.4 -> 0.5, 0.6: each window is at least 0.1 above the one before.
        let rising = [0.0, 0.1, 0.3, 0.4, 0.5, 0.6].map(Some);
        assert_eq!(play(&mut budget, 0, &rising), [15; 6]);
        // 0.6, 0.4 are 0.05 above 0.4, 0.5.
        assert_eq!(play(&mut budget, 6, &[Some(0.4)]), [15]);
        assert_eq!(budget.turns(), 30, "{budget:?}");
        assert_eq!(play(&mut budget, 7, &[Some(0.0); 9]), [30; 9], "the last stage lasts");
    }

    #[test]
    fn a_rise_of_exactly_so_much_keeps_it_going() {
        let exact = StepBudgetConfig { rise: 0.25, ..config(&[15, 30]) };
        let mut budget = StepBudget::resume(exact.clone(), &[]);
        assert_eq!(play(&mut budget, 0, &[0.0, 0.0, 0.25, 0.25].map(Some)), [15; 4]);
        assert_eq!(budget.turns(), 15);
        let mut budget = StepBudget::resume(exact, &[]);
        play(&mut budget, 0, &[0.0, 0.0, 0.25, 0.125].map(Some));
        assert_eq!(budget.turns(), 30);
    }

    #[test]
    fn groups_count_by_their_index_and_only_those_of_the_stage() {
        let mut budget = StepBudget::resume(config(&[15, 30, 50]), &[]);
        for index in 0..6 {
            assert_eq!(budget.open(index), 15);
        }
        for index in [3, 2, 1] {
            budget.close(index, Some(0.5));
        }
        assert_eq!(budget.turns(), 15, "the first is open still");
        budget.close(0, None);
        assert_eq!(budget.turns(), 15, "one without a reward is passed over");
        budget.close(4, Some(0.5));
        assert_eq!(budget.turns(), 30);
        // One that opened before says nothing of the new stage.
        budget.close(5, Some(0.0));
        assert_eq!(play(&mut budget, 6, &[Some(0.1), Some(0.1), Some(0.1)]), [30; 3]);
        assert_eq!(play(&mut budget, 9, &[Some(0.1), None]), [30, 50]);
    }

    /// A run is killed after each event and resumed from what the store would say: it goes on as if it had not been.
    #[test]
    fn a_run_that_is_killed_anywhere_comes_to_the_same_stage() {
        let config = config(&[15, 30, 50]);
        let rewards = [0.1, 0.2, 0.2, 0.2, 0.5, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1];
        let mut whole = StepBudget::resume(config.clone(), &[]);
        let mut store: Vec<BudgetedGroup> = Vec::new();
        let mut stages = BTreeSet::new();
        // Two groups are open at a time; the later one closes first.
        for pair in (0..rewards.len()).collect::<Vec<_>>().chunks(2) {
            for index in pair {
                let turns = whole.open(*index as u64);
                assert_eq!(StepBudget::resume(config.clone(), &store).open(*index as u64), turns);
                store.push(BudgetedGroup { group_index: *index as u64, turns: Some(turns), closed: None });
            }
            for index in pair.iter().rev() {
                whole.close(*index as u64, Some(rewards[*index]));
                store[*index].closed = Some(Some(rewards[*index]));
                let again = StepBudget::resume(config.clone(), &store);
                assert_eq!(again.turns(), whole.turns(), "after group {index}: {again:?} {whole:?}");
                stages.insert(whole.turns());
            }
        }
        assert_eq!(stages.into_iter().collect::<Vec<_>>(), [15, 30, 50]);
    }

    #[test]
    fn a_group_that_a_kill_has_left_out_is_waited_for() {
        let closed = |group_index| BudgetedGroup { group_index, turns: Some(15), closed: Some(Some(0.5)) };
        let stored = [1, 2, 3, 4].map(closed);
        let mut budget = StepBudget::resume(config(&[15, 30]), &stored);
        assert_eq!(budget.open(0), 15);
        budget.close(0, None);
        assert_eq!(budget.turns(), 30);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        let check =
            |config: StepBudgetConfig| config.check().map_err(|(key, problem)| format!("{key} {problem}"));
        assert_eq!(check(config(&[15, 30])), Ok(()));
        for turns in [&[][..], &[0], &[30, 15], &[15, 15], &[10_001]] {
            let told = format!("turns is {turns:?}, expected numbers of 1 to 10000, ascending");
            assert_eq!(check(config(turns)), Err(told));
        }
        let told = Err("window is 0, expected 1 to 10000".to_owned());
        assert_eq!(check(StepBudgetConfig { window: 0, ..config(&[1]) }), told);
        let told = Err("rise is NaN, expected a finite number".to_owned());
        assert_eq!(check(StepBudgetConfig { rise: f64::NAN, ..config(&[1]) }), told);
    }
}
