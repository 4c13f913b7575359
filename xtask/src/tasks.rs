//! Task sets, made from installed packages or from a readable file: the same source and seed give the same bytes.

pub mod book;
pub mod draws;
pub mod plan;
pub mod shell;

use book::{Book, Recipe};
use draws::Draws;
use espalier_core::task::Task;
use espalier_textcraft::world::Game;
use serde_json::json;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

/// Most recipes sampled from the uses of one input, before they are joined; as in the original.
const USES_OF_ONE_INPUT_MAX: usize = 10;

/// Which TextCraft tasks to make.
#[derive(Clone, Debug)]
pub struct TextCraft {
    /// Draws distractors, their order, and which goals when not all are taken.
    pub seed: u64,
    /// Crafts from raw materials to the goal.
    pub depths: RangeInclusive<u32>,
    /// Most kinds of thing that the goal's own recipe asks for.
    pub inputs_max: usize,
    /// Commands shown that do not help.
    pub distractors: usize,
    /// Goals left out, such as those of worked examples.
    pub without: Vec<String>,
    /// Most tasks; all goals of these depths where there are fewer.
    pub count: usize,
}

impl TextCraft {
    /// The lines of a task file, easiest first. Each reference solution has been carried out in the task's world.
    pub fn lines(&self, book: &Book) -> Result<Vec<String>, String> {
        let suits = |goal: &&str| {
            self.depths.contains(&book.depth(goal))
                && book.makers(goal).any(|recipe| recipe.inputs.len() <= self.inputs_max)
                && !self.without.iter().any(|name| name == goal)
        };
        let goals: Vec<&str> = book.goals().into_iter().filter(suits).collect();
        let mut goals = Draws::new(self.seed, "goals").sample(&goals, self.count);
        goals.sort_by_key(|goal| book.depth(goal));
        goals.into_iter().map(|goal| self.line(book, goal)).collect()
    }

    /// Writes a task file, whole or not at all; returns how many tasks it has.
    pub fn write(&self, book: &Book, file: &Path) -> Result<usize, String> {
        let lines = self.lines(book)?;
        write_lines(&lines, file)?;
        Ok(lines.len())
    }

    fn line(&self, book: &Book, goal: &str) -> Result<String, String> {
        let mut draws = Draws::new(self.seed, goal);
        let needed = closure(book, goal);
        let mut commands: Vec<Recipe> = needed.clone();
        commands.extend(self.distract(book, &needed, &mut draws));
        draws.shuffle(&mut commands);

        let data = book.world(goal, &commands);
        let actions = plan::solve(book, goal);
        let mut world = Game::new(&data).map_err(|error| format!("{goal}: {error}"))?;
        let last = actions
            .iter()
            .map(|action| (action, world.step(action)))
            .find(|(_, step)| step.done || !step.accepted);
        match last {
            Some((action, step)) if step.done && Some(action) == actions.last() => {}
            other => return Err(format!("{goal}: the reference solution does not solve it: {other:?}")),
        }
        let line = json!({
            "id": format!("textcraft-{}", goal.replace(' ', "-")),
            "instruction": format!("Craft {goal}."),
            "environment": "textcraft",
            "tags": [format!("depth:{}", book.depth(goal))],
            "data": data,
            "private": { "reference": { "actions": actions } },
        })
        .to_string();
        Task::parse(&line).map_err(|error| format!("{goal}: {error}"))?;
        Ok(line)
    }

    /// Recipes that use what the goal uses and are of no use for it.
    fn distract(&self, book: &Book, needed: &[Recipe], draws: &mut Draws) -> Vec<Recipe> {
        let mut others: Vec<Recipe> = Vec::new();
        let inputs: BTreeSet<&str> =
            needed.iter().flat_map(|recipe| recipe.inputs.iter().map(|(input, _)| input.as_str())).collect();
        for input in inputs {
            let users: Vec<Recipe> = book.users(input).cloned().collect();
            for recipe in draws.sample(&users, USES_OF_ONE_INPUT_MAX) {
                if !needed.contains(&recipe) && !others.contains(&recipe) {
                    others.push(recipe);
                }
            }
        }
        draws.sample(&others, self.distractors)
    }
}

/// Writes a file of lines, whole or not at all.
fn write_lines(lines: &[String], file: &Path) -> Result<(), String> {
    let beside = file.with_extension("new");
    std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))
        .and_then(|()| std::fs::write(&beside, lines.join("\n") + "\n"))
        .and_then(|()| std::fs::rename(&beside, file))
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Every recipe on any way to the goal.
fn closure(book: &Book, goal: &str) -> Vec<Recipe> {
    let mut seen = BTreeSet::from([goal.to_owned()]);
    let mut open = vec![goal.to_owned()];
    let mut recipes: Vec<Recipe> = Vec::new();
    while let Some(name) = open.pop() {
        for recipe in book.makers(&name) {
            if recipes.contains(recipe) {
                continue;
            }
            recipes.push(recipe.clone());
            open.extend(
                recipe
                    .inputs
                    .iter()
                    .filter(|(input, _)| seen.insert(input.clone()))
                    .map(|(input, _)| input.clone()),
            );
        }
    }
    recipes
}
