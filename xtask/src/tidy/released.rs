//! Interfaces that were released do not change, whatever is said about them: plugins that were built against them live on.
//! What is added is a patch: the package's file under the next version, which holds the one before word for word and more. The one
//! before is kept in `wit/released`.

use std::collections::BTreeMap;
use std::path::Path;
use walkdir::WalkDir;

/// Holds `wit/` against the digests of `wit/released.toml`, and each patch against what it patches.
pub(super) fn check(root: &Path, faults: &mut Vec<String>) {
    let wit = root.join("wit");
    let text_of = |file: &str| std::fs::read_to_string(wit.join(file)).unwrap_or_default();
    let released: BTreeMap<String, String> = toml::from_str(&text_of("released.toml")).unwrap_or_default();
    if released.is_empty() {
        faults.push("wit/released.toml: missing or not a list of files with their digests".to_owned());
    }
    for (file, digest) in &released {
        let text = text_of(file);
        let found = digest_of_meaning(&text);
        if found != *digest {
            faults.push(format!(
                "wit/{file}: it was released and has changed (digest {found}); a change needs a new version"
            ));
        }
        if let Some(before) = patched(&text) {
            if !released.contains_key(&before) {
                faults.push(format!(
                    "wit/{file}: what it is a patch of, wit/{before}, is not in wit/released.toml"
                ));
            }
            let Err(why) = adds_only(&text_of(&before), &text) else { continue };
            faults.push(format!(
                "wit/{file}: a patch of wit/{before} must keep it unchanged and only add: {why}"
            ));
        }
    }
    for entry in WalkDir::new(&wit).sort_by_file_name().into_iter().filter_map(Result::ok) {
        let file = entry.path().strip_prefix(&wit).unwrap_or(entry.path()).to_string_lossy().into_owned();
        if file.ends_with(".wit") && !released.contains_key(&file) {
            faults.push(format!("wit/{file}: not in wit/released.toml"));
        }
    }
}

/// Digest of an interface without its comments and blanks.
fn digest_of_meaning(text: &str) -> String {
    blake3::hash(words(text).join(" ").as_bytes()).to_hex()[..32].to_owned()
}

fn words(text: &str) -> Vec<&str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(str::split_whitespace).collect()
}

/// The file that one with this text is a patch of: `released/base-0.1.1.wit` of `espalier:base@0.1.2`.
fn patched(text: &str) -> Option<String> {
    let (name, version) = package(text);
    let (track, patch) = version.rsplit_once('.')?;
    let before = patch.parse::<u32>().ok()?.checked_sub(1)?;
    Some(format!("released/{}-{track}.{before}.wit", name.rsplit(':').next()?))
}

/// `espalier:base` and `0.1.0` of `package espalier:base@0.1.0;`.
fn package(text: &str) -> (String, String) {
    let line = text.lines().find_map(|line| line.strip_prefix("package ")).unwrap_or_default();
    let (name, version) = line.trim_end_matches(';').rsplit_once('@').unwrap_or_default();
    (name.to_owned(), version.to_owned())
}

/// A word without the patch of the package that it names: another package may be used in a newer patch, which has all that the
/// older one had.
fn without_patch(word: &str) -> String {
    let Some((name, rest)) = word.split_once('@').filter(|(name, _)| name.contains(':')) else {
        return word.to_owned();
    };
    // `0.1.0.{failure,` of a `use`, `0.1.0;` of an import.
    let version: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let version = version.trim_end_matches('.');
    let track = version.rsplit_once('.').map_or(version, |(track, _)| track);
    format!("{name}@{track}{}", &rest[version.len()..])
}

/// A statement up to its `;` or `,`, or a block with what stands in it.
#[derive(Debug, PartialEq)]
struct Item {
    head: String,
    inner: Vec<Item>,
}

impl Item {
    /// Whether something may be added inside: a record or variant with one more case is another type.
    fn grows(&self) -> bool {
        ["interface ", "resource ", "world "].iter().any(|kind| self.head.starts_with(kind))
    }
}

/// Whether `after` is `before`, under another patch version, with items added and nothing else.
fn adds_only(before: &str, after: &str) -> Result<(), String> {
    let ((_, old), (_, new)) = (package(before), package(after));
    let items = |text: &str| {
        let text = words(text).into_iter().map(without_patch).collect::<Vec<_>>().join(" ");
        let mut rest = text.as_str();
        items(&mut rest)
    };
    if old.is_empty() || new.is_empty() || old == new {
        return Err(format!("version `{old}` is followed by `{new}`"));
    }
    all_there(&items(before), &items(after))
}

fn all_there(before: &[Item], after: &[Item]) -> Result<(), String> {
    for item in before {
        let same = after.iter().find(|other| other.head == item.head);
        let same = same.ok_or_else(|| format!("`{}` is gone or changed", item.head))?;
        if item.grows() {
            all_there(&item.inner, &same.inner)?;
        } else if item.inner != same.inner {
            return Err(format!("`{}` is changed", item.head));
        }
    }
    Ok(())
}

