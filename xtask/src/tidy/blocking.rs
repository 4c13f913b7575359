//! No file work on the engine's runtime: an async function reads and writes files through `tokio::fs`, or on a thread where that
//! may block. Seen file by file: what an async function does itself, or by a function beside it.

use std::collections::BTreeSet;

/// Where the engine's runtime is at work.
const FOLDERS: [&str; 10] = [
    "engine/api/src",
    "engine/daemon/src/engine",
    "engine/daemon/src/runner",
    "engine/daemon/src/scheduler",
    "engine/egress/src",
    "engine/images/src",
    "engine/inference/src",
    "engine/plugin/src",
    "engine/sandbox/src",
    "engine/store/src",
];

/// File work that waits for the disk.
const FILE_WORK: [&str; 8] = [
    "std::fs::",
    " fs::",
    "(fs::",
    "File::open(",
    "File::create",
    ".sync_all(",
    ".sync_data(",
    "std::env::current_exe(",
];

/// What moves work to a thread where it may wait.
const SHELTERS: [&str; 4] = ["blocking(", "spawn_blocking(", "off_runtime(", "self.collect("];

/// A function of the text.
struct Function<'a> {
    name: &'a str,
    is_async: bool,
    first: usize,
    lines: Vec<&'a str>,
}

/// Adds a fault for each place in a source file of the engine.
pub(super) fn check(name: &str, text: &str, faults: &mut Vec<String>) {
    let watched = FOLDERS.iter().any(|folder| name.starts_with(folder));
    if !watched || !name.ends_with(".rs") || name.contains("/tests") {
        return;
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let functions = functions(code);
    // Functions that wait for the disk, by themselves or by each other.
    let mut waiting: BTreeSet<&str> = BTreeSet::new();
    loop {
        let more: Vec<&str> = functions
            .iter()
            .filter(|function| !function.is_async && !waiting.contains(function.name))
            .filter(|function| function.places(&waiting).next().is_some())
            .map(|function| function.name)
            .collect();
        if more.is_empty() {
            break;
        }
        waiting.extend(more);
    }
    for function in functions.iter().filter(|function| function.is_async) {
        for line in function.places(&waiting) {
            faults.push(format!(
                "{name}:{}: file work in `async fn {}`; use tokio::fs, or a thread where it may block",
                function.first + line + 1,
                function.name
            ));
        }
    }
}

fn functions(code: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let head = line.trim_start();
        let Some((before, after)) = head.split_once("fn ") else { continue };
        let modifiers = ["pub", "async", "const", "pub(crate)", "pub(super)", "unsafe"];
        if !before.split_whitespace().all(|word| modifiers.contains(&word)) {
            continue;
        }
        let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let depth = indent(line);
        let body = lines[first + 1..].iter().position(|line| line.starts_with(&format!("{:depth$}}}", "")));
        let end = body.map_or(first + 1, |length| first + 1 + length);
        let is_async = before.split_whitespace().any(|word| word == "async");
        found.push(Function { name, is_async, first, lines: lines[first..end].to_vec() });
    }
    found
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

impl Function<'_> {
    /// Lines of it that wait for the disk where it runs itself.
    fn places<'a>(&'a self, waiting: &'a BTreeSet<&str>) -> impl Iterator<Item = usize> + 'a {
        let own = self.lines.iter().enumerate().skip(1);
        own.filter(move |(at, line)| {
            let code = line.split("//").next().unwrap_or_default();
            let works = FILE_WORK.iter().any(|work| code.contains(work)) && !code.contains("tokio::fs::");
            (works || calls(code, waiting)) && !self.is_sheltered(*at)
        })
        .map(|(at, _)| at)
    }

    /// Whether the line, or a line that it is indented under, hands the work to another thread.
    fn is_sheltered(&self, at: usize) -> bool {
        let mut depth = indent(self.lines[at]) + 1;
        for line in self.lines[1..=at].iter().rev().filter(|line| !line.trim().is_empty()) {
            if indent(line) < depth {
                depth = indent(line);
                if SHELTERS.iter().any(|shelter| line.contains(shelter)) {
                    return true;
                }
            }
        }
        false
    }
}

/// Whether the line calls one of these functions of its own file.
fn calls(code: &str, names: &BTreeSet<&str>) -> bool {
    names.iter().any(|name| {
        code.match_indices(&format!("{name}(")).any(|(at, _)| {
            let before = &code[..at];
            let own = before.ends_with("self.") || before.ends_with("Self::");
            own || !before.ends_with(|c: char| c.is_alphanumeric() || "_.:".contains(c))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_work_in_async_functions_is_found_and_elsewhere_is_fine() {
        let text = "
async fn keep(path: &Path) {
    let bytes = std::fs::read(path);
}
async fn load(path: &Path) {
    write_whole(path);
    tokio::fs::read(path).await;
    blocking(move || {
        stamp(path);
        std::fs::read(path)
    })
    .await;
    off_runtime(\"it\", move || write_whole(path)).await;
}
fn write_whole(path: &Path) {
    stamp(path);
}
fn stamp(path: &Path) {
    std::fs::metadata(path);
}
";
        let mut faults = Vec::new();
        check("engine/daemon/src/engine/plugins.rs", text, &mut faults);
        let places: Vec<_> = faults.iter().map(|fault| fault.split(": ").next().unwrap()).collect();
        assert_eq!(
            places,
            ["engine/daemon/src/engine/plugins.rs:3", "engine/daemon/src/engine/plugins.rs:6"],
            "{faults:?}"
        );
        check("engine/daemon/src/cli/copy.rs", text, &mut faults);
        assert_eq!(faults.len(), 2, "a command of its own may wait");
    }
}
