//! The world that is played: recipes, what can be got, what is carried, and the answer to each action.

use crate::action::{Action, Amount, strip};
use crate::task::TaskData;
use std::collections::{BTreeMap, BTreeSet};

/// Written in front of an item's name in some answers.
const NAMESPACE: &str = "minecraft:";

/// One episode.
#[derive(Clone, Debug)]
pub struct Game {
    goal: String,
    /// By output, in the order of the commands: the first that fits is carried out.
    recipes: BTreeMap<String, Vec<Recipe>>,
    raw: BTreeSet<String>,
    tags: BTreeSet<String>,
    /// The tag of an item.
    tag_of: BTreeMap<String, String>,
    /// In the order in which items were first got; no item stands here twice.
    carried: Vec<(String, u128)>,
}

#[derive(Clone, Debug)]
struct Recipe {
    output_count: u128,
    /// Each: an item or a tag, and exactly how many of it.
    inputs: Vec<(String, u128)>,
}

/// What one action led to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What the agent sees.
    pub observation: String,
    /// 1 when the goal was made, else 0.
    pub reward: f64,
    /// Whether the goal was made.
    pub done: bool,
    /// Whether the action did anything; for the count of refused actions.
    pub accepted: bool,
}

impl Game {
    /// The first state of a task. Errors name the command that is not a recipe, or the tag that clashes.
    pub fn new(task: &TaskData) -> Result<Game, String> {
        let id = |name: &str| name.replace(' ', "_");
        let tags: BTreeSet<String> = task.tags.keys().map(|tag| id(tag)).collect();
        let mut tag_of = BTreeMap::new();
        for (tag, members) in &task.tags {
            for member in members {
                if let Some(other) = tag_of.insert(id(member), id(tag)) {
                    return Err(format!("`{member}` has the tags `{other}` and `{tag}`"));
                }
            }
        }
        let mut recipes: BTreeMap<String, Vec<Recipe>> = BTreeMap::new();
        for command in &task.commands {
            let (output, recipe) = Recipe::parse(command).ok_or_else(|| {
                format!("command {command:?} is not of the form `craft COUNT NAME using COUNT NAME, ...`")
            })?;
            if tags.contains(&output) {
                return Err(format!("command {command:?} makes a tag, not an item"));
            }
            recipes.entry(output).or_default().push(recipe);
        }
        let goal = id(&task.goal);
        if !recipes.contains_key(&goal) {
            return Err(format!("no command makes the goal `{}`", task.goal));
        }
        let raw = match &task.raw {
            Some(names) => names.iter().map(|name| id(name)).collect(),
            None => recipes
                .values()
                .flatten()
                .flat_map(|recipe| &recipe.inputs)
                .map(|(input, _)| input.clone())
                .filter(|input| !recipes.contains_key(input) && !tags.contains(input))
                .collect(),
        };
        Ok(Game { goal, recipes, raw, tags, tag_of, carried: Vec::new() })
    }

    /// Carries out one action. What the world refuses changes nothing and is said in the observation.
    pub fn step(&mut self, action: &str) -> Step {
        let done = |observation, goal_made| Step {
            observation,
            reward: if goal_made { 1.0 } else { 0.0 },
            done: goal_made,
            accepted: true,
        };
        let outcome = match Action::parse(action) {
            None => Err(format!("Could not execute {action}")),
            Some(Action::Inventory) => Ok(done(self.inventory(), false)),
            Some(Action::Get(amount)) => self.get(amount).map(|observation| done(observation, false)),
            Some(Action::Craft { output, inputs }) => self.craft(output, inputs).map(|(item, count)| {
                let goal_made = item == self.goal;
                done(format!("Crafted {count} {NAMESPACE}{item}"), goal_made)
            }),
        };
        outcome.unwrap_or_else(|observation| Step { observation, reward: 0.0, done: false, accepted: false })
    }

    fn inventory(&self) -> String {
        let mut text = "Inventory: ".to_owned();
        if self.carried.is_empty() {
            text.push_str("You are not carrying anything.");
        }
        for (item, count) in &self.carried {
            text.push_str(&format!("[{}] ({count}) ", item.replace('_', " ")));
        }
        text
    }