/// What stands up to the `}` that closes it, or to the end.
fn items(rest: &mut &str) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        // `use a.{b};` and `func(a: u32, b: u32)` are one statement: brackets and braces behind a dot end nothing.
        let (mut depth, mut end) = (0u32, None);
        for (at, c) in rest.char_indices() {
            match c {
                '(' | '<' => depth += 1,
                '{' if rest[..at].ends_with('.') => depth += 1,
                ')' => depth -= 1,
                '>' if !rest[..at].ends_with('-') => depth -= 1,
                '}' if depth > 0 => depth -= 1,
                ';' | ',' | '{' | '}' if depth == 0 => {
                    end = Some((at, c));
                    break;
                }
                _ => {}
            }
        }
        let Some((at, c)) = end else { return items };
        let head = rest[..at].trim().to_owned();
        *rest = &rest[at + 1..];
        let inner = if c == '{' { self::items(rest) } else { Vec::new() };
        if !head.is_empty() {
            items.push(Item { head, inner });
        }
        if c == '}' {
            return items;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_a_released_interface_is_no_part_of_it() {
        let was = digest_of_meaning("/// Of old.\nread: func(at: u64) -> string;\n");
        assert_eq!(was, digest_of_meaning("// New.\n  read: func(at: u64)\n  -> string;"));
        assert_ne!(was, digest_of_meaning("read: func(at: u32) -> string;"));
    }

    #[test]
    fn a_patch_is_known_by_its_version() {
        let patched = |version| patched(&format!("/// Text.\npackage espalier:base@{version};\n"));
        assert_eq!(patched("0.1.0"), None);
        assert_eq!(patched("0.1.1").as_deref(), Some("released/base-0.1.0.wit"));
        assert_eq!(patched("0.2.3").as_deref(), Some("released/base-0.2.2.wit"));
    }

    #[test]
    fn another_package_may_be_used_in_a_newer_patch() {
        for (word, expect) in [
            ("a:b/c@0.1.2;", "a:b/c@0.1;"),
            ("a:b/c@0.1.0.{d,", "a:b/c@0.1.{d,"),
            ("a:b@1.0.12;", "a:b@1.0;"),
            ("other-code@example", "other-code@example"),
        ] {
            assert_eq!(without_patch(word), expect);
        }
    }

    const BEFORE: &str = "package a:b@0.1.0;\ninterface c {\n  use a:d/e@0.2.0.{f, g};\n  record h { i: u32,\n j: list<tuple<string, u8>> }\n
        resource k { l: func(m: u32, n: u32) -> result<_, f>; }\n  o: func();\n}\nworld p { import c; }";

    #[test]
    fn a_patch_adds_functions_interfaces_and_imports_and_changes_nothing() {
        let check = |from: &str, to: &str, expect: Result<(), &str>| {
            let after = BEFORE.replace("@0.1.0", "@0.1.1");
            assert!(after.contains(from), "{from}");
            let said = adds_only(BEFORE, &after.replace(from, to));
            assert_eq!(said, expect.map_err(str::to_owned), "{from} -> {to}");
        };
        check("o: func();", "o: func(); q: func(r: u32);", Ok(()));
        check("l: func", "q: func(); l: func", Ok(()));
        check("world p {", "interface q { o: func(); } world p { import q;", Ok(()));
        check("o: func();", "", Err("`o: func()` is gone or changed"));
        check("n: u32)", "n: u64)", Err("`l: func(m: u32, n: u32) -> result<_, f>` is gone or changed"));
        check("i: u32,", "i: u32, q: u8,", Err("`record h` is changed"));
        check("{f, g}", "{f}", Err("`use a:d/e@0.2.{f, g}` is gone or changed"));
        check("@0.2.0", "@0.2.1", Ok(()));
        check("@0.2.0", "@0.3.0", Err("`use a:d/e@0.2.{f, g}` is gone or changed"));
        check("@0.1.1", "@0.1.0", Err("version `0.1.0` is followed by `0.1.0`"));
    }

    #[test]
    fn a_world_gets_an_import_by_a_patch_of_the_worlds() {
        let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("wit");
        for entry in
            WalkDir::new(&wit).into_iter().map(Result::unwrap).filter(|entry| entry.file_type().is_file())
        {
            let to = folder.join(entry.path().strip_prefix(&wit).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(entry.path(), to).unwrap();
        }
        let released = std::fs::read_to_string(wit.join("released.toml")).unwrap();
        let now = std::fs::read_to_string(wit.join("plugin.wit")).unwrap();
        let (_, version) = package(&now);
        let (track, patch) = version.rsplit_once('.').unwrap();
        let next = format!("{track}.{}", patch.parse::<u32>().unwrap() + 1);
        let kept = format!("released/plugin-{version}.wit");
        std::fs::write(folder.join(&kept), &now).unwrap();
        let worlds = now.replace(&format!("plugin@{version};"), &format!("plugin@{next};"));
        let faults = |text: &str| {
            std::fs::write(folder.join("plugin.wit"), text).unwrap();
            let others = released.lines().filter(|line| !line.starts_with("\"plugin.wit\""));
            let [old, new] = [&now, text].map(digest_of_meaning);
            let entries = format!("\"plugin.wit\" = \"{new}\"\n\"{kept}\" = \"{old}\"\n");
            let released = others.map(|line| format!("{line}\n")).collect::<String>() + &entries;
            std::fs::write(folder.join("released.toml"), released).unwrap();
            let mut faults = Vec::new();
            check(root.path(), &mut faults);
            faults
        };
        let more = worlds.replace(
            "world judge-plugin {",
            "world judge-plugin {\n  import espalier:environment/environments@0.1.0;",
        );
        assert_ne!(more, worlds);
        assert_eq!(faults(&more), Vec::<String>::new());
        let [fault] = &faults(&more.replace("gave-up,", "resigned,"))[..] else { panic!("one fault") };
        assert!(fault.starts_with(&format!("wit/plugin.wit: a patch of wit/{kept} must keep it")), "{fault}");
    }

    #[test]
    fn the_patch_in_the_tests_of_the_plugin_host_is_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let said = adds_only(&read("wit/deps/base/base.wit"), &read("engine/plugin/tests/patch/base.wit"));
        assert_eq!(said, Ok(()));
    }
}
