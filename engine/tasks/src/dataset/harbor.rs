//! Harbor's task folders: `task.toml`, `instruction.md`, `environment/`, `tests/` with `test.sh`, and perhaps `solution/`.
//!
//! Harbor copies `tests/` to `/tests` when the agent is done, runs `test.sh` in the agent's own container, and reads a number from
//! `/logs/verifier/`: so these tasks are scored in place.

use super::{DatasetError, checked, shown};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use toml::Table;

/// What the user says over what a folder says.
#[derive(Clone, Debug, Default)]
pub struct HarborOptions {
    /// The image built of `environment/`, where the folder names none; `{id}` stands for the task's name.
    pub image: Option<String>,
}

/// The task of one folder: its files by path from it. `name`: the folder's. The error's record is 1.
pub fn harbor_task(
    name: &str,
    files: &BTreeMap<String, Vec<u8>>,
    options: &HarborOptions,
) -> Result<String, DatasetError> {
    let made = task(name, files, options).and_then(|task| checked(&task));
    made.map_err(|problem| DatasetError { record: 1, id: Some(name.to_owned()), problem })
}

fn task(folder: &str, files: &BTreeMap<String, Vec<u8>>, options: &HarborOptions) -> Result<Value, String> {
    let text = |path: &str| -> Result<&str, String> {
        let bytes = files.get(path).ok_or_else(|| format!("`{path}` is missing"))?;
        std::str::from_utf8(bytes).map_err(|_| format!("`{path}` is not UTF-8"))
    };
    let config: Table = text("task.toml")?.parse().map_err(|error| format!("`task.toml`: {error}"))?;
    let section = Section { name: "", table: Some(&config) };
    let within = |problem: String| format!("`task.toml`: {problem}");
    let (environment, verifier, agent, metadata, about) = (
        section.inner("environment").map_err(within)?,
        section.inner("verifier").map_err(within)?,
        section.inner("agent").map_err(within)?,
        section.inner("metadata").map_err(within)?,
        section.inner("task").map_err(within)?,
    );
    let instruction = text("instruction.md")?;
    if instruction.trim().is_empty() {
        return Err("`instruction.md` is empty".to_owned());
    }
    if !files.contains_key("tests/test.sh") {
        return Err("`tests/test.sh` is missing".to_owned());
    }
    let id = about.text("name").map_err(within)?.unwrap_or(folder);
    let image = match (environment.text("docker_image").map_err(within)?, &options.image) {
        (_, Some(image)) => image.replace("{id}", folder),
        (Some(image), None) => image.to_owned(),
        (None, None) => {
            return Err(
                "`task.toml`: `environment.docker_image` is missing: build `environment/` and name its image"
                    .to_owned(),
            );
        }
    };
    let mut sandbox = Map::from_iter([("image".to_owned(), json!(image))]);
    if let Some(folder) = workdir(files) {
        sandbox.insert("workdir".to_owned(), json!(folder));
    }
    if let Some(cores) = environment.number("cpus").map_err(within)? {
        sandbox.insert("cpu".to_owned(), json!(cores));
    }
    for (key, amount, megabytes) in [("memory", "memory", "memory_mb"), ("disk", "storage", "storage_mb")] {
        if let Some(size) = environment.size(amount, megabytes).map_err(within)? {
            sandbox.insert(key.to_owned(), json!(size));
        }
    }
    let env = environment.strings("env").map_err(within)?;
    if !env.is_empty() {
        sandbox.insert("env".to_owned(), json!(env));
    }
    let mut limits = Map::new();
    if let Some(seconds) = agent.number("timeout_sec").map_err(within)? {
        limits.insert("rollout_wall".to_owned(), json!(format!("{}s", seconds.ceil().max(1.0))));
    }
    let timeout = verifier.number("timeout_sec").map_err(within)?.unwrap_or(600.0).ceil().max(1.0);
    let exports: String = verifier
        .strings("env")
        .map_err(within)?
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect();
    let tests = json!({
        "files": copied(files, "tests/", "/tests/"),
        "command": format!("{exports}mkdir -p /logs/verifier\nbash /tests/test.sh"),
        "score_files": ["/logs/verifier/reward.json", "/logs/verifier/reward.txt"],
        "timeout": format!("{timeout}s"),
        "in": "place",
    });
    let mut private = json!({ "tests": tests });
    if files.contains_key("solution/solve.sh") {
        private["reference"] = json!({ "script": solution(files) });
    }
    let mut tags = vec!["harbor".to_owned()];
    tags.extend(metadata.list("tags").map_err(within)?);
    tags.extend(about.list("keywords").map_err(within)?);
    for key in ["difficulty", "category"] {
        tags.extend(metadata.text(key).map_err(within)?.map(str::to_owned));
    }
    Ok(
        json!({ "id": id, "instruction": instruction, "tags": tags, "limits": limits, "sandbox": sandbox, "private": private }),
    )
}

