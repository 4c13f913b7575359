//! The circuit breaker: stops a run whose plugin fails again and again in the same way, as a pure machine.
//!
//! A streak is one way of one component to fail ([`crate::plugin_failure::Signature`]). It grows with each attempt that ends
//! so, ends with the first attempt in which the same export of the same component does its work, and trips the breaker when
//! it is long enough over enough tasks. Only defects count ([`PluginFailure::is_defect`]).
//!
//! A streak that is long enough, but over too few tasks, is *suspected*: rollouts of the groups that it has met are held
//! back, so that other groups decide whether the plugin or their task is at fault.

use crate::plugin_failure::{PluginFailure, Signature};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Fewest tasks over which a streak trips the breaker, where the run has as many.
pub const TASKS_MIN: u64 = 4;
/// Streaks that are kept; beyond, the one that has not grown for longest is forgotten.
const STREAKS_MAX: usize = 256;

/// What the plugins did in one attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginReport {
    /// How they failed.
    pub failures: Vec<PluginFailure>,
    /// Exports that did their work, as digest and export.
    pub served: Vec<(String, String)>,
}

impl PluginReport {
    /// Notes that an export did its work.
    pub fn serve(&mut self, digest: &str, export: &str) {
        self.served.push((digest.to_owned(), export.to_owned()));
    }
}

/// A breaker that has tripped.
#[derive(Clone, Debug, PartialEq)]
pub struct Tripped {
    /// As it was met first.
    pub failure: PluginFailure,
    /// How often in a row.
    pub failures: u64,
    /// Over how many tasks, counted up to [`TASKS_MIN`].
    pub tasks: u64,
}

impl fmt::Display for Tripped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n| if n == 1 { "" } else { "s" };
        write!(
            f,
            "{} times in a row, over {} task{}: {}",
            self.failures,
            self.tasks,
            plural(self.tasks),
            self.failure
        )
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Breaker {
    failures_max: u64,
    tasks_min: u64,
    attempts: u64,
    streaks: BTreeMap<Signature, Streak>,
}

#[derive(Clone, Debug)]
struct Streak {
    first: PluginFailure,
    failures: u64,
    /// At most as many as are needed.
    tasks: BTreeSet<String>,
    groups: BTreeSet<u64>,
    /// The attempt that it grew with last.
    grown: u64,
}

impl Breaker {
    /// Trips at `failures_max` failures in a row (0: never), over `tasks` tasks or [`TASKS_MIN`] of them.
    pub fn new(failures_max: u32, tasks: u64) -> Breaker {
        Breaker {
            failures_max: failures_max.into(),
            tasks_min: tasks.clamp(1, TASKS_MIN),
            attempts: 0,
            streaks: BTreeMap::new(),
        }
    }

    /// Takes what the plugins did in an attempt at a rollout of this group and task. An export that failed in an attempt has
    /// not done its work in it.
    pub fn on(&mut self, group_index: u64, task: &str, report: &PluginReport) -> Option<Tripped> {
        if self.failures_max == 0 {
            return None;
        }
        self.attempts += 1;
        for (digest, export) in &report.served {
            let is_of = |of: &str, name: &str| of == digest && name == export;
            if !report.failures.iter().any(|failure| is_of(&failure.digest, &failure.export)) {
                self.streaks.retain(|way, _| !is_of(&way.digest, &way.export));
            }
        }
        let mut tripped = None;
        let ways: BTreeMap<Signature, &PluginFailure> = (report.failures.iter())
            .filter(|failure| failure.is_defect())
            .map(|failure| (failure.signature(), failure))
            .collect();
        for (way, failure) in ways {
            let streak = self.streaks.entry(way).or_insert_with(|| Streak {
                first: failure.clone(),
                failures: 0,
                tasks: BTreeSet::new(),
                groups: BTreeSet::new(),
                grown: 0,
            });
            streak.failures += 1;
            streak.grown = self.attempts;
            streak.groups.insert(group_index);
            if (streak.tasks.len() as u64) < self.tasks_min {
                streak.tasks.insert(task.to_owned());
            }
            let tasks = streak.tasks.len() as u64;
            if streak.failures >= self.failures_max && tasks >= self.tasks_min {
                let (failure, failures) = (streak.first.clone(), streak.failures);
                tripped.get_or_insert(Tripped { failure, failures, tasks });
            }
        }
        if self.streaks.len() > STREAKS_MAX {
            let oldest = self.streaks.iter().min_by_key(|(_, streak)| streak.grown);
            if let Some(way) = oldest.map(|(way, _)| way.clone()) {
                self.streaks.remove(&way);
            }
        }
        tripped
    }

