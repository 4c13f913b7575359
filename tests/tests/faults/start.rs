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
        Some((_, wrong)) => {
            let said = built(language, Variant::BadStart).expect_err("code that fails fails the build");
            let line = language.line(language.at_build.unwrap().0);
            let said = Told {
                place: Some(format!("{}:{line}", language.source)),
                ..refused(language, "constructor", &said, &[language.source, &line.to_string()])
            };
            let _ = wrong;
            told.push(said);
            told.push(Told {
                failure: "slow-start",
                end: "does not happen".to_owned(),
                place: None,
                text: "code outside of functions runs once, when the component is built".to_owned(),
            });
        }
        None => {
            for (failure, word, part) in
                [("constructor", START[1], "in a constructor"), ("slow-start", START[2], "no stop ")]
            {
                let ran = check(folder.path(), language, &replaced(&component, START[0], word));
                told.push(at_start(language, failure, &ran, language.line(part)));
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

/// A start that fails: refused when the settings' schema is asked for.
fn at_start(language: &Language, failure: &'static str, ran: &Ran, line: usize) -> Told {
    let place = format!("{}:{line}", language.source);
    assert_eq!(ran.code, 1, "{}, {failure}: {}{}", language.name, ran.out, ran.err);
    let said = error_of(&ran.err);
    let named = said.contains(&place);
    assert!(named || language.name == "go", "{}, {failure}: no {place} in: {said}", language.name);
    Told {
        failure,
        end: "refused".to_owned(),
        place: named.then_some(place),
        text: plainly(&said, language),
    }
}

/// What people read of an error: without hints, and without the list of what there is.
pub(crate) fn error_of(said: &str) -> String {
    let lines = said.lines().take_while(|line| !line.starts_with("hint: "));
    let lines: Vec<&str> = lines
        .filter(|line| !line.ends_with("nothing was built") && !line.starts_with("  "))
        .map(|line| line.strip_prefix("error: ").unwrap_or(line))
        .collect();
    lines.join(" ")
}

const CASE: &str = "seed = 7\ntask = { id = \"random\", instruction = \"Go.\", data = { mode = \"random\" } }\n";

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
