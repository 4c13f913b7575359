//! The files of an experiment that a key has sent: a folder like the one that `espalier run` would read, named by what is in it.

use espalier_api::problem::{Code, Problem};
use espalier_api::runs::Submission;
use espalier_store::Store;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// The experiment itself.
pub(super) const EXPERIMENT: &str = "experiment.toml";
/// Longest path of a file.
const PATH_BYTES_MAX: usize = 1_024;

/// Writes the experiment and its files below `root`, where they are not there yet. Every path stays inside.
pub(super) async fn lay_out(
    store: &Store,
    root: &Path,
    key_id: &str,
    submission: &Submission,
) -> Result<PathBuf, Problem> {
    let mut hasher = blake3::Hasher::new();
    let files = submission.files.iter().flat_map(|(path, hash)| [path.as_str(), hash.as_str()]);
    for field in [key_id, submission.experiment.as_str()].into_iter().chain(files) {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field.as_bytes());
    }
    let folder = root.join(&hasher.finalize().to_hex()[..32]);
    for (path, hash) in &submission.files {
        if !is_inside(path) || path == EXPERIMENT {
            let shown: String = path.chars().take(80).collect();
            return Err(Problem::invalid(
                "files",
                shown,
                "relative paths without `..`, and not experiment.toml",
            ));
        }
        let to = folder.join(path);
        let around = to.parent().unwrap_or(&folder).to_owned();
        make(around).await.map_err(|error| kept_not(path, &error))?;
        store.blobs().link(hash, to).await.map_err(|error| kept_not(path, &error))?;
    }
    make(folder.clone()).await.map_err(|error| kept_not(EXPERIMENT, &error))?;
    let written = tokio::fs::write(folder.join(EXPERIMENT), &submission.experiment).await;
    written.map_err(|error| kept_not(EXPERIMENT, &error))?;
    Ok(folder)
}

/// Whether a path leads to a place below where it starts, whatever is there.
pub(crate) fn is_inside(path: &str) -> bool {
    let plain = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    !path.is_empty()
        && path.len() <= PATH_BYTES_MAX
        && !path.contains('\0')
        && !path.ends_with('/')
        && Path::new(path).components().all(plain)
}

async fn make(folder: PathBuf) -> std::io::Result<()> {
    let made =
        tokio::task::spawn_blocking(move || DirBuilder::new().recursive(true).mode(0o700).create(folder));
    made.await.map_err(std::io::Error::other)?
}

fn kept_not(path: &str, error: &dyn std::fmt::Display) -> Problem {
    tracing::error!(%error, path, "a file of a run could not be kept");
    Problem::new(Code::Unavailable, format!("the file {path:?} of the run could not be kept")).retry_after(5)
}
