//! The text of a git diff: one section for each file, as `git apply` and `patch` take it.

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Lines around a change.
const CONTEXT: usize = 3;
/// After which a diff gets coarser, and no less right.
const DIFF_MAX: Duration = Duration::from_secs(2);

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing, or nothing that git keeps.
    Absent,
    /// A file.
    File {
        /// What is in it.
        content: Vec<u8>,
        /// Whether its owner may execute it.
        executable: bool,
    },
    /// A symbolic link.
    Link(Vec<u8>),
}

impl Entry {
    fn mode(&self) -> Option<&'static str> {
        match self {
            Entry::Absent => None,
            Entry::File { executable: false, .. } => Some("100644"),
            Entry::File { executable: true, .. } => Some("100755"),
            Entry::Link(_) => Some("120000"),
        }
    }

    fn content(&self) -> &[u8] {
        match self {
            Entry::Absent => b"",
            Entry::File { content, .. } => content,
            Entry::Link(target) => target,
        }
    }

    fn is_link(&self) -> bool {
        matches!(self, Entry::Link(_))
    }
}

/// Appends what became of a path, from the folder of the diff; nothing where nothing did. Errors: content that is not text.
pub(super) fn section(
    path: &[u8],
    before: &Entry,
    after: &Entry,
    out: &mut String,
) -> Result<(), &'static str> {
    if before == after {
        return Ok(());
    }
    // A file in the place of a link is another file.
    if let (Some(_), Some(_)) = (before.mode(), after.mode())
        && before.is_link() != after.is_link()
    {
        section(path, before, &Entry::Absent, out)?;
        return section(path, &Entry::Absent, after, out);
    }
    let (old, new) = (text(before.content())?, text(after.content())?);
    let (a, b) = (name("a/", path), name("b/", path));
    let _ = writeln!(out, "diff --git {a} {b}");
    let _ = match (before.mode(), after.mode()) {
        (None, Some(mode)) => writeln!(out, "new file mode {mode}"),
        (Some(mode), None) => writeln!(out, "deleted file mode {mode}"),
        (Some(old), Some(new)) if old != new => writeln!(out, "old mode {old}\nnew mode {new}"),
        _ => Ok(()),
    };
    if old == new {
        return Ok(());
    }
    // As git does: without the tab a name with a blank would end there.
    let shown = |entry: &Entry, name: &str| match entry {
        Entry::Absent => "/dev/null".to_owned(),
        _ if name.contains(' ') => format!("{name}\t"),
        _ => name.to_owned(),
    };
    let _ = writeln!(out, "--- {}\n+++ {}", shown(before, &a), shown(after, &b));
    hunks(old, new, out);
    Ok(())
}

/// What git takes for text, where it can stand in one.
fn text(content: &[u8]) -> Result<&str, &'static str> {
    if content.contains(&0) {
        return Err("is binary");
    }
    std::str::from_utf8(content).map_err(|_| "is no UTF-8")
}

/// A name, quoted where it has what a line of a diff cannot hold.
fn name(side: &str, path: &[u8]) -> String {
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && !b"\"\\".contains(byte);
    if path.iter().all(plain) {
        return format!("{side}{}", String::from_utf8_lossy(path));
    }
    let mut quoted = format!("\"{side}");
    for byte in path {
        let _ = match byte {
            b'"' | b'\\' => write!(quoted, "\\{}", *byte as char),
            b'\n' => quoted.write_str("\\n"),
            b'\t' => quoted.write_str("\\t"),
            byte if plain(byte) => quoted.write_char(*byte as char),
            byte => write!(quoted, "\\{byte:03o}"),
        };
    }
    quoted + "\""
}

