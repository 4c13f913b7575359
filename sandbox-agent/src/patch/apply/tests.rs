use super::super::parse::{Options, parse};
use super::*;

#[track_caller]
fn check(before: &str, patch: &str, expect: Result<(&str, u32, u32), usize>) {
    let files = parse(patch.as_bytes(), Options::default()).unwrap();
    let applied = apply(before.as_bytes(), &files[0].hunks, 2);
    let applied =
        applied.map(|applied| (String::from_utf8(applied.content).unwrap(), applied.shifted, applied.fuzzy));
    assert_eq!(applied, expect.map(|(text, shifted, fuzzy)| (text.to_owned(), shifted, fuzzy)));
}

const HEAD: &str = "--- a/x\n+++ b/x\n";

#[test]
fn hunks_are_found_where_they_say_or_nearby() {
    let patch = format!("{HEAD}@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
    check("a\nb\nc\n", &patch, Ok(("a\nB\nc\n", 0, 0)));
    check("0\n1\na\nb\nc\n", &patch, Ok(("0\n1\na\nB\nc\n", 1, 0)));
    check("x\nb\nc\n", &patch, Ok(("x\nB\nc\n", 0, 1)));
    check("x\nb\ny\n", &patch, Ok(("x\nB\ny\n", 0, 1)));
    check("a\nq\nc\n", &patch, Err(1));
    check("", &patch, Err(1));
}

#[test]
fn the_nearest_of_two_places_is_taken_and_hunks_keep_their_order() {
    let patch = format!("{HEAD}@@ -4,1 +4,1 @@\n-b\n+B\n");
    check("b\n1\n2\n3\nb\n", &patch, Ok(("b\n1\n2\n3\nB\n", 1, 0)));
    let two = format!("{HEAD}@@ -1,1 +1,2 @@\n a\n+new\n@@ -3,1 +4,1 @@\n-a\n+z\n");
    check("a\nb\na\n", &two, Ok(("a\nnew\nb\nz\n", 0, 0)));
    check("a\nb\nc\n", &two, Err(2));
    let drift = format!("{HEAD}@@ -1,1 +1,1 @@\n-a\n+A\n@@ -3,1 +3,1 @@\n-c\n+C\n");
    check("0\n0\na\nb\nc\n", &drift, Ok(("0\n0\nA\nb\nC\n", 1, 0)));
}

#[test]
fn ends_without_newline() {
    let gains = format!("{HEAD}@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n");
    check("a", &gains, Ok(("a\n", 0, 0)));
    let loses = format!("{HEAD}@@ -1,1 +1,1 @@\n-a\n+a\n\\ No newline at end of file\n");
    check("a\n", &loses, Ok(("a", 0, 0)));
    let both = format!("{HEAD}@@ -1,2 +1,3 @@\n a\n+b\n c\n\\ No newline at end of file\n");
    check("a\nc", &both, Ok(("a\nb\nc", 0, 0)));
}

#[test]
fn insertions_and_deletions_of_everything() {
    check("", &format!("{HEAD}@@ -0,0 +1,2 @@\n+a\n+b\n"), Ok(("a\nb\n", 0, 0)));
    check("a\nb\n", &format!("{HEAD}@@ -1,2 +0,0 @@\n-a\n-b\n"), Ok(("", 0, 0)));
    check("a\nb\n", &format!("{HEAD}@@ -1,0 +2,1 @@\n+x\n"), Ok(("a\nx\nb\n", 0, 0)));
    check("a\n", &format!("{HEAD}@@ -9,0 +10,1 @@\n+x\n"), Err(1));
}

#[test]
fn what_cannot_be_read_is_named() {
    let error = |patch: &str| parse(patch.as_bytes(), Options::default()).unwrap_err();
    let cases = [
        (
            format!("{HEAD}@@ -1,3 +1,3 @@\n a\n-b\n"),
            "patch line 6: hunk 1 of `x`: it ends early: 2 of 3 old and 1 of 3 new lines",
        ),
        (
            format!("{HEAD}@@ -1,1 +1,1 @@\n-a\n-b\n+c\n"),
            "patch line 5: hunk 1 of `x`: more lines than its header declares (1 old, 1 new)",
        ),
        (format!("{HEAD}@@ nonsense\n"), "patch line 2: a file without a hunk"),
        ("@@ -1 +1 @@\n-a\n+b\n".to_owned(), "patch line 1: a hunk without a file"),
        (
            "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n".to_owned(),
            "patch line 3: name `a/../x`: outside of the directory",
        ),
        (
            "--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n".to_owned(),
            "patch line 3: name `/etc/passwd`: outside of the directory",
        ),
        (
            "diff --git a/i.png b/i.png\nindex 1..2 100644\nGIT binary patch\nliteral 3\nabc\n".to_owned(),
            "patch line 3: `a/i.png b/i.png` is binary: send it as a file",
        ),
        ("diff --git a/x b/x\nold mode 9\n".to_owned(), "patch line 2: `9` is not a mode"),
    ];
    for (patch, expect) in cases {
        assert_eq!(error(&patch), expect);
    }
}

#[test]
fn git_diffs_say_more_than_content() {
    let patch = b"From: somebody\n\nprose\n\ndiff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\ndiff --git a/old name b/new\nsimilarity index 100%\nrename from old name\nrename to new\ndiff --git \"a/caf\\303\\251\" \"b/caf\\303\\251\"\nnew file mode 100644\nindex 000..111\n--- /dev/null\n+++ \"b/caf\\303\\251\"\n@@ -0,0 +1 @@\n+x\ndiff --git a/gone b/gone\ndeleted file mode 100644\nindex 111..000\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\ndiff --git a/empty b/empty\nnew file mode 100644\nindex 000..e69\n";
    let files = parse(patch, Options::default()).unwrap();
    let name = |name: &Option<Vec<u8>>| name.as_ref().map(|name| String::from_utf8(name.clone()).unwrap());
    let said: Vec<_> = files
        .iter()
        .map(|file| (name(&file.old), name(&file.new), file.new_mode, file.hunks.len()))
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        said,
        [
            (some("run.sh"), some("run.sh"), Some(0o100_755), 0),
            (some("old name"), some("new"), None, 0),
            (None, some("café"), Some(0o100_644), 1),
            (some("gone"), None, None, 1),
            (None, some("empty"), Some(0o100_644), 0),
        ]
    );
    let reversed = parse(patch, Options { reverse: true, ..Options::default() }).unwrap();
    assert_eq!((name(&reversed[2].old), name(&reversed[2].new)), (some("café"), None));
    let stripped =
        parse(b"--- x/y/z\n+++ x/y/z\n@@ -1 +1 @@\n-a\n+b\n", Options { strip: Some(2), reverse: false });
    assert_eq!(name(&stripped.unwrap()[0].new), some("z"));
}

