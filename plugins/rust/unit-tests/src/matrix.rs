//! The pass matrix, and what solutions and tests are worth by it (RLAnything, "Coding").
//!
//! A solution is right if it passes all tests of the task. A written test is valid if every right solution passes it; a valid one is
//! worth the number of wrong solutions that fail it, another one minus the number of wrong solutions that pass it, and without a wrong
//! solution 1 and -1. Without a right solution, or without tests of the task, written tests are worth nothing.

use crate::settings::Counted;

/// Which solution passes which test: the tests of the task first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// By solution, then by test.
    pub passed: Vec<Vec<bool>>,
    /// Tests of the task.
    pub given: usize,
}

/// What a written test is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// Whether every right solution passes it.
    pub valid: bool,
    /// As the rule says.
    pub reward: f64,
    /// The same as a z-score over all written tests of the task; 0 where these are all alike.
    pub z_score: f64,
}

impl Matrix {
    /// Whether the solution passes all tests of the task, of which there must be one.
    pub fn is_right(&self, solution: usize) -> bool {
        self.given > 0 && self.passed[solution][..self.given].iter().all(|passed| *passed)
    }

    /// What the written tests are worth, in their order; `None`: there is no right solution to tell it by.
    pub fn written(&self) -> Option<Vec<Worth>> {
        let solutions = 0..self.passed.len();
        let (right, wrong): (Vec<usize>, Vec<usize>) =
            solutions.partition(|solution| self.is_right(*solution));
        if right.is_empty() {
            return None;
        }
        let tests = self.passed.first().map_or(0, Vec::len);
        let one = |test: usize| {
            let valid = right.iter().all(|solution| self.passed[*solution][test]);
            let passing = wrong.iter().filter(|solution| self.passed[**solution][test]).count();
            let reward = match (valid, wrong.is_empty()) {
                (true, true) => 1.0,
                (false, true) => -1.0,
                (true, false) => (wrong.len() - passing) as f64,
                (false, false) => -(passing as f64),
            };
            (valid, reward)
        };
        let all: Vec<(bool, f64)> = (self.given..tests).map(one).collect();
        let count = all.len() as f64;
        let mean = all.iter().map(|(_, reward)| reward).sum::<f64>() / count;
        let variance = all.iter().map(|(_, reward)| (reward - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt();
        let z_score = |reward: f64| if deviation > 1e-8 { (reward - mean) / deviation } else { 0.0 };
        let worth = |(valid, reward)| Worth { valid, reward, z_score: z_score(reward) };
        Some(all.into_iter().map(worth).collect())
    }

    /// The share of tests that each solution passes, and how many that are; `None`: there is no test to count.
    pub fn shares(&self, counted: Counted) -> Option<(Vec<f64>, usize)> {
        let tests = self.passed.first().map_or(0, Vec::len);
        let worth = self.written();
        let counts = |test: usize| match (test < self.given, counted) {
            (true, _) | (_, Counted::All) => true,
            (false, Counted::Given) => false,
            (false, Counted::Valid) => worth.as_ref().is_some_and(|worth| worth[test - self.given].valid),
        };
        let counting: Vec<usize> = (0..tests).filter(|test| counts(*test)).collect();
        if counting.is_empty() {
            return None;
        }
        let share = |row: &Vec<bool>| {
            counting.iter().filter(|test| row[**test]).count() as f64 / counting.len() as f64
        };
        Some((self.passed.iter().map(share).collect(), counting.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: &[&str], given: usize) -> Matrix {
        let row = |row: &&str| row.chars().map(|c| c == '1').collect();
        Matrix { passed: rows.iter().map(row).collect(), given }
    }

    fn worth(matrix: &Matrix) -> Option<Vec<(bool, f64)>> {
        Some(matrix.written()?.iter().map(|worth| (worth.valid, worth.reward)).collect())
    }

    #[test]
    fn a_written_test_is_worth_the_wrong_solutions_that_it_finds() {
        // Solutions 0 and 1 are right. Tests behind the bar: finds both wrong ones; finds one; finds none; refuses a right one
        // and passes both wrong ones; refuses a right one and passes none.
        let both = matrix(&["1111111", "1111100", "1001010", "0100110"], 2);
        let expect = vec![(true, 2.0), (true, 1.0), (true, 1.0), (false, -2.0), (false, 0.0)];
        assert_eq!(worth(&both), Some(expect));
        let z: f64 = both.written().unwrap().iter().map(|worth| worth.z_score).sum();
        assert!(z.abs() < 1e-12);
        assert_eq!(
            worth(&matrix(&["110", "111"], 1)),
            Some(vec![(true, 1.0), (false, -1.0)]),
            "no wrong solution"
        );
        assert_eq!(worth(&matrix(&["011", "011"], 1)), None, "no right solution");
        assert_eq!(worth(&matrix(&["11"], 0)), None, "no test of the task");
        assert_eq!(worth(&matrix(&["1"], 1)), Some(Vec::new()));
    }

    #[test]
    fn a_solution_is_worth_the_share_that_it_passes() {
        let matrix = matrix(&["1110", "1001"], 1);
        for (counted, shares, count) in [
            (Counted::All, vec![0.75, 0.5], 4),
            (Counted::Given, vec![1.0, 1.0], 1),
            // Both are right, so only the tests that both pass are valid.
            (Counted::Valid, vec![1.0, 1.0], 1),
        ] {
            assert_eq!(matrix.shares(counted), Some((shares, count)), "{counted:?}");
        }
        assert_eq!(Matrix { passed: vec![vec![]; 2], given: 0 }.shares(Counted::All), None);
    }
}
