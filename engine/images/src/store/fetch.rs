//! Brings the layers of an image into the store: those that are missing, several at once, each at most once on this machine.

use super::Shared;
use super::folder::{LayerRecord, TmpFolder, lock};
use crate::digest::HashRead;
use crate::entries::Entries;
use crate::fault::Fault;
use crate::manifest::LayerOf;
use crate::merged::Merged;
use crate::origin::{LayerFile, Origin, blocking};
use crate::registry::Seen;
use crate::unpack::{Report, unpack};
use crate::{Digest, ImageError};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// What is being done for an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Asking what it consists of.
    #[default]
    Asking,
    /// Waiting for somebody else who loads a part of it.
    Waiting,
    /// Loading and unpacking layers.
    Loading,
    /// All is there.
    Done,
}

/// How far an image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Layers that are not there yet at the begin.
    pub layers: u64,
    /// How many of them are in the store now.
    pub layers_done: u64,
    /// Bytes of those, as they are loaded.
    pub bytes: u64,
    /// How many of them are loaded.
    pub bytes_done: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { layers, layers_done, bytes, bytes_done, .. } = self;
        match self.phase {
            Phase::Asking => f.write_str("asking for its manifest"),
            Phase::Waiting => f.write_str("waiting for another process that loads it"),
            Phase::Loading => write!(f, "{layers_done} of {layers} layers, {bytes_done} of {bytes} bytes"),
            Phase::Done => f.write_str("done"),
        }
    }
}

pub(super) struct Fetch<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) origin: &'a Origin,
    pub(super) progress: &'a watch::Sender<Progress>,
    /// Name of the image, for messages.
    pub(super) name: &'a str,
}

/// A layer that is unpacked but not in its place.
struct Unpacked {
    diff_id: Digest,
    /// Its folder's.
    name: String,
    tmp: TmpFolder,
    file: LayerFile,
    /// It may have to be unpacked again, above others.
    open: bool,
}

/// The name of a layer that was unpacked with knowledge of those below it.
pub(super) fn chain_names(diff_ids: &[Digest]) -> Vec<String> {
    let mut chain: Option<Digest> = None;
    let names = diff_ids.iter().map(|diff_id| {
        let next = match &chain {
            None => diff_id.clone(),
            Some(chain) => Digest::of(format!("{chain} {diff_id}").as_bytes()),
        };
        format!("{}-above", chain.insert(next).hex())
    });
    names.collect()
}

/// Folder and report of each layer, if all are there in the form that this chain needs.
pub(super) fn chosen(
    shared: &Shared,
    diff_ids: &[Digest],
) -> Result<Option<Vec<(PathBuf, Report)>>, ImageError> {
    let mut layers: Vec<(PathBuf, Report)> = Vec::new();
    for (diff_id, chain) in diff_ids.iter().zip(chain_names(diff_ids)) {
        match choose(shared, diff_id, &chain, &layers)? {
            Choice::There(folder, report) => layers.push((folder, report)),
            Choice::Missing | Choice::Leans => return Ok(None),
        }
    }
    Ok(Some(layers))
}

enum Choice {
    There(PathBuf, Report),
    Missing,
    /// It is there, but looks otherwise above these layers.
    Leans,
}

fn choose(
    shared: &Shared,
    diff_id: &Digest,
    chain: &str,
    below: &[(PathBuf, Report)],
) -> Result<Choice, ImageError> {
    let rights = shared.rights;
    let folder = |name: &str| shared.folder.layers(rights).join(name).join("root");
    let Some(own) = shared.folder.read_layer(diff_id.hex(), rights)? else { return Ok(Choice::Missing) };
    if !leans(shared, &own.report, below)? {
        return Ok(Choice::There(folder(diff_id.hex()), own.report));
    }
    Ok(match shared.folder.read_layer(chain, rights)? {
        Some(record) => Choice::There(folder(chain), record.report),
        None => Choice::Leans,
    })
}