/// Edits at random, written as a diff by hand, go there and back.
#[test]
fn random_edits_go_there_and_back() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    let seed = 5;
    let mut random = StdRng::seed_from_u64(seed);
    for game in 0..500 {
        let before: Vec<String> =
            (0..random.random_range(0..40)).map(|_| format!("{}\n", random.random_range(0..9))).collect();
        let (patch, after) = diff(&before, &mut random);
        if patch.is_empty() {
            continue;
        }
        let text = format!("{HEAD}{patch}");
        let at = format!("seed {seed}, game {game}:\n{text}");
        let forward = parse(text.as_bytes(), Options::default()).expect(&at);
        let applied = apply(before.concat().as_bytes(), &forward[0].hunks, 0).expect(&at);
        assert_eq!(String::from_utf8(applied.content).unwrap(), after, "{at}");
        assert_eq!((applied.shifted, applied.fuzzy), (0, 0), "{at}");
        let back = parse(text.as_bytes(), Options { reverse: true, strip: None }).expect(&at);
        let undone = apply(after.as_bytes(), &back[0].hunks, 0).expect(&at);
        assert_eq!(String::from_utf8(undone.content).unwrap(), before.concat(), "{at}");
    }
}

/// One hunk over the whole file with some lines changed.
fn diff(before: &[String], random: &mut rand::rngs::StdRng) -> (String, String) {
    use rand::RngExt;
    let (mut body, mut after, mut new) = (String::new(), String::new(), 0);
    for line in before {
        match random.random_range(0..5) {
            0 => body += &format!("-{line}"),
            1 => {
                body += &format!("-{line}+x{line}");
                after += &format!("x{line}");
                new += 1;
            }
            2 => {
                body += &format!("+y\n {line}");
                after += &format!("y\n{line}");
                new += 2;
            }
            _ => {
                body += &format!(" {line}");
                after += line;
                new += 1;
            }
        }
    }
    if before.is_empty() {
        return ("@@ -0,0 +1 @@\n+x\n".to_owned(), "x\n".to_owned());
    }
    let start = usize::from(new > 0);
    (format!("@@ -1,{} +{start},{new} @@\n{body}", before.len()), after)
}

/// Bytes at random never panic, nor does half of a good patch.
#[test]
fn bad_patches_never_panic() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    let mut random = StdRng::seed_from_u64(9);
    let pieces: [&[u8]; 14] = [
        b"--- a/x\n",
        b"+++ b/x\n",
        b"@@ -1,2 +1,2 @@\n",
        b"@@ -0,0 +1 @@",
        b" a\n",
        b"-a\n",
        b"+b\n",
        b"\\ No newline\n",
        b"diff --git a/x b/x\n",
        b"rename from \"\\3",
        b"new file mode 100644\n",
        b"\n",
        b"\"",
        b"@@ -99999999999999999999 +1 @@\n",
    ];
    for _ in 0..3000 {
        let text: Vec<u8> = (0..random.random_range(0..12))
            .flat_map(|_| pieces[random.random_range(0..pieces.len())].to_vec())
            .collect();
        if let Ok(files) = parse(&text, Options { strip: None, reverse: random.random_bool(0.5) }) {
            for file in files {
                let _ = apply(b"a\nb\na\n", &file.hunks, 3);
            }
        }
    }
}
