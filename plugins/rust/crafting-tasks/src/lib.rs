//! The task generator `crafting-tasks`: crafting goals for the environment `textcraft`, of a depth that follows how earlier ones went.
//!
//! The recipes are those of the settings, or invented for each task ([`book`]). Every task has a reference: the actions that make its
//! goal.

pub mod book;

use book::{Book, Draws};
use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::serde_json::{Value, json};
use espalier_sdk::{Failure, Request, Statistics, invalid, random_below};

/// What tasks are made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// Recipes as the environment has them, `craft 4 oak planks using 1 oak logs`. Default: each task has recipes of its own invention.
    pub recipes: Vec<String>,
    /// Least number of recipes, one upon another, that a new task needs.
    #[schemars(range(min = 1, max = 12))]
    pub depth_min: u32,
    /// The most that a new task needs.
    #[schemars(range(min = 1, max = 12))]
    pub depth_max: u32,
    /// The most that an adapted task needs.
    #[schemars(range(min = 1, max = 12))]
    pub depth_limit: u32,
    /// Recipes of a task that its goal does not need.
    #[schemars(range(max = 100))]
    pub distractors: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { recipes: Vec::new(), depth_min: 1, depth_max: 2, depth_limit: 6, distractors: 3 }
    }
}

impl Settings {
    fn book(&self, depth: u32, draws: &mut dyn Draws) -> Result<Book, String> {
        match self.recipes.is_empty() {
            true => Ok(Book::invented(depth, self.distractors, draws)),
            false => Book::of(&self.recipes),
        }
    }

    /// A task of this depth, or of the nearest that the recipes have.
    pub fn task(&self, id: &str, depth: u32, draws: &mut dyn Draws) -> Result<Value, String> {
        let book = self.book(depth, draws)?;
        let goal =
            book.goal(depth, draws).ok_or("no recipe of the settings makes anything out of raw materials")?;
        let depth = book.depth(&goal).unwrap_or(depth);
        let mut needed = book.needed(&goal);
        book.add_distractors(&mut needed, self.distractors as usize, draws);
        let commands: Vec<String> = needed.iter().map(|place| book.recipes[*place].to_string()).collect();
        Ok(json!({
            "id": id,
            "instruction": format!("Craft {goal}."),
            "environment": "textcraft",
            "tags": [format!("depth:{depth}")],
            "data": { "goal": goal, "commands": commands, "raw": book.raw(&needed) },
            "private": { "reference": { "actions": book.plan(&goal) } },
        }))
    }
}

/// The engine's random numbers.
struct HostDraws;

impl Draws for HostDraws {
    fn below(&mut self, bound: u64) -> u64 {
        random_below(bound).unwrap_or_default()
    }
}

/// Makes tasks.
pub fn generate(request: Request, settings: Settings) -> Result<Vec<Value>, Failure> {
    if settings.depth_min > settings.depth_max {
        let Settings { depth_min, depth_max, .. } = settings;
        return Err(invalid(format_args!("settings: depth_min {depth_min} is over depth_max {depth_max}")));
    }
    let mut tasks = Vec::new();
    for place in 0..request.count {
        let range = u64::from(settings.depth_max - settings.depth_min + 1);
        let depth = settings.depth_min + HostDraws.below(range) as u32;
        let id = format!("craft-{}-{place}", request.seed);
        tasks.push(settings.task(&id, depth, &mut HostDraws).map_err(invalid)?);
    }
    Ok(tasks)
}

/// One step harder where most rollouts solved it, easier where most did not.
pub fn adapt(task: Value, statistics: Statistics, settings: Settings) -> Result<Vec<Value>, Failure> {
    let tags = task["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let depth = tags.filter_map(|tag| tag.strip_prefix("depth:")?.parse::<u32>().ok()).next();
    let Some(depth) = depth else { return Ok(Vec::new()) };
    let next = next_depth(depth, statistics.accuracy, settings.depth_limit);
    if next == depth {
        return Ok(Vec::new());
    }
    let id = format!("{}-d{next}", task["id"].as_str().unwrap_or("craft"));
    let made = settings.task(&id, next, &mut HostDraws).map_err(invalid)?;
    // Recipes of the settings may have nothing at that depth.
    let differs = made["tags"] != task["tags"];
    Ok(differs.then_some(made).into_iter().collect())
}

fn next_depth(depth: u32, accuracy: f64, limit: u32) -> u32 {
    let next = if accuracy > 0.5 { depth + 1 } else { depth.saturating_sub(1) };
    next.clamp(1, limit.max(1))
}

espalier_sdk::task_generator!(Settings, generate, adapt);

#[cfg(test)]
mod tests {
    use super::*;
    use book::Seeded;

    #[test]
    fn a_task_names_what_it_takes_and_how_it_is_done() {
        let recipes = [
            "craft 4 oak planks using 1 oak logs",
            "craft 4 stick using 2 oak planks",
            "craft 1 torch using 1 stick, 1 coal",
        ];
        let settings =
            Settings { recipes: recipes.map(str::to_owned).into(), distractors: 0, ..Settings::default() };
        let task = settings.task("t", 3, &mut Seeded(0)).unwrap();
        assert_eq!(task["tags"][0], "depth:3");
        assert_eq!(task["data"]["goal"], "torch");
        assert_eq!(task["data"]["raw"], json!(["coal", "oak logs"]));
        let actions = ["get 1 oak logs", recipes[0], recipes[1], "get 1 coal", recipes[2]];
        assert_eq!(task["private"]["reference"]["actions"], json!(actions));
    }

    #[test]
    fn an_adapted_task_is_one_step_harder_or_easier_within_the_bounds() {
        for (depth, accuracy, next) in [(2, 1.0, 3), (2, 0.0, 1), (1, 0.0, 1), (6, 1.0, 6)] {
            assert_eq!(next_depth(depth, accuracy, 6), next, "{depth} at {accuracy}");
        }
    }
}
