//! Which rollouts are compared, and what comes of it.

use std::fmt;

/// Two rollouts, by their places in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Named first.
    pub first: usize,
    /// Named second.
    pub second: usize,
}

/// What a rollout has won.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Comparisons that count.
    pub counted: u32,
    /// Of these, those that it won; a tie is half of one.
    pub won: f64,
    /// Comparisons about which nothing was said.
    pub unparsed: u32,
}

/// Every pair once; with `opponents`, each rollout and so many of those behind it, the first following upon the last.
pub fn of(rollouts: usize, opponents: Option<u32>) -> Vec<Pair> {
    let most = rollouts.saturating_sub(1);
    let behind = opponents.map_or(most, |count| (count as usize).min(most));
    let mut pairs: Vec<Pair> = Vec::new();
    for distance in 1..=behind {
        for first in 0..rollouts {
            let pair = Pair { first, second: (first + distance) % rollouts };
            if !pairs.contains(&Pair { first: pair.second, second: pair.first }) {
                pairs.push(pair);
            }
        }
    }
    pairs
}

impl Pair {
    /// Counts a comparison of which `share` was for the first; `None`: nothing was said.
    pub fn count(self, share: Option<f64>, tallies: &mut [Tally]) {
        for (place, won) in [(self.first, share), (self.second, share.map(|share| 1.0 - share))] {
            let tally = &mut tallies[place];
            match won {
                Some(won) => {
                    tally.counted += 1;
                    tally.won += won;
                }
                None => tally.unparsed += 1,
            }
        }
    }
}

impl Tally {
    /// The share that was won; `None`: no comparison counts.
    pub fn share(&self) -> Option<f64> {
        (self.counted > 0).then(|| self.won / f64::from(self.counted))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "won {} of {} comparisons", self.won, self.counted)?;
        match self.unparsed {
            0 => Ok(()),
            unparsed => write!(f, ", {unparsed} without a verdict"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_there_once() {
        let told = |rollouts, opponents| -> Vec<(usize, usize)> {
            of(rollouts, opponents).iter().map(|pair| (pair.first, pair.second)).collect()
        };
        assert_eq!(told(2, None), [(0, 1)]);
        assert_eq!(told(3, None), [(0, 1), (1, 2), (2, 0)]);
        assert_eq!(told(4, None), [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]);
        assert_eq!(told(4, Some(1)), [(0, 1), (1, 2), (2, 3), (3, 0)]);
        assert_eq!(told(4, Some(9)).len(), 6);
        for rollouts in 2..9 {
            assert_eq!(told(rollouts, None).len(), rollouts * (rollouts - 1) / 2);
        }
    }

    #[test]
    fn a_tie_is_half_and_what_says_nothing_does_not_count() {
        let mut tallies = vec![Tally::default(); 3];
        Pair { first: 0, second: 1 }.count(Some(1.0), &mut tallies);
        Pair { first: 1, second: 2 }.count(Some(0.5), &mut tallies);
        Pair { first: 2, second: 0 }.count(None, &mut tallies);
        let shares: Vec<_> = tallies.iter().map(Tally::share).collect();
        assert_eq!(shares, [Some(1.0), Some(0.25), Some(0.5)]);
        assert_eq!(tallies[0].to_string(), "won 1 of 1 comparisons, 1 without a verdict");
        assert_eq!(Tally::default().share(), None);
    }
}
