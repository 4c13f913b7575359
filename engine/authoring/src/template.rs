//! New projects: the files of a kind and of a language, a copy of the language's SDK, and the interfaces.
//!
//! ```text
//! TEMPLATES/kinds/KIND    of every language: the experiment, tasks, cases
//! TEMPLATES/LANG/all      of every kind: build manifests, .gitignore
//! TEMPLATES/LANG/KIND     the source
//! TEMPLATES/README.md     of all, with TEMPLATES/LANG/README.md in the place of `{{language_notes}}`
//! ```
//!
//! In names and texts `{{name}}`, `{{snake}}`, `{{pascal}}`, `{{kind}}`, `{{language}}`, `{{language_name}}` and `{{entry}}` are replaced. A file
//! `Cargo.toml.tmpl` becomes `Cargo.toml`, so that no tool takes a template for a project.

mod sdk;

pub use sdk::{VERSION, is_older, refresh_sdk, version_of, write_wit};

use crate::project::{Kind, Language, MANIFEST, Manifest, check_name};
use std::io;
use std::path::{Path, PathBuf};

const README: &str = "README.md";
/// What a template's file may end in, which the project's does not.
const SUFFIX: &str = ".tmpl";
/// What tools leave beside the source of templates and SDKs; a copy does without.
const LEFT_OUT: [&str; 5] = ["node_modules", "__pycache__", "target", ".mypy_cache", ".pytest_cache"];

/// What projects are made of: folders of the installation.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Templates by language and kind.
    pub templates: PathBuf,
    /// SDKs by language.
    pub sdks: PathBuf,
    /// `plugin.wit` and `deps`.
    pub wit: PathBuf,
}

/// Why there is no new project.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// The name is not one.
    #[error("{0}")]
    Name(String),
    /// Something is there already.
    #[error("{} already exists and is not an empty folder", folder.display())]
    Occupied {
        /// The folder.
        folder: PathBuf,
    },
    /// An SDK would replace something else.
    #[error("{} is not empty and not a copy of the SDK for {language}; nothing was written", folder.display())]
    NotAnSdk {
        /// The folder.
        folder: PathBuf,
        /// Of the SDK.
        language: &'static str,
    },
    /// An SDK would replace files of the author.
    #[error("{} has files where the SDK has others: {}; nothing was written", folder.display(), listed(files))]
    NotOfTheSdk {
        /// The folder.
        folder: PathBuf,
        /// Relative to it.
        files: Vec<PathBuf>,
    },
    /// A link, a pipe or a folder has the place of a file.
    #[error("{} is in the way: it is a link, or no regular file in a real folder; nothing was written", path.display())]
    NotPlain {
        /// It, or what lies in it.
        path: PathBuf,
    },
    /// The installation lacks a folder.
    #[error("{} is missing", path.display())]
    Incomplete {
        /// What is missing.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn listed(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A new project.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Its name.
    pub name: &'a str,
    /// What the plugin is.
    pub kind: Kind,
    /// What it is written in.
    pub language: Language,
}

