//! What gives private text away where it is found: lines next to each other that a task starts with nowhere.

use super::SourceFile;
use std::collections::HashSet;

/// Lines of a mark. Two of them are found together by chance: what every project has at the end of its tests, or imports.
const LINES: usize = 3;
/// Shortest mark, in bytes of all its lines.
const BYTES_MIN: usize = 60;
/// The same, where a task has none of that length.
const BYTES_MIN_SMALL: usize = 30;
/// Most marks of a task; of more, such as lie evenly among them.
const MARKS_MAX: usize = 400;

/// Marks of a patch and of hidden files, by their paths: three lines of Python, without the blanks around them, that follow each other
/// there, and of which at least two are in none of the known files; where fewer follow each other, those, if they are all new.
pub(super) fn of<'a>(
    patch: &'a str,
    hidden: impl IntoIterator<Item = (&'a str, &'a SourceFile)>,
    known: impl IntoIterator<Item = &'a SourceFile>,
) -> Vec<Vec<String>> {
    let known: Vec<&str> =
        known.into_iter().filter_map(|file| std::str::from_utf8(&file.bytes).ok()).collect();
    let known: HashSet<&str> = known.iter().flat_map(|text| text.lines()).map(str::trim).collect();
    let blocks = blocks(patch, hidden);
    let mut marks = among(&blocks, &known, 2, BYTES_MIN);
    if marks.is_empty() {
        // A change of a line or two.
        marks = among(&blocks, &known, 1, BYTES_MIN_SMALL);
    }
    let step = marks.len().div_ceil(MARKS_MAX).max(1);
    marks.into_iter().step_by(step).collect()
}

/// Lines that follow each other. Those of a patch do where nothing stands between them that was there before. Settings and lists of
/// Python's versions are alike everywhere, and left out.
fn blocks<'a>(
    patch: &'a str,
    hidden: impl IntoIterator<Item = (&'a str, &'a SourceFile)>,
) -> Vec<Vec<&'a str>> {
    let mut blocks = Vec::new();
    let (mut added, mut python) = (Vec::new(), false);
    for line in patch.lines().chain([""]) {
        if let Some(path) = line.strip_prefix("+++ ") {
            python = is_python(path);
        }
        match line.strip_prefix('+').filter(|_| python && !line.starts_with("+++ ")) {
            Some(line) => added.push(line),
            None => blocks.push(std::mem::take(&mut added)),
        }
    }
    for (_, file) in hidden.into_iter().filter(|(path, _)| is_python(path)) {
        blocks.push(std::str::from_utf8(&file.bytes).unwrap_or_default().lines().collect());
    }
    for block in &mut blocks {
        *block = block.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// The marks with so many new lines (fewer where they have fewer) and bytes.
fn among(blocks: &[Vec<&str>], known: &HashSet<&str>, new_min: usize, bytes_min: usize) -> Vec<Vec<String>> {
    let mut seen = HashSet::new();
    let fits = |mark: &&[&str]| {
        let new: HashSet<&&str> = mark.iter().filter(|line| !known.contains(*line)).collect();
        new.len() >= mark.len().min(new_min) && mark.iter().map(|line| line.len()).sum::<usize>() >= bytes_min
    };
    let marks = blocks.iter().flat_map(|block| block.windows(block.len().min(LINES)));
    marks
        .filter(fits)
        .filter(|mark| seen.insert(mark.join("\n")))
        .map(|mark| mark.iter().map(|line| (*line).to_owned()).collect())
        .collect()
}

fn is_python(path: &str) -> bool {
    path.ends_with(".py") || path.ends_with(".pyi")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_what_is_new() {
        let file = |text: &str| SourceFile { bytes: text.into(), executable: false };
        let known = file("def known_function():\n    return a_value\n");
        let hidden = file(
            "def known_function():\n    return a_value\n\n    assert something_new() == [1, 2, 3, 4]\n    assert another_new_thing() == 12\n",
        );
        let patch = "+++ b/a_file_with_a_long_name.py\n@@\n+def helper_of_the_solution(a, b):\n+    first = a_new_line_of_code(a)\n+\n+    return first\n context\n+x = 1\n\
                     +++ b/pyproject.toml\n@@\n+a_setting_that_many_have = 1\n+another_that_many_have = 2\n+a_third_that_many_have = 3\n";
        let marks = of(patch, [("tests/test_a.py", &hidden), ("tests/a.md", &hidden)], [&known]);
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            marks,
            [
                lines(&[
                    "def helper_of_the_solution(a, b):",
                    "first = a_new_line_of_code(a)",
                    "return first"
                ]),
                lines(&[
                    "return a_value",
                    "assert something_new() == [1, 2, 3, 4]",
                    "assert another_new_thing() == 12"
                ]),
            ]
        );
        let many: String =
            (0..2_000).map(|number| format!("this is line number {number} of a long file\n")).collect();
        let marks = of("", [("a.py", &file(&many))], []);
        assert!(marks.len() <= MARKS_MAX && marks.len() > MARKS_MAX / 2);
        assert!(of("", [], [&known]).is_empty());
        let small = "+++ b/a.py\n@@\n+    return a_little_more_than_before\n";
        assert_eq!(of(small, [], [&known]), [lines(&["return a_little_more_than_before"])]);
    }
}
