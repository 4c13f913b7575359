//! The pages of MiniWoB++, played by scripted policies in Chromium: a table by page, and one rollout as a page for a browser.

use crate::everyday;
use crate::place::{self, root};
use crate::setup::{self, Part};
use crate::shell::{openly, quietly, say};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Pages whose tasks can be solved by what they say. Pages with a policy that are not here ask, with some seeds, for what only a picture
/// tells, or for one of two messages of the same sender, or use the clipboard, which browsers of one process share.
const PAGES: [&str; 40] = [
    "buy-ticket",
    "choose-date",
    "choose-date-easy",
    "choose-list",
    "click-button",
    "click-button-sequence",
    "click-checkboxes",
    "click-checkboxes-large",
    "click-collapsible",
    "click-collapsible-2",
    "click-dialog",
    "click-dialog-2",
    "click-link",
    "click-menu",
    "click-option",
    "click-tab",
    "click-tab-2",
    "click-tab-2-hard",
    "click-test-2",
    "click-widget",
    "enter-date",
    "enter-password",
    "enter-text",
    "enter-text-dynamic",
    "enter-time",
    "find-word",
    "focus-text-2",
    "form-sequence",
    "form-sequence-2",
    "guess-number",
    "login-user",
    "login-user-popup",
    "multi-orderings",
    "read-table",
    "read-table-2",
    "search-engine",
    "simple-algebra",
    "use-autocomplete",
    "use-slider",
    "use-spinner",
];
/// Seeds of each page, from 0 on.
const SEEDS: usize = 4;
/// The task file, from the repository's root.
const TASKS: &str = "tasks/miniwob.jsonl";
const EXPERIMENT: &str = "experiments/miniwob.toml";
/// The rollout that is written as a page, and where to.
const SHOWN: (&str, &str) = ("choose-date-0", "tasks/miniwob.html");

/// Builds, makes the tasks, runs them, prints the table, and writes the page. A task that is not solved is an error.
pub fn demo() -> Result<(), String> {
    let plugins = ["miniwob-policies", "miniwob-reward"].map(String::from);
    everyday::build_parts(&[Part::Data, Part::Sandboxes, Part::Browsers], &plugins, || Ok(()))?;
    let seeds = SEEDS.to_string();
    let folder = setup::miniwob_pages()?;
    let mut import = espalier(&["task", "import", "miniwob"]);
    import.arg(&folder).args(["--out", TASKS, "--seeds", &seeds]);
    import.args(PAGES.iter().flat_map(|page| ["--only", page]));
    openly(&mut import)?;
    openly(&mut espalier(&["run", EXPERIMENT]))?;
    let text = quietly(&mut espalier(&["show", "miniwob", "--json", "--all"]))?;
    let run: Value =
        serde_json::from_str(&text).map_err(|error| format!("espalier show miniwob: {error}"))?;
    let episodes = episodes(&run);
    for line in lines(&episodes) {
        println!("{line}");
    }
    write_page(&run)?;
    let is_solved =
        |seeds: &Vec<Episode>| seeds.len() == SEEDS && seeds.iter().all(|episode| episode.is_solved);
    let unsolved: Vec<&str> =
        PAGES.into_iter().filter(|page| !episodes.get(*page).is_some_and(is_solved)).collect();
    match unsolved.is_empty() {
        true => Ok(()),
        false => Err(format!("not solved: {} (espalier show miniwob --all)", unsolved.join(", "))),
    }
}

fn espalier(arguments: &[&str]) -> Command {
    let mut command = Command::new(place::binary());
    command.current_dir(root()).args(arguments);
    command
}

fn write_page(run: &Value) -> Result<(), String> {
    let (task, file) = SHOWN;
    let groups = run["group_list"].as_array().into_iter().flatten();
    let group = groups.into_iter().find(|group| group["task_id"] == task);
    let attempt = group.and_then(|group| group["attempts"].as_array()?.first());
    let Some(id) = attempt.and_then(|attempt| attempt["traj_id"].as_str()) else {
        return Err(format!("{task} has no rollout (espalier show miniwob --all)"));
    };
    quietly(&mut espalier(&["show", id, "--html", file]))?;
    say(&format!("{task}, step by step: {}", root().join(file).display()));
    Ok(())
}

/// One task: a page with a seed.
struct Episode {
    is_solved: bool,
    /// Of its last attempt.
    took_ms: u64,
}

/// The episodes of each page.
fn episodes(run: &Value) -> BTreeMap<String, Vec<Episode>> {
    let mut episodes: BTreeMap<String, Vec<Episode>> = BTreeMap::new();
    for group in run["group_list"].as_array().into_iter().flatten() {
        let page = group["task_id"].as_str().and_then(|id| Some(id.rsplit_once('-')?.0));
        let last = group["attempts"].as_array().and_then(|attempts| attempts.last());
        let (Some(page), Some(attempt)) = (page, last) else { continue };
        let is_solved = attempt["reward"].as_f64().is_some_and(|reward| reward >= 1.0);
        let time = |key: &str| attempt[key].as_u64().unwrap_or_default();
        let took_ms = time("ended_ms").saturating_sub(time("started_ms"));
        episodes.entry(page.to_owned()).or_default().push(Episode { is_solved, took_ms });
    }
    episodes
}

/// A row for each page, and one for all.
fn lines(episodes: &BTreeMap<String, Vec<Episode>>) -> Vec<String> {
    let row = |name: &str, episodes: &[&Episode]| {
        let solved = episodes.iter().filter(|episode| episode.is_solved).count();
        let total: u64 = episodes.iter().map(|episode| episode.took_ms).sum();
        let mean = total as f64 / 1000.0 / episodes.len().max(1) as f64;
        format!("{name:<28}{:>12}{mean:>10.1}", format!("{solved} of {}", episodes.len()))
    };
    let mut lines = vec![format!("{:<28}{:>12}{:>10}", "page", "solved", "seconds")];
    lines.extend(episodes.iter().map(|(page, own)| row(page, &own.iter().collect::<Vec<_>>())));
    let all: Vec<&Episode> = episodes.values().flatten().collect();
    lines.push(row(&format!("{} pages", episodes.len()), &all));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_counts_by_page() {
        let group = |task: &str, reward: Value, ms: u64| {
            let attempt = json!({ "reward": reward, "started_ms": 1_000, "ended_ms": 1_000 + ms });
            json!({ "task_id": task, "attempts": [attempt] })
        };
        let run = json!({ "group_list": [
            group("click-tab-0", json!(1.0), 2_000), group("click-tab-1", json!(0.0), 1_000),
            group("use-spinner-0", Value::Null, 500),
        ] });
        assert_eq!(
            lines(&episodes(&run)),
            [
                "page                              solved   seconds",
                "click-tab                         1 of 2       1.5",
                "use-spinner                       0 of 1       0.5",
                "2 pages                           1 of 3       1.2",
            ]
        );
    }

    #[test]
    fn each_page_is_named_once() {
        let mut pages = PAGES.to_vec();
        pages.dedup();
        assert_eq!(pages.len(), PAGES.len());
        assert!(PAGES.is_sorted());
    }
}
