//! Files that hold the runner's tables beside other things: the agent's version with the runner's part as it was before.

use serde_json::Value;
use toml::Table;

/// What to write in the place of the agent's version: `None` leaves it, an empty text removes it. `before`: the file as the task
/// has it.
pub fn repaired(path: &str, before: Option<&str>, after: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let repaired = match name {
        "pyproject.toml" => tables(before, after, pyproject),
        "Cargo.toml" => tables(before, after, cargo),
        "package.json" => package(before, after),
        _ => Some(sections(before.unwrap_or_default(), after)),
    };
    // What cannot be read cannot be told to be harmless.
    let text = repaired.unwrap_or_else(|| before.unwrap_or_default().to_owned());
    (text != after).then_some(text)
}

fn tables(before: Option<&str>, after: &str, put_back: impl Fn(&Table, &mut Table)) -> Option<String> {
    let before: Table = before.unwrap_or_default().parse().ok()?;
    let mine: Table = after.parse().ok()?;
    let mut theirs = mine.clone();
    put_back(&before, &mut theirs);
    if theirs == mine { Some(after.to_owned()) } else { toml::to_string(&theirs).ok() }
}

/// Puts one key back as it was, or takes it away.
fn put_key(before: Option<&Table>, after: &mut Table, key: &str) {
    match before.and_then(|table| table.get(key)) {
        Some(value) => drop(after.insert(key.to_owned(), value.clone())),
        None => drop(after.remove(key)),
    }
}

fn table<'a>(of: &'a Table, key: &str) -> Option<&'a Table> {
    of.get(key).and_then(toml::Value::as_table)
}

fn pyproject(before: &Table, after: &mut Table) {
    let was = table(before, "tool");
    if !after.get("tool").is_some_and(toml::Value::is_table) {
        if was.is_some_and(|was| was.contains_key("pytest")) || after.contains_key("tool") {
            after.insert("tool".to_owned(), toml::Value::Table(Table::new()));
        } else {
            return;
        }
    }
    if let Some(tool) = after.get_mut("tool").and_then(toml::Value::as_table_mut) {
        for key in ["pytest", "tox"] {
            put_key(was, tool, key);
        }
    }
}

fn cargo(before: &Table, after: &mut Table) {
    for key in ["test", "bench", "profile"] {
        put_key(Some(before), after, key);
    }
    for (part, keys) in
        [("lib", &["harness", "test", "doctest"][..]), ("package", &["autotests", "autobins", "autobenches"])]
    {
        if let Some(inner) = after.get_mut(part).and_then(toml::Value::as_table_mut) {
            keys.iter().for_each(|key| put_key(table(before, part), inner, key));
        }
    }
}

fn package(before: Option<&str>, after: &str) -> Option<String> {
    let before: Value = serde_json::from_str(before.unwrap_or("{}")).ok()?;
    let mine: Value = serde_json::from_str(after).ok()?;
    let mut theirs = mine.clone();
    let inner = theirs.as_object_mut()?;
    for key in ["scripts", "jest", "vitest", "mocha", "ava", "tap", "nyc", "c8"] {
        match before.get(key) {
            Some(value) => drop(inner.insert(key.to_owned(), value.clone())),
            None => drop(inner.shift_remove(key)),
        }
    }
    if theirs == mine { Some(after.to_owned()) } else { serde_json::to_string_pretty(&theirs).ok() }
}

