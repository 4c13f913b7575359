//! What a changelog says between two versions, word for word.

use super::{Refusal, Tree, Version, parts};

/// Most bytes of an instruction's words.
const BYTES_MAX: usize = 32 << 10;
/// Words of a heading in which its version has to be found.
const WORDS_MAX: usize = 3;

/// The words of the release's own changelog: of the files that may be one, the first that has something to say.
pub(super) fn of_tree(tree: &Tree, library: &str, old: &Version, new: &Version) -> Result<String, Refusal> {
    let mut looked_at: Vec<&str> =
        tree.keys().map(String::as_str).filter(|path| parts::is_changelog(path)).collect();
    looked_at.sort_by_key(|path| (path.matches('/').count(), *path));
    for path in &looked_at {
        let text = String::from_utf8_lossy(&tree[*path].bytes);
        if let Some(words) = between(&text, library, old, new) {
            if words.len() > BYTES_MAX {
                return Err(Refusal::TooLarge { what: "a changelog", bytes: words.len(), most: BYTES_MAX });
            }
            return Ok(words);
        }
    }
    let looked_at =
        if looked_at.is_empty() { "no file of that name".to_owned() } else { looked_at.join(", ") };
    Err(Refusal::NoChangelog { old: old.to_string(), new: new.to_string(), looked_at })
}

/// The sections of versions above `old` up to `new`, as they stand; with their headings where there are several.
fn between(text: &str, library: &str, old: &Version, new: &Version) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut wanted = false;
    let mut at = 0;
    while at < lines.len() {
        match heading(&lines, at, library) {
            Some((version, length)) => {
                wanted = version > *old && version <= *new;
                if wanted {
                    sections.push((lines[at].trim(), Vec::new()));
                }
                at += length;
            }
            None => {
                if let Some((_, body)) = sections.last_mut().filter(|_| wanted) {
                    body.push(lines[at]);
                }
                at += 1;
            }
        }
    }
    let bodies = sections.iter().map(|(heading, body)| (*heading, trimmed(body)));
    let bodies: Vec<(&str, String)> = bodies.filter(|(_, body)| !body.is_empty()).collect();
    match &bodies[..] {
        [] => None,
        [(_, body)] => Some(body.clone()),
        several => {
            let texts: Vec<String> =
                several.iter().map(|(heading, body)| format!("{heading}\n\n{body}")).collect();
            Some(texts.join("\n\n"))
        }
    }
}

/// Without empty lines around it, and without what marks the next heading (a line drawn above it, an anchor).
fn trimmed(body: &[&str]) -> String {
    let mark = |line: &&&str| {
        let line = line.trim();
        line.is_empty() || is_rule(line) || (line.starts_with(".. _") && line.ends_with(':'))
    };
    let start = body.iter().take_while(mark).count();
    let end = body.len() - body[start..].iter().rev().take_while(mark).count();
    body[start..end].join("\n")
}

/// The version that a heading is about, and how many lines the heading has.
fn heading(lines: &[&str], at: usize, library: &str) -> Option<(Version, usize)> {
    let line = lines[at];
    let next = lines.get(at + 1).map_or("", |next| next.trim_end());
    let underlined = is_rule(next) && next.len() >= 3 && !line.trim().is_empty() && !is_rule(line.trim());
    let bare = line.trim_start_matches(['#', '=', '+', '*', '-']);
    let marks = &line[..line.len() - bare.len()];
    let titled = marks.starts_with('#')
        || marks.starts_with("**") && line.trim_end().ends_with("**")
        || matches!(marks, "=" | "+") && bare.starts_with(' ');
    let plain =
        marks.is_empty() && !line.starts_with([' ', '\t']) && (at == 0 || lines[at - 1].trim().is_empty());
    if !(underlined || titled || plain) {
        return None;
    }
    let (version, rest) = version_of(bare.trim().trim_end_matches(['*', '#', '=']), library)?;
    // A line of prose may begin with a number; a heading goes on with a date at most.
    let dated = rest.is_empty()
        || rest.starts_with(['(', '-', '/', ':', ',', '[', '\u{2013}', '\u{2014}'])
        || rest.starts_with(|c: char| c.is_ascii_digit());
    let fine = underlined || titled || (dated && rest.len() <= 40 && !rest.contains("://"));
    fine.then_some((version, if underlined { 2 } else { 1 }))
}

/// The version among the first words, and what follows it.
fn version_of<'a>(text: &'a str, library: &str) -> Option<(Version, &'a str)> {
    let mut rest = text;
    for _ in 0..WORDS_MAX {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let word = word.trim_matches(|c: char| "[](){}`'\":,*".contains(c));
        // A link's text goes before its address.
        let word = word.split_once("](").map_or(word, |(text, _)| text);
        let after = after.trim_start();
        if let Some(version) = Version::parse(word).filter(|_| word.contains('.')) {
            return Some((version, after));
        }
        let known = ["version", "release", "released", "revision", "v", "v.", "-", "changes", "in", "for"];
        let word = word.to_ascii_lowercase();
        if !known.contains(&word.as_str()) && !same_name(&word, library) {
            return None;
        }
        rest = after;
    }
    None
}

