//! Failures of a rollout: one run of the engine, in which every other rollout is a neighbour that does not fail.

use crate::build::{Variant, built, espalier, place_component};
use crate::language::Language;
use crate::{Told, plainly};
use espalier_core::chat::Part;
use espalier_core::ending::StopReason;
use espalier_core::plugin_failure::{PluginFailure, PluginFailureClass};
use espalier_core::trajectory::AttemptRecord;
use espalier_store::{Store, StoreUrl};
use std::fs;
use std::path::Path;

/// Where in the author's file a failure is.
enum Place {
    /// On the first line with this text.
    Line(&'static str),
    /// Anywhere in this function, where the engine stops it.
    Function(&'static str),
    /// It has none: it is a value that was returned.
    None,
}

/// A failure of a rollout: how it ends.
struct Mode {
    name: &'static str,
    end: StopReason,
    class: Option<PluginFailureClass>,
    place: Place,
}

/// Every mode that ends its rollout by failing.
fn modes(language: &Language) -> Vec<Mode> {
    use PluginFailureClass::{BudgetIgnored, Cpu, InvalidData, Memory, Panic, Returned, Stack};
    use StopReason::{GuestTrap, HarnessFailure};
    let scripted = matches!(language.name, "javascript" | "typescript" | "python");
    let fails = |name, end, class, place| Mode { name, end, class: Some(class), place };
    // What stops at a value: exceptions of the languages that have them, failures of the others.
    let wrong_json = match language.name {
        "go" | "c" => (HarnessFailure, Returned, Place::None),
        "rust" => (GuestTrap, Panic, Place::Line(".data(HashMap::from")),
        "python" => (GuestTrap, Panic, Place::Line("def run(")),
        _ => (GuestTrap, Panic, Place::Line("export default harness(")),
    };
    let handle = match scripted {
        true => (HarnessFailure, Returned, Place::None),
        false => (GuestTrap, InvalidData, Place::Function("forged_handle")),
    };
    let stack = if language.name == "python" { Panic } else { Stack };
    let network = match scripted {
        true => (GuestTrap, Panic, Place::Function("network")),
        false => (HarnessFailure, Returned, Place::None),
    };
    let pattern = scripted.then(|| fails("pattern", GuestTrap, Cpu, Place::Line("(a+)+")));
    let others = [
        fails("loop", GuestTrap, Cpu, Place::Function("endless")),
        fails("memory", GuestTrap, Memory, Place::Function("hoard")),
        fails("stack", GuestTrap, stack, Place::Function("descend")),
        fails("panic", GuestTrap, Panic, Place::Line("on purpose")),
        fails("wrong-json", wrong_json.0, wrong_json.1, wrong_json.2),
        Mode { name: "unknown-tool", end: StopReason::Submitted, class: None, place: Place::None },
        fails("invalid-handle", handle.0, handle.1, handle.2),
        fails("foreign-blob", HarnessFailure, Returned, Place::None),
        fails("call-after-end", StopReason::BudgetIgnored, BudgetIgnored, Place::Function("go_on")),
        Mode { name: "log-flood", end: StopReason::Submitted, class: None, place: Place::None },
        fails("error", HarnessFailure, Returned, Place::None),
        fails("oversized", GuestTrap, InvalidData, Place::None),
        fails("network", network.0, network.1, network.2),
    ];
    pattern.into_iter().chain(others).collect()
}

/// Why no regular expression runs without end, in the languages where none does.
fn without_backtracking(language: &Language) -> Option<Told> {
    let text = match language.name {
        "rust" => "the crate `regex` does not backtrack",
        "go" => "the package `regexp` does not backtrack",
        "c" => "the SDK has no regular expressions",
        _ => return None,
    };
    Some(Told { failure: "pattern", end: "does not happen".to_owned(), place: None, text: text.to_owned() })
}

/// Bytes of a rollout's log.
const LOG_BYTES: u64 = 64 << 10;

const EXPERIMENT: &str = r#"
seed = 7
tasks.source = "tasks.jsonl"
groups = { size = 1, attempts = 1, replacements = 0, concurrent_rollouts = 4 }
rewards = [{ plugin = "environment-reward" }]

[models.policy]
kind = "scripted"
answers = [{ when = "Use a tool.", tool_calls = [{ name = "divide", arguments = { a = 1, b = 2 } }] }, "An answer."]

[limits]
turns = 3
guest_cpu = "1s"
guest_memory = "256MiB"
log_bytes = "64KiB"

"#;

/// Plays every mode; panics where one does not end as it should, or a neighbour is hurt.
pub(crate) fn rollouts(language: &Language) -> Vec<Told> {
    let folder = tempfile::tempdir().unwrap();
    let name = language.plugin();
    let component = built(language, Variant::Whole).unwrap_or_else(|text| panic!("{name}: {text}"));
    place_component(&folder.path().join(format!("{name}.wasm")), &component);
    let modes = modes(language);
    let task = |mode: &str, id: &str| {
        format!("{{\"id\": \"{id}\", \"instruction\": \"Go.\", \"data\": {{\"mode\": \"{mode}\"}}}}\n")
    };
    let with_neighbour = |mode: &Mode| {
        let neighbour = format!("beside-{}", mode.name);
        [task(mode.name, mode.name), task("none", &neighbour)].concat()
    };
    let tasks: String = modes.iter().map(with_neighbour).collect();
    fs::write(folder.path().join("tasks.jsonl"), tasks).unwrap();
    let experiment = format!("name = \"{name}\"\n{EXPERIMENT}[harness]\nplugin = \"{name}.wasm\"\n");
    fs::write(folder.path().join("experiment.toml"), &experiment).unwrap();
    let mut ran = espalier(folder.path(), &["run", "experiment.toml"]);
    if ran.err.contains("to compile") {
        // A machine that is busy with other tests needs more than a minute for all of CPython.
        ran = espalier(folder.path(), &["run", "experiment.toml"]);
    }
    assert!(ran.out.contains("(finished)"), "{name}: {}{}", ran.out, ran.err);

    let records = records(folder.path());
    assert_eq!(records.len(), 2 * modes.len(), "{name}: each rollout has one record");
    let mut told = Vec::new();
    for (mode, pair) in modes.iter().zip(records.chunks(2)) {
        let (failed, neighbour) = (&pair[0], &pair[1]);
        assert_eq!(neighbour.trajectory.stop_reason, StopReason::Submitted, "{name}, beside {}", mode.name);
        assert_eq!(neighbour.trajectory.reward, Some(0.0), "{name}, beside {}", mode.name);
        assert_eq!(neighbour.failures, [], "{name}, beside {}", mode.name);
        told.push(tell(language, mode, failed));
    }
    let counted = records[1].report.as_ref().unwrap().data.clone();
    assert!(language.at_build.is_none() || counted.contains("100000"), "{name}: {counted}");
    told.push(wrong_settings(language, folder.path(), &experiment));
    told.extend(without_backtracking(language));
    told
}

/// The records of the one run of a store, by task.
fn records(folder: &Path) -> Vec<AttemptRecord> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open_existing(&StoreUrl::Folder(folder.join(".espalier"))).await.unwrap();
        let run = store.runs().await.unwrap().remove(0);
        let mut records = Vec::new();
        for group in store.groups(&run.run_id).await.unwrap() {
            for attempt in store.attempts(&run.run_id, group.opened.group_index).await.unwrap() {
                records.push(store.record(&attempt).await.unwrap().expect("every attempt is over"));
            }
        }
        store.close().await;
        records
    })
}

