//! Random episodes: on the way to a goal, off it, and malformed in every way that a model or a fuzzer finds.

use espalier_textcraft::task::TaskData;
use xtask::tasks::book::Book;
use xtask::tasks::draws::Draws;
use xtask::tasks::plan;

/// One episode: a goal, and what is done about it.
pub(crate) struct Episode {
    /// The world to play it in.
    pub(crate) task: TaskData,
    /// At most 40.
    pub(crate) actions: Vec<String>,
}

/// Pieces that malformed actions are made of.
const SCRAPS: [&str; 24] = [
    "craft",
    "get",
    "inventory",
    "using",
    "1",
    "0",
    "007",
    "12345678901234567890123",
    "-3",
    "planks",
    "oak planks",
    "minecraft:stick",
    "oak_logs",
    "'",
    "\"",
    "\\",
    ",",
    ", ,",
    "  ",
    "\t",
    "\n",
    "\u{a0}",
    "é",
    "木",
];

/// The episode with this number in a world of these commands.
pub(crate) fn episode(book: &Book, seed: u64, number: u32, task: impl FnOnce(&str) -> TaskData) -> Episode {
    let mut draws = Draws::new(seed, &format!("episode {number}"));
    let goals: Vec<&str> = book.goals().into_iter().collect();
    let goal = goals[draws.below(goals.len())];
    let task = task(goal);
    let mut plan = plan::solve(book, goal).into_iter();
    let length = 1 + draws.below(40);
    let actions = (0..length)
        .map(|_| match draws.below(10) {
            0..=3 => plan.next().unwrap_or_else(|| "inventory".to_owned()),
            4 => got(book, &mut draws),
            5 => pick(&task.commands, &mut draws).clone(),
            6 => "inventory".to_owned(),
            7 => spoilt(&pick(&task.commands, &mut draws).clone(), &mut draws),
            8 => {
                let good = got(book, &mut draws);
                spoilt(&good, &mut draws)
            }
            _ => {
                let words: Vec<&str> = (0..draws.below(6)).map(|_| *pick(&SCRAPS, &mut draws)).collect();
                words.join(" ")
            }
        })
        .collect();
    Episode { task, actions }
}

fn pick<'a, T>(list: &'a [T], draws: &mut Draws) -> &'a T {
    &list[draws.below(list.len())]
}

/// `get` of anything that has a name: raw material, product, kind or nonsense.
fn got(book: &Book, draws: &mut Draws) -> String {
    let name = match draws.below(4) {
        0 | 1 => pick(&book.raw(), draws).clone(),
        2 => pick(&book.recipes, draws).output.clone(),
        _ => (*pick(&["planks", "wool", "boat", "oak_logs", "Oak Logs", "moon dust", ""], draws)).to_owned(),
    };
    format!("get {} {name}", draws.below(20))
}

/// An action with one thing wrong, or merely odd.
fn spoilt(action: &str, draws: &mut Draws) -> String {
    let at = |draws: &mut Draws| {
        let places: Vec<usize> = action.char_indices().map(|(place, _)| place).collect();
        *pick(&places, draws)
    };
    match draws.below(9) {
        0 => action[..at(draws)].to_owned(),
        1 => action[at(draws)..].to_owned(),
        2 => {
            let place = at(draws);
            format!("{}{}{}", &action[..place], pick(&SCRAPS, draws), &action[place..])
        }
        3 => action.to_uppercase(),
        4 => action.replacen(|c: char| c.is_ascii_digit(), &draws.below(30).to_string(), 1),
        5 => action.replace(',', " ,\u{1c}"),
        6 => format!("{action} {}", pick(&SCRAPS, draws)),
        7 => format!("{action}, 1 {}", pick(&["stick", "planks", "oak planks", "diamond"], draws)),
        _ => action.replace(' ', "  "),
    }
}
