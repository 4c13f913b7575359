//! The task generator `{{name}}`: sums, with more digits where they are solved and fewer where they are not.

use espalier_sdk::{Failure, Request, Statistics, invalid};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// What an experiment can set in `[tasks.settings]`. Doc comments become the descriptions of the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Digits of each number of a new task.
    #[schemars(range(min = 1, max = 9))]
    pub digits: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { digits: 2 }
    }
}

/// Makes tasks, each as a line of a task file has it. The same seed makes the same tasks.
pub fn generate(request: Request, settings: Settings) -> Result<Vec<Value>, Failure> {
    let Request { count, seed, .. } = request;
    let one = |i| {
        task(
            &format!("sum-{seed}-{i}"),
            settings.digits,
            seed,
            u64::from(i),
        )
    };
    Ok((0..count).map(one).collect())
}

/// Makes variants of a task, given how its rollouts went. None: the task stays as it is.
pub fn adapt(
    before: Value,
    statistics: Statistics,
    _settings: Settings,
) -> Result<Vec<Value>, Failure> {
    let id = before["id"]
        .as_str()
        .ok_or_else(|| invalid("task: `id` is missing"))?;
    let digits = before["data"]["digits"]
        .as_u64()
        .and_then(|digits| u32::try_from(digits).ok());
    let digits = digits.ok_or_else(|| invalid("task.data: `digits` is missing"))?;
    let (next, word) = if statistics.accuracy >= 0.5 {
        (digits + 1, "harder")
    } else {
        (digits.saturating_sub(1), "easier")
    };
    if !(1..=9).contains(&next) {
        return Ok(Vec::new());
    }
    Ok(vec![task(
        &format!("{id}-{word}"),
        next,
        id.len() as u64,
        0,
    )])
}

fn task(id: &str, digits: u32, seed: u64, i: u64) -> Value {
    let [a, b] = numbers(digits, seed, i);
    json!({
        "id": id,
        "instruction": format!("What is {a} + {b}?"),
        "data": { "digits": digits },
        "private": { "answer": (a + b).to_string() },
    })
}

/// Two numbers below `10^digits`, by the generator of Lehmer.
fn numbers(digits: u32, seed: u64, i: u64) -> [u64; 2] {
    const MODULUS: u64 = 2_147_483_647;
    let mut x = ((seed % MODULUS + i + 1) % MODULUS).max(1);
    [0, 1].map(|_| {
        x = x * 48_271 % MODULUS;
        x % 10_u64.pow(digits)
    })
}

espalier_sdk::task_generator!(Settings, generate, adapt);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_follows_from_the_seed_and_knows_its_answer() {
        let request = |seed| Request {
            count: 2,
            seed,
            extra: None,
        };
        let tasks = generate(request(1), Settings::default()).unwrap();
        assert_eq!(tasks, generate(request(1), Settings::default()).unwrap());
        assert_eq!(tasks[0]["id"], "sum-1-0");
        let numbers: Vec<u64> = tasks[1]["instruction"]
            .as_str()
            .unwrap()
            .split(|letter: char| !letter.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        assert_eq!(
            tasks[1]["private"]["answer"],
            (numbers[0] + numbers[1]).to_string()
        );
    }

    #[test]
    fn a_task_that_was_solved_becomes_harder_within_the_bounds() {
        let statistics = |accuracy| Statistics {
            attempts: 4,
            accuracy,
            turns: 1.0,
            endings: Vec::new(),
            failures: Vec::new(),
            extra: None,
        };
        let adapted = |digits, accuracy| {
            let adapted = adapt(
                task("t", digits, 1, 0),
                statistics(accuracy),
                Settings::default(),
            )
            .unwrap();
            adapted
                .first()
                .map(|task| (task["id"].clone(), task["data"]["digits"].clone()))
        };
        assert_eq!(adapted(2, 1.0), Some((json!("t-harder"), json!(3))));
        assert_eq!(adapted(2, 0.0), Some((json!("t-easier"), json!(1))));
        assert_eq!(adapted(9, 1.0), None);
    }
}