/// Checks how a mode ended, and says it.
fn tell(language: &Language, mode: &Mode, record: &AttemptRecord) -> Told {
    let at = format!("{}, {}", language.name, mode.name);
    let end = record.trajectory.stop_reason;
    assert_eq!(end, mode.end, "{at}: {:?} {:?}", record.failures, record.trajectory.errors);
    let told = |text: String, place| Told { failure: mode.name, end: end.as_str().to_owned(), place, text };
    match mode.name {
        "unknown-tool" => return told(told_to_model(record), None),
        "log-flood" => {
            let dropped = record.log_bytes_dropped;
            let kept: u64 = record.logs.iter().map(|line| line.text.len() as u64).sum();
            assert!(kept <= LOG_BYTES && kept + dropped == 10_000 * 1_024, "{at}: {kept} and {dropped}");
            return told(format!("{kept} bytes are kept, {dropped} counted and dropped"), None);
        }
        _ => {}
    }
    let [failure] = &record.failures[..] else { panic!("{at}: {:?}", record.failures) };
    assert_eq!(Some(failure.class), mode.class, "{at}: {failure}");
    let place = place_of(language, mode, failure);
    let message = plainly(&failure.message, language);
    let text = match &failure.place {
        Some(innermost) if place.is_none() => format!("{message} (in {})", plainly(innermost, language)),
        _ => message,
    };
    told(text, place)
}

/// Checks the place of a failure; a language that names none is caught by the table, which says so.
fn place_of(language: &Language, mode: &Mode, failure: &PluginFailure) -> Option<String> {
    let at = format!("{}, {}: {failure}", language.name, mode.name);
    let place = failure.place.as_deref()?;
    let behind = place.strip_prefix(language.source).and_then(|behind| behind.strip_prefix(':'));
    let Some(behind) = behind else {
        // Go has the names of functions, without lines.
        assert!(language.name == "go" && place.starts_with("main."), "{at}");
        return None;
    };
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    let line: usize = digits.parse().unwrap();
    Some(match mode.place {
        Place::Line(part) => {
            assert_eq!(line, language.line(part), "{at}");
            format!("{}:{line}", language.source)
        }
        Place::Function(name) => {
            let (first, last) = language.lines_of(name);
            assert!((first..=last).contains(&line), "{at}: expected {first} to {last}");
            format!("{}:{first}-{last}", language.source)
        }
        Place::None => panic!("{at}: a place that was not expected"),
    })
}

/// The error text of a tool that the model was given.
fn told_to_model(record: &AttemptRecord) -> String {
    let results = record.transcript.turns.iter().flat_map(|turn| &turn.results);
    let mut errors = results.flat_map(|message| &message.parts).filter_map(|part| match part {
        Part::ToolResult(result) if result.is_error => Some(result.text.clone()),
        _ => None,
    });
    let text = errors.next().expect("the model is told of its mistake");
    assert!(text.contains("divide") && text.contains("add"), "{text}");
    format!("the model is told: {text}")
}

/// Settings that break the schema: refused before anything runs.
fn wrong_settings(language: &Language, folder: &Path, experiment: &str) -> Told {
    let settings = "settings = { lines = \"many\", line = 3 }\n";
    fs::write(folder.join("wrong.toml"), format!("{experiment}{settings}")).unwrap();
    let ran = espalier(folder, &["run", "wrong.toml", "--new"]);
    assert_eq!(ran.code, 2, "{}: {}{}", language.name, ran.out, ran.err);
    for key in ["lines", "line", "many"] {
        assert!(ran.err.contains(key), "{}: {}", language.name, ran.err);
    }
    let said = crate::start::error_of(&ran.err);
    Told { failure: "wrong-settings", end: "refused".to_owned(), place: None, text: plainly(&said, language) }
}
