//! A set of tasks to be made: libraries, pairs of versions, and what a person says over what is found.

use super::{DraftOptions, Version};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// What every library's tests need, as pip takes it: `pytest==8.4.2`. Where a library's list and this are empty, its tests use the
    /// machine's own packages.
    pub requires: Vec<String>,
    /// The libraries.
    pub library: Vec<Library>,
}

/// One library.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// As the package index has it.
    pub name: String,
    /// Old and new version of each task.
    pub pairs: Vec<[String; 2]>,
    /// What its tests need beyond what all need.
    #[serde(default)]
    pub requires: Vec<String>,
    /// See [`DraftOptions::command`].
    pub command: Option<String>,
    /// See [`DraftOptions::root`].
    pub root: Option<String>,
    /// See [`DraftOptions::loopback`].
    #[serde(default)]
    pub loopback: bool,
    /// See [`DraftOptions::timeout_s`].
    pub timeout_s: Option<u64>,
    /// Words instead of the changelog's, by new version.
    #[serde(default)]
    pub instructions: BTreeMap<String, String>,
}

/// What is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(String);

impl Manifest {
    /// Reads and checks one.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| ManifestError(error.to_string()))?;
        let mut seen = BTreeSet::new();
        for library in &manifest.library {
            let wrong = |text: String| Err(ManifestError(format!("library {}: {text}", library.name)));
            if !is_name(&library.name) {
                return wrong("a name has letters, digits, `-`, `_` and `.`".to_owned());
            }
            for [old, new] in &library.pairs {
                if let Some(bad) = [old, new].into_iter().find(|text| Version::parse(text).is_none()) {
                    return wrong(format!("invalid version {bad:?}"));
                }
                if !seen.insert((&library.name, new)) {
                    return wrong(format!("two tasks have the new version {new}"));
                }
            }
            let unused =
                library.instructions.keys().find(|key| !library.pairs.iter().any(|[_, new]| new == *key));
            if let Some(version) = unused {
                return wrong(format!("an instruction for {version}, which is in no pair"));
            }
        }
        if seen.is_empty() {
            return Err(ManifestError("no library with a pair of versions".to_owned()));
        }
        Ok(manifest)
    }
}

impl Library {
    /// What was said of the task that leads to this version.
    pub fn options(&self, new: &str) -> DraftOptions {
        DraftOptions {
            instruction: self.instructions.get(new).cloned(),
            command: self.command.clone(),
            root: self.root.clone(),
            loopback: self.loopback,
            timeout_s: self.timeout_s,
        }
    }
}

/// Whether it can be the name of a package.
pub fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.chars().all(letter) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_says_what_is_made_and_what_is_wrong_with_it() {
        let text = r#"
            requires = ["pytest==8.4.2"]
            [[library]]
            name = "sqlparse"
            pairs = [["0.5.0", "0.5.1"], ["0.5.1", "0.5.2"]]
            instructions = { "0.5.2" = "Mend it." }
        "#;
        let manifest = Manifest::parse(text).unwrap();
        let library = &manifest.library[0];
        assert_eq!(library.options("0.5.2").instruction.as_deref(), Some("Mend it."));
        assert_eq!(library.options("0.5.1"), DraftOptions::default());
        let check = |from: &str, to: &str, expect: &str| {
            let error = Manifest::parse(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("\"0.5.1\"]", "\"latest\"]", "library sqlparse: invalid version \"latest\"");
        check("\"0.5.1\"]", "\"0.5.2\"]", "library sqlparse: two tasks have the new version 0.5.2");
        check("\"0.5.2\" =", "\"0.6\" =", "an instruction for 0.6, which is in no pair");
        check("\"sqlparse\"", "\"../x\"", "a name has letters");
        check("pairs = ", "pair = ", "unknown field `pair`");
        assert_eq!(
            Manifest::parse("requires = []\nlibrary = []").unwrap_err().to_string(),
            "no library with a pair of versions"
        );
    }
}