fn leans(shared: &Shared, report: &Report, below: &[(PathBuf, Report)]) -> Result<bool, ImageError> {
    if report.links_missing > 0 {
        return Ok(true);
    }
    if report.implied.is_empty() || below.is_empty() {
        return Ok(false);
    }
    let merged = merged(shared, below);
    for folder in &report.implied {
        let folder = hex::decode(folder).unwrap_or_default();
        if merged.changes(&folder).map_err(|fault| fault.of("a layer", shared.folder.root()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn merged(shared: &Shared, below: &[(PathBuf, Report)]) -> Merged {
    Merged::new(below.iter().map(|(folder, _)| folder.clone()).collect(), shared.rights)
}

impl Fetch<'_> {
    pub(super) async fn run(&self, layers: &[LayerOf]) -> Result<Vec<(PathBuf, Report)>, ImageError> {
        // One layer may be there twice, such as an empty one.
        let all = layers.iter().map(|layer| (layer.diff_id.clone(), layer.clone())).collect();
        let wanted = self.missing(all).await?;
        let locks = self.lock(wanted.keys().map(|digest| digest.hex().to_owned())).await?;
        let wanted = self.missing(wanted).await?;
        let mut files = self.load(wanted.into_values().collect()).await?;
        drop(locks);
        let folders = self.stack(layers, &mut files).await?;
        blocking(move || {
            files.values().for_each(done_with);
            Ok(())
        })
        .await?;
        self.progress.send_modify(|progress| progress.phase = Phase::Done);
        Ok(folders)
    }

    /// The layers that are not in the store.
    async fn missing(
        &self,
        mut layers: BTreeMap<Digest, LayerOf>,
    ) -> Result<BTreeMap<Digest, LayerOf>, ImageError> {
        let shared = Arc::clone(self.shared);
        blocking(move || {
            layers.retain(|id, _| !matches!(shared.folder.read_layer(id.hex(), shared.rights), Ok(Some(_))));
            Ok(layers)
        })
        .await
    }

    /// The locks of those who make these layers, in the order that everybody keeps.
    async fn lock(&self, names: impl Iterator<Item = String>) -> Result<Vec<File>, ImageError> {
        let mut paths: Vec<PathBuf> = names.map(|name| self.shared.folder.load_lock(&name)).collect();
        paths.sort();
        paths.dedup();
        let mut locks = Vec::new();
        self.progress.send_modify(|progress| progress.phase = Phase::Waiting);
        for path in paths {
            locks.push(lock(&path, true).await?);
        }
        self.progress.send_modify(|progress| progress.phase = Phase::Loading);
        Ok(locks)
    }

    /// Loads and unpacks each. What is done when one fails is kept. Returns the files of those that may be wanted again.
    async fn load(&self, layers: Vec<LayerOf>) -> Result<BTreeMap<Digest, LayerFile>, ImageError> {
        let bytes = layers.iter().map(|layer| layer.size).sum();
        self.progress.send_modify(|progress| {
            *progress = Progress { layers: layers.len() as u64, bytes, ..*progress };
        });
        let making: Vec<BoxFuture<'_, _>> =
            layers.into_iter().map(|layer| self.make(layer).boxed()).collect();
        let mut running =
            futures::stream::iter(making).buffer_unordered(self.shared.options.parallel.clamp(1, 64));
        let (mut done, mut failed) = (Vec::new(), None);
        while let Some(result) = running.next().await {
            match result {
                Ok(unpacked) => done.push(unpacked),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            self.progress.send_modify(|progress| progress.layers_done += 1);
        }
        drop(running);
        let files = self.commit(done).await?;
        failed.map_or(Ok(files), Err)
    }

    async fn make(&self, layer: LayerOf) -> Result<Unpacked, ImageError> {
        let _slot = self.shared.slots.acquire().await.expect("the store's slots are never closed");
        let file = self.file(&layer).await?;
        self.unpack(layer, file, None).await
    }

    async fn file(&self, layer: &LayerOf) -> Result<LayerFile, ImageError> {
        let (progress, before) = (self.progress.clone(), AtomicU64::new(0));
        let seen: Seen = Arc::new(move |there| {
            let before = before.swap(there, Ordering::Relaxed);
            progress.send_modify(|progress| {
                progress.bytes_done = (progress.bytes_done + there).saturating_sub(before);
            });
        });
        self.origin.layer(layer, &self.shared.folder.path("partial"), &seen).await
    }

    async fn unpack(
        &self,
        layer: LayerOf,
        file: LayerFile,
        above: Option<(String, Merged)>,
    ) -> Result<Unpacked, ImageError> {
        let stop = Stop::default();
        let stopped = stop.0.clone();
        let shared = self.shared.clone();
        let what = format!("layer {} of image {}", layer.diff_id, self.name);
        let unpacked = blocking(move || {
            let tmp = shared.folder.new_tmp();
            let below = above.as_ref().map(|(_, below)| below);
            let report = unpack_file(&shared, &layer, &file, &tmp, below, stopped.clone()).map_err(
                |(fault, place)| {
                    if !stopped.load(Ordering::Relaxed) {
                        // Of no use to anybody, and its room may be.
                        done_with(&file);
                    }
                    fault.of(&what, &place)
                },
            )?;
            let open = above.is_none() && (report.links_missing > 0 || !report.implied.is_empty());
            let diff_id = layer.diff_id;
            let record = LayerRecord { diff_id: diff_id.clone(), report };
            write_beside(&tmp, &record)?;
            let name = above.map_or_else(|| diff_id.hex().to_owned(), |(name, _)| name);
            Ok(Unpacked { diff_id, name, tmp, file, open })
        })
        .await;
        drop(stop);
        unpacked
    }

    async fn commit(&self, done: Vec<Unpacked>) -> Result<BTreeMap<Digest, LayerFile>, ImageError> {
        let shared = self.shared.clone();
        blocking(move || {
            let mut files = BTreeMap::new();
            let mut layers = Vec::new();
            for Unpacked { diff_id, name, tmp, file, open } in done {
                if open {
                    files.insert(diff_id, file);
                } else {
                    done_with(&file);
                }
                layers.push((tmp, name));
            }
            shared.folder.commit(layers, shared.rights)?;
            Ok(files)
        })
        .await
    }

    /// The folder of each layer; those that lean on others are unpacked once more, above them.
    async fn stack(
        &self,
        layers: &[LayerOf],
        files: &mut BTreeMap<Digest, LayerFile>,
    ) -> Result<Vec<(PathBuf, Report)>, ImageError> {
        let diff_ids: Vec<Digest> = layers.iter().map(|layer| layer.diff_id.clone()).collect();
        let chains = chain_names(&diff_ids);
        let mut folders: Vec<(PathBuf, Report)> = Vec::new();
        for (layer, chain) in layers.iter().zip(chains) {
            let mut locks = Vec::new();
            loop {
                let (shared, diff_id, name) = (self.shared.clone(), layer.diff_id.clone(), chain.clone());
                let below = folders.clone();
                let choice = blocking(move || choose(&shared, &diff_id, &name, &below)).await?;
                match choice {
                    Choice::There(folder, report) => {
                        folders.push((folder, report));
                        break;
                    }
                    Choice::Leans if locks.is_empty() => {
                        locks = self.lock([chain.clone()].into_iter()).await?;
                    }
                    Choice::Leans => {
                        let file = match files.remove(&layer.diff_id) {
                            Some(file) => file,
                            None => self.file(layer).await?,
                        };
                        let above = (chain.clone(), merged(self.shared, &folders));
                        let unpacked = self.unpack(layer.clone(), file, Some(above)).await?;
                        self.commit(vec![unpacked]).await?;
                    }
                    Choice::Missing => {
                        let why = format!("layer {} was removed while it was used", layer.diff_id);
                        return Err(ImageError::bad(format!("image {}", self.name), why));
                    }
                }
            }
        }
        Ok(folders)
    }
}

/// What is known of a layer. It is made safe with all the rest when the layer is moved to its place.
fn write_beside(tmp: &TmpFolder, record: &LayerRecord) -> Result<(), ImageError> {
    let path = tmp.path.join("layer.json");
    let bytes = serde_json::to_vec(record).map_err(io::Error::from);
    bytes
        .and_then(|bytes| std::fs::write(&path, bytes))
        .map_err(|error| ImageError::store("writing", &path, error))
}

/// What was loaded is not needed any more.
fn done_with(file: &LayerFile) {
    if let Some(path) = &file.loaded {
        let _ = std::fs::remove_file(path);
    }
}

/// Tells the thread that unpacks to stop, once nobody waits for it.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Stoppable<R>(R, Arc<AtomicBool>);

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.1.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped"));
        }
        self.0.read(buffer)
    }
}

fn unpack_file(
    shared: &Shared,
    layer: &LayerOf,
    file: &LayerFile,
    tmp: &TmpFolder,
    below: Option<&Merged>,
    stop: Arc<AtomicBool>,
) -> Result<Report, (Fault, PathBuf)> {
    let place = |fault| (fault, tmp.path.join("root"));
    let bounds = shared.options.bounds;
    let root = tmp.make().map_err(|error| match error {
        ImageError::Store { doing, path, source } => {
            (Fault::Write { doing, path: PathBuf::new(), source }, path)
        }
        ImageError::DiskFull { path, source } => {
            (Fault::Write { doing: "making", path: PathBuf::new(), source }, path)
        }
        other => place(Fault::bad(other.to_string())),
    })?;
    let compressed_hasher = (!file.verified).then(|| layer.blob.hasher());
    let mut compressed = HashRead::new(Stoppable(file.part.reader(), stop), compressed_hasher, u64::MAX);
    let mut tar = HashRead::new(
        decompressed(BufReader::with_capacity(128 << 10, &mut compressed))
            .map_err(|error| place(Fault::Read(error)))?,
        Some(layer.diff_id.hasher()),
        bounds.bytes_max,
    );
    let mut entries = Entries::new(&mut tar);
    let report = unpack(root, &mut entries, shared.rights, bounds, below).map_err(place)?;
    let found = entries.into_inner().drain().map_err(|error| place(Fault::Read(error)))?;
    let differs = |wanted: &Digest, found: Option<Digest>, what: &str| match found {
        Some(found) if found != *wanted => {
            Err(place(Fault::bad(format!("the digest of its {what} is {found}, expected {wanted}"))))
        }
        _ => Ok(()),
    };
    differs(&layer.diff_id, found, "tar")?;
    drop(tar);
    let found = compressed.drain().map_err(|error| place(Fault::Read(error)))?;
    differs(&layer.blob, found, "file")?;
    Ok(report)
}

/// Told by the first bytes, since what manifests say of it is wrong often enough.
fn decompressed<'a>(mut file: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = file.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(file)?;
            // 128 MiB of window at most, whatever the frame asks for.
            decoder.window_log_max(27)?;
            Box::new(decoder)
        }
        _ => Box::new(file),
    })
}
