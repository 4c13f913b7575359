//! Rows of SWE-bench, SWE-rebench and SWE-Gym.

use super::commands::{Files, parser, way};
use super::rows::Row;
use super::{Format, RowOptions};
use serde_json::{Map, Value, json};

/// Makes the environment of SWE-bench's images the one that commands see.
const ACTIVATE: &str = "source /opt/miniconda3/bin/activate && conda activate testbed";
/// Endings of files in a test patch that are data, not tests.
const DATA: [&str; 20] = [
    ".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml", ".html",
    ".xml", ".rst", ".cfg", ".ini", ".lock", ".gz", ".zip", ".svg",
];

/// The task of a row.
pub(super) fn task(format: Format, row: &Row, options: &RowOptions) -> Result<Value, String> {
    let id = row.text("instance_id")?;
    let repository = row.text("repo")?;
    if repository.split('/').filter(|part| !part.is_empty()).count() != 2 {
        return Err(format!("invalid `repo` {repository:?}: expected OWNER/NAME"));
    }
    let commit = row.text("base_commit")?;
    if commit.len() < 7 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("invalid `base_commit` {commit:?}: expected the hash of a commit"));
    }
    let (patch, test_patch) = (diff(row, "patch")?, diff(row, "test_patch")?);
    let instruction = row.text("problem_statement")?;
    let (fail, pass) = (row.names("FAIL_TO_PASS")?, row.names("PASS_TO_PASS")?);
    if fail.is_empty() && pass.is_empty() {
        return Err("`FAIL_TO_PASS` and `PASS_TO_PASS` are both empty".to_owned());
    }
    let run = run(format, row, repository, test_patch, options)?;
    let mut tests = Map::new();
    if !run.brings_patch {
        tests.insert("patch".to_owned(), json!(test_patch));
    }
    for (key, value) in [
        ("command", json!(run.command)),
        ("parser", json!(run.parser)),
        ("fail_to_pass", json!(fail)),
        ("pass_to_pass", json!(pass)),
        ("reset", json!(patched(test_patch))),
        ("guard", json!(options.guard)),
    ] {
        tests.insert(key.to_owned(), value);
    }
    let mut data = json!({ "repo": repository, "base_commit": commit });
    for key in ["version", "language", "created_at"] {
        if let Some(value) = row.get(key) {
            data[key] = value.clone();
        }
    }
    Ok(json!({
        "id": id,
        "instruction": instruction,
        "tags": [name(format), repository],
        "data": data,
        "sandbox": { "image": image(format, row, id, options)?, "workdir": workdir(format, repository) },
        "private": { "reference": { "patch": patch }, "tests": tests },
    }))
}

fn name(format: Format) -> &'static str {
    Format::ALL.iter().find(|(_, known)| *known == format).map_or("", |(name, _)| name)
}

fn diff<'a>(row: &'a Row, key: &str) -> Result<&'a str, String> {
    let text = row.text(key)?;
    let is_diff = text.lines().any(|line| line.starts_with("diff --git ") || line.starts_with("--- "));
    if is_diff {
        Ok(text)
    } else {
        Err(format!("invalid `{key}` {}: expected a diff", super::shown(&json!(text))))
    }
}

/// The image that the set publishes for an instance.
fn image(format: Format, row: &Row, id: &str, options: &RowOptions) -> Result<String, String> {
    let (owner, joint) = match format {
        Format::SweBench => ("swebench", "_1776_"),
        Format::SweRebench | Format::SweRebenchV2 => ("swerebench", "_1776_"),
        Format::SweGym => ("xingyaoww", "_s_"),
    };
    let in_names = id.replace("__", joint).to_lowercase();
    if let Some(image) = &options.image {
        return Ok(image.replace("{id}", &in_names));
    }
    for key in ["image_name", "docker_image", "image"] {
        if let Some(image) = row.optional_text(key)? {
            return Ok(image.to_owned());
        }
    }
    if format == Format::SweRebenchV2 {
        return Err("`image_name` is missing".to_owned());
    }
    Ok(format!("{owner}/sweb.eval.x86_64.{in_names}:latest"))
}

fn workdir(format: Format, repository: &str) -> String {
    match format {
        Format::SweRebenchV2 => format!("/{}", repository.rsplit('/').next().unwrap_or(repository)),
        Format::SweBench | Format::SweRebench | Format::SweGym => "/testbed".to_owned(),
    }
}

