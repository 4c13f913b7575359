//! Tasks out of two releases of a Python library: finds the archives, lays out an image of the old release over this machine's own
//! programs, says which experiment runs the new release's tests on both sources, and keeps what came out, so that nothing is done
//! twice. Who calls writes the image ([`ImageOrder`]) and runs the experiment ([`Probe`]). What a task is made of is decided in
//! [`Draft`]. How people make them: docs/tasks.md.

mod archive;
mod changelog;
mod draft;
mod expect;
mod image;
mod manifest;
mod marks;
mod measure;
mod names;
mod others;
mod parts;
mod patch;
mod python;
mod version;

pub use draft::{Draft, DraftOptions, PYTHON, Refusal, Release, SourceFile, Tree, WORKDIR};
pub use expect::Expected;
pub use image::ImageOrder;
pub use manifest::{Library, Manifest, ManifestError, is_name};
pub use measure::{PROBE, Probe, Runs};
pub use version::Version;

use archive::read as read_archive;
use python::{INTERPRETER, Pip, fetch};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// Runs of the tests on each source.
pub const RUNS: u32 = 5;
/// Changes whenever what is kept means something else.
const FORM: u32 = 2;

/// Why a pair made no task.
#[derive(Debug, thiserror::Error)]
pub enum SdistError {
    /// The pair is none that a task can be made of, now or later.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// An archive is none that can be read.
    #[error("{}: {why}", .file.display())]
    Archive {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such archive.
    #[error("no source archive of {name} {version}: {why}")]
    NotThere {
        /// The library.
        name: String,
        /// The version.
        version: String,
        /// What was looked at.
        why: String,
    },
    /// Not how a version is written.
    #[error("invalid version {0:?}")]
    NoVersion(String),
    /// What the tests need cannot be had.
    #[error("requirements of the tests: {0}")]
    Requires(String),
    /// pip would choose for another interpreter than the tests'.
    #[error(
        "pip runs on Python {pip} and would choose packages for it, but the tests run on {tests} ({})",
        INTERPRETER
    )]
    OtherPython {
        /// Version of the interpreter that pip runs on.
        pip: String,
        /// Version of the tests'.
        tests: String,
        /// Where pip's lies.
        folder: PathBuf,
    },
    /// The machine could not.
    #[error("{what}: {source}")]
    Machine {
        /// What it was about.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The image could not be written.
    #[error(transparent)]
    Image(Box<dyn Error + Send + Sync>),
    /// The runs of the tests say nothing of the releases.
    #[error("{0}")]
    Unmeasured(String),
}

impl SdistError {
    fn machine(what: impl Into<String>) -> impl FnOnce(io::Error) -> SdistError {
        let what = what.into();
        move |source| SdistError::Machine { what, source }
    }

    /// Whether another try on the same files would end the same.
    pub fn is_final(&self) -> bool {
        match self {
            SdistError::Refused(_)
            | SdistError::Archive { .. }
            | SdistError::NotThere { .. }
            | SdistError::NoVersion(_) => true,
            SdistError::Requires(_)
            | SdistError::OtherPython { .. }
            | SdistError::Machine { .. }
            | SdistError::Image(_)
            | SdistError::Unmeasured(_) => false,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            SdistError::Refused(Refusal::NoChangelog { .. } | Refusal::GivenAway(_)) => {
                Some("use --instruction FILE to write the instruction yourself".to_owned())
            }
            SdistError::OtherPython { folder, .. } => {
                Some(format!("put {INTERPRETER} first in PATH as python3, and delete {}", folder.display()))
            }
            SdistError::Unmeasured(_) => Some("run the same command again to measure again".to_owned()),
            _ => None,
        }
    }
}

/// Where things are kept; all of it may be deleted.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Source archives, as package indexes name them.
    pub archives: PathBuf,
    /// Images and measurements.
    pub cache: PathBuf,
}

/// Where a release comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By version: in the folder of archives, else from the package index that pip is set up with.
    Version(String),
    /// A source archive.
    File(PathBuf),
}

impl Origin {
    /// What has a slash or the end of an archive is a path.
    pub fn parse(text: &str) -> Origin {
        if text.contains('/') || text.ends_with(".tar.gz") {
            Origin::File(PathBuf::from(text))
        } else {
            Origin::Version(text.to_owned())
        }
    }
}

