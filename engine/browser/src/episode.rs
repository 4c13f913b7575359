//! The network of a deterministic episode: answered from an archive, or recorded into one that is kept with the rollout.

use espalier_browser::{
    Archive, ArchiveOptions, ArchiveRecorder, ArchiveReplay, BrowserContext, BrowserError,
};
use espalier_browser::{DeterministicOptions, Misses as PageMisses};
use espalier_core::attempt::Draft;
use espalier_core::browser::{Deterministic, Misses};
use espalier_core::host::Blobs;
use espalier_core::samples::ErrorNote;
use espalier_core::trajectory::{LogLine, LogSource};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Name of the blob of a rollout with the archive of its network.
pub const ARCHIVE: &str = "browser-archive";
/// Code of the note that a rollout has of requests that were not in its archive.
const ARCHIVE_MISS: &str = "archive-miss";
const MEDIA_TYPE: &str = "application/octet-stream";
/// Largest archive that is read, bytes.
const ARCHIVE_BYTES_MAX: u64 = 1 << 30;
/// Whose line it is in the log of a rollout.
const LOG_NAME: &str = "browser";

/// An archive as it was read.
pub(crate) struct ArchiveFile {
    archive: Archive,
    bytes: Vec<u8>,
}

/// The archives that the tasks of a run name, each read once.
pub(crate) struct Archives {
    /// That relative paths start from.
    folder: PathBuf,
    read: Mutex<HashMap<PathBuf, Arc<tokio::sync::OnceCell<Arc<ArchiveFile>>>>>,
}

impl Archives {
    pub(crate) fn new(folder: PathBuf) -> Archives {
        Archives { folder, read: Mutex::default() }
    }

    /// Errors name the file.
    pub(crate) async fn read(&self, path: &str) -> Result<Arc<ArchiveFile>, String> {
        let path = self.folder.join(path);
        let cell = Arc::clone(self.read.lock().entry(path.clone()).or_default());
        let reading = cell.get_or_try_init(|| async {
            let at = path.clone();
            let read = tokio::task::spawn_blocking(move || read(&at)).await;
            read.unwrap_or_else(|error| Err(error.to_string())).map(Arc::new)
        });
        let found = reading.await.map(Arc::clone);
        found.map_err(|why| format!("deterministic.archive {}: {why}", path.display()))
    }
}

fn read(path: &Path) -> Result<ArchiveFile, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > ARCHIVE_BYTES_MAX {
        return Err(format!("{length} bytes: expected at most {ARCHIVE_BYTES_MAX}"));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let archive = Archive::from_bytes(&bytes).map_err(|error| error.to_string())?;
    Ok(ArchiveFile { archive, bytes })
}

pub(crate) fn options(deterministic: &Deterministic) -> DeterministicOptions {
    DeterministicOptions {
        seed: deterministic.seed,
        start: UNIX_EPOCH + Duration::from_millis(deterministic.start_ms),
        step_budget: deterministic.step.0,
        ..DeterministicOptions::default()
    }
}

/// Where the answers to the requests of one episode come from.
pub(crate) enum EpisodeNetwork {
    Recorded(ArchiveRecorder),
    Replayed { replay: ArchiveReplay, file: Arc<ArchiveFile> },
}

impl EpisodeNetwork {
    /// Before the first page of the context.
    pub(crate) async fn begin(
        context: &BrowserContext,
        file: Option<Arc<ArchiveFile>>,
        misses: Misses,
    ) -> Result<EpisodeNetwork, BrowserError> {
        let Some(file) = file else {
            let recorder = context.record_archive(ArchiveOptions::default()).await?;
            return Ok(EpisodeNetwork::Recorded(recorder));
        };
        let misses = match misses {
            Misses::Fail => PageMisses::Fail,
            Misses::Live => PageMisses::Live,
        };
        let replay = context.replay_archive(&file.archive, misses).await?;
        Ok(EpisodeNetwork::Replayed { replay, file })
    }

    /// Keeps the archive with the rollout, and tells what it did not have.
    pub(crate) async fn keep(&self, blobs: &dyn Blobs, draft: &mut Draft) {
        let bytes = match self {
            EpisodeNetwork::Recorded(recorder) => recorder.archive().to_bytes(),
            EpisodeNetwork::Replayed { file, .. } => file.bytes.clone(),
        };
        match blobs.put(bytes, MEDIA_TYPE).await {
            Ok(blob) => draft.blobs.push((ARCHIVE.to_owned(), blob)),
            Err(failure) => {
                draft.logs.push(line(format!("the archive of the network is not kept: {failure}")));
            }
        }
        let EpisodeNetwork::Replayed { replay, .. } = self else { return };
        let text = match replay.misses() {
            (first, 1) => format!("a request that the archive does not have: {}", first.concat()),
            (first, count @ 2..) => {
                let first = first.first().map_or("", String::as_str);
                format!("{count} requests that the archive does not have, the first: {first}")
            }
            _ => return,
        };
        tracing::warn!(code = ARCHIVE_MISS, "{text}");
        draft.notes.push(ErrorNote { code: ARCHIVE_MISS.to_owned(), text });
    }
}

fn line(text: String) -> LogLine {
    let (plugin, source) = (LOG_NAME.to_owned(), LogSource::Warn);
    LogLine { at_us: 0, plugin, source, text, fields: None, turn: None, call: None }
}