fn hunks(old: &str, new: &str, out: &mut String) {
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let deadline = Instant::now() + DIFF_MAX;
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
    for group in group_diff_ops(ops, CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |start: usize, end: usize| match end - start {
            0 => format!("{start},0"),
            1 => format!("{}", start + 1),
            count => format!("{},{count}", start + 1),
        };
        let from = range(first.old_range().start, last.old_range().end);
        let to = range(first.new_range().start, last.new_range().end);
        let _ = writeln!(out, "@@ -{from} +{to} @@");
        let mut lines = |sign: char, lines: &[&str]| {
            for line in lines {
                out.push(sign);
                out.push_str(line);
                if !line.ends_with('\n') {
                    out.push_str("\n\\ No newline at end of file\n");
                }
            }
        };
        for op in &group {
            if let DiffOp::Equal { .. } = op {
                lines(' ', &old[op.old_range()]);
            } else {
                lines('-', &old[op.old_range()]);
                lines('+', &new[op.new_range()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> Entry {
        Entry::File { content: content.as_bytes().to_vec(), executable: false }
    }

    fn program(content: &str) -> Entry {
        Entry::File { content: content.as_bytes().to_vec(), executable: true }
    }

    fn diff(path: &str, before: &Entry, after: &Entry) -> String {
        let mut out = String::new();
        section(path.as_bytes(), before, after, &mut out).unwrap();
        out
    }

    #[test]
    fn each_kind_of_change_reads_as_git_writes_it() {
        let check = |path: &str, before: Entry, after: Entry, expect: &str| {
            assert_eq!(diff(path, &before, &after), expect, "{path}");
        };
        let head = "diff --git a/f b/f\n";
        check("f", file("x"), file("x"), "");
        check("f", file("a\n"), file("b\n"), &format!("{head}--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"));
        check("f", file("a\n"), program("a\n"), &format!("{head}old mode 100644\nnew mode 100755\n"));
        check(
            "f",
            Entry::Absent,
            file("a\nb\n"),
            &format!("{head}new file mode 100644\n--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n"),
        );
        check("f", Entry::Absent, file(""), &format!("{head}new file mode 100644\n"));
        check(
            "f",
            program("a\n"),
            Entry::Absent,
            &format!("{head}deleted file mode 100755\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
        );
        check(
            "f",
            file("a\nb"),
            file("a\nb\n"),
            &format!("{head}--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"),
        );
        check(
            "f",
            file("one\n"),
            Entry::Link(b"to".to_vec()),
            &format!(
                "{head}deleted file mode 100644\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n{head}new file mode 120000\n--- \
                 /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+to\n\\ No newline at end of file\n"
            ),
        );
        check(
            "a b",
            file("a\r\nb\rc"),
            file("a\n"),
            "diff --git a/a b b/a b\n--- a/a b\t\n+++ b/a b\t\n@@ -1,2 +1 @@\n-a\r\n-b\rc\n\\ No newline at end of file\n+a\n",
        );
        check(
            "\"ü",
            Entry::Absent,
            file(""),
            "diff --git \"a/\\\"\\303\\274\" \"b/\\\"\\303\\274\"\nnew file mode 100644\n",
        );
    }

    #[test]
    fn changes_that_lie_apart_have_hunks_of_their_own() {
        let old: String = (1..=30).map(|line| format!("{line}\n")).collect();
        let new = old.replace("\n3\n", "\nthree\n").replace("\n25\n", "\n");
        let said = diff("f", &file(&old), &file(&new));
        let hunks: Vec<&str> = said.lines().filter(|line| line.starts_with("@@")).collect();
        assert_eq!(hunks, ["@@ -1,6 +1,6 @@", "@@ -22,7 +22,6 @@"], "{said}");
    }

    #[test]
    fn what_is_no_text_is_left_out() {
        let binary = Entry::File { content: vec![1, 0], executable: false };
        let latin = Entry::File { content: vec![0xE9], executable: false };
        let mut out = String::new();
        assert_eq!(section(b"f", &Entry::Absent, &binary, &mut out), Err("is binary"));
        assert_eq!(section(b"f", &latin, &Entry::Absent, &mut out), Err("is no UTF-8"));
        assert_eq!(out, "");
    }
}
