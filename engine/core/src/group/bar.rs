//! Balanced adaptive rollouts (Orchard, Algorithm 1): a group whose share of positive rewards lies within bounds, chosen out of more
//! rollouts than it has places; these come in strides until it can be put together.
//!
//! Pure: [`GroupState`](super::GroupState) asks when all rollouts that were started have ended, and starts what is to come. So the choice
//! depends on how rollouts ended and on their places, never on the order in which they ended.

use super::MemberEnd;
use crate::ending::Status;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[groups.bar]` of an experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BarConfig {
    /// Most rollouts of a task, `N_max`. `groups.size` to 4096, default twice `groups.size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollouts_max: Option<u32>,
    /// Rollouts that are added when no group can be put together, `s`. 1 to 4096, default half of `groups.size`, rounded up. The first
    /// stride has at least `groups.size`; the last one ends at `rollouts_max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride: Option<u32>,
    /// Least share of rewards above 0, 0 to 1. Default 0.375.
    pub positive_min: f64,
    /// Largest share of rewards above 0, `positive_min` to 1. Default 0.625.
    pub positive_max: f64,
}

impl Default for BarConfig {
    fn default() -> Self {
        BarConfig { rollouts_max: None, stride: None, positive_min: 0.375, positive_max: 0.625 }
    }
}

/// So much a product of a share and a size may be off by rounding: 0.28 * 25 is above 7.
const ROUNDING: f64 = 1e-9;

impl BarConfig {
    /// `N_max` of groups of this size.
    pub fn rollouts_max(&self, size: u32) -> u32 {
        self.rollouts_max.unwrap_or(size.saturating_mul(2).min(4096))
    }

    /// `s` of groups of this size.
    pub fn stride(&self, size: u32) -> u32 {
        self.stride.unwrap_or(size.div_ceil(2))
    }

    /// Rollouts of the first stride: fewer than a group has places could never be one.
    pub fn first_stride(&self, size: u32) -> u32 {
        self.stride(size).max(size).min(self.rollouts_max(size))
    }

    /// Rollouts to be added to those there are; 0: no more may come.
    pub fn next_stride(&self, size: u32, there: u32) -> u32 {
        self.stride(size).min(self.rollouts_max(size).saturating_sub(there))
    }

    /// Rollouts that were started for sure when the one at this place was: whole strides.
    pub fn started_with(&self, size: u32, rollout_index: u32) -> u32 {
        let mut started = self.first_stride(size);
        while started <= rollout_index {
            match self.next_stride(size, started) {
                0 => return rollout_index + 1,
                next => started += next,
            }
        }
        started
    }

    /// Finds what the form alone cannot: the key with what is wrong with it.
    pub fn check(&self, size: u32) -> Result<(), (&'static str, String)> {
        let most = self.rollouts_max(size);
        if !(size..=4096).contains(&most) {
            return Err(("rollouts_max", format!("is {most}, expected {size} (groups.size) to 4096")));
        }
        if !(1..=4096).contains(&self.stride(size)) {
            return Err(("stride", format!("is {}, expected 1 to 4096", self.stride(size))));
        }
        if !(0.0..=1.0).contains(&self.positive_min) {
            return Err(("positive_min", format!("is {}, expected 0 to 1", self.positive_min)));
        }
        if !(self.positive_min..=1.0).contains(&self.positive_max) {
            let least = self.positive_min;
            return Err(("positive_max", format!("is {}, expected {least} to 1", self.positive_max)));
        }
        let shares = Shares::new(size, self.positive_min, self.positive_max);
        if shares.least > shares.most {
            let (least, most) = (self.positive_min, self.positive_max);
            let text = format!("is {most}: no number of {size} rollouts is a share from {least} to {most}");
            return Err(("positive_max", text));
        }
        Ok(())
    }

    /// Places of a group whose share of positive rewards lies within the bounds (`TryAssemble`), ascending; `None`: there is none.
    pub fn assemble(&self, size: u32, ends: &[(u32, MemberEnd)]) -> Option<Vec<u32>> {
        let shares = Shares::new(size, self.positive_min, self.positive_max);
        try_assemble(size, shares, ends)
    }

    /// Places of the best that can be had once no more rollouts come, ascending: with any share, as near as can be to the middle of the
    /// bounds; else the first of all (`TopRanked`). As many as the group has places, or all.
    pub fn fall_back(&self, size: u32, ends: &[(u32, MemberEnd)]) -> Vec<u32> {
        let any = Shares { least: 0, most: size, ..Shares::new(size, self.positive_min, self.positive_max) };
        try_assemble(size, any, ends).unwrap_or_else(|| {
            let mut ranked: Vec<&(u32, MemberEnd)> = ends.iter().collect();
            ranked.sort_by_key(|(index, end)| (class(end), rank(*index, end)));
            let mut places: Vec<u32> = ranked.iter().map(|(index, _)| *index).take(size as usize).collect();
            places.sort_unstable();
            places
        })
    }
}

/// How many of a group may be positive, and how many had best be.
#[derive(Clone, Copy)]
struct Shares {
    least: u32,
    most: u32,
    best: u32,
}

impl Shares {
    fn new(size: u32, least: f64, most: f64) -> Shares {
        let of = |share: f64| share * f64::from(size);
        let middle = of(f64::midpoint(least, most));
        Shares {
            least: (of(least) - ROUNDING).ceil().max(0.0) as u32,
            most: (of(most) + ROUNDING).floor() as u32,
            best: middle.round_ties_even() as u32,
        }
    }
}

/// What a rollout is to a group, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Positive,
    Negative,
    /// Aborted, or its time was over: only where nothing else is left.
    Backfill,
    /// Failed, unscored or removed: only to fill a place.
    Excluded,
}

fn class(end: &MemberEnd) -> Class {
    match (end.status, end.reward) {
        (Status::TimeExceeded | Status::Aborted, _) if !end.removed => Class::Backfill,
        (Status::Completed | Status::Truncated, Some(reward)) if reward > 0.0 => Class::Positive,
        (Status::Completed | Status::Truncated, Some(_)) => Class::Negative,
        _ => Class::Excluded,
    }
}

/// Within a class: by status, then the shorter one, then the earlier place.
fn rank(index: u32, end: &MemberEnd) -> (u8, u64, u32) {
    let status = match end.status {
        Status::Completed => 0,
        Status::Truncated => 1,
        Status::TimeExceeded => 2,
        Status::Aborted => 3,
        Status::Failed => 4,
    };
    (status, end.sampled, index)
}

fn try_assemble(size: u32, shares: Shares, ends: &[(u32, MemberEnd)]) -> Option<Vec<u32>> {
    let sorted = |wanted: Class| {
        let mut of: Vec<&(u32, MemberEnd)> = ends.iter().filter(|(_, end)| class(end) == wanted).collect();
        of.sort_by_key(|(index, end)| rank(*index, end));
        of.into_iter().map(|(index, _)| *index).collect::<Vec<u32>>()
    };
    let (positive, negative) = (sorted(Class::Positive), sorted(Class::Negative));
    let mut counts: Vec<u32> = (shares.least..=shares.most).collect();
    counts.sort_by_key(|count| (count.abs_diff(shares.best), *count));
    let fits = |count: &u32| *count as usize <= positive.len() && (size - count) as usize <= negative.len();
    let count = counts.into_iter().find(fits)?;
    let mut places = positive[..count as usize].to_vec();
    places.extend_from_slice(&negative[..(size - count) as usize]);
    places.sort_unstable();
    Some(places)
}
