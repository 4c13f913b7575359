//! Tasks of a file by level: which of a plan's places the next group takes, as `[tasks.curriculum]` says.

use super::plan::Plan;
use super::tasks::Slot;
use crate::scheduler::{Next, SourceFailed, TaskSource};
use async_trait::async_trait;
use espalier_core::curriculum::{Curriculum, CurriculumConfig, LevelledGroup};
use espalier_core::task::Task;
use espalier_store::{RunWriter, StoreError};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A plan whose tasks are taken by level.
#[derive(Debug)]
pub(super) struct Levels {
    plan: Arc<Plan>,
    config: CurriculumConfig,
    /// Level of each place of the plan.
    levels: Vec<usize>,
    /// Places by task and pass.
    places: HashMap<(String, u32), u64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    curriculum: Curriculum,
    /// Places that no group has, by level.
    left: Vec<BTreeSet<u64>>,
}

/// Gives the tasks of a plan by level.
pub(super) struct LevelledTasks(pub(super) Arc<Levels>);

#[async_trait]
impl TaskSource for LevelledTasks {
    type Task = Slot;

    async fn next(&mut self, group_index: u64) -> Result<Next<Slot>, SourceFailed> {
        Ok(self.0.take(group_index).into())
    }

    fn groups(&self) -> Option<u64> {
        Some(self.0.plan.available())
    }
}

impl Levels {
    /// Of a plan whose tasks all have a level. Errors: the task that has none, and why.
    pub(super) fn new(plan: Arc<Plan>, config: CurriculumConfig) -> Result<Levels, String> {
        let (mut levels, mut places) = (Vec::new(), HashMap::new());
        for place in 0..plan.available() {
            let Some(Slot { task, repeat, .. }) = plan.slot(place) else { break };
            levels.push(level_of(&config, &task).map_err(|why| format!("task {}: {why}", task.id))?);
            places.insert((task.id.as_str().to_owned(), repeat), place);
        }
        let state =
            Mutex::new(State { curriculum: Curriculum::resume(config.clone(), []), left: Vec::new() });
        let levels = Levels { plan, config, levels, places, state };
        *levels.state.lock() = levels.after(&[]);
        Ok(levels)
    }

    /// Goes on after what earlier sessions of the run have done.
    pub(super) async fn resume(&self, run: &RunWriter) -> Result<(), StoreError> {
        let solved = run.solved_shares(None).await?;
        let groups: Vec<(LevelledGroup, u64)> = (run.progress().await?.into_iter())
            .filter_map(|group| {
                let (group_index, opened) = (group.opened.group_index, group.opened);
                let place = *self.places.get(&(opened.task_id, opened.repeat))?;
                let closed = group.status.map(|_| solved.get(&group_index).copied());
                Some((LevelledGroup { group_index, level: self.levels[place as usize], closed }, place))
            })
            .collect();
        *self.state.lock() = self.after(&groups);
        Ok(())
    }

    /// After groups, each with its place in the plan.
    fn after(&self, groups: &[(LevelledGroup, u64)]) -> State {
        let mut left = vec![BTreeSet::new(); self.config.levels.len()];
        for (place, level) in (0..).zip(&self.levels) {
            left[*level].insert(place);
        }
        for (group, place) in groups {
            left[group.level].remove(place);
        }
        let curriculum = Curriculum::resume(self.config.clone(), groups.iter().map(|(group, _)| *group));
        State { curriculum, left }
    }

    /// The task of the next group. A pass is taken whole before the next one begins.
    fn take(&self, group_index: u64) -> Option<Slot> {
        let mut state = self.state.lock();
        let first = state.left.iter().filter_map(|left| left.first()).min().copied()?;
        let pass = self.pass(first);
        let first_of =
            |level: usize| state.left[level].first().filter(|place| self.pass(**place) == pass).copied();
        let level = state.curriculum.pick(|level| first_of(level).is_some())?;
        let place = first_of(level)?;
        state.left[level].remove(&place);
        state.curriculum.open(group_index, level);
        self.plan.slot(place)
    }

    /// Which pass a place is of; the reserve comes last.
    fn pass(&self, place: u64) -> u64 {
        place.min(self.plan.wanted()) / self.plan.tasks().max(1)
    }

