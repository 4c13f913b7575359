//! Licences of the crates that the programs and the plugins are made of, as their authors ask: each with its own text, a text that
//! several share once.

use super::{metadata, write};
use crate::place;
use crate::shell::quietly;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Beginnings of the files in which crates keep their licences.
const FILES: [&str; 5] = ["license", "licence", "copying", "copyright", "notice"];

/// Name and version.
type Crate = (String, String);

pub(super) fn write_notices(file: &Path) -> Result<(), String> {
    let root = place::root();
    let mut known = packages(&root)?;
    known.extend(packages(&root.join("plugins/rust"))?);
    let mut all = linked(&root, &["--package", "espalier-daemon", "--package", "espalier-agent"])?;
    all.extend(linked(&root.join("plugins/rust"), &["--workspace"])?);
    let mut text = String::from("Espalier contains the following packages, under the licences named.\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for of in &all {
        let Some((folder, licence)) = known.get(of) else { continue };
        let name = format!("{} {}", of.0, of.1);
        let _ = writeln!(text, "{name}  {licence}");
        for content in licences(folder) {
            texts.entry(content).or_default().push(name.clone());
        }
    }
    for (content, names) in texts {
        let _ = write!(text, "\n{}\n{}\n\n{content}\n", "=".repeat(100), names.join(", "));
    }
    write(file, text)
}

/// Folder and licence of every package that comes from elsewhere.
fn packages(workspace: &Path) -> Result<BTreeMap<Crate, (PathBuf, String)>, String> {
    let metadata = metadata(workspace, &[])?;
    let word = |package: &Value, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages
        .filter(|package| !package["source"].is_null())
        .map(|package| {
            let folder = Path::new(&word(package, "manifest_path"))
                .parent()
                .map(Path::to_path_buf)
                .unwrap_or_default();
            ((word(package, "name"), word(package, "version")), (folder, word(package, "license")))
        })
        .collect())
}

/// What these packages are linked with.
fn linked(workspace: &Path, of: &[&str]) -> Result<BTreeSet<Crate>, String> {
    let mut tree = Command::new("cargo");
    tree.current_dir(workspace).args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    let listed = quietly(tree.args(["--format", "{p}"]).args(of))?;
    Ok(listed
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned()))
        })
        .collect())
}

fn licences(folder: &Path) -> Vec<String> {
    let is_licence = |name: &str| FILES.iter().any(|file| name.to_lowercase().starts_with(file));
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_licence(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .map(|text| text.trim().to_owned())
        .collect()
}