/// Names of packages mean the same with `-`, `_` and `.`.
pub(super) fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '.'], "-");
    plain(one) == plain(other)
}

/// A line drawn with one character.
fn is_rule(line: &str) -> bool {
    let line = line.trim_end();
    let first = line.chars().next();
    line.len() >= 3
        && first.is_some_and(|c| "=-~^\"'*+#_.`:".contains(c))
        && line.chars().all(|c| Some(c) == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, old: &str, new: &str, expect: Option<&str>) {
        let version = |text| Version::parse(text).unwrap();
        assert_eq!(between(text, "my-lib", &version(old), &version(new)).as_deref(), expect);
    }

    #[test]
    fn each_usual_form_is_cut() {
        check(
            "# Changes\n\n## [1.2.0] - 2024-01-02\n\n### Fixed\n\n- a\n\n## [1.1.0]\n\n- b\n",
            "1.1.0",
            "1.2.0",
            Some("### Fixed\n\n- a"),
        );
        check(
            "Release 0.5.1 (Jul 15, 2024)\n----------------------------\n\nBug Fixes\n\n* a\n\n\nRelease 0.5.0\n-------------\n* b\n",
            "0.5.0",
            "0.5.1",
            Some("Bug Fixes\n\n* a"),
        );
        check(
            "Version 2.0\n-----------\n\nReleased x\n\n-   a\n\n\nVersion 1.9\n===========\n- b",
            "1.9",
            "2.0",
            Some("Released x\n\n-   a"),
        );
        check(
            "my_lib 1.4.0 (2024)\n=========\n\nFeatures\n--------\n\n- a\n\nmy_lib 1.3.0\n=====\n- b",
            "1.3.0",
            "1.4.0",
            Some("Features\n--------\n\n- a"),
        );
        check(
            "Revision 0.5.1, released 20-11-2023\n-------\n- a\n\nRevision 0.5.0, released\n----\n- b",
            "0.5.0",
            "0.5.1",
            Some("- a"),
        );
        check("2.1\n- a\n\n2.0\n- b\n", "2.0", "2.1", Some("- a"));
        check("**1.2.1**\n\n- a\n\n**1.2.0**\n\n- b", "1.2.0", "1.2.1", Some("- a"));
        check("= 4.13 (2025)\n\n* a\n\n= 4.12 (2024)\n\n* b", "4.12", "4.13", Some("* a"));
        check(
            "+ Version 2.22 (30.03.2024)\n\n  - a\n\n+ Version 2.21\n\n  - b",
            "2.21",
            "2.22",
            Some("  - a"),
        );
        check(
            "`v2.1 <https://x/2.1>`__\n-----\n\na\n\n`v2.0 <https://x/2.0>`__\n-----\nb",
            "2.0",
            "2.1",
            Some("a"),
        );
        check(
            "## [2.1](https://x)\n- a\n## [2.0](https://y)\n- b\n\n[2.1]: https://x",
            "2.0",
            "2.1",
            Some("- a"),
        );
        check(
            "v5.5.0 (2024-08-18)\n===================\n- a\n\nv5.4.0\n===\n- b",
            "5.4.0",
            "5.5.0",
            Some("- a"),
        );
    }

    #[test]
    fn several_versions_keep_their_headings() {
        let text = "## 1.3\n- c\n\n## 1.2\n- b\n\n## 1.2rc1\n\n## 1.1\n- a\n";
        check(text, "1.1", "1.3", Some("## 1.3\n\n- c\n\n## 1.2\n\n- b"));
        check(text, "1.1", "1.2", Some("- b"));
        check(text, "1.3", "1.4", None);
        check(text, "1.2", "1.2.5", None);
    }

    #[test]
    fn numbers_in_prose_are_no_headings() {
        let text =
            "## 1.2\n\n1.5 times faster than before, since\n2.0 is not\n  3.0\n- 1.0 stays\n\n## 1.1\n";
        check(
            text,
            "1.1",
            "1.2",
            Some("1.5 times faster than before, since\n2.0 is not\n  3.0\n- 1.0 stays"),
        );
        check("", "1.1", "1.2", None);
        check("## 1.2\n\n----\n\n.. _v1.1:\n\n## 1.1\n- b", "1.1", "1.2", None);
    }

    #[test]
    fn of_several_files_the_first_that_says_something_counts() {
        let tree = |files: &[(&str, &str)]| -> Tree {
            let file = |text: &str| super::super::SourceFile { bytes: text.into(), executable: false };
            files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
        };
        let version = |text| Version::parse(text).unwrap();
        let of = |files: &[(&str, &str)]| of_tree(&tree(files), "x", &version("1"), &version("2.0"));
        assert_eq!(of(&[("CHANGES.md", "see docs"), ("docs/changes.rst", "2.0\n===\na")]).unwrap(), "a");
        assert_eq!(
            of(&[("NEWS", "none"), ("setup.py", "2.0\n===\na")]).unwrap_err().to_string(),
            "nothing in the changelog between 1 and 2.0 (looked at: NEWS)"
        );
        assert!(
            of(&[("README.md", "# 2.0\na")])
                .unwrap_err()
                .to_string()
                .ends_with("(looked at: no file of that name)")
        );
    }
}
