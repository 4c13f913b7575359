//! `plugin.toml`: what a project's plugin is called, which kind it is, and the language it is written in.

use crate::files;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// The manifest's file in a project's folder.
pub const MANIFEST: &str = "plugin.toml";

/// A plugin's project on this machine.
#[derive(Clone, Debug)]
pub struct Project {
    /// Absolute.
    pub folder: PathBuf,
    /// What the manifest says.
    pub manifest: Manifest,
}

/// The keys of `plugin.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The component becomes `build/NAME.wasm`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// What it is written in.
    pub language: Language,
    /// The source file where the plugin begins; default: the language's ([`Language::entry`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<PathBuf>,
}

/// The kinds of plugins: the worlds of `wit/plugin.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Drives the turns of a rollout.
    Harness,
    /// A small simulated world.
    Environment,
    /// Scores one rollout.
    Reward,
    /// Scores the rollouts of a group together.
    GroupReward,
    /// Scores by a model.
    Judge,
    /// Makes and adapts tasks.
    TaskGenerator,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Harness, Kind::Environment, Kind::Reward, Kind::GroupReward, Kind::Judge, Kind::TaskGenerator];

    /// The word of `--kind` and `plugin.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Harness => "harness",
            Kind::Environment => "environment",
            Kind::Reward => "reward",
            Kind::GroupReward => "group-reward",
            Kind::Judge => "judge",
            Kind::TaskGenerator => "task-generator",
        }
    }

    /// Its world in the package `espalier:plugin`: `harness-plugin` ...
    pub fn world(self) -> String {
        format!("{}-plugin", self.as_str())
    }
}

/// The languages that a project can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Language {
    /// By cargo, for `wasm32-unknown-unknown`.
    Rust,
    /// By esbuild and componentize-qjs.
    #[serde(rename = "javascript")]
    JavaScript,
    /// The same, with types.
    #[serde(rename = "typescript")]
    TypeScript,
    /// By componentize-py.
    Python,
    /// By Go's own toolchain.
    Go,
    /// By Zig's C compiler.
    C,
}

impl Language {
    /// All of them.
    pub const ALL: [Language; 6] = [
        Language::Rust,
        Language::JavaScript,
        Language::TypeScript,
        Language::Python,
        Language::Go,
        Language::C,
    ];

    /// The word of `--lang` and `plugin.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::JavaScript => "javascript",
            Language::TypeScript => "typescript",
            Language::Python => "python",
            Language::Go => "go",
            Language::C => "c",
        }
    }

    /// Its name in texts.
    pub fn title(self) -> &'static str {
        match self {
            Language::Rust => "Rust",
            Language::JavaScript => "JavaScript",
            Language::TypeScript => "TypeScript",
            Language::Python => "Python",
            Language::Go => "Go",
            Language::C => "C",
        }
    }

    /// The folder of its SDK: JavaScript and TypeScript have one.
    pub fn sdk(self) -> &'static str {
        match self {
            Language::TypeScript => Language::JavaScript.as_str(),
            other => other.as_str(),
        }
    }

    /// Where a plugin begins unless its manifest says otherwise.
    pub fn entry(self) -> &'static str {
        match self {
            Language::Rust => "src/lib.rs",
            Language::JavaScript => "plugin.js",
            Language::TypeScript => "plugin.ts",
            Language::Python => "plugin.py",
            Language::Go => "plugin.go",
            Language::C => "plugin.c",
        }
    }
}

/// Why a folder is no project.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The manifest is missing.
    #[error("no {MANIFEST} in {} or a folder above it", folder.display())]
    Missing {
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// It cannot be read.
    #[error("{}", file.display())]
    Read {
        /// The manifest.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not what a manifest is.
    #[error("{}: {reason}", file.display())]
    Invalid {
        /// The manifest.
        file: PathBuf,
        /// Line, value and what was expected.
        reason: String,
    },
}

impl Project {
    /// The project in this folder.
    pub fn read(folder: &Path) -> Result<Project, ProjectError> {
        let missing = || ProjectError::Missing { folder: folder.to_owned() };
        let folder = folder.canonicalize().map_err(|_| missing())?;
        let file = folder.join(MANIFEST);
        let data = std::fs::metadata(&file).map_err(|_| missing())?;
        let invalid = |reason: String| ProjectError::Invalid { file: file.clone(), reason };
        if let Some(reason) = files::refusal(&data, files::TEXT_BYTES_MAX) {
            return Err(invalid(reason));
        }
        let text = std::fs::read_to_string(&file)
            .map_err(|source| ProjectError::Read { file: file.clone(), source })?;
        let manifest: Manifest =
            toml::from_str(&text).map_err(|error| invalid(error.to_string().trim_end().to_owned()))?;
        check_name(&manifest.name).map_err(invalid)?;
        manifest.entry.as_deref().map_or(Ok(()), check_entry).map_err(invalid)?;
        Ok(Project { folder, manifest })
    }

    /// The project that a folder belongs to: its own, or that of the nearest folder around it.
    pub fn find(folder: &Path) -> Result<Project, ProjectError> {
        let inside = folder.canonicalize().unwrap_or_default();
        match inside.ancestors().find(|around| around.join(MANIFEST).exists()) {
            Some(around) => Project::read(around),
            None => Err(ProjectError::Missing { folder: folder.to_owned() }),
        }
    }

    /// The source file where the plugin begins, relative to the folder.
    pub fn entry(&self) -> PathBuf {
        self.manifest.entry.clone().unwrap_or_else(|| PathBuf::from(self.manifest.language.entry()))
    }

    /// The interfaces that it is built against.
    pub fn wit(&self) -> PathBuf {
        self.folder.join("sdk/wit")
    }

    /// Where builds keep what they make.
    pub fn build_folder(&self) -> PathBuf {
        self.folder.join("build")
    }

    /// The component.
    pub fn output(&self) -> PathBuf {
        self.build_folder().join(format!("{}.wasm", self.manifest.name))
    }
}

/// A path that stays in the project.
fn check_entry(entry: &Path) -> Result<(), String> {
    let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if entry.file_name().is_some() && entry.components().all(is_inside) {
        return Ok(());
    }
    Err(format!("invalid entry {entry:?}: expected a file of the project, relative to its folder"))
}

/// Longest name of a plugin, bytes.
const NAME_MAX: usize = 40;

/// A name that is one in every language's package manager: letters, digits and hyphens, from a letter on.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = name.len() <= NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && !name.contains("--")
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-');
    if fits {
        return Ok(());
    }
    Err(format!(
        "invalid name {name:?}: expected 1 to {NAME_MAX} lower-case letters, digits and single hyphens, beginning with a letter"
    ))
}
