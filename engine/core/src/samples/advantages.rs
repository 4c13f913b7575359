//! Advantages of the trajectories of a group, from their rewards.

use super::{Group, GroupKind};

/// How they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advantages {
    /// `(R - mean) / (s + 1e-6)`, `s` the sample deviation (ddof = 1) over the rewards of the group; one for each trajectory, the same
    /// for all its tokens that train, whatever its length (Orchard, GUI). Of a single reward: 0.
    GrpoDdof1,
}

impl Advantages {
    /// The word of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Advantages::GrpoDdof1 => "grpo-ddof1",
        }
    }

    /// The advantage of each reward, in order.
    pub fn of(self, rewards: &[f64]) -> Vec<f64> {
        const EPSILON: f64 = 1e-6;
        let Advantages::GrpoDdof1 = self;
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|reward| (reward - mean) * (reward - mean)).sum();
        let deviation = if rewards.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() };
        rewards.iter().map(|reward| (reward - mean) / (deviation + EPSILON)).collect()
    }

    /// Puts them into the rows: at each token that trains, 0 elsewhere. Trajectories without a reward take no part and get none; nor
    /// do groups of judges, which are compared otherwise.
    pub fn put(self, group: &mut Group) {
        if group.kind != GroupKind::Task {
            return;
        }
        let rewards: Vec<f64> = group.trajectories.iter().filter_map(|one| one.reward).collect();
        let rewarded = group.trajectories.iter_mut().filter(|one| one.reward.is_some());
        for (trajectory, advantage) in rewarded.zip(self.of(&rewards)) {
            for segment in &mut trajectory.segments {
                let at = |mask: &u8| if *mask == 1 { advantage as f32 } else { 0.0 };
                segment.advantages = Some(segment.mask.iter().map(at).collect());
            }
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
        Advantages::GrpoDdof1.put(&mut group);
        assert_eq!(check(&group), []);
        let of = |place: usize| group.trajectories[place].segments[0].advantages.clone();
        let high = (0.5 / (0.5f64.sqrt() + 1e-6)) as f32;
        assert_eq!(of(0), Some(vec![0.0, 0.0, 0.0, high, high]));
        assert_eq!(of(1), None, "it has no reward, and the others are compared without it");
        assert_eq!(of(2), Some(vec![0.0, 0.0, 0.0, -high, -high]));
    }
}