    fn get(&mut self, amount: Amount<'_>) -> Result<String, String> {
        let item = amount.name.replace(' ', "_");
        if !self.raw.contains(&item) {
            return Err(format!("Could not find {}", amount.name));
        }
        self.add(&item, amount.count);
        Ok(format!("Got {} {}", amount.count, amount.name))
    }

    /// The item made and how many of it.
    fn craft(&mut self, output: &str, inputs: &str) -> Result<(String, u128), String> {
        let output = Amount::parse(output).unwrap_or(Amount { count: 1, name: output });
        let output_item = output.name.replace(' ', "_");
        let offered = read_inputs(inputs)?;
        let known = (!self.tags.contains(&output_item)).then_some(&output_item);

        // A tag is never carried, so to name one is to lack it.
        if offered.iter().any(|(item, count)| self.carried(item).is_none_or(|carried| carried < *count)) {
            let item = known.map_or("None".to_owned(), |item| format!("{NAMESPACE}{item}"));
            return Err(format!("Could not find enough items to craft {item}"));
        }
        let recipes = known.and_then(|item| self.recipes.get(item)).map_or(&[][..], Vec::as_slice);
        let Some(recipe) = recipes.iter().find(|recipe| self.fits(recipe, &offered)) else {
            let item = describe(&output_item, output.count, known.is_none());
            return Err(format!("Could not find a valid recipe for {item}"));
        };
        let made = recipe.output_count;
        for (item, count) in &offered {
            self.remove(item, *count);
        }
        self.add(&output_item, made);
        Ok((output_item, made))
    }

    /// Whether what is offered is exactly what the recipe wants. Each wanted thing takes the first offer of its name or
    /// kind, and its count must be equal.
    fn fits(&self, recipe: &Recipe, offered: &[(String, u128)]) -> bool {
        let mut left: Vec<&(String, u128)> = offered.iter().collect();
        for (wanted, count) in &recipe.inputs {
            let matches = |item: &String| match self.tags.contains(wanted) {
                true => self.tag_of.get(item) == Some(wanted),
                false => item == wanted,
            };
            let Some(place) = left.iter().position(|(item, _)| matches(item)) else { return false };
            if left.remove(place).1 != *count {
                return false;
            }
        }
        left.is_empty()
    }

    fn carried(&self, item: &str) -> Option<u128> {
        self.carried.iter().find(|(name, _)| name == item).map(|(_, count)| *count)
    }

    fn add(&mut self, item: &str, count: u128) {
        match self.carried.iter_mut().find(|(name, _)| name == item) {
            Some((_, carried)) => *carried = carried.saturating_add(count),
            None => self.carried.push((item.to_owned(), count)),
        }
    }

    /// Takes away what `craft` has found to be there; an item of which none is left is no longer listed.
    fn remove(&mut self, item: &str, count: u128) {
        if let Some(place) = self.carried.iter().position(|(name, _)| name == item) {
            self.carried[place].1 = self.carried[place].1.saturating_sub(count);
            if self.carried[place].1 == 0 {
                self.carried.remove(place);
            }
        }
    }
}

impl Recipe {
    /// Reads `craft COUNT NAME using COUNT NAME, ...`.
    fn parse(command: &str) -> Option<(String, Recipe)> {
        let Some(Action::Craft { output, inputs }) = Action::parse(command) else { return None };
        let output = Amount::parse(output)?;
        let inputs = read_inputs(inputs).ok()?;
        Some((output.name.replace(' ', "_"), Recipe { output_count: output.count, inputs }))
    }
}

/// `COUNT NAME, COUNT NAME`; the error is the observation.
fn read_inputs(text: &str) -> Result<Vec<(String, u128)>, String> {
    text.split(',')
        .map(|input| {
            let input = strip(input);
            match Amount::parse(input) {
                Some(Amount { count, name }) => Ok((name.replace(' ', "_"), count)),
                None => Err(format!("Wrong item format: {input}")),
            }
        })
        .collect()
}