impl New<'_> {
    /// Writes the project into a folder that does not exist or is empty. Returns the files outside of `sdk`, relative to the
    /// folder, in order. Where a file cannot be written, what was written is removed.
    pub fn write(&self, sources: &Sources, folder: &Path) -> Result<Vec<PathBuf>, NewError> {
        check_new_name(self.name).map_err(NewError::Name)?;
        let files = self.files(sources)?;
        sdk::files(sources, self.language)?;
        // Also a link that leads nowhere is there.
        let new = std::fs::symlink_metadata(folder).is_err();
        let occupied = || NewError::Occupied { folder: folder.to_owned() };
        if !new && std::fs::read_dir(folder).map_err(|_| occupied())?.next().is_some() {
            return Err(occupied());
        }
        let written = write_files(folder, &files)
            .and_then(|()| sdk::write_sdk(sources, self.language, &folder.join("sdk")));
        if let Err(error) = written {
            remove_content(folder, new);
            return Err(error);
        }
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }

    /// The project's own files.
    fn files(&self, sources: &Sources) -> Result<Vec<(PathBuf, Vec<u8>)>, NewError> {
        let language = sources.templates.join(self.language.as_str());
        let kind = self.kind.as_str();
        let mut files = Vec::new();
        for folder in [sources.templates.join("kinds").join(kind), language.join("all"), language.join(kind)]
        {
            self.collect(&folder, Path::new(""), &mut files)?;
        }
        let notes = read_text(&language.join(README))?;
        let readme = read_text(&sources.templates.join(README))?.replace("{{language_notes}}", notes.trim());
        files.push((PathBuf::from(README), self.fill(&readme).into_bytes()));
        files.push((PathBuf::from(MANIFEST), self.manifest().into_bytes()));
        files.sort();
        Ok(files)
    }

    /// `plugin.toml`.
    fn manifest(&self) -> String {
        let manifest =
            Manifest { name: self.name.to_owned(), kind: self.kind, language: self.language, entry: None };
        toml::to_string(&manifest).expect("a manifest is a table of words")
    }

    fn collect(
        &self,
        folder: &Path,
        below: &Path,
        files: &mut Vec<(PathBuf, Vec<u8>)>,
    ) -> Result<(), NewError> {
        for path in entries(folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            let name = self.fill(name.strip_suffix(SUFFIX).unwrap_or(&name));
            if path.is_dir() {
                self.collect(&path, &below.join(name), files)?;
                continue;
            }
            let content = std::fs::read(&path).map_err(in_file(&path))?;
            let content = match String::from_utf8(content) {
                Ok(text) => self.fill(&text).into_bytes(),
                Err(binary) => binary.into_bytes(),
            };
            files.push((below.join(name), content));
        }
        Ok(())
    }

    fn fill(&self, text: &str) -> String {
        let pascal: String = self.name.split('-').map(capitalised).collect();
        text.replace("{{name}}", self.name)
            .replace("{{snake}}", &self.name.replace('-', "_"))
            .replace("{{pascal}}", &pascal)
            .replace("{{kind}}", self.kind.as_str())
            .replace("{{language}}", self.language.as_str())
            .replace("{{language_name}}", self.language.title())
            .replace("{{entry}}", self.language.entry())
    }
}

/// Names of packages that a project of that name could not be told from, or that its tools refuse.
const RESERVED: [&str; 8] = ["espalier-sdk", "espalier", "sdk", "core", "std", "alloc", "test", "proc-macro"];

/// A name that a new project may have.
fn check_new_name(name: &str) -> Result<(), String> {
    check_name(name)?;
    if RESERVED.contains(&name) {
        return Err(format!(
            "invalid name {name:?}: it is the name of a package that projects use; choose another"
        ));
    }
    Ok(())
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

fn copy_file(from: &Path, to: &Path) -> Result<(), NewError> {
    // Installed files may be read-only; the copies belong to the author.
    let content = std::fs::read(from).map_err(in_file(from))?;
    std::fs::write(to, content).map_err(in_file(to))
}

fn write_files(folder: &Path, files: &[(PathBuf, Vec<u8>)]) -> Result<(), NewError> {
    create(folder)?;
    for (name, content) in files {
        let path = folder.join(name);
        create(path.parent().unwrap_or(folder))?;
        std::fs::write(&path, content).map_err(in_file(&path))?;
    }
    Ok(())
}

/// Takes back what was written into a folder that was empty or not there.
fn remove_content(folder: &Path, with_folder: bool) {
    if with_folder {
        let _ = std::fs::remove_dir_all(folder);
        return;
    }
    for path in entries(folder).unwrap_or_default() {
        let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
    }
}

fn create(folder: &Path) -> Result<(), NewError> {
    std::fs::create_dir_all(folder).map_err(in_file(folder))
}

fn read_text(path: &Path) -> Result<String, NewError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(NewError::Incomplete { path: path.to_owned() })
        }
        read => read.map_err(in_file(path)),
    }
}

/// What lies in a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, NewError> {
    let read = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(NewError::Incomplete { path: folder.to_owned() });
        }
        read => read.map_err(in_file(folder))?,
    };
    let mut paths = Vec::new();
    for entry in read {
        paths.push(entry.map_err(in_file(folder))?.path());
    }
    paths.sort();
    Ok(paths)
}

fn in_file(path: &Path) -> impl Fn(io::Error) -> NewError {
    let path = path.to_owned();
    move |source| NewError::File { path: path.clone(), source }
}

#[cfg(test)]
mod tests;