/// How the tests are run.
struct Run {
    command: String,
    parser: String,
    /// The command applies the test patch itself.
    brings_patch: bool,
}

fn run(
    format: Format,
    row: &Row,
    repository: &str,
    test_patch: &str,
    options: &RowOptions,
) -> Result<Run, String> {
    let files = test_files(test_patch);
    let known = way(repository);
    if let Some(command) = &options.command {
        let given = options.parser.clone().or_else(|| known.map(|way| way.parser.to_owned()));
        let parser = given.ok_or_else(|| {
            format!("no known parser for the tests of {repository}: give a parser with the command")
        })?;
        return Ok(Run {
            command: command.replace("{files}", &files.join(" ")),
            parser,
            brings_patch: false,
        });
    }
    let chosen = |key: &str, name: &str| match &options.parser {
        Some(parser) => Ok(parser.clone()),
        None => parser(key, name).map(str::to_owned),
    };
    // SWE-bench's newer rows bring the whole script.
    if let Some(script) = row.optional_text("eval_script")? {
        if !script.contains(">>>>> Start Test Output") {
            return Err("`eval_script` does not mark the start of the test output".to_owned());
        }
        if row.optional_text("eval_type")?.is_some_and(|kind| kind != "pass_and_fail") {
            return Err(format!(
                "invalid `eval_type` {:?}: expected \"pass_and_fail\"",
                row.text("eval_type")?
            ));
        }
        // Its marks are printed by the trace of the shell.
        let command = format!("set -uxo pipefail\n{}", script.trim_start_matches("#!/bin/bash\n"));
        return Ok(Run {
            command,
            parser: chosen("log_parser", row.text("log_parser")?)?,
            brings_patch: true,
        });
    }
    if matches!(format, Format::SweRebench | Format::SweRebenchV2)
        && let Some(config) = row.inner("install_config")?
    {
        let within = |problem: String| format!("`install_config`: {problem}");
        let command = config
            .commands("test_cmd")
            .map_err(within)?
            .ok_or_else(|| within("`test_cmd` is missing".to_owned()))?;
        let parser = chosen("log_parser", config.text("log_parser").map_err(within)?).map_err(within)?;
        let command = match format {
            Format::SweRebenchV2 => command,
            _ => format!("{ACTIVATE}\n{command} {}", files.join(" ")),
        };
        return Ok(Run { command, parser, brings_patch: false });
    }
    let way = known.ok_or_else(|| {
        format!("no known test command for `repo` {repository:?}: the row needs `eval_script` and `log_parser`, or give a command and a parser")
    })?;
    let named = match way.files {
        Files::Paths => files.join(" "),
        Files::Modules => files.iter().map(|file| module(file)).collect::<Vec<_>>().join(" "),
        Files::Cases => format!("\"{}\"", cases(test_patch).join(" or ")),
    };
    let parser = options.parser.clone().unwrap_or_else(|| way.parser.to_owned());
    Ok(Run { command: format!("{ACTIVATE}\n{} {named}", way.command), parser, brings_patch: false })
}

/// `tests/a/b.py` as `a.b`.
fn module(file: &str) -> String {
    let inner = file.strip_suffix(".py").unwrap_or(file);
    inner.strip_prefix("tests/").unwrap_or(inner).replace('/', ".")
}

/// Names of `[case NAME]` in added lines and around them.
fn cases(patch: &str) -> Vec<String> {
    let mut names: Vec<String> = patch
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("[case ")?;
            Some(rest.split(']').next()?.trim().to_owned())
        })
        .filter(|name| !name.is_empty())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Files that a patch is about, old and new.
fn patched(patch: &str) -> Vec<String> {
    let mut files: Vec<String> = patch
        .lines()
        .filter_map(|line| {
            let path = ["--- a/", "+++ b/", "rename from ", "rename to "]
                .iter()
                .find_map(|mark| line.strip_prefix(mark))?;
            Some(path.split('\t').next().unwrap_or(path).to_owned())
        })
        .collect();
    files.sort();
    files.dedup();
    files
}

/// Files with tests that a patch leaves there.
fn test_files(patch: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in patch.lines() {
        let Some(path) = line.strip_prefix("+++ b/") else { continue };
        let path = path.split('\t').next().unwrap_or(path).to_owned();
        if !DATA.iter().any(|end| path.ends_with(end)) && !files.contains(&path) {
            files.push(path);
        }
    }
    files
}
