//! The difference of two trees as a diff in git's form.

use super::{Refusal, SourceFile};
use similar::udiff::UnifiedHunkHeader;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Lines around a change.
const CONTEXT: usize = 3;
/// After which the difference of one file gets coarser, and no less right.
const DIFF_MAX: Duration = Duration::from_secs(10);

/// What makes `new` of `old`; empty where they are the same.
pub(super) fn between(
    old: &BTreeMap<&str, &SourceFile>,
    new: &BTreeMap<&str, &SourceFile>,
) -> Result<String, Refusal> {
    let mut patch = String::new();
    let paths: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    for path in paths {
        let (before, after) = (old.get(path).copied(), new.get(path).copied());
        if before != after {
            one(&mut patch, path, before, after)?;
        }
    }
    Ok(patch)
}

fn one(
    patch: &mut String,
    path: &str,
    before: Option<&SourceFile>,
    after: Option<&SourceFile>,
) -> Result<(), Refusal> {
    if path.chars().any(|c| c.is_control() || c.is_whitespace() || c == '"' || c == '\\') {
        return Err(Refusal::Name(path.to_owned()));
    }
    let text = |file: Option<&SourceFile>| match file {
        None => Ok(String::new()),
        Some(file) if file.bytes.contains(&0) => Err(Refusal::Binary(path.to_owned())),
        Some(file) => String::from_utf8(file.bytes.clone()).map_err(|_| Refusal::Binary(path.to_owned())),
    };
    let (was, is) = (text(before)?, text(after)?);
    let mode = |file: &SourceFile| if file.executable { "100755" } else { "100644" };
    // Writing to a text does not fail.
    let _ = writeln!(patch, "diff --git a/{path} b/{path}");
    let _ = match (before, after) {
        (None, Some(file)) => writeln!(patch, "new file mode {}", mode(file)),
        (Some(file), None) => writeln!(patch, "deleted file mode {}", mode(file)),
        (Some(one), Some(other)) if one.executable != other.executable => {
            writeln!(patch, "old mode {}\nnew mode {}", mode(one), mode(other))
        }
        _ => Ok(()),
    };
    if was == is {
        return Ok(());
    }
    let name = |file: Option<&SourceFile>, side: &str| match file {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".to_owned(),
    };
    let _ = writeln!(patch, "--- {}\n+++ {}", name(before, "a"), name(after, "b"));
    hunks(&was, &is, patch);
    Ok(())
}

/// A line ends at a line feed and nowhere else, as for git.
fn hunks(was: &str, is: &str, patch: &mut String) {
    let (was, is): (Vec<&str>, Vec<&str>) =
        (was.split_inclusive('\n').collect(), is.split_inclusive('\n').collect());
    let deadline = Instant::now() + DIFF_MAX;
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &was, &is, Some(deadline));
    let groups = group_diff_ops(ops, CONTEXT).into_iter().filter(|group| !group.is_empty());
    for group in groups {
        let _ = writeln!(patch, "{}", UnifiedHunkHeader::new(&group));
        let mut lines = |sign: char, lines: &[&str]| {
            for line in lines {
                patch.push(sign);
                patch.push_str(line);
                if !line.ends_with('\n') {
                    patch.push_str("\n\\ No newline at end of file\n");
                }
            }
        };
        for op in &group {
            if let DiffOp::Equal { .. } = op {
                lines(' ', &was[op.old_range()]);
            } else {
                lines('-', &was[op.old_range()]);
                lines('+', &is[op.new_range()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SourceFile {
        SourceFile { bytes: text.into(), executable: false }
    }

    #[test]
    fn each_kind_of_change_has_its_form() {
        let script = SourceFile { executable: true, ..file("x\n") };
        let (a, b, c, empty, plain) =
            (file("1\n2\n3\n"), file("1\ntwo\n3"), file("gone\n"), file(""), file("x\n"));
        let old = BTreeMap::from([("a", &a), ("c", &c), ("s", &plain), ("same", &a)]);
        let new = BTreeMap::from([("a", &b), ("d/__init__.py", &empty), ("s", &script), ("same", &a)]);
        let patch = between(&old, &new).unwrap();
        let expect = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n-3\n+two\n+3\n\\ No newline at end of file\n\
            diff --git a/c b/c\ndeleted file mode 100644\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
            diff --git a/d/__init__.py b/d/__init__.py\nnew file mode 100644\n\
            diff --git a/s b/s\nold mode 100644\nnew mode 100755\n";
        assert_eq!(patch, expect);
        assert_eq!(between(&old, &old).unwrap(), "");
    }

    #[test]
    fn a_line_ends_at_a_line_feed_alone() {
        let (old, new) = (file("1\r2\n3\r\n4\r"), file("1\r2\n3\n4\r"));
        let patch = between(&BTreeMap::from([("a", &old)]), &BTreeMap::from([("a", &new)])).unwrap();
        let expect = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\r2\n-3\r\n+3\n 4\r\n\\ No newline at end of file\n";
        assert_eq!(patch, expect);
    }

    #[test]
    fn what_no_text_can_say_is_refused() {
        let (one, other) = (file("a\0b"), file("a"));
        let refused = |path: &'static str| {
            between(&BTreeMap::from([(path, &one)]), &BTreeMap::from([(path, &other)]))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(refused("x.bin"), "x.bin differs and is not text");
        assert_eq!(refused("a b"), "\"a b\" is a name that a patch cannot contain");
    }
}
