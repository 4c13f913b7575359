//! `[tasks.curriculum]`: tasks by level, from easy to hard. Which level comes next follows from how many rollouts solved their task.
//!
//! The rule, exactly. A run begins at the first level. A group is worth the share of its rollouts with a reward that solved the task; one
//! without any reward is passed over. Groups are taken in the order of their index, each when it and all before it have closed, and only
//! those count that are of the present level. Once `window` of them have been taken since the level began, it is followed by the next
//! one when the mean of the last `window` is at least `above`, and by the one before when it is at most `below`. A group that opens gets
//! the next task of the present level; where that has none left, one of the nearest harder level, else of the nearest easier one. So
//! each pass takes every task once, in whatever order.
//!
//! Order of closing and clock play no part in what closed groups come to, so a run that was killed finds its level again in what its
//! store says. The thresholds are those by which RLAnything adapts tasks (0.8 and 0.2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// `[tasks.curriculum]` of an experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurriculumConfig {
    /// Levels, from easy to hard. A task is of the level that its `data.level` or one of its tags names.
    pub levels: Vec<String>,
    /// Groups that are averaged. 1 to 10,000, default 8.
    #[serde(default = "eight")]
    pub window: u32,
    /// The next level follows where at least this share of rollouts solved their task. Above 0, at most 1, default 0.8.
    #[serde(default = "four_fifths")]
    pub above: f64,
    /// The level before follows where at most this share did. 0 up to `above`. Default: it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
}

fn eight() -> u32 {
    8
}

fn four_fifths() -> f64 {
    0.8
}

impl CurriculumConfig {
    /// Finds what the form alone cannot: the key with what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let levels = &self.levels;
        let is_twice = |(place, level): (usize, &String)| levels[..place].contains(level);
        if levels.is_empty() || levels.iter().any(String::is_empty) || levels.iter().enumerate().any(is_twice)
        {
            return Err(("levels", format!("is {levels:?}, expected different names, from easy to hard")));
        }
        if !(1..=10_000).contains(&self.window) {
            return Err(("window", format!("is {}, expected 1 to 10000", self.window)));
        }
        if !(self.above > 0.0 && self.above <= 1.0) {
            return Err(("above", format!("is {}, expected a share above 0, at most 1", self.above)));
        }
        if let Some(below) = self.below.filter(|below| !(0.0..self.above).contains(below)) {
            return Err((
                "below",
                format!("is {below}, expected a share of 0 up to `above`, {}", self.above),
            ));
        }
        Ok(())
    }

    /// Place of a task's level, by its `data.level` or its tags. Errors: what it has instead.
    pub fn level_of(&self, level: Option<&str>, tags: &[String]) -> Result<usize, String> {
        let place = |name: &str| self.levels.iter().position(|level| level == name);
        let levels = self.levels.join(", ");
        match level {
            Some(level) => place(level).ok_or_else(|| format!("level {level:?}: expected one of {levels}")),
            None => tags
                .iter()
                .find_map(|tag| place(tag))
                .ok_or_else(|| format!("no level: expected one of {levels}")),
        }
    }
}

/// A group as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelledGroup {
    /// Place in the run.
    pub group_index: u64,
    /// Of its task.
    pub level: usize,
    /// `None`: it is open. Else the share of its rollouts that solved the task, where one has a reward.
    pub closed: Option<Option<f64>>,
}

/// Where a run stands.
#[derive(Clone, Debug)]
pub struct Curriculum {
    config: CurriculumConfig,
    level: usize,
    /// The group that is taken next.
    next: u64,
    /// Groups from there on that have opened.
    waiting: BTreeMap<u64, LevelledGroup>,
    /// Shares of the last groups of the present level, at most a window of them.
    taken: VecDeque<f64>,
}

impl Curriculum {
    /// After these groups; none of a new run.
    pub fn resume(config: CurriculumConfig, groups: impl IntoIterator<Item = LevelledGroup>) -> Curriculum {
        let waiting = groups.into_iter().map(|group| (group.group_index, group)).collect();
        let mut curriculum = Curriculum { config, level: 0, next: 0, waiting, taken: VecDeque::new() };
        curriculum.take();
        curriculum
    }

    /// Place of the present level.
    pub fn level(&self) -> usize {
        self.level
    }

