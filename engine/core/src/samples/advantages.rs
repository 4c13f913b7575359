//! Advantages of the trajectories of a group, from their rewards.
//!
//! Where a mean and a deviation are taken, over what and how is part of the definition: published formulas and released code differ in
//! both. The same definitions stand in `espalier.samples` of the Python package.

use super::{Group, GroupKind, SpanUse, Trajectory};
use std::collections::{BTreeMap, BTreeSet};

/// A deviation up to this says that all values are equal: their advantages are 0.
const EQUAL: f64 = 1e-8;

/// How they are computed. But for [`Advantages::StepZScore`] there is one for each trajectory, the same for all its tokens that train,
/// whatever its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advantages {
    /// `(R - mean) / (s + 1e-6)`, `s` the sample deviation (ddof = 1) over the rewards of the group (Orchard, GUI). Of a single reward: 0.
    GrpoDdof1,
    /// `(R - mean) / s`, `s` the population deviation (DeepSeekMath, outcome supervision; it has no epsilon). All equal: 0.
    Grpo,
    /// `R - mean` (Dr. GRPO: neither deviation nor length divides).
    DrGrpo,
    /// `R` less the mean of the other rewards of the group (RLOO). Of a single reward: 0.
    Rloo,
    /// `R`, whitened over the batch ([`Whitening`]; REINFORCE++ without its KL term).
    ReinforcePlusPlus,
    /// `R - mean`, whitened over the batch (REINFORCE++-baseline).
    ReinforcePlusPlusBaseline,
    /// For each turn of its own: `R + r` of the turn, `r` its turn reward (0: none), as z-score over the trajectories of the group that
    /// reach this turn, with the population deviation (RLAnything, equation 1 with its policy advantage). A value that is alone stays as it is.
    StepZScore,
}

impl Advantages {
    /// All of them.
    pub const ALL: [Advantages; 7] = [
        Advantages::GrpoDdof1,
        Advantages::Grpo,
        Advantages::DrGrpo,
        Advantages::Rloo,
        Advantages::ReinforcePlusPlus,
        Advantages::ReinforcePlusPlusBaseline,
        Advantages::StepZScore,
    ];

    /// The word of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Advantages::GrpoDdof1 => "grpo-ddof1",
            Advantages::Grpo => "grpo",
            Advantages::DrGrpo => "dr-grpo",
            Advantages::Rloo => "rloo",
            Advantages::ReinforcePlusPlus => "reinforce++",
            Advantages::ReinforcePlusPlusBaseline => "reinforce++-baseline",
            Advantages::StepZScore => "step-z-score",
        }
    }

    /// Whether all groups have to be seen ([`Whitening::of`]) before the first gets its advantages.
    pub fn is_over_batch(self) -> bool {
        matches!(self, Advantages::ReinforcePlusPlus | Advantages::ReinforcePlusPlusBaseline)
    }

    /// The advantage of each reward of a group, in order; before it is whitened, where it is. [`Advantages::StepZScore`] gives that of
    /// a turn that all have reached, from what the turn is worth.
    pub fn of(self, rewards: &[f64]) -> Vec<f64> {
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|reward| (reward - mean) * (reward - mean)).sum();
        let centred = rewards.iter().map(|reward| reward - mean);
        match self {
            Advantages::GrpoDdof1 => {
                let deviation = if rewards.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() };
                centred.map(|reward| reward / (deviation + 1e-6)).collect()
            }
            Advantages::StepZScore if rewards.len() == 1 => rewards.to_vec(),
            Advantages::Grpo | Advantages::StepZScore => {
                let deviation = (squares / count).sqrt();
                let equal = deviation <= EQUAL;
                centred.map(|reward| if equal { 0.0 } else { reward / deviation }).collect()
            }
            Advantages::DrGrpo | Advantages::ReinforcePlusPlusBaseline => centred.collect(),
            Advantages::Rloo if rewards.len() < 2 => vec![0.0; rewards.len()],
            Advantages::Rloo => centred.map(|reward| reward * count / (count - 1.0)).collect(),
            Advantages::ReinforcePlusPlus => rewards.to_vec(),
        }
    }

    /// Puts them into the rows: at each token that trains, 0 elsewhere. Trajectories without a reward take no part and get none; nor
    /// do groups of judges, which are compared otherwise. `whitening`: of the batch, [`Whitening::NONE`] for those by group.
    pub fn put(self, group: &mut Group, whitening: Whitening) {
        if group.kind != GroupKind::Task {
            return;
        }
        if self == Advantages::StepZScore {
            return put_by_turn(group);
        }
        let values = self.of(&rewards(group));
        let rewarded = group.trajectories.iter_mut().filter(|one| one.reward.is_some());
        for (trajectory, value) in rewarded.zip(values) {
            let advantage = whitening.whiten(value) as f32;
            for segment in &mut trajectory.segments {
                let at = |mask: &u8| if *mask == 1 { advantage } else { 0.0 };
                segment.advantages = Some(segment.mask.iter().map(at).collect());
            }
        }
    }
}

