//! Downloads of a page: files in the context's folder until they are saved elsewhere.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// One download. Its file is removed with its context.
#[derive(Clone)]
pub struct Download {
    inner: Arc<DownloadInner>,
}

struct DownloadInner {
    id: String,
    url: String,
    suggested_name: String,
    /// `None`: the context takes no downloads.
    folder: Option<PathBuf>,
    /// Whether the folder is on the machine of a remote process.
    is_remote: bool,
    progress: watch::Sender<DownloadState>,
    /// Its bytes, as last told.
    bytes: AtomicU64,
    /// Why it is cancelled.
    refusal: OnceLock<String>,
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownloadState {
    /// Bytes received so far, and of how many where the server says so.
    Running {
        /// Received.
        received: u64,
        /// In all; 0 where it is not known.
        total: u64,
    },
    /// The file is complete.
    Complete,
    /// It was cancelled, failed, or the context takes no downloads.
    Failed,
}

/// `Browser.downloadWillBegin`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DownloadBegin {
    pub(crate) frame_id: Arc<str>,
    guid: String,
    pub(crate) url: String,
    #[serde(default)]
    suggested_filename: String,
}

/// `Browser.downloadProgress`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DownloadProgress {
    pub(crate) guid: String,
    #[serde(default)]
    total_bytes: f64,
    #[serde(default)]
    received_bytes: f64,
    state: String,
}

impl DownloadBegin {
    pub(crate) fn guid(&self) -> &str {
        &self.guid
    }
}

impl DownloadProgress {
    /// Bytes that it has, or is said to have.
    pub(crate) fn bytes(&self) -> u64 {
        // Chromium counts in floating point; a file of 2^53 bytes does not occur.
        self.total_bytes.max(self.received_bytes).max(0.0) as u64
    }
}

impl Download {
    pub(crate) fn new(begin: &DownloadBegin, folder: Option<&Path>, is_remote: bool) -> Download {
        Download {
            inner: Arc::new(DownloadInner {
                id: begin.guid.clone(),
                url: begin.url.clone(),
                suggested_name: begin.suggested_filename.clone(),
                folder: folder.map(Path::to_owned),
                is_remote,
                progress: watch::Sender::new(DownloadState::Running { received: 0, total: 0 }),
                bytes: AtomicU64::new(0),
                refusal: OnceLock::new(),
            }),
        }
    }

    /// Where it comes from.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// The name that the server or the page suggests. It comes from outside: never use it as a path unchecked.
    pub fn suggested_name(&self) -> &str {
        &self.inner.suggested_name
    }

    /// How far it is.
    pub fn state(&self) -> DownloadState {
        self.inner.progress.borrow().clone()
    }

    /// The file, once it is complete. Of a remote browser: the path on its machine.
    pub async fn path(&self, timeout: Duration) -> Result<PathBuf> {
        let deadline = Deadline::after(timeout);
        let mut progress = self.inner.progress.subscribe();
        let what = || format!("the download of {}; {:?}", self.inner.url, self.state());
        let end = deadline
            .bound(what, async {
                let ended = |state: &DownloadState| !matches!(state, DownloadState::Running { .. });
                let end = progress.wait_for(ended).await.map_err(|_| BrowserError::closed("context"))?;
                Ok(end.clone())
            })
            .await?;
        match (end, &self.inner.folder) {
            (DownloadState::Complete, Some(folder)) => Ok(folder.join(&self.inner.id)),
            (_, folder) => {
                let reason =
                    if folder.is_none() { "the context takes no downloads" } else { "download failed" };
                Err(BrowserError::Navigation { url: self.inner.url.clone(), reason: reason.to_owned() })
            }
        }
    }

    /// Copies the file, once it is complete, to `to`. [`BrowserError::Unsupported`] for a remote browser.
    pub async fn save_as(&self, to: impl AsRef<Path>, timeout: Duration) -> Result<()> {
        let from = self.path(timeout).await?;
        if self.inner.is_remote {
            let what = format!("a copy of {}, which is on the machine of the browser", from.display());
            return Err(BrowserError::unsupported(what));
        }
        let to = to.as_ref();
        let copied = tokio::fs::copy(&from, to).await;
        copied.map(drop).map_err(|error| BrowserError::invalid(format!("path {}: {error}", to.display())))
    }

    /// Its bytes, as far as it is.
    pub(crate) async fn size(&self, file: &Path) -> u64 {
        let told = self.inner.bytes.load(Ordering::Relaxed);
        match self.inner.is_remote {
            true => told,
            false => tokio::fs::metadata(file).await.map_or(told, |file| file.len()),
        }
    }

    /// Why it is cancelled, where it was too large or one too many.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.inner.refusal.get().map(String::as_str)
    }

    pub(crate) fn refuse(&self, why: String) {
        let _ = self.inner.refusal.set(why);
    }

    pub(crate) fn is(&self, guid: &str) -> bool {
        self.inner.id == guid
    }

    pub(crate) fn progresses(&self, event: &DownloadProgress) {
        self.inner.bytes.fetch_max(event.bytes(), Ordering::Relaxed);
        // Chromium counts in floating point; a file of 2^53 bytes does not occur.
        let state = match event.state.as_str() {
            "completed" if self.refusal().is_none() => DownloadState::Complete,
            "completed" => DownloadState::Failed,
            "canceled" => DownloadState::Failed,
            _ => DownloadState::Running {
                received: event.received_bytes.max(0.0) as u64,
                total: event.total_bytes.max(0.0) as u64,
            },
        };
        self.inner.progress.send_replace(state);
    }

    /// The context is gone before the download was complete.
    pub(crate) fn abandon(&self) {
        self.inner.progress.send_if_modified(|state| {
            let running = matches!(state, DownloadState::Running { .. });
            if running {
                *state = DownloadState::Failed;
            }
            running
        });
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Download({} {:?})", self.inner.url, self.state())
    }
}