    /// The level of the task that the next group gets, of those that have tasks left.
    pub fn pick(&self, has_tasks: impl Fn(usize) -> bool) -> Option<usize> {
        let harder = self.level..self.config.levels.len();
        harder.chain((0..self.level).rev()).find(|level| has_tasks(*level))
    }

    /// A group opens with a task of this level.
    pub fn open(&mut self, group_index: u64, level: usize) {
        self.waiting.insert(group_index, LevelledGroup { group_index, level, closed: None });
    }

    /// A group has closed; this share of its rollouts solved the task.
    pub fn close(&mut self, group_index: u64, solved: Option<f64>) {
        if let Some(group) = self.waiting.get_mut(&group_index) {
            group.closed = Some(solved);
            self.take();
        }
    }

    /// Takes what has closed. A group that a kill has left out is waited for.
    fn take(&mut self) {
        while let Some(LevelledGroup { level, closed: Some(solved), .. }) =
            self.waiting.get(&self.next).copied()
        {
            self.waiting.remove(&self.next);
            self.next += 1;
            if level == self.level {
                self.taken.extend(solved);
                self.follow();
            }
        }
    }

    fn follow(&mut self) {
        let window = self.config.window as usize;
        while self.taken.len() > window {
            self.taken.pop_front();
        }
        if self.taken.len() < window {
            return;
        }
        let mean = self.taken.iter().sum::<f64>() / window as f64;
        let level = if mean >= self.config.above && self.level + 1 < self.config.levels.len() {
            self.level + 1
        } else if self.config.below.is_some_and(|below| mean <= below) && self.level > 0 {
            self.level - 1
        } else {
            return;
        };
        self.level = level;
        self.taken.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(window: u32, below: Option<f64>) -> CurriculumConfig {
        let levels = ["easy", "medium", "hard"].map(str::to_owned).to_vec();
        CurriculumConfig { levels, window, above: 0.8, below }
    }

    /// Groups that open one after another with a task of the present level, each when the one before has closed; the level of each.
    fn play(curriculum: &mut Curriculum, from: u64, solved: &[Option<f64>]) -> Vec<usize> {
        let group = |(index, solved): (u64, &Option<f64>)| {
            let level = curriculum.level();
            curriculum.open(index, level);
            curriculum.close(index, *solved);
            level
        };
        (from..).zip(solved).map(group).collect()
    }

    #[test]
    fn a_level_lasts_until_enough_is_solved_and_comes_back_where_too_little_is() {
        let mut curriculum = Curriculum::resume(config(2, Some(0.2)), []);
        // 0.5, 0.75 and 0.75, 0.75 are too little; 0.75, 1 is 0.875.
        let solved = [0.5, 0.75, 0.75, 1.0, 0.0, 0.5, 0.25, 0.0].map(Some);
        // Medium: 0, 0.5 is above 0.2, 0.5, 0.25 too; 0.25, 0 is 0.125: back.
        assert_eq!(play(&mut curriculum, 0, &solved), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(curriculum.level(), 0);
        // A window of the level's own is needed; a group without a reward is passed over.
        assert_eq!(play(&mut curriculum, 8, &[Some(1.0), None, Some(0.6), Some(1.0)]), [0, 0, 0, 1]);
        assert_eq!(play(&mut curriculum, 12, &[Some(1.0), Some(1.0), Some(1.0)]), [1, 2, 2]);
        assert_eq!(curriculum.level(), 2, "the last level lasts");
        let mut easy = Curriculum::resume(config(1, Some(0.2)), []);
        assert_eq!(play(&mut easy, 0, &[Some(0.0); 3]), [0; 3], "there is nothing before the first");
        let mut once = Curriculum::resume(config(1, None), []);
        assert_eq!(play(&mut once, 0, &[Some(1.0), Some(0.0), Some(0.0)]), [0, 1, 1], "nothing leads back");
    }

    #[test]
    fn groups_count_by_their_index_and_only_those_of_the_level() {
        let mut curriculum = Curriculum::resume(config(2, None), []);
        for index in 0..6 {
            curriculum.open(index, 0);
        }
        for index in [3, 2, 1] {
            curriculum.close(index, Some(1.0));
        }
        assert_eq!(curriculum.level(), 0, "the first is open still");
        curriculum.close(0, Some(1.0));
        // 0 and 1 were enough; 2 and 3 are of the level before, and say nothing of the new one.
        assert_eq!(curriculum.level(), 1);
        curriculum.close(4, Some(1.0));
        curriculum.close(5, Some(1.0));
        assert_eq!(play(&mut curriculum, 6, &[Some(0.8), Some(0.8)]), [1, 1]);
        assert_eq!(curriculum.level(), 2);
    }

    #[test]
    fn where_a_level_has_no_task_left_the_nearest_harder_one_gives_it() {
        let mut curriculum = Curriculum::resume(config(1, None), []);
        let pick = |curriculum: &Curriculum, left: &[usize]| curriculum.pick(|level| left.contains(&level));
        assert_eq!(pick(&curriculum, &[0, 1, 2]), Some(0));
        assert_eq!(pick(&curriculum, &[1, 2]), Some(1));
        play(&mut curriculum, 0, &[Some(1.0)]);
        assert_eq!(pick(&curriculum, &[0, 1]), Some(1));
        assert_eq!(pick(&curriculum, &[0, 2]), Some(2));
        play(&mut curriculum, 1, &[Some(1.0)]);
        assert_eq!(pick(&curriculum, &[0, 1]), Some(1));
        assert_eq!(pick(&curriculum, &[]), None);
    }

    /// A run is killed after each event and resumed from what the store would say: it goes on as if it had not been.
    #[test]
    fn a_run_that_is_killed_anywhere_comes_to_the_same_level() {
        let config = config(2, Some(0.2));
        let mut whole = Curriculum::resume(config.clone(), []);
        let mut store: Vec<LevelledGroup> = Vec::new();
        let mut levels = Vec::new();
        // Two groups are open at a time; the later one closes first.
        let shares = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.25, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        for pair in (0..shares.len()).collect::<Vec<_>>().chunks(2) {
            for index in pair {
                let level = whole.level();
                assert_eq!(Curriculum::resume(config.clone(), store.iter().copied()).level(), level);
                whole.open(*index as u64, level);
                store.push(LevelledGroup { group_index: *index as u64, level, closed: None });
            }
            for index in pair.iter().rev() {
                whole.close(*index as u64, Some(shares[*index]));
                store[*index].closed = Some(Some(shares[*index]));
                let again = Curriculum::resume(config.clone(), store.iter().copied());
                assert_eq!(again.level(), whole.level(), "after group {index}: {again:?} {whole:?}");
                levels.push(whole.level());
            }
        }
        levels.dedup();
        assert_eq!(levels, [0, 1, 2, 1, 0, 1, 2], "{levels:?}");
        // What a kill has left out is waited for.
        store.remove(0);
        assert_eq!(Curriculum::resume(config, store).level(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        let check =
            |config: CurriculumConfig| config.check().map_err(|(key, problem)| format!("{key} {problem}"));
        assert_eq!(check(config(8, Some(0.2))), Ok(()));
        for levels in [&[][..], &["a", "a"], &[""]] {
            let levels: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
            let told = format!("levels is {levels:?}, expected different names, from easy to hard");
            assert_eq!(check(CurriculumConfig { levels, ..config(8, None) }), Err(told));
        }
        assert_eq!(check(config(0, None)), Err("window is 0, expected 1 to 10000".to_owned()));
        let told = Err("below is 0.8, expected a share of 0 up to `above`, 0.8".to_owned());
        assert_eq!(check(config(8, Some(0.8))), told);
        let told = Err("above is 0, expected a share above 0, at most 1".to_owned());
        assert_eq!(check(CurriculumConfig { above: 0.0, ..config(8, None) }), told);
        let level = |level, tags: &[&str]| {
            let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            config(8, None).level_of(level, &tags)
        };
        assert_eq!(level(Some("hard"), &["easy"]), Ok(2));
        assert_eq!(level(None, &["web", "medium"]), Ok(1));
        assert_eq!(
            level(Some("x"), &["easy"]),
            Err("level \"x\": expected one of easy, medium, hard".to_owned())
        );
        assert_eq!(level(None, &["web"]), Err("no level: expected one of easy, medium, hard".to_owned()));
    }
}
