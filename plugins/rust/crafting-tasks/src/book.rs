//! Recipes: read or invented, what they need, and how a goal is made of raw materials.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Random draws.
pub trait Draws {
    /// From `0 .. bound`, evenly; `bound` is not 0.
    fn below(&mut self, bound: u64) -> u64;

    /// A place in a list of this length, which is not 0.
    fn place(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
}

/// Draws of a linear congruential generator (Knuth's MMIX), for tests.
pub struct Seeded(pub u64);

impl Draws for Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    output: String,
    count: u64,
    inputs: Vec<(String, u64)>,
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.inputs.iter().map(|(name, count)| format!("{count} {name}")).collect();
        write!(f, "craft {} {} using {}", self.count, self.output, inputs.join(", "))
    }
}

impl Recipe {
    fn parse(text: &str) -> Option<Recipe> {
        let (output, inputs) = text.strip_prefix("craft ")?.split_once(" using ")?;
        let amount = |text: &str| {
            let (count, name) = text.trim().split_once(' ')?;
            let count = count.parse().ok().filter(|count| *count > 0)?;
            (!name.is_empty()).then(|| (name.to_owned(), count))
        };
        let (output, count) = amount(output)?;
        let inputs = inputs.split(',').map(amount).collect::<Option<Vec<_>>>()?;
        Some(Recipe { output, count, inputs })
    }
}

/// Recipes and what follows from them.
#[derive(Clone, Debug)]
pub struct Book {
    /// In the order in which they were given.
    pub recipes: Vec<Recipe>,
    /// For each item that can be made: its least depth, and the recipe that reaches it.
    made: BTreeMap<String, (u32, usize)>,
}

const MATERIALS: [&str; 24] = [
    "amber", "ash", "basalt", "birch", "bone", "brass", "cedar", "chalk", "clay", "copper", "flax", "flint",
    "glass", "horn", "ivory", "jade", "linen", "moss", "oak", "pearl", "quartz", "resin", "slate", "wool",
];
const FORMS: [&str; 24] = [
    "band", "bead", "blade", "bolt", "brick", "coil", "cord", "disc", "frame", "grip", "hook", "key", "lamp",
    "lens", "mask", "peg", "plate", "ring", "rod", "seal", "sheet", "spool", "tile", "wheel",
];

impl Book {
    /// Of these recipes. Errors name the one that is not a recipe.
    pub fn of(texts: &[String]) -> Result<Book, String> {
        let parse = |text: &String| {
            Recipe::parse(text).ok_or_else(|| {
                format!("recipe {text:?} is not of the form `craft COUNT NAME using COUNT NAME, ...`")
            })
        };
        Ok(Book::with(texts.iter().map(parse).collect::<Result<_, _>>()?))
    }

