//! The world that a plugin in Python is built for: that of its kind, less what no file of the project names. componentize-py puts all of a
//! world into a component, used or not.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// The name of the world.
pub(super) const NAME: &str = "espalier:plugin/used";

/// Interfaces, by how their names begin, and the names of the SDK that lead to them.
const LED_TO: [(&str, &[&str]); 7] = [
    // The time is that of WASI.
    ("espalier:base/clock@", &[]),
    ("espalier:base/blobs@", &["blobs"]),
    ("espalier:model/conversations@", &["Conversation"]),
    ("espalier:environment/environments@", &["Environment"]),
    ("espalier:sandbox/", &["Sandbox"]),
    ("espalier:browser/", &["Browser"]),
    ("espalier:service/", &["Service"]),
];
/// Files with one of these may use anything.
const ANYTHING: [&str; 2] = ["wit_world", "getattr"];
/// Folders of a project that are not the author's own.
const OTHERS: [&str; 6] = ["sdk", "build", "venv", "node_modules", "site-packages", "__pycache__"];

/// Copies the interfaces in `wit` to `to`, with the world of what the project in `folder` uses of `world`.
pub(super) fn write(wit: &Path, world: &str, folder: &Path, to: &Path) -> io::Result<()> {
    let mut words = BTreeSet::new();
    read_words(folder, &mut words)?;
    copy(wit, to)?;
    let file = to.join("plugin.wit");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, with_used(&text, world, &words))
}

/// The interfaces with one more world.
fn with_used(text: &str, world: &str, words: &BTreeSet<String>) -> String {
    let lines = text.lines().skip_while(|line| *line != format!("world {world} {{"));
    let body = lines.skip(1).take_while(|line| *line != "}").filter(|line| is_used(line, words));
    let body: String = body.flat_map(|line| [line, "\n"]).collect();
    format!("{text}\nworld used {{\n{body}}}\n")
}

/// Whether a line of a world is wanted: all but imports that nothing leads to.
fn is_used(line: &str, words: &BTreeSet<String>) -> bool {
    let Some(interface) = line.trim().strip_prefix("import ") else { return true };
    let Some((_, names)) = LED_TO.iter().find(|(begin, _)| interface.starts_with(begin)) else { return true };
    names.iter().chain(&ANYTHING).any(|name| words.contains(*name))
}

/// The names in the author's files.
fn read_words(folder: &Path, words: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if path.is_dir() {
            if !name.starts_with('.') && !OTHERS.contains(&&*name) {
                read_words(&path, words)?;
            }
        } else if name.ends_with(".py") {
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
            words.extend(text.split(is_end).filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied)?;
        } else {
            std::fs::copy(&path, &copied)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "package espalier:plugin@0.1.2;\n\nworld judge-plugin {\n  import espalier:base/log@0.1.0;\n  \
                        import espalier:model/conversations@0.1.0;\n  import espalier:sandbox/scoring@0.1.1;\n  export judge;\n}\n";

    #[test]
    fn what_no_file_names_is_left_out() {
        let used = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            let text = with_used(TEXT, "judge-plugin", &words);
            text.strip_prefix(TEXT).expect("the rest as it was").to_owned()
        };
        let all = "\nworld used {\n  import espalier:base/log@0.1.0;\n  import espalier:model/conversations@0.1.0;\n  \
                   import espalier:sandbox/scoring@0.1.1;\n  export judge;\n}\n";
        assert_eq!(
            used(&["judge", "sandbox"]),
            "\nworld used {\n  import espalier:base/log@0.1.0;\n  export judge;\n}\n"
        );
        assert_eq!(used(&["Conversation"]), all.replace("  import espalier:sandbox/scoring@0.1.1;\n", ""));
        assert_eq!(used(&["Conversation", "Sandbox"]), all);
        assert_eq!(used(&["wit_world"]), all);
    }

    #[test]
    fn names_are_read_from_the_authors_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("plugin.py", "import espalier_sdk as sdk\nsdk.Sandbox.open('main')\n");
        write("own/more.py", "from espalier_sdk import blobs");
        for other in ["sdk/espalier_sdk/world.py", ".venv/lib/x.py", "venv/lib/x.py", "notes.txt"] {
            write(other, "Environment");
        }
        let mut words = BTreeSet::new();
        read_words(folder.path(), &mut words).expect("a project");
        assert!(
            words.contains("Sandbox") && words.contains("blobs") && !words.contains("Environment"),
            "{words:?}"
        );
    }
}