/// An item and its count, as the original's answer prints them.
fn describe(item: &str, count: u128, is_tag: bool) -> String {
    let name = quoted(&format!("{NAMESPACE}{item}"));
    let (tag, item) = if is_tag { (name.as_str(), "None") } else { ("None", name.as_str()) };
    format!("ItemTagWithCount(item_tag=ItemTag(tag={tag}, item_id={item}), count={count})")
}

/// A text as Python's `repr` writes it: single quotes unless only a single quote is inside, control characters escaped.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c != ' ' && (c.is_control() || c.is_whitespace()) => match u32::from(c) {
                code @ ..0x100 => out.push_str(&format!("\\x{code:02x}")),
                code => out.push_str(&format!("\\u{code:04x}")),
            },
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(goal: &str) -> Game {
        let task = TaskData {
            goal: goal.into(),
            commands: [
                "craft 4 oak planks using 1 oak logs",
                "craft 4 stick using 2 planks",
                "craft 1 oak sign using 6 oak planks, 1 stick",
            ]
            .map(String::from)
            .into(),
            raw: None,
            tags: [("planks".to_owned(), vec!["oak planks".to_owned()])].into(),
        };
        Game::new(&task).unwrap()
    }

    /// Plays a script of `action -> observation` lines.
    #[track_caller]
    fn check(world: &mut Game, script: &[(&str, &str)]) {
        for (action, expect) in script {
            assert_eq!(world.step(action).observation, *expect, "{action:?}");
        }
    }

    #[test]
    fn a_goal_is_reached_by_way_of_a_tag() {
        let mut world = world("oak sign");
        check(
            &mut world,
            &[
                ("get 2 oak logs", "Got 2 oak logs"),
                ("craft 4 oak planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
                ("craft oak planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
                ("inventory", "Inventory: [oak planks] (8) "),
                ("craft 4 stick using 2 planks", "Could not find enough items to craft minecraft:stick"),
                ("craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
            ],
        );
        let last = world.step("craft 1 oak sign using 6 oak planks, 1 stick");
        assert_eq!((last.reward, last.done), (1.0, true));
        check(&mut world, &[("inventory", "Inventory: [stick] (3) [oak sign] (1) ")]);
    }

    #[test]
    fn what_is_refused_says_so_and_changes_nothing() {
        let mut world = world("oak sign");
        check(
            &mut world,
            &[
                ("inventory", "Inventory: You are not carrying anything."),
                ("get 1 oak planks", "Could not find oak planks"),
                ("get 1 planks", "Could not find planks"),
                ("get 1 moon dust", "Could not find moon dust"),
                ("get oak logs", "Could not execute get oak logs"),
                ("look", "Could not execute look"),
                ("craft 1 stick using planks", "Wrong item format: planks"),
                ("craft 1 stick using 1 oak logs", "Could not find enough items to craft minecraft:stick"),
                ("craft 1 planks using 1 oak logs", "Could not find enough items to craft None"),
                ("get 3 oak logs", "Got 3 oak logs"),
                (
                    "craft 2 stick using 1 oak logs",
                    "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, \
                     item_id='minecraft:stick'), count=2)",
                ),
                (
                    "craft planks using 1 oak logs",
                    "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag='minecraft:planks', \
                     item_id=None), count=1)",
                ),
                (
                    "craft it's using 1 oak logs",
                    "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, \
                     item_id=\"minecraft:it's\"), count=1)",
                ),
                ("inventory", "Inventory: [oak logs] (3) "),
            ],
        );
        assert!(!world.step("look").accepted);
    }

    #[test]
    fn a_broken_task_is_refused_with_the_reason() {
        let task = |commands: &[&str]| TaskData {
            goal: "stick".into(),
            commands: commands.iter().map(ToString::to_string).collect(),
            raw: None,
            tags: BTreeMap::new(),
        };
        assert_eq!(
            Game::new(&task(&["make stick"])).unwrap_err(),
            "command \"make stick\" is not of the form `craft COUNT NAME using COUNT NAME, ...`"
        );
        assert_eq!(Game::new(&task(&[])).unwrap_err(), "no command makes the goal `stick`");
    }
}
