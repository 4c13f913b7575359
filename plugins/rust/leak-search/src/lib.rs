//! The harness `leak-search`: looks through its sandbox, all files and the environment of all processes, for what a task keeps
//! private. It is given the marks of `private.marks` (lines that stand next to each other in the hidden tests or the reference patch,
//! and nowhere in what the task starts with), so it needs the grant `private-task`. Where it finds one it fails with the place.

#[cfg(target_arch = "wasm32")]
mod guest;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How far below a line of a mark its next one may lie: marks leave empty lines out.
const BETWEEN_MAX: usize = 3;

/// The settings of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the sandbox of the task.
    pub sandbox: String,
    /// Folders to search.
    pub folders: Vec<String>,
    /// Time limit of one search in seconds.
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_s: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { sandbox: "main".to_owned(), folders: vec!["/".to_owned()], timeout_s: 900 }
    }
}

/// A mark: lines that follow each other, without blanks around them.
pub type Mark = Vec<String>;

/// The marks of a task, or what is wrong with its private part.
pub fn marks(private: &str) -> Result<Vec<Mark>, String> {
    #[derive(Deserialize)]
    struct Private {
        #[serde(default)]
        marks: Vec<Mark>,
    }
    let private: Private =
        serde_json::from_str(private).map_err(|error| format!("private part of the task: {error}"))?;
    let marks: Vec<Mark> = private.marks.into_iter().filter(|mark| !mark.is_empty()).collect();
    if marks.is_empty() { Err("the task has no `private.marks`".to_owned()) } else { Ok(marks) }
}

/// The line by which a mark is looked for: its longest.
pub fn anchor(mark: &Mark) -> &str {
    mark.iter().max_by_key(|line| line.len()).map_or("", String::as_str)
}

/// All lines of all marks, one a line: what `grep -F -f` takes.
pub fn patterns<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let unique: BTreeSet<&str> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    unique.into_iter().map(|line| format!("{line}\n")).collect()
}

/// Of what `grep` complained of, the first line that is not about one file that vanished or may not be read: it did not look
/// everywhere then, and has found nothing out.
pub fn blind(complaints: &str) -> Option<&str> {
    let fine = [": No such file or directory", ": Permission denied"];
    complaints
        .lines()
        .map(str::trim_end)
        .find(|line| !line.is_empty() && !fine.iter().any(|end| line.ends_with(end)))
}

/// The first mark that stands in lines as `grep -n` prints them (`12:text`).
pub fn found<'a>(printed: &str, marks: &'a [Mark]) -> Option<(usize, &'a Mark)> {
    let lines: Vec<(usize, &str)> = printed
        .lines()
        .filter_map(|line| {
            let (number, text) = line.split_once(':')?;
            Some((number.parse().ok()?, text.trim()))
        })
        .collect();
    for (index, (number, text)) in lines.iter().enumerate() {
        let goes_on = |rest: &[String]| {
            let (mut from, mut last) = (index + 1, *number);
            rest.iter().all(|wanted| {
                let near = lines[from..].iter().take_while(|(next, _)| next - last <= BETWEEN_MAX);
                let Some(at) = near.clone().position(|(_, next)| next == wanted) else { return false };
                (from, last) = (from + at + 1, lines[from + at].0);
                true
            })
        };
        let here = marks.iter().find(|mark| match mark.split_first() {
            Some((first, rest)) => text == first && goes_on(rest),
            None => false,
        });
        if let Some(mark) = here {
            return Some((*number, mark));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_mark_are_close_to_each_other() {
        let marks = marks(
            r#"{"marks":[["def test_a():","assert f(1) == 2"],["one_line_alone(1, 2, 3)"],["a","b","c"]],"tests":{}}"#,
        )
        .unwrap();
        let check = |printed: &str, expect: Option<usize>| {
            assert_eq!(found(printed, &marks).map(|(number, _)| number), expect, "{printed}");
        };
        check("3:def test_a():\n4:    assert f(1) == 2\n", Some(3));
        check("3:  def test_a():\n6:    assert f(1) == 2", Some(3));
        check("3:def test_a():\n7:    assert f(1) == 2", None);
        check("4:assert f(1) == 2\n5:def test_a():", None);
        check("3:def test_a():\n3:x\n4:y", None);
        check("9:  one_line_alone(1, 2, 3)", Some(9));
        check("9:x = one_line_alone(1, 2, 3)  # here", None);
        check("1:a\n2:b\n5:c", Some(1));
        check("1:a\n2:b\n6:c", None);
        check("1:a\n1:a\n2:c\n3:b", None);
        check("1:x\n2:a\n3:a\n6:b\n9:c", Some(3));
        check("no number", None);
        assert_eq!(anchor(&marks[0]), "assert f(1) == 2");
        assert_eq!(patterns(["b", "a", "", "b"]), "a\nb\n");
    }

    #[test]
    fn a_search_that_could_not_look_is_told_from_files_that_went_away() {
        let gone = "grep: /run/x: No such file or directory\ngrep: /root/a b: Permission denied\n";
        assert_eq!(blind(""), None);
        assert_eq!(blind(gone), None);
        assert_eq!(blind(&format!("{gone}grep: memory exhausted\n")), Some("grep: memory exhausted"));
        let unknown = "grep: unrecognized option: devices=skip\nBusyBox v1.36\n";
        assert_eq!(blind(unknown), Some("grep: unrecognized option: devices=skip"));
    }

    #[test]
    fn a_task_without_marks_is_told() {
        assert_eq!(marks("{}").unwrap_err(), "the task has no `private.marks`");
        assert!(marks("7").unwrap_err().starts_with("private part of the task: "));
    }
}