/// Mean and deviation of what a batch has before it is whitened. Each token that trains counts once, as in the released code of
/// REINFORCE++ (OpenRLHF) and in verl; the deviation is that of the population.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whitening {
    mean: f64,
    deviation: f64,
}

impl Whitening {
    /// Leaves values as they are.
    pub const NONE: Whitening = Whitening { mean: 0.0, deviation: 1.0 };

    /// Of what [`weighed`] says of all groups of a batch, in their order.
    pub fn of(values: &[(f64, u64)]) -> Whitening {
        let tokens = values.iter().map(|(_, tokens)| tokens).sum::<u64>() as f64;
        if tokens == 0.0 {
            return Whitening { mean: 0.0, deviation: 0.0 };
        }
        let mean = values.iter().map(|(value, tokens)| value * *tokens as f64).sum::<f64>() / tokens;
        let squares: f64 =
            values.iter().map(|(value, tokens)| (value - mean) * (value - mean) * *tokens as f64).sum();
        Whitening { mean, deviation: (squares / tokens).sqrt() }
    }

    fn whiten(self, value: f64) -> f64 {
        if self.deviation <= EQUAL { 0.0 } else { (value - self.mean) / self.deviation }
    }
}

/// What each trajectory of a group has before it is whitened, with how many of its tokens train; nothing of groups of judges.
pub fn weighed(advantages: Advantages, group: &Group) -> Vec<(f64, u64)> {
    if group.kind != GroupKind::Task {
        return Vec::new();
    }
    let trained = |one: &Trajectory| {
        one.segments.iter().flat_map(|segment| &segment.mask).filter(|mask| **mask == 1).count() as u64
    };
    let tokens = group.trajectories.iter().filter(|one| one.reward.is_some()).map(trained);
    advantages.of(&rewards(group)).into_iter().zip(tokens).collect()
}

fn rewards(group: &Group) -> Vec<f64> {
    group.trajectories.iter().filter_map(|one| one.reward).collect()
}

