//! Interfaces that were released do not change, whatever is said about them: plugins that were built against them live on.
//! What is added is a patch: a folder of its own (`deps/base-0.1.1`) that holds the one before word for word and more. The worlds of
//! `plugin.wit` are patched in `deps/plugin-0.1.1/plugin.wit`.

use std::collections::BTreeMap;
use std::path::Path;
use walkdir::WalkDir;

/// The file of `wit/` whose interfaces nobody uses yet and that may change.
const UNRELEASED: &str = "unreleased.wit";

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
        if let Some(before) = patched(file) {
            let Err(why) = adds_only(&text_of(&before), &text) else { continue };
            faults.push(format!(
                "wit/{file}: a patch of wit/{before} must keep it unchanged and only add: {why}"
            ));
        }
    }
    for entry in WalkDir::new(&wit).sort_by_file_name().into_iter().filter_map(Result::ok) {
        let file = entry.path().strip_prefix(&wit).unwrap_or(entry.path()).to_string_lossy().into_owned();
        if file.ends_with(".wit") && file != UNRELEASED && !released.contains_key(&file) {
            faults.push(format!(
                "wit/{file}: not in wit/released.toml; unreleased parts belong in wit/{UNRELEASED}"
            ));
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

/// The file that this one is a patch of: `deps/base-0.1.2/base.wit` of `deps/base-0.1.1/base.wit`, and that of
/// `deps/base/base.wit`. The worlds' first version is the root package, `plugin.wit`.
fn patched(file: &str) -> Option<String> {
    let (folder, name) = file.strip_prefix("deps/")?.split_once('/')?;
    let (package, version) = folder.rsplit_once('-')?;
    let (track, patch) = version.rsplit_once('.')?;
    let before = match patch.parse::<u32>().ok()?.checked_sub(1)? {
        0 if package == "plugin" => return Some(name.to_owned()),
        0 => package.to_owned(),
        patch => format!("{package}-{track}.{patch}"),
    };
    Some(format!("deps/{before}/{name}"))
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
    // `espalier:base@0.1.0` of `package espalier:base@0.1.0;`.
    let package = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("package ")).unwrap_or_default();
        let (name, version) = line.trim_end_matches(';').rsplit_once('@').unwrap_or_default();
        (name.to_owned(), version.to_owned())
    };
    let ((name, old), (_, new)) = (package(before), package(after));
    // Other packages keep the versions they are used in.
    let items = |text: &str, own: &str| {
        let is_own = |word: &str| {
            word.strip_prefix(&name).is_some_and(|rest| rest.starts_with('@') || rest.starts_with('/'))
        };
        let words = words(text).into_iter().map(|word| match is_own(word) {
            true => word.replace(&format!("@{own}"), "@own"),
            false => word.to_owned(),
        });
        let text = words.collect::<Vec<_>>().join(" ");
        let mut rest = text.as_str();
        items(&mut rest)
    };
    if old.is_empty() || new.is_empty() || old == new {
        return Err(format!("version `{old}` is followed by `{new}`"));
    }
    all_there(&items(before, &old), &items(after, &new))
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
    fn a_patch_is_known_by_its_folder() {
        let patched = |file| patched(file).unwrap_or_default();
        assert_eq!(patched("deps/base-0.1.1/base.wit"), "deps/base/base.wit");
        assert_eq!(patched("deps/base-0.1.2/base.wit"), "deps/base-0.1.1/base.wit");
        assert_eq!(patched("deps/base/base.wit"), "");
        assert_eq!(patched("plugin.wit"), "");
        assert_eq!(patched("deps/plugin-0.1.1/plugin.wit"), "plugin.wit");
        assert_eq!(patched("deps/plugin-0.1.2/plugin.wit"), "deps/plugin-0.1.1/plugin.wit");
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
        check("{f, g}", "{f}", Err("`use a:d/e@0.2.0.{f, g}` is gone or changed"));
        check("@0.1.1", "@0.1.0", Err("version `0.1.0` is followed by `0.1.0`"));
    }

    #[test]
    fn a_world_gets_an_import_by_a_patch_of_the_worlds() {
        let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("wit");
        for file in [
            "plugin.wit",
            "released.toml",
            "deps/base/base.wit",
            "deps/environment/environment.wit",
            "deps/model/model.wit",
            "deps/sandbox/sandbox.wit",
        ] {
            std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            std::fs::copy(wit.join(file), folder.join(file)).unwrap();
        }
        let worlds = std::fs::read_to_string(wit.join("plugin.wit"))
            .unwrap()
            .replace("plugin@0.1.0;", "plugin@0.1.1;");
        let faults = |text: &str| {
            std::fs::create_dir_all(folder.join("deps/plugin-0.1.1")).unwrap();
            std::fs::write(folder.join("deps/plugin-0.1.1/plugin.wit"), text).unwrap();
            let released = std::fs::read_to_string(wit.join("released.toml")).unwrap();
            let entry = format!("\"deps/plugin-0.1.1/plugin.wit\" = \"{}\"\n", digest_of_meaning(text));
            std::fs::write(folder.join("released.toml"), released + &entry).unwrap();
            let mut faults = Vec::new();
            check(root.path(), &mut faults);
            faults
        };
        let more = worlds.replace(
            "world harness-plugin {",
            "world harness-plugin {\n  import espalier:environment/environments@0.1.0;",
        );
        assert_ne!(more, worlds);
        assert_eq!(faults(&more), Vec::<String>::new());
        let [fault] = &faults(&more.replace("gave-up,", "resigned,"))[..] else { panic!("one fault") };
        assert!(
            fault.starts_with("wit/deps/plugin-0.1.1/plugin.wit: a patch of wit/plugin.wit must keep it"),
            "{fault}"
        );
    }

    #[test]
    fn the_patch_in_the_tests_of_the_plugin_host_is_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let said = adds_only(&read("wit/deps/base/base.wit"), &read("engine/plugin/tests/patch/base.wit"));
        assert_eq!(said, Ok(()));
    }
}
