//! Runs every program of tests, several at once: many of them wait most of their time, for leases, kills and bounds.
//!
//! cargo runs one program after the other. Here each writes into a file of its own; what failed is printed whole, the rest is a line.

use crate::place;
use crate::shell::say;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A program that takes longer is ended: 30 minutes, three times what the longest takes on two busy cores.
const BOUND_S: &str = "1800";

/// Programs that run when all others have ended: pages draw no frames where many programs want the cores.
const ALONE: [&str; 2] = ["browser browser", "browser playwright"];

/// What takes longest begins first, so that nothing long is left over at the end.
const LONG: [&str; 12] = [
    "tests sandboxes",
    "engine/sandbox local",
    "tests models",
    "clients/python fuzz",
    "clients/python",
    "clients/python waiting",
    "tests languages",
    "tests faults",
    "sandbox-agent agent",
    "tests runs",
    "tests install",
    "engine/store store",
];

/// Something that runs tests and says at its end how many.
pub struct Program {
    /// Folder from the repository's root, and name: `engine/sandbox local`.
    pub name: String,
    /// What to run.
    pub command: Command,
}

/// What became of one.
struct Ended {
    name: String,
    counts: Counts,
    took: Duration,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Program {
    /// The programs that `cargo test --no-run --message-format=json` tells of in what it prints.
    pub fn of_cargo(printed: &str) -> Result<Vec<Program>, String> {
        let mut programs = Vec::new();
        for line in printed.lines().filter(|line| line.starts_with('{')) {
            let told: Value =
                serde_json::from_str(line).map_err(|error| format!("cargo said {line}: {error}"))?;
            let (Some(executable), true) = (told["executable"].as_str(), told["profile"]["test"] == true)
            else {
                continue;
            };
            let manifest = Path::new(told["manifest_path"].as_str().unwrap_or_default());
            let folder = manifest.parent().unwrap_or(manifest);
            let shown = folder.strip_prefix(place::root()).unwrap_or(folder).display();
            let target = told["target"]["name"].as_str().unwrap_or_default();
            let unit = told["target"]["kind"][0] == "lib";
            let mut command = Command::new(executable);
            command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
            programs.push(Program {
                name: format!("{shown} {}", if unit { "unit tests" } else { target }),
                command,
            });
        }
        Ok(programs)
    }
}

/// Runs them all, `at_once` at a time; an error where a test failed. Prints `N passed, N failed, N skipped` last.
pub fn run(mut programs: Vec<Program>, at_once: usize) -> Result<(), String> {
    programs.sort_by_key(|program| LONG.iter().position(|name| *name == program.name).unwrap_or(LONG.len()));
    let logs = place::target().join("test-logs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let (alone, programs): (Vec<Program>, Vec<Program>) =
        programs.into_iter().partition(|program| ALONE.contains(&program.name.as_str()));
    let (waiting, ended) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no worker panics").pop_front();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let one = program.run(&logs);
                    ended.lock().expect("no worker panics").push(one);
                }
            });
        }
    });
    let mut ended = ended.into_inner().expect("no worker panics");
    ended.extend(alone.into_iter().map(|program| program.run(&logs)));
    ended.sort_by_key(|one| std::cmp::Reverse(one.took));
    let mut all = Counts::default();
    for one in &ended {
        all.passed += one.counts.passed;
        all.failed += one.counts.failed;
        all.skipped += one.counts.skipped;
    }
    let failed: Vec<&str> =
        ended.iter().filter(|one| one.counts.failed > 0).map(|one| one.name.as_str()).collect();
    let longest: Vec<String> =
        ended.iter().take(5).map(|one| format!("{} {} s", one.name, one.took.as_secs())).collect();
    println!("longest: {}", longest.join(", "));
    println!("{} passed, {} failed, {} skipped", all.passed, all.failed, all.skipped);
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("tests failed in {} (what they printed is in {})", failed.join(", "), logs.display()))
}

impl Program {
    fn run(self, logs: &Path) -> Ended {
        let began = Instant::now();
        let log = logs.join(format!("{}.txt", self.name.replace(['/', ' '], "-")));
        let success = self.bounded(&log);
        let printed = std::fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let printed = printed.unwrap_or_default();
        let mut counts = Counts::of(&printed);
        let why = match success {
            Ok(true) => None,
            Ok(false) => Some("it ended with an error".to_owned()),
            Err(error) => Some(error),
        };
        let took = began.elapsed();
        if let Some(why) = why {
            counts.failed = counts.failed.max(1);
            say(&format!("FAILED in {} s: {}: {why}\n{printed}", took.as_secs(), self.name));
        } else {
            say(&format!("{} passed in {} s: {}", counts.passed, took.as_secs(), self.name));
        }
        Ended { name: self.name, counts, took }
    }