fn put_by_turn(group: &mut Group) {
    let mut by_turn: BTreeMap<u32, Vec<(usize, f64)>> = BTreeMap::new();
    for (place, trajectory) in group.trajectories.iter().enumerate() {
        let Some(reward) = trajectory.reward else { continue };
        let turns: BTreeSet<u32> = trajectory.calls.iter().map(|call| call.turn).collect();
        for turn in turns {
            let of_turns = trajectory.turn_rewards.iter().flatten();
            let of_turn = of_turns.copied().nth(turn as usize).flatten().unwrap_or(0.0);
            by_turn.entry(turn).or_default().push((place, reward + of_turn));
        }
    }
    let mut advantages: BTreeMap<(usize, u32), f64> = BTreeMap::new();
    for (turn, values) in by_turn {
        let worth: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
        for ((place, _), advantage) in values.iter().zip(Advantages::StepZScore.of(&worth)) {
            advantages.insert((*place, turn), advantage);
        }
    }
    for (place, trajectory) in group.trajectories.iter_mut().enumerate() {
        if trajectory.reward.is_none() {
            continue;
        }
        let of_call: BTreeMap<&str, f64> = trajectory
            .calls
            .iter()
            .filter_map(|call| Some((call.call_id.as_str(), *advantages.get(&(place, call.turn))?)))
            .collect();
        for segment in &mut trajectory.segments {
            let mut of_tokens = vec![0.0; segment.mask.len()];
            for span in segment.spans.iter().filter(|span| span.usage == SpanUse::Sampled) {
                let advantage = of_call.get(span.call_id.as_str()).copied().unwrap_or(0.0) as f32;
                let range = span.start as usize..(span.start + span.len) as usize;
                for (value, mask) in of_tokens[range.clone()].iter_mut().zip(&segment.mask[range]) {
                    *value = if *mask == 1 { advantage } else { 0.0 };
                }
            }
            segment.advantages = Some(of_tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::StopReason;
    use crate::ledger::{Ledger, Piece, Trainability};
    use crate::samples::check::check;
    use crate::samples::{GroupStatus, Origin, Trajectory, fixture};

    #[test]
    fn the_deviation_is_that_of_a_sample_with_an_epsilon() {
        let of = |rewards: &[f64]| Advantages::GrpoDdof1.of(rewards);
        // By hand: mean 0.25, squares 0.0625 x 3 + 0.5625 = 0.75, s = sqrt(0.75 / 3) = 0.5.
        assert_eq!(
            of(&[1.0, 0.0, 0.0, 0.0]),
            [0.75 / 0.500_001, -0.25 / 0.500_001, -0.25 / 0.500_001, -0.25 / 0.500_001]
        );
        // Mean 0, s = sqrt(2 / 2) = 1.
        assert_eq!(of(&[1.0, 0.0, -1.0]), [1.0 / 1.000_001, 0.0, -1.0 / 1.000_001]);
        assert_eq!(of(&[1.0, 1.0]), [0.0, 0.0]);
        assert_eq!((of(&[1.0]), of(&[])), (vec![0.0], vec![]));
    }

    fn close(left: &[f64], right: &[f64]) {
        assert_eq!(left.len(), right.len());
        for (a, b) in left.iter().zip(right) {
            assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{left:?} {right:?}");
        }
    }

    #[test]
    fn each_definition_by_hand() {
        use Advantages::{DrGrpo, Grpo, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Rloo, StepZScore};
        // Mean 2, squares 1 + 1 + 9 + 9 = 20, population deviation sqrt(5).
        let rewards = [1.0, 3.0, -1.0, 5.0];
        let root = 5f64.sqrt();
        let table: [(Advantages, [f64; 4]); 6] = [
            (Grpo, [-1.0 / root, 1.0 / root, -3.0 / root, 3.0 / root]),
            (DrGrpo, [-1.0, 1.0, -3.0, 3.0]),
            // Others of the first: 3, -1, 5, mean 7/3; 1 - 7/3 = -4/3. Others of the third: 1, 3, 5, mean 3; -1 - 3 = -4.
            (Rloo, [-4.0 / 3.0, 4.0 / 3.0, -4.0, 4.0]),
            (ReinforcePlusPlus, rewards),
            (ReinforcePlusPlusBaseline, [-1.0, 1.0, -3.0, 3.0]),
            (StepZScore, [-1.0 / root, 1.0 / root, -3.0 / root, 3.0 / root]),
        ];
        for (advantages, expected) in table {
            close(&advantages.of(&rewards), &expected);
        }
        let of = |rewards: &[f64]| Advantages::ALL.map(|advantages| advantages.of(rewards));
        assert_eq!(of(&[]), [const { Vec::<f64>::new() }; 7]);
        assert_eq!(of(&[3.0]), [0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 3.0].map(|value| vec![value]));
        let equal = of(&[3.0, 3.0]);
        assert_eq!(equal, [0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0].map(|value| vec![value; 2]));
    }

    /// Random groups of rewards: each definition against its formula written out reward by reward.
    #[test]
    fn each_definition_against_its_formula() {
        let seed: u64 = 0x5eed_ad0a;
        println!("seed {seed}");
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2_000 {
            let count = draw(9) as usize + 2;
            let rewards: Vec<f64> = (0..count).map(|_| draw(9) as f64 / 4.0 - 1.0).collect();
            let n = count as f64;
            let mean = rewards.iter().sum::<f64>() / n;
            let population = (rewards.iter().map(|r| r * r).sum::<f64>() / n - mean * mean).max(0.0).sqrt();
            let others = |i: usize| {
                let rest = rewards.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, reward)| reward);
                rest.sum::<f64>() / (n - 1.0)
            };
            let z = |reward: f64| if population < 1e-6 { 0.0 } else { (reward - mean) / population };
            let each = |formula: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
                rewards.iter().enumerate().map(|(i, reward)| formula(i, *reward)).collect()
            };
            close_to(&Advantages::Grpo.of(&rewards), &each(&|_, reward| z(reward)));
            close_to(&Advantages::StepZScore.of(&rewards), &each(&|_, reward| z(reward)));
            close_to(&Advantages::DrGrpo.of(&rewards), &each(&|_, reward| reward - mean));
            close_to(&Advantages::Rloo.of(&rewards), &each(&|i, reward| reward - others(i)));
        }
    }

    fn close_to(left: &[f64], right: &[f64]) {
        assert_eq!(left.len(), right.len());
        let off = left.iter().zip(right).find(|(a, b)| (*a - *b).abs() > 1e-9);
        assert_eq!(off, None, "{left:?} {right:?}");
    }

    #[test]
    fn a_batch_is_whitened_over_the_tokens_that_train() {
        // 3 tokens of 1, 1 of -3: mean 0, squares 3 + 9 = 12, deviation sqrt(12 / 4).
        let whitening = Whitening::of(&[(1.0, 3), (-3.0, 1), (100.0, 0)]);
        assert_eq!(whitening, Whitening { mean: 0.0, deviation: 3f64.sqrt() });
        assert_eq!(whitening.whiten(-3.0), -3.0 / 3f64.sqrt());
        for nothing in [Whitening::of(&[]), Whitening::of(&[(2.0, 0)]), Whitening::of(&[(2.0, 4), (2.0, 1)])]
        {
            assert_eq!(nothing.whiten(2.0), 0.0, "{nothing:?}");
        }
        assert_eq!(Whitening::NONE.whiten(0.1), 0.1);
    }

    #[test]
    fn two_groups_are_whitened_together() {
        // Each trains two tokens: 1, 0 and 0, 0.
        let group = |rewards: [f64; 2]| {
            fixture::group(
                (0..).zip(rewards).map(|(number, reward)| trajectory(number, Some(reward))).collect(),
            )
        };
        let mut groups = [group([1.0, 0.0]), group([0.0, 0.0])];
        for (advantages, first, last) in [
            // Mean 1/4, squares (9 + 1 + 1 + 1) / 16 over 4: deviation sqrt(3) / 4.
            (Advantages::ReinforcePlusPlus, 3.0 / 3f64.sqrt(), -1.0 / 3f64.sqrt()),
            // 1/2, -1/2, 0, 0: mean 0, deviation sqrt(1/8).
            (Advantages::ReinforcePlusPlusBaseline, 0.5 / 0.125f64.sqrt(), 0.0),
        ] {
            let values: Vec<(f64, u64)> =
                groups.iter().flat_map(|group| weighed(advantages, group)).collect();
            let whitening = Whitening::of(&values);
            for group in &mut groups {
                advantages.put(group, whitening);
                assert_eq!(check(group), []);
            }
            let at = |group: usize, one: usize| {
                groups[group].trajectories[one].segments[0].advantages.as_ref().map(|values| values[4])
            };
            assert_eq!((at(0, 0), at(1, 1)), (Some(first as f32), Some(last as f32)), "{advantages:?}");
        }
    }

    #[test]
    fn turns_are_compared_with_the_same_turn_of_others() {
        let with_turns = |number: u32, reward: f64, turns: &[Option<f64>]| {
            let mut one = trajectory(number, Some(reward));
            for (call, turn) in one.calls.iter_mut().zip(0..) {
                call.turn = turn;
            }
            one.turn_rewards = Some(turns.to_vec());
            one
        };
        let mut short = with_turns(1, -1.0, &[Some(0.0)]);
        short.calls.truncate(1);
        let mut group = fixture::group(vec![with_turns(0, 1.0, &[Some(1.0), Some(0.5)]), short]);
        // The first answer of `trajectory` does not train; let it, to see it.
        for one in &mut group.trajectories {
            one.segments[0].mask[1..3].fill(1);
        }
        Advantages::StepZScore.put(&mut group, Whitening::NONE);
        let of = |place: usize| group.trajectories[place].segments[0].advantages.clone();
        // Turn 0: 2 and -1, mean 0.5, deviation 1.5. Turn 1 is reached by one, which keeps 1.5.
        assert_eq!(of(0), Some(vec![0.0, 1.0, 1.0, 1.5, 1.5]));
        assert_eq!(of(1), Some(vec![0.0, -1.0, -1.0, 0.0, 0.0]));
    }

    /// Two answers; the first does not train.
    fn trajectory(number: u32, reward: Option<f64>) -> Trajectory {
        let mut ledger = Ledger::new();
        let branch = ledger.open(&[Piece { ids: &[1], origin: Origin::Prompt }]);
        for turn in 0..2 {
            let call = fixture::call(&format!("t{number}.c{turn}"), "policy", 2);
            let index = ledger.record(call, Some(vec![-0.5; 2]));
            ledger.place(branch, index, &[7, 8]);
            ledger.set_trainable(index, turn > 0);
        }
        let trains = if reward.is_some() { Trainability::Trainable } else { Trainability::NotTrainable };
        let one = fixture::trajectory(number, StopReason::Submitted, ledger.finish(trains));
        Trajectory { reward, trainable: reward.is_some(), ..one }
    }

    #[test]
    fn each_token_that_trains_has_that_of_its_trajectory() {
        let rewards = [Some(1.0), None, Some(0.0)];
        let trajectories = (0..).zip(rewards).map(|(number, reward)| trajectory(number, reward)).collect();
        let mut group = fixture::group(trajectories);
        group.status = GroupStatus::Short;
        Advantages::GrpoDdof1.put(&mut group, Whitening::NONE);
        assert_eq!(check(&group), []);
        let of = |place: usize| group.trajectories[place].segments[0].advantages.clone();
        let high = (0.5 / (0.5f64.sqrt() + 1e-6)) as f32;
        assert_eq!(of(0), Some(vec![0.0, 0.0, 0.0, high, high]));
        assert_eq!(of(1), None, "it has no reward, and the others are compared without it");
        assert_eq!(of(2), Some(vec![0.0, 0.0, 0.0, -high, -high]));
    }
}
