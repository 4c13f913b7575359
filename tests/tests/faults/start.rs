//! Failures before any rollout: components and projects that are refused, and what they do at the start.

use crate::build::{Ran, Variant, built, espalier, place_component};
use crate::language::Language;
use crate::{Told, plainly};
use std::fs;
use std::path::Path;

/// Words of the same length in the sources' texts of what is done before the first call.
const START: [&str; 3] = ["start: as usual", "start: a panic ", "start: no stop "];

/// Names in a component and what a test makes of them; they must be of one length.
const NEWER: (&str, &str) = ("espalier:base/settings@0.1.0", "espalier:base/settings@0.9.0");
const HTTP: (&str, &str) = ("espalier:base/log@0.1.0", "wasi:http/types@0.2.100");

/// Everything that is refused before a rollout, and the same twice.
pub(crate) fn refusals(language: &Language) -> Vec<Told> {
    let folder = tempfile::tempdir().unwrap();
    let component = built(language, Variant::Whole).unwrap();
    let renamed = |failure, (from, to): (&str, &str)| {
        let ran = check(folder.path(), language, &replaced(&component, from, to));
        refused(language, failure, &ran.err, &[to])
    };
    let mut told = vec![renamed("unknown-version", NEWER), renamed("wasi-http", HTTP)];
    for (failure, variant, says) in
        [("missing-export", Variant::NoExport, ""), ("wrong-world", Variant::OtherKind, "reward")]
    {
        let said = match built(language, variant) {
            Err(text) => text,
            Ok(component) => check(folder.path(), language, &component).err,
        };
        told.push(refused(language, failure, &said, &[says]));
    }
    match language.at_build {
        Some((at, _)) => {
            let said = built(language, Variant::BadStart).expect_err("code that fails fails the build");
            let line = language.line(at);
            let parts = [language.source, &line.to_string()];
            let place = Some(format!("{}:{line}", language.source));
            told.push(Told { place, ..refused(language, "constructor", &said, &parts) });
            told.push(Told {
                failure: "slow-start",
                end: "does not happen".to_owned(),
                place: None,
                text: "code outside of functions runs once, when the component is built".to_owned(),
            });
        }
        None => {
            let line = language.line("in a constructor");
            let loops = if language.name == "go" { (line, line + 4) } else { language.lines_of("construct") };
            for (failure, word, lines) in
                [("constructor", START[1], (line, line)), ("slow-start", START[2], loops)]
            {
                let ran = check(folder.path(), language, &replaced(&component, START[0], word));
                told.push(at_start(language, failure, &ran, lines));
            }
        }
    }
    told.push(twice(language, folder.path(), &component));
    told
}

/// `espalier plugin check` of a component.
fn check(folder: &Path, language: &Language, component: &[u8]) -> Ran {
    let file = format!("{}.wasm", language.plugin());
    place_component(&folder.join(&file), component);
    espalier(folder, &["plugin", "check", &file])
}

/// A component with a text in the place of another of the same length.
fn replaced(component: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = component.to_vec();
    let mut found = false;
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(from.len()).position(|part| part == from.as_bytes()) {
        at += next;
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        found = true;
    }
    assert!(found, "there is no {from:?} in the component");
    bytes
}

fn refused(language: &Language, failure: &'static str, said: &str, parts: &[&str]) -> Told {
    for part in parts {
        assert!(said.contains(part), "{}, {failure}: no {part:?} in: {said}", language.name);
    }
    Told { failure, end: "refused".to_owned(), place: None, text: plainly(&error_of(said), language) }
}

/// A start that fails, on one of these lines: refused when the settings' schema is asked for.
fn at_start(language: &Language, failure: &'static str, ran: &Ran, (first, last): (usize, usize)) -> Told {
    assert_eq!(ran.code, 1, "{}, {failure}: {}{}", language.name, ran.out, ran.err);
    let said = error_of(&ran.err);
    let behind = ran.err.split_once(&format!("{}:", language.source)).map(|(_, behind)| behind);
    let digits = behind.map(|behind| behind.split(|letter: char| !letter.is_ascii_digit()).next());
    let line: Option<usize> = digits.flatten().and_then(|digits| digits.parse().ok());
    let is_there = line.map_or(language.name == "go", |line| (first..=last).contains(&line));
    assert!(is_there, "{}, {failure}: not on lines {first} to {last}: {}", language.name, ran.err);
    let lines = if first == last { first.to_string() } else { format!("{first}-{last}") };
    Told {
        failure,
        end: "refused".to_owned(),
        place: line.map(|_| format!("{}:{lines}", language.source)),
        // The place is told by the first table.
        text: plainly(said.split("; at ").next().unwrap_or(&said), language),
    }
}

/// What people read of an error, without what was being done, the lines of sources, of lists, and of a compiler's warnings; of a linker's error its hint.
pub(crate) fn error_of(said: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut all = said.lines().map(str::trim);
    while let Some(line) = all.next() {
        if line.starts_with("File \"") {
            // Below it stands the line itself.
            all.next();
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let left_out =
            ["espalier:", "-->", "|", "File \"", "at ", "goroutine ", "main.", "faults-go/", "Traceback ("];
        let is_source = line.split_once(" |").is_some_and(|(number, _)| is_number(number));
        let is_step =
            ["building ", "compiling ", "built ", "compiled "].iter().any(|begin| line.starts_with(begin));
        let is_warning = line.contains(" warning: ") || line.ends_with(" generated.");
        if is_source || is_step || is_warning || left_out.iter().any(|begin| line.starts_with(begin)) {
            continue;
        }
        let linker = line.contains("undefined symbol: ");
        if !linker && !line.ends_with("nothing was built") && !line.starts_with("hint: ") {
            lines.push(line.strip_prefix("error: ").unwrap_or(line));
        } else if line.starts_with("hint: plugin.toml") || line.starts_with("hint: the source needs") {
            lines.push(&line["hint: ".len()..]);
        }
    }
    lines.join(" ").trim_end_matches("; it can import:").trim().to_owned()
}

const CASE: &str =
    "seed = 7\ntask = { id = \"random\", instruction = \"Go.\", data = { mode = \"random\" } }\n";

/// What draws random numbers does the same twice: the project's cases are run two times.
fn twice(language: &Language, folder: &Path, component: &[u8]) -> Told {
    let (name, project) = (language.plugin(), folder.join("project"));
    fs::create_dir_all(project.join("build")).unwrap();
    fs::create_dir_all(project.join("cases")).unwrap();
    let manifest = format!("name = \"{name}\"\nkind = \"harness\"\nlanguage = \"{}\"\n", language.name);
    fs::write(project.join("plugin.toml"), manifest).unwrap();
    fs::write(project.join("cases/random.toml"), CASE).unwrap();
    place_component(&project.join("build").join(format!("{name}.wasm")), component);
    let ran = espalier(&project, &["plugin", "check", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}", ran.err));
    assert_eq!(value["deterministic"], true, "{}: {}", language.name, value["determinism"]);
    let text = value["determinism"].as_str().unwrap().to_owned();
    Told { failure: "random", end: "does not happen".to_owned(), place: None, text }
}