    /// Whether a streak is suspected: [`Breaker::holds`] may hold some group.
    pub fn suspects(&self) -> bool {
        self.suspected().next().is_some()
    }

    /// Whether rollouts of this group wait until another group has decided a suspected streak.
    pub fn holds(&self, group_index: u64) -> bool {
        self.suspected().any(|streak| streak.groups.contains(&group_index))
    }

    fn suspected(&self) -> impl Iterator<Item = &Streak> {
        let long = self.failures_max.max(1);
        self.streaks.values().filter(move |streak| streak.failures >= long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_failure::PluginFailureClass as Class;

    const MAX: u32 = 4;

    fn failure(digest: &str, class: Class, place: &str) -> PluginFailure {
        PluginFailure {
            world: "reward".into(),
            plugin: "brevity".into(),
            digest: digest.into(),
            export: "score".into(),
            class,
            place: Some(place.into()),
            message: "no".into(),
            excused: false,
        }
    }

    /// What one attempt reports.
    #[derive(Clone, Copy, Debug)]
    enum Said {
        /// The defect that trips.
        Panic,
        /// The same, behind a limit.
        Excused,
        Elsewhere,
        OtherDigest,
        Invalid,
        Of(Class),
        /// The export did its work.
        Works,
        /// Another export of the component did, or the same of another component.
        OthersWork,
        /// It did its work, then panicked in the same attempt.
        WorksThenPanics,
        /// Both ways in one attempt.
        Twice,
        Nothing,
    }

    fn report(said: Said) -> PluginReport {
        let panic = || failure("d", Class::Panic, "a:1");
        let (failures, served): (Vec<PluginFailure>, Vec<(&str, &str)>) = match said {
            Said::Panic => (vec![panic()], vec![]),
            Said::Excused => (vec![PluginFailure { excused: true, ..panic() }], vec![]),
            Said::Elsewhere => (vec![failure("d", Class::Panic, "b:2")], vec![]),
            Said::OtherDigest => (vec![failure("e", Class::Panic, "a:1")], vec![]),
            Said::Invalid => (vec![failure("d", Class::InvalidData, "a:1")], vec![]),
            Said::Of(class) => (vec![failure("d", class, "a:1")], vec![]),
            Said::Works => (vec![], vec![("d", "score")]),
            Said::OthersWork => (vec![], vec![("d", "other"), ("e", "score")]),
            Said::WorksThenPanics => (vec![panic()], vec![("d", "score")]),
            Said::Twice => (vec![panic(), panic()], vec![]),
            Said::Nothing => (vec![], vec![]),
        };
        let served = served.into_iter().map(|(digest, export)| (digest.into(), export.into())).collect();
        PluginReport { failures, served }
    }

    /// Attempts as `(task, what it reports)`; `trips` is the place of the one that trips, if any does.
    fn play(max: u32, tasks: u64, attempts: &[(u64, Said)], trips: Option<usize>) -> Breaker {
        let mut breaker = Breaker::new(max, tasks);
        for (place, (task, said)) in attempts.iter().enumerate() {
            let tripped = breaker.on(*task, &format!("t{task}"), &report(*said));
            assert_eq!(tripped.is_some(), trips == Some(place), "attempt {place} of {attempts:?}");
            if tripped.is_some() {
                break;
            }
        }
        breaker
    }

    #[test]
    fn each_course_of_attempts_trips_where_it_should() {
        use Said::{
            Elsewhere, Excused, Invalid, Nothing, Of, OtherDigest, OthersWork, Panic, Twice, Works,
            WorksThenPanics,
        };
        type Case<'a> = (&'a str, u32, u64, &'a [(u64, Said)], Option<usize>);
        let spread = [(0, Panic), (1, Panic), (2, Panic), (3, Panic)];
        let cases: [Case<'_>; 17] = [
            ("so many over so many tasks", MAX, 9, &spread, Some(3)),
            ("one too few", 5, 9, &spread, None),
            ("0 is off", 0, 9, &spread, None),
            ("long, but of three tasks", MAX, 9, &[(0, Panic), (0, Panic), (1, Panic), (2, Panic)], None),
            (
                "long, then the fourth task",
                MAX,
                9,
                &[(0, Panic), (0, Panic), (1, Panic), (2, Panic), (2, Panic), (3, Panic)],
                Some(5),
            ),
            ("a run of two tasks", MAX, 2, &[(0, Panic), (0, Panic), (0, Panic), (1, Panic)], Some(3)),
            ("a run of one task", MAX, 1, &[(0, Panic); 4], Some(3)),
            (
                "a success in between",
                MAX,
                1,
                &[(0, Panic), (0, Panic), (0, Works), (0, Panic), (0, Panic)],
                None,
            ),
            (
                "successes of others",
                MAX,
                1,
                &[(0, Panic), (0, OthersWork), (0, Panic), (0, Panic), (0, Panic)],
                Some(4),
            ),
            (
                "attempts that say nothing",
                MAX,
                1,
                &[(0, Panic), (0, Panic), (0, Nothing), (0, Panic), (0, Panic)],
                Some(4),
            ),
            ("work, then a panic, is not a success", MAX, 1, &[(0, WorksThenPanics); 4], Some(3)),
            ("twice in one attempt is once", MAX, 1, &[(0, Twice), (0, Twice), (0, Twice)], None),
            ("behind a limit", MAX, 1, &[(0, Excused); 9], None),
            (
                "four ways are not one",
                MAX,
                1,
                &[(0, Panic), (0, Elsewhere), (0, OtherDigest), (0, Invalid), (0, Panic), (0, Panic)],
                None,
            ),
            (
                "another way in between is not a success",
                MAX,
                1,
                &[
                    (0, Panic),
                    (0, Elsewhere),
                    (0, Panic),
                    (0, Elsewhere),
                    (0, Panic),
                    (0, Elsewhere),
                    (0, Panic),
                ],
                Some(6),
            ),
            ("invalid data counts", MAX, 1, &[(0, Invalid); 4], Some(3)),
            ("limits never do", MAX, 1, &[(0, Of(Class::Memory)); 9], None),
        ];
        for (name, max, tasks, attempts, trips) in cases {
            println!("{name}");
            play(max, tasks, attempts, trips);
        }
        use Class::{BudgetIgnored, Cpu, Host, Returned, Stack, Stopped, Wall};
        for class in [Returned, Cpu, Stack, BudgetIgnored, Wall, Stopped, Host] {
            play(MAX, 1, &[(0, Of(class)); 20], None);
        }
    }

    #[test]
    fn a_suspected_streak_holds_the_groups_it_has_met_until_it_is_decided() {
        use Said::{Panic, Works};
        let met = |breaker: &Breaker| (0..4).filter(|group| breaker.holds(*group)).collect::<Vec<_>>();
        let mut breaker = play(MAX, 9, &[(0, Panic), (0, Panic), (1, Panic)], None);
        assert!(!breaker.suspects() && met(&breaker).is_empty());
        breaker.on(1, "t1", &report(Panic));
        assert!(breaker.suspects());
        assert_eq!(met(&breaker), [0, 1]);
        breaker.on(2, "t2", &report(Panic));
        assert_eq!(met(&breaker), [0, 1, 2]);
        breaker.on(3, "t3", &report(Works));
        assert!(!breaker.suspects() && met(&breaker).is_empty());
    }

    #[test]
    fn the_first_failure_is_told_whole_and_streaks_are_bounded() {
        let mut breaker = Breaker::new(1_000, 1);
        for n in 0..10_000u64 {
            let failure = failure("d", Class::Panic, &format!("f:{n}"));
            assert!(breaker.on(n, "t", &PluginReport { failures: vec![failure], served: vec![] }).is_none());
        }
        assert_eq!(breaker.streaks.len(), STREAKS_MAX);
        let mut breaker = Breaker::new(2, 1);
        breaker.on(0, "t", &report(Said::Panic));
        let tripped = breaker.on(0, "t", &report(Said::Panic)).unwrap();
        assert_eq!(tripped.to_string(), "2 times in a row, over 1 task: reward brevity panicked at a:1: no");
    }
}
