//! Images against real registries, real tools and a real kernel.
//!
//! As root: what is unpacked is mounted as an overlay and compared with what `umoci unpack` makes of the same image. The
//! parts for an ordinary user run as one, in a process of their own.
#![allow(clippy::unwrap_used)]

mod export;
mod hostile;
mod layouts;
mod random;
mod registries;
mod registry;
mod sharing;
mod strangers;
mod tars;
mod trees;

use espalier_images::{Image, ImageError, ImageOptions, ImageStore, Progress, Source, Waits};
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;

/// Options that depend on nothing of this machine's user, and do not wait long.
pub(crate) fn options() -> ImageOptions {
    let waits = Waits {
        connect: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        request: Duration::from_secs(20),
        total: Duration::from_secs(240),
        retries: 3,
        backoff: Duration::from_millis(5),
    };
    ImageOptions { credentials: vec![], waits, ..ImageOptions::default() }
}

pub(crate) fn store(folder: &Path) -> ImageStore {
    ImageStore::open(folder, options()).unwrap()
}

pub(crate) async fn get(store: &ImageStore, name: &str) -> Result<Image, ImageError> {
    store.get(&Source::parse(name)?, &watch::Sender::new(Progress::default())).await
}

/// An error as a user reads it, without what differs from run to run.
pub(crate) fn text(error: &ImageError, hidden: &[(&str, &str)]) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    if let Some(hint) = error.hint() {
        text = format!("{text}\nhint: {hint}");
    }
    for (from, to) in hidden {
        text = text.replace(from, to);
    }
    format!("{text}\n({:?})", error.remedy())
}

/// What lies in a store's places for things half done.
pub(crate) fn left_over(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for part in ["tmp", "partial"] {
        for entry in walk(&folder.join(part)) {
            found.push(format!("{part}/{entry}"));
        }
    }
    found
}

fn walk(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}")));
        } else if !name.ends_with(".lock") {
            found.push(name);
        }
    }
    found
}