/// Ends a line for whoever reads INI files in Python.
fn ends_line(letter: char) -> bool {
    matches!(
        letter,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// INI: sections about pytest come from before, all others from the agent.
fn sections(before: &str, after: &str) -> String {
    let is_about = |header: &str| header.to_ascii_lowercase().contains("pytest");
    let pick = |text: &str, wanted: bool| {
        let mut picked = String::new();
        let mut about = false;
        for line in text.split_inclusive(ends_line) {
            let bare = line.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            if bare.starts_with('[') {
                about = is_about(bare);
            }
            if about == wanted {
                picked.push_str(line);
            }
        }
        picked
    };
    let (theirs, mine) = (pick(after, true), pick(before, true));
    if theirs.trim_end() == mine.trim_end() {
        return after.to_owned();
    }
    let mut rest = pick(after, false);
    if !rest.is_empty() && !rest.ends_with(ends_line) {
        rest.push('\n');
    }
    rest + &mine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, before: Option<&str>, after: &str, expect: Option<&str>) {
        assert_eq!(repaired(path, before, after).as_deref(), expect, "{after}");
    }

    #[test]
    fn the_agents_other_changes_stay() {
        let before = "[project]\nname = \"a\"\n\n[tool.pytest.ini_options]\naddopts = \"-q\"\n";
        let after = "[project]\nname = \"b\"\n\n[tool.pytest.ini_options]\naddopts = \"-q\"\n";
        check("pyproject.toml", Some(before), after, None);
        for tamper in [
            "project.name = \"b\"\n[tool.pytest.ini_options]\naddopts = \"-p evil\"\n",
            "project.name = \"b\"\ntool = {pytest = {ini_options = {addopts = \"-p evil\"}}}\n",
            "project.name = \"b\"\n[\"tool\".'pytest'.ini_options]\naddopts = \"-p evil\"\n",
            "project.name = \"b\"\n",
            "tool = 3\nproject.name = \"b\"\n",
        ] {
            check("pyproject.toml", Some(before), tamper, Some(after));
        }
        check(
            "pyproject.toml",
            None,
            "[tool.pytest.ini_options]\nx = 1\n[tool.ruff]\ny = 2\n",
            Some("[tool.ruff]\ny = 2\n"),
        );
        check("pyproject.toml", Some(before), "not toml [", Some(before));
        check("pyproject.toml", None, "not toml [", Some(""));
        check("pyproject.toml", None, "a = 1\n", None);
    }

    #[test]
    fn sections_about_pytest_are_as_before() {
        let before = "[metadata]\nname = a\n[tool:pytest]\naddopts = -q\n[flake8]\nx = 1\n";
        check(
            "setup.cfg",
            Some(before),
            "[metadata]\nname = b\n[tool:pytest]\naddopts = -p evil\n[flake8]\nx = 2",
            Some("[metadata]\nname = b\n[flake8]\nx = 2\n[tool:pytest]\naddopts = -q\n"),
        );
        check("setup.cfg", Some(before), "[metadata]\nname = b\n[tool:pytest]\naddopts = -q\n", None);
        check("a/tox.ini", None, "[tox]\nx = 1\n [pytest]\naddopts = -p evil", Some("[tox]\nx = 1\n"));
        check("tox.ini", None, "[tox]\r[pytest]\raddopts = -p evil\u{1c}[flake8]", Some("[tox]\r[flake8]\n"));
        check("tox.ini", None, "[PyTest]\na = 1\n", Some(""));
    }

    #[test]
    fn targets_of_cargo_and_scripts_of_npm_are_as_before() {
        check(
            "Cargo.toml",
            Some("[package]\nname = \"a\"\n"),
            "[package]\nname = \"a\"\nautotests = false\n[dependencies]\nb = \"1\"\n[lib]\nharness = false\n[[test]]\nname = \"t\"\nharness = false\n",
            Some("[dependencies]\nb = \"1\"\n\n[lib]\n\n[package]\nname = \"a\"\n"),
        );
        check(
            "package.json",
            Some(r#"{"scripts":{"test":"jest"}}"#),
            r#"{"name":"a","scripts":{"test":"true"},"jest":{}}"#,
            Some("{\n  \"name\": \"a\",\n  \"scripts\": {\n    \"test\": \"jest\"\n  }\n}"),
        );
        check("package.json", Some("{}"), "[]", Some("{}"));
    }
}