/// The folder that the environment's own file leaves behind.
fn workdir(files: &BTreeMap<String, Vec<u8>>) -> Option<String> {
    let text = String::from_utf8_lossy(files.get("environment/Dockerfile")?);
    let last = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("WORKDIR "))
        .next_back()?
        .trim()
        .trim_matches('"');
    (last.starts_with('/') && !last.contains('$')).then(|| last.to_owned())
}

/// Files below a folder, under another one: as text where they are, else as base64.
fn copied(files: &BTreeMap<String, Vec<u8>>, from: &str, to: &str) -> Value {
    let below = files.iter().filter_map(|(path, bytes)| Some((path.strip_prefix(from)?, bytes)));
    below
        .map(|(path, bytes)| {
            let content = match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
            };
            (format!("{to}{path}"), content)
        })
        .collect::<Map<String, Value>>()
        .into()
}

/// Shell text that puts the solution's files to `/solution` and carries it out.
fn solution(files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut script = String::from("set -e\n");
    for (path, bytes) in files.iter().filter(|(path, _)| path.starts_with("solution/")) {
        let path = quoted(&format!("/{path}"));
        script += &format!(
            "mkdir -p \"$(dirname {path})\"\nbase64 -d > {path} <<'END'\n{}\nEND\n",
            STANDARD.encode(bytes)
        );
    }
    script + "bash /solution/solve.sh\n"
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A table with errors that name its keys.
struct Section<'a> {
    name: &'a str,
    /// `None`: it is not there.
    table: Option<&'a Table>,
}

impl<'a> Section<'a> {
    fn get(&self, key: &str) -> Option<&'a toml::Value> {
        self.table?.get(key)
    }

    fn wrong(&self, key: &str, value: &toml::Value, wanted: &str) -> String {
        let value = serde_json::to_value(value).unwrap_or_default();
        format!("invalid `{}` {}: expected {wanted}", self.path(key), shown(&value))
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn inner(&self, key: &'a str) -> Result<Section<'a>, String> {
        match self.get(key) {
            None => Ok(Section { name: key, table: None }),
            Some(toml::Value::Table(table)) => Ok(Section { name: key, table: Some(table) }),
            Some(other) => Err(self.wrong(key, other, "a table")),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(toml::Value::String(text)) => {
                Ok(Some(text).filter(|text| !text.trim().is_empty()).map(String::as_str))
            }
            Some(other) => Err(self.wrong(key, other, "a text")),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
        let fine = number.filter(|number| *number > 0.0 && number.is_finite());
        fine.map(Some).ok_or_else(|| self.wrong(key, value, "a number above 0"))
    }

    /// `memory = "4G"` or `memory_mb = 4096`, as a size of ours.
    fn size(&self, amount: &str, megabytes: &str) -> Result<Option<String>, String> {
        if let Some(count) = self.number(megabytes)? {
            return Ok(Some(format!("{}MiB", count.ceil())));
        }
        let (Some(text), Some(value)) = (self.text(amount)?, self.get(amount)) else { return Ok(None) };
        let wrong = || self.wrong(amount, value, "a size such as \"4G\"");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &*text[digits.len()..].to_ascii_uppercase() {
            "K" | "KB" | "KI" | "KIB" => "KiB",
            "M" | "MB" | "MI" | "MIB" => "MiB",
            "G" | "GB" | "GI" | "GIB" => "GiB",
            _ => return Err(wrong()),
        };
        let whole = digits.trim().parse::<u64>().ok().filter(|count| *count > 0);
        Ok(Some(format!("{}{unit}", whole.ok_or_else(wrong)?)))
    }

    fn list(&self, key: &str) -> Result<Vec<String>, String> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let wrong = || self.wrong(key, value, "a list of texts");
        let items = value.as_array().ok_or_else(wrong)?;
        items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
    }

    fn strings(&self, key: &str) -> Result<BTreeMap<String, String>, String> {
        let Some(value) = self.get(key) else { return Ok(BTreeMap::new()) };
        let wrong = || self.wrong(key, value, "a table of texts");
        let table = value.as_table().ok_or_else(wrong)?;
        table
            .iter()
            .map(|(name, text)| Ok((name.clone(), text.as_str().ok_or_else(wrong)?.to_owned())))
            .collect()
    }
}
