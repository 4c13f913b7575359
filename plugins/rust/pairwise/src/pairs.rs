//! Which rollouts are compared, and what comes of it.

use espalier_sdk::cut;
use std::fmt;

/// Two rollouts, by their places in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Named first.
    pub first: usize,
    /// Named second.
    pub second: usize,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    /// The share that was for the first.
    Share(f64),
    /// A tie that the model was not asked about: the answers are equal, or there are none.
    Equal,
    /// Answers of the model without a verdict.
    Nothing,
    /// The answers differ only in what the model is not shown, so that it was not asked.
    Hidden,
}

/// What is known of a pair before the model is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// It is not asked.
    Said(Said),
    /// It is asked about these texts.
    Ask(String, String),
}

/// What a rollout has won.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Comparisons that count.
    pub counted: u32,
    /// Of these, those that it won; a tie is half of one.
    pub won: f64,
    /// Of those that count, ties of equal answers.
    pub equal: u32,
    /// Comparisons about which nothing was said.
    pub unparsed: u32,
    /// Comparisons of answers that differ only in what is not shown.
    pub hidden: u32,
}

/// Two answers, whole, of which the model is shown at most `most` characters each. One that is there wins.
pub fn known(first: Option<&str>, second: Option<&str>, most: usize) -> Known {
    let (first, second) = match (first, second) {
        (Some(first), Some(second)) if first != second => (cut(first, most), cut(second, most)),
        (Some(_), None) => return Known::Said(Said::Share(1.0)),
        (None, Some(_)) => return Known::Said(Said::Share(0.0)),
        _ => return Known::Said(Said::Equal),
    };
    if first == second { Known::Said(Said::Hidden) } else { Known::Ask(first, second) }
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
    /// Counts a comparison for both.
    pub fn count(self, said: Said, tallies: &mut [Tally]) {
        for place in [self.first, self.second] {
            let tally = &mut tallies[place];
            match said {
                Said::Share(share) => {
                    tally.counted += 1;
                    tally.won += if place == self.first { share } else { 1.0 - share };
                }
                Said::Equal => {
                    tally.counted += 1;
                    tally.won += 0.5;
                    tally.equal += 1;
                }
                Said::Nothing => tally.unparsed += 1,
                Said::Hidden => tally.hidden += 1,
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
        for (count, what) in [
            (self.equal, "tied unasked, as the answers are equal"),
            (self.unparsed, "without a verdict"),
            (self.hidden, "unasked, as the answers differ only in what `text_max` leaves out"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
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
        Pair { first: 0, second: 1 }.count(Said::Share(1.0), &mut tallies);
        Pair { first: 1, second: 2 }.count(Said::Equal, &mut tallies);
        Pair { first: 2, second: 0 }.count(Said::Nothing, &mut tallies);
        Pair { first: 2, second: 1 }.count(Said::Hidden, &mut tallies);
        let shares: Vec<_> = tallies.iter().map(Tally::share).collect();
        assert_eq!(shares, [Some(1.0), Some(0.25), Some(0.5)]);
        assert_eq!(tallies[0].to_string(), "won 1 of 1 comparisons, 1 without a verdict");
        let told = "won 0.5 of 2 comparisons, 1 tied unasked, as the answers are equal, 1 unasked, as the answers differ only in what \
                    `text_max` leaves out";
        assert_eq!(tallies[1].to_string(), told);
        assert_eq!(Tally::default().share(), None);
    }

    #[test]
    fn whole_answers_are_compared_before_the_model_is_asked() {
        let long = |middle: &str| format!("{}{middle}{}", "x".repeat(5000), "x".repeat(5000));
        let (right, wrong, longer) = (long("right"), long("wrong"), long("longer"));
        let said = |first, second| match known(first, second, 8000) {
            Known::Said(said) => Some(said),
            Known::Ask(..) => None,
        };
        for (first, second, expect) in [
            (None, None, Some(Said::Equal)),
            (Some("a"), None, Some(Said::Share(1.0))),
            (None, Some("a"), Some(Said::Share(0.0))),
            (Some("a"), Some("a"), Some(Said::Equal)),
            (Some(&*right), Some(&*right), Some(Said::Equal)),
            (Some(&*right), Some(&*wrong), Some(Said::Hidden)),
            (Some(&*right), Some(&*longer), None),
            (Some("a"), Some("b"), None),
        ] {
            assert_eq!(said(first, second), expect, "{first:?} {second:?}");
        }
    }
}