/// The release itself. Blocks.
pub fn release(name: &str, origin: &Origin, folders: &Folders) -> Result<Release, SdistError> {
    let asked = match origin {
        Origin::File(_) => None,
        Origin::Version(text) => {
            Some(Version::parse(text).ok_or_else(|| SdistError::NoVersion(text.clone()))?)
        }
    };
    let file = match origin {
        Origin::File(file) => file.clone(),
        Origin::Version(version) => match archive::find(&folders.archives, name, version) {
            Some(file) => file,
            None => fetch(&Pip::ready(&folders.cache)?, name, version, &folders.archives)?,
        },
    };
    let (tree, said) = read_archive(&file)?;
    let version = match (asked, said) {
        (Some(version), _) => Ok(version),
        (None, Some(said)) => {
            Version::parse(&said).ok_or_else(|| format!("its PKG-INFO has the invalid version {said:?}"))
        }
        (None, None) if tree.contains_key("PKG-INFO") => Err("its PKG-INFO has no version".to_owned()),
        (None, None) => Err("it has no PKG-INFO, which would give its version".to_owned()),
    };
    let version = version.map_err(|why| SdistError::Archive { file, why })?;
    Ok(Release { version, tree })
}

/// A draft with its place in the cache.
#[derive(Debug)]
pub struct Work {
    /// What is made.
    pub draft: Draft,
    folder: PathBuf,
    requires: Vec<String>,
}

/// What is kept of a measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kept {
    Expected(Expected),
    Refused(String),
}

/// What a pair came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A task: its line and what it expects.
    Task(String, Expected),
    /// None, for this reason.
    Refused(String),
}

impl Work {
    /// Over two releases.
    pub fn new(
        library: &str,
        releases: &[Release; 2],
        requires: &[String],
        options: &DraftOptions,
        folders: &Folders,
    ) -> Result<Work, SdistError> {
        let [old, new] = releases;
        let draft = Draft::new(library, old, new, options)?;
        let mut requires = requires.to_vec();
        requires.sort();
        requires.dedup();
        let mut hash = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(&FORM.to_le_bytes());
        add(&RUNS.to_le_bytes());
        add(python::version(Path::new(INTERPRETER))?.as_bytes());
        add(draft.root.as_bytes());
        for text in draft.probes("").iter().chain(&requires) {
            add(text.as_bytes());
        }
        for (path, file) in draft.start.iter().chain(&draft.installed) {
            add(path.as_bytes());
            add(&[u8::from(file.executable)]);
            add(&file.bytes);
        }
        let key = &hash.finalize().to_hex()[..16];
        let folder = folders.cache.join("tasks").join(format!("{}-{key}", draft.id));
        Ok(Work { draft, folder, requires })
    }

    fn kept_file(&self) -> PathBuf {
        self.folder.join("measured.json")
    }

    fn image(&self) -> String {
        format!("oci:{}:{}", self.folder.join("image").display(), image::TAG)
    }

    /// What was found out before.
    pub fn kept(&self) -> Option<Result<Outcome, SdistError>> {
        let bytes = std::fs::read(self.kept_file()).ok()?;
        let kept: Kept = serde_json::from_slice(&bytes).ok()?;
        let image = self.folder.join("image");
        match kept {
            Kept::Refused(reason) => Some(Ok(Outcome::Refused(reason))),
            Kept::Expected(expected) if image.join("index.json").is_file() => Some(self.outcome(expected)),
            Kept::Expected(_) => None,
        }
    }

    fn outcome(&self, expected: Expected) -> Result<Outcome, SdistError> {
        let line = self.draft.task(&self.image(), &expected)?;
        Ok(Outcome::Task(line, expected))
    }

    /// Has the image written by `write`, and makes what measures. Blocks.
    pub fn prepare<E: Error + Send + Sync + 'static>(
        &self,
        folders: &Folders,
        write: impl FnOnce(&ImageOrder<'_>) -> Result<(), E>,
    ) -> Result<Probe, SdistError> {
        let installed = python::installed(&self.requires, &self.draft.library, folders)?;
        let write = |order: &ImageOrder<'_>| write(order).map_err(|error| SdistError::Image(error.into()));
        image::lay_out(&self.folder.join("image"), &self.draft, &installed, write)?;
        Probe::new(&self.draft.probes(&self.image()))
    }

    /// What follows from the runs, kept for the next time; of runs that say nothing, nothing is kept.
    pub fn conclude(&self, runs: &Runs) -> Result<Outcome, SdistError> {
        runs.agree()?;
        let judged = measure::judge(runs);
        let kept = match &judged {
            Ok(expected) => Kept::Expected(expected.clone()),
            Err(refusal) => Kept::Refused(refusal.to_string()),
        };
        let text = serde_json::to_vec(&kept).expect("plain data is always written");
        write_whole(&self.kept_file(), &text)?;
        match judged {
            Ok(expected) => self.outcome(expected),
            Err(refusal) => Ok(Outcome::Refused(refusal.to_string())),
        }
    }
}

/// A package's name as its files are named, in whichever of the usual ways it is written.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '.'], "_")
}

/// The file appears when it is whole.
fn write_whole(file: &Path, bytes: &[u8]) -> Result<(), SdistError> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let write = || {
        std::fs::create_dir_all(folder)?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut new, bytes)?;
        new.persist(file).map(drop).map_err(|error| error.error)
    };
    write().map_err(SdistError::machine(format!("writing {}", file.display())))
}
