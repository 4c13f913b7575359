//! The sandboxes of a store: which folder, which keeper, which agent.

use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::image::{ImageOptions, ImageStore};
use espalier_sandbox::local::{Config, Local};
use espalier_sandbox::service::Sandboxes;
use espalier_store::StoreUrl;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// First argument of this program that makes it a keeper of sandboxes.
pub const KEEPER: &str = "sandbox-keeper";

/// Opens them; nothing is started before the first is asked for. `images_max` bounds the images of the store, in bytes.
pub fn open(store: &StoreUrl, images_max: Option<u64>) -> Result<Sandboxes, SandboxError> {
    open_with(store, ImageOptions { size_max: images_max, ..ImageOptions::default() })
}

/// The same, with images as the options say.
pub fn open_with(store: &StoreUrl, images: ImageOptions) -> Result<Sandboxes, SandboxError> {
    let folder = folder(store)?;
    let program = std::env::current_exe()
        .map_err(|error| SandboxError::unavailable("this program's own path", error))?;
    let keeper = vec![program.clone().into_os_string(), KEEPER.into()];
    let local = Local::open(Config { folder: folder.clone(), keeper, agent: agent(&program)? })?;
    Ok(Sandboxes::new(Arc::new(local), &folder.join("images"), images))
}

/// The images of a store, without its sandboxes.
pub fn images(store: &StoreUrl, size_max: Option<u64>) -> Result<ImageStore, SandboxError> {
    let options = ImageOptions { size_max, ..ImageOptions::default() };
    Ok(ImageStore::open(&folder(store)?.join("images"), options)?)
}

/// Where sandboxes of a store are: in its folder, or beside its blobs. From the root: the keeper has a folder of its own to start
/// paths from.
pub(crate) fn folder(store: &StoreUrl) -> Result<PathBuf, SandboxError> {
    let folder = match store {
        StoreUrl::Folder(folder) => folder.join("sandboxes"),
        StoreUrl::Postgres { blobs, .. } => blobs.parent().unwrap_or(Path::new(".")).join("sandboxes"),
    };
    std::path::absolute(&folder)
        .map_err(|error| SandboxError::unavailable(folder.display().to_string(), error))
}

/// The static binary that runs in every sandbox: `ESPALIER_AGENT`, or beside this program, or where the build puts it.
fn agent(program: &Path) -> Result<PathBuf, SandboxError> {
    let named = std::env::var_os("ESPALIER_AGENT").filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = program.parent().unwrap_or(Path::new("/"));
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let candidates = match named {
        Some(named) => vec![named],
        None => vec![
            beside.join("..").join(target).join("agent/espalier-agent"),
            beside.join("espalier-agent"),
            beside.join("../lib/espalier/espalier-agent"),
        ],
    };
    let usable = candidates.iter().find(|path| is_static(path)).cloned();
    usable.ok_or_else(|| {
        let places: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        SandboxError::NoAgent { places }
    })
}

/// Whether a file is a program that needs no other file: an image may have no libraries.
fn is_static(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    let number = |at: usize, length: usize| -> Option<usize> {
        let field = bytes.get(at..at + length)?;
        Some(field.iter().rev().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
    };
    // Of a 64-bit ELF file: where its program headers are, their size and number; the kind of an interpreter is 3.
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    bytes.starts_with(b"\x7fELF\x02")
        && headers().is_some_and(|(at, size, count)| {
            (0..count.min(64)).all(|index| number(at + index * size, 4).is_some_and(|kind| kind != 3))
        })
}

impl From<SandboxError> for Problem {
    fn from(error: SandboxError) -> Problem {
        let (exit, hint) = match &error {
            SandboxError::Invalid { .. } | SandboxError::Rejected(_) | SandboxError::OutOfMemory { .. } => {
                (Exit::Input, None)
            }
            SandboxError::Refused { .. } => (
                Exit::Unavailable,
                Some("`espalier doctor` says what this machine can do, and what would mend it"),
            ),
            SandboxError::NoAgent { .. } => {
                (Exit::Unavailable, Some("`make build` makes it; or name it by ESPALIER_AGENT"))
            }
            SandboxError::Unavailable(_) => (Exit::Unavailable, None),
            SandboxError::Lost(_) => {
                (Exit::Unavailable, Some("it has ended; `espalier sandbox list` shows what is there"))
            }
        };
        Problem::of(exit, &error).hint_if(hint.map(str::to_owned))
    }
}