    fn with(recipes: Vec<Recipe>) -> Book {
        let outputs: BTreeSet<&String> = recipes.iter().map(|recipe| &recipe.output).collect();
        let mut made: BTreeMap<String, (u32, usize)> = BTreeMap::new();
        // Each round reaches items one recipe deeper; a recipe whose inputs are never reached (a circle) never counts.
        loop {
            let mut changed = false;
            for (place, recipe) in recipes.iter().enumerate() {
                let depths = recipe.inputs.iter().map(|(name, _)| match made.get(name) {
                    Some((depth, _)) => Some(*depth),
                    None => (!outputs.contains(name)).then_some(0),
                });
                let Some(deepest) = depths.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max())
                else {
                    continue;
                };
                let known = made.get(&recipe.output).map_or(u32::MAX, |(depth, _)| *depth);
                if deepest + 1 < known {
                    made.insert(recipe.output.clone(), (deepest + 1, place));
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        Book { recipes, made }
    }

    /// A goal of this depth out of invented items, and as many recipes again that it does not need.
    pub fn invented(depth: u32, distractors: u32, draws: &mut dyn Draws) -> Book {
        let mut names = BTreeSet::new();
        let mut name = |draws: &mut dyn Draws| loop {
            let name = format!("{} {}", MATERIALS[draws.place(24)], FORMS[draws.place(24)]);
            if names.insert(name.clone()) {
                return name;
            }
        };
        let raw: Vec<String> = (0..4 + depth).map(|_| name(draws)).collect();
        let mut last = raw[draws.place(raw.len())].clone();
        let mut recipes = Vec::new();
        let mut reached = Vec::new();
        for _ in 0..depth {
            let output = name(draws);
            let mut inputs = vec![(last, 1 + draws.below(3))];
            for _ in 0..draws.below(3) {
                let other = raw[draws.place(raw.len())].clone();
                if inputs.iter().all(|(name, _)| *name != other) {
                    inputs.push((other, 1 + draws.below(4)));
                }
            }
            recipes.push(Recipe { output: output.clone(), count: 1 + draws.below(2), inputs });
            reached.push(output.clone());
            last = output;
        }
        for _ in 0..distractors {
            let all: Vec<&String> = raw.iter().chain(&reached[..reached.len().saturating_sub(1)]).collect();
            let input = all[draws.place(all.len())].clone();
            let inputs = vec![(input, 1 + draws.below(3))];
            recipes.push(Recipe { output: name(draws), count: 1 + draws.below(3), inputs });
        }
        Book::with(recipes)
    }

    /// How many recipes, one upon another, an item needs.
    pub fn depth(&self, item: &str) -> Option<u32> {
        self.made.get(item).map(|(depth, _)| *depth)
    }

    /// An item of this depth, or of the nearest that there is, the lower first.
    pub fn goal(&self, depth: u32, draws: &mut dyn Draws) -> Option<String> {
        let nearest = self.made.values().map(|(at, _)| *at).min_by_key(|at| (at.abs_diff(depth), *at))?;
        let items: Vec<&String> =
            self.made.iter().filter(|(_, (at, _))| *at == nearest).map(|(item, _)| item).collect();
        Some(items[draws.place(items.len())].clone())
    }

    /// Places of the recipes that a goal needs, ascending.
    pub fn needed(&self, goal: &str) -> Vec<usize> {
        let mut needed = BTreeSet::new();
        let mut open = vec![goal.to_owned()];
        while let Some(item) = open.pop() {
            let Some((_, place)) = self.made.get(&item) else { continue };
            if needed.insert(*place) {
                open.extend(self.recipes[*place].inputs.iter().map(|(name, _)| name.clone()));
            }
        }
        needed.into_iter().collect()
    }

    /// Adds up to so many recipes that are not needed. None of them makes an item that is taken as raw.
    pub fn add_distractors(&self, needed: &mut Vec<usize>, count: usize, draws: &mut dyn Draws) {
        let mut others: Vec<usize> =
            (0..self.recipes.len()).filter(|place| !needed.contains(place)).collect();
        let raw: BTreeSet<String> = self.raw(needed).into_iter().collect();
        others.retain(|place| !raw.contains(&self.recipes[*place].output));
        for _ in 0..count {
            if others.is_empty() {
                break;
            }
            needed.push(others.remove(draws.place(others.len())));
        }
        needed.sort_unstable();
    }

    /// What these recipes use and none of them makes.
    pub fn raw(&self, places: &[usize]) -> Vec<String> {
        let recipes = || places.iter().map(|place| &self.recipes[*place]);
        let outputs: BTreeSet<&String> = recipes().map(|recipe| &recipe.output).collect();
        let inputs: BTreeSet<&String> =
            recipes().flat_map(|recipe| recipe.inputs.iter().map(|(name, _)| name)).collect();
        inputs.into_iter().filter(|name| !outputs.contains(name)).cloned().collect()
    }

    /// The actions that make one of a goal, each input right before it is used.
    pub fn plan(&self, goal: &str) -> Vec<String> {
        let mut actions = Vec::new();
        let mut carried = BTreeMap::new();
        self.make(goal, 1, &mut carried, &mut actions);
        actions
    }

    fn make(&self, item: &str, count: u64, carried: &mut BTreeMap<String, u64>, actions: &mut Vec<String>) {
        let has = carried.get(item).copied().unwrap_or_default();
        if has >= count {
            return;
        }
        let missing = count - has;
        let Some((_, place)) = self.made.get(item) else {
            actions.push(format!("get {missing} {item}"));
            *carried.entry(item.to_owned()).or_default() += missing;
            return;
        };
        let recipe = &self.recipes[*place];
        for _ in 0..missing.div_ceil(recipe.count) {
            for (input, needs) in &recipe.inputs {
                self.make(input, *needs, carried, actions);
            }
            for (input, needs) in &recipe.inputs {
                *carried.entry(input.clone()).or_default() -= needs;
            }
            actions.push(recipe.to_string());
            *carried.entry(item.to_owned()).or_default() += recipe.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(recipes: &[&str]) -> Book {
        Book::of(&recipes.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn depth_is_the_shortest_way_and_a_circle_is_none() {
        let book = book(&[
            "craft 1 block using 9 ingot",
            "craft 9 ingot using 1 block",
            "craft 1 ingot using 9 nugget",
            "craft 1 a using 1 b",
            "craft 1 b using 1 a",
        ]);
        assert_eq!((book.depth("ingot"), book.depth("block"), book.depth("a")), (Some(1), Some(2), None));
        let error = Book::of(&["craft x".to_owned()]).unwrap_err();
        assert!(error.contains("\"craft x\" is not of the form"), "{error}");
    }

    #[test]
    fn invented_goals_have_their_depth_and_a_plan_that_uses_only_what_is_there() {
        for depth in 1..=6 {
            let mut draws = Seeded(u64::from(depth));
            let book = Book::invented(depth, 3, &mut draws);
            let goal = book.goal(depth, &mut draws).unwrap();
            assert_eq!(book.depth(&goal), Some(depth));
            let mut needed = book.needed(&goal);
            book.add_distractors(&mut needed, 3, &mut draws);
            let raw = book.raw(&needed);
            for action in book.plan(&goal) {
                let got = action.strip_prefix("get ").map(|rest| rest.split_once(' ').unwrap().1.to_owned());
                let known = match &got {
                    Some(item) => raw.contains(item),
                    None => needed.iter().any(|place| book.recipes[*place].to_string() == action),
                };
                assert!(known, "{action}");
            }
        }
    }
}