    /// Whether it ended well within [`BOUND_S`].
    fn bounded(&self, log: &PathBuf) -> Result<bool, String> {
        let at = |error: std::io::Error| format!("{}: {error}", log.display());
        let file = File::create(log).map_err(at)?;
        let mut command = Command::new("timeout");
        command
            .args(["--foreground", "--kill-after=10", BOUND_S])
            .arg(self.command.get_program())
            .args(self.command.get_args());
        if let Some(folder) = self.command.get_current_dir() {
            command.current_dir(folder);
        }
        for (key, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(at)?).stderr(file);
        let status = command.status().map_err(|error| format!("timeout: {error}"))?;
        if status.code() == Some(124) {
            return Err(format!("it was killed after {BOUND_S} s"));
        }
        Ok(status.success())
    }
}

impl Counts {
    /// Counts in the closing lines of cargo's, pytest's and node's programs; of Go's, each test has a line.
    fn of(printed: &str) -> Counts {
        let mut counts = Counts::default();
        for line in printed.lines() {
            let node = |word: &str| line.strip_prefix("# ")?.strip_prefix(word)?.trim().parse::<u64>().ok();
            let go = |word: &str| u64::from(line.starts_with(word));
            counts.passed += node("pass ").unwrap_or(0) + go("--- PASS: ");
            counts.failed += node("fail ").unwrap_or(0) + go("--- FAIL: ");
            counts.skipped += node("skipped ").unwrap_or(0) + go("--- SKIP: ");
            let cargo = line.strip_prefix("test result: ");
            let pytest = line.trim_matches(['=', ' ']);
            let number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
            let is_closing = |line: &str| {
                line.rsplit_once(" in ").is_some_and(|(counts, took)| number(counts) && number(took))
            };
            let pytest = is_closing(pytest).then_some(pytest);
            let Some(line) = cargo.or(pytest) else { continue };
            let words: Vec<&str> = line.split([' ', ';', ',', '.']).filter(|word| !word.is_empty()).collect();
            for pair in words.windows(2) {
                let Ok(count) = pair[0].parse::<u64>() else { continue };
                match pair[1] {
                    "passed" => counts.passed += count,
                    "failed" | "error" | "errors" => counts.failed += count,
                    "ignored" | "skipped" => counts.skipped += count,
                    _ => {}
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        let cases = [
            (
                "test result: ok. 31 passed; 0 failed; 2 ignored; 0 measured; 5 filtered out; finished in 1.50s",
                [31, 0, 2],
            ),
            ("test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured", [3, 4, 0]),
            ("245 passed, 1 skipped in 73.21s (0:01:13)", [245, 0, 1]),
            ("==== 1 failed, 2 passed, 1 error in 3.00s ====", [2, 2, 0]),
            ("3 failed in 0.50s", [0, 3, 0]),
            ("7.10s call tests/test_service.py::test_what_has_passed\n4 passed in 9.00s", [4, 0, 0]),
            ("test a_thing_that_passed ... ok\nrunning 2 tests", [0, 0, 0]),
            ("# tests 37\n# pass 36\n# fail 1\n# cancelled 0\n# skipped 2\n# todo 0", [36, 1, 2]),
            (
                "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\n--- FAIL: TestB (0.00s)\nFAIL",
                [1, 1, 0],
            ),
        ];
        for (printed, [passed, failed, skipped]) in cases {
            let counts = Counts::of(printed);
            assert_eq!(
                [counts.passed, counts.failed, counts.skipped],
                [passed, failed, skipped],
                "{printed}"
            );
        }
    }

    #[test]
    fn programs_are_what_cargo_made_of_tests() {
        let root = place::root();
        let line = |kind: &str, name: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": root.join("engine/store/Cargo.toml"),
                "target": { "kind": [kind], "name": name }, "profile": { "test": test }, "executable": "/bin/true",
            })
            .to_string()
        };
        let printed = [
            line("lib", "espalier_store", true),
            line("bin", "espalier", false),
            line("test", "store", true),
        ];
        let names: Vec<String> =
            Program::of_cargo(&printed.join("\n")).unwrap().into_iter().map(|program| program.name).collect();
        assert_eq!(names, ["engine/store unit tests", "engine/store store"]);
    }

    #[test]
    fn a_program_that_fails_is_a_failure_also_without_a_count() {
        let program = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Program { name: name.to_owned(), command }
        };
        let good = program("good", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'");
        let bad = program("bad", "exit 3");
        assert!(run(vec![good, bad], 2).unwrap_err().contains("failed in bad"));
    }
}