    /// What a group of an earlier session is about.
    pub(super) fn again(&self, task_id: &str, repeat: u32) -> Option<Slot> {
        self.plan.slot(*self.places.get(&(task_id.to_owned(), repeat))?)
    }

    /// A group has closed.
    pub(super) async fn closed(&self, run: &RunWriter, group_index: u64) -> Result<(), StoreError> {
        let solved = run.solved_shares(Some(group_index)).await?;
        self.state.lock().curriculum.close(group_index, solved.get(&group_index).copied());
        Ok(())
    }
}

fn level_of(config: &CurriculumConfig, task: &Task) -> Result<usize, String> {
    let data: serde_json::Value = serde_json::from_str(task.data_json()).unwrap_or_default();
    config.level_of(data["level"].as_str(), &task.tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tasks::Provided;
    use espalier_core::limits::LimitsFile;

    /// Places `e0`, `m0`, `e1`, `m1`, `e2` with their levels; the last is a reserve.
    fn levels(passes: u32) -> Levels {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.jsonl");
        let line = |id: &str, level: &str| {
            format!("{{\"id\":\"{id}\",\"instruction\":\"x\",\"data\":{{\"level\":\"{level}\"}}}}\n")
        };
        let lines = [("e0", "easy"), ("m0", "medium"), ("e1", "easy"), ("m1", "medium"), ("e2", "easy")];
        std::fs::write(&path, lines.map(|(id, level)| line(id, level)).concat()).unwrap();
        let tasks = toml::from_str(&format!("limit = 4\nrepeat = {passes}")).unwrap();
        let plan = Plan::read(&path, &tasks, &LimitsFile::default(), 7, false, &Provided::default()).unwrap();
        let config = toml::from_str("levels = [\"easy\", \"medium\"]\nwindow = 1").unwrap();
        Levels::new(Arc::new(plan), config).unwrap()
    }

    fn play(levels: &Levels, solved: &[f64]) -> Vec<String> {
        let mut taken = Vec::new();
        for index in 0.. {
            let Some(slot) = levels.take(index) else { break };
            taken.push(format!("{}/{}", slot.task.id, slot.repeat));
            let share = solved.get(index as usize).copied();
            levels.state.lock().curriculum.close(index, share);
        }
        taken
    }

    #[test]
    fn each_pass_takes_every_task_once_and_the_reserve_comes_last() {
        // Nothing is solved: the easy ones first.
        assert_eq!(
            play(&levels(2), &[0.0; 9]),
            ["e0/0", "e1/0", "m0/0", "m1/0", "e0/1", "e1/1", "m0/1", "m1/1", "e2/0"]
        );
        // The first is: the others of its level are left for the end of the pass.
        assert_eq!(
            play(&levels(2), &[1.0, 0.0]),
            ["e0/0", "m0/0", "m1/0", "e1/0", "m0/1", "m1/1", "e0/1", "e1/1", "e2/0"]
        );
    }

    #[test]
    fn a_resumed_run_takes_what_is_left_at_its_level() {
        let whole = levels(1);
        let mut store = Vec::new();
        for index in 0..4 {
            let again = levels(1);
            *again.state.lock() = again.after(&store);
            let (slot, same) = (whole.take(index).unwrap(), again.take(index).unwrap());
            assert_eq!(slot.task.id, same.task.id, "group {index}");
            let place = whole.places[&(slot.task.id.to_string(), slot.repeat)];
            let level = whole.levels[place as usize];
            whole.state.lock().curriculum.close(index, Some(1.0));
            store.push((LevelledGroup { group_index: index, level, closed: Some(Some(1.0)) }, place));
            assert_eq!(whole.again(slot.task.id.as_str(), 0).unwrap().task.id, slot.task.id);
        }
    }

    #[test]
    fn a_task_without_a_level_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.jsonl");
        std::fs::write(&path, "{\"id\":\"t0\",\"instruction\":\"x\",\"tags\":[\"hard\"]}\n").unwrap();
        let tasks = toml::from_str("").unwrap();
        let plan = Plan::read(&path, &tasks, &LimitsFile::default(), 7, false, &Provided::default()).unwrap();
        let config = toml::from_str("levels = [\"easy\", \"medium\"]").unwrap();
        let why = Levels::new(Arc::new(plan), config).unwrap_err();
        assert_eq!(why, "task t0: no level: expected one of easy, medium");
    }
}
