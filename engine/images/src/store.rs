//! Images on this machine: each layer unpacked once, kept until room is wanted and nobody uses it.
//!
//! Several processes may share one store. What holds that together: a layer's folder, a record and a name appear by one
//! rename each, whole or not at all; whoever uses an image holds a shared lock on its record's lock file, which the kernel
//! drops when the process ends, however it ends; removal takes that lock exclusively, under the store's own lock.
//! Paths: `store/folder.rs`; how layers come to be: `store/fetch.rs`; how they go: `store/collect.rs`.

mod collect;
mod fetch;
mod folder;

pub use collect::{Listed, Pruned};
pub use fetch::{Phase, Progress};
pub(crate) use folder::try_lock;

use crate::archive::Layout;
use crate::manifest::{ImageConfig, LayerOf, Resolved};
use crate::merged::Merged;
use crate::origin::{Origin, blocking};
use crate::registry::{Registry, Waits};
use crate::unpack::{LayerBounds, Report, Rights};
use crate::{Digest, ImageError, Platform, Source};
use espalier_core::sandbox::Rule;
use espalier_egress::{self as egress, Allowed};
use folder::{Folder, lock_store};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tokio::sync::{Semaphore, watch};

/// Whether a tag that was pulled once is looked up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pull {
    /// What the store has by that name stays what the name means, until it is removed.
    #[default]
    Missing,
    /// The registry is asked each time. A digest is never asked for twice.
    Always,
}

/// How a store works.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Bytes above which what is not used is removed after each pull, least recently used first; `None` keeps all.
    pub size_max: Option<u64>,
    /// Layers loaded and unpacked at once; 1 to 64, default 4.
    pub parallel: usize,
    /// Which of an index's images is taken; default this machine.
    pub platform: Platform,
    /// Registries that are spoken to without TLS, `HOST[:PORT]`. Those on the loopback address always are.
    pub plain_http: Vec<String>,
    /// Whether known tags are looked up again.
    pub pull: Pull,
    /// Files that hold credentials, in the order in which they are asked; default [`crate::credential_files`].
    pub credentials: Vec<PathBuf>,
    /// What a layer may hold.
    pub bounds: LayerBounds,
    /// How long what may take.
    pub waits: Waits,
    /// What files are unpacked as; default is tried out in the store's folder.
    pub rights: Option<Rights>,
    /// Which images untrusted clients may name. Default: all, as for the user of this process.
    pub strangers: Option<Strangers>,
}

/// What strangers may name images of.
#[derive(Clone, Debug, Default)]
pub struct Strangers {
    /// Layouts and archives in these folders, from the root.
    pub folders: Vec<PathBuf>,
    /// Registries that are allowed though their addresses are private or local. Those at public addresses always are.
    pub registries: Vec<Rule>,
}

impl Default for ImageOptions {
    fn default() -> ImageOptions {
        ImageOptions {
            size_max: None,
            parallel: 4,
            platform: Platform::this_machine(),
            plain_http: Vec::new(),
            pull: Pull::default(),
            credentials: crate::credential_files(),
            bounds: LayerBounds::default(),
            waits: Waits::default(),
            rights: None,
            strangers: None,
        }
    }
}

/// An image whose layers are there, and stay as long as this or a clone of it lives.
#[derive(Clone, Debug)]
pub struct Image {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    digest: Digest,
    layers: Vec<PathBuf>,
    config: ImageConfig,
    raw: serde_json::Value,
    reports: Vec<Report>,
    rights: Rights,
    /// Locked shared.
    held: File,
}

impl Image {
    /// Digest of the manifest.
    pub fn digest(&self) -> &Digest {
        &self.inner.digest
    }

    /// Lowest first: folders that an overlay takes as `lowerdir` in reverse order. Never to be written to. An image without
    /// layers has one empty folder. As root, mount with `nodev`: device nodes of the image are in it.
    pub fn layers(&self) -> &[PathBuf] {
        &self.inner.layers
    }

    /// How it wants to be run.
    pub fn config(&self) -> &ImageConfig {
        &self.inner.config
    }

    /// The configuration as it was written.
    pub fn raw_config(&self) -> &serde_json::Value {
        &self.inner.raw
    }

    /// What was left out of each layer, in their order.
    pub fn reports(&self) -> &[Report] {
        &self.inner.reports
    }

    /// What its files were unpacked as.
    pub fn rights(&self) -> Rights {
        self.inner.rights
    }

    /// Whether each of these places at the top shows a folder, or nothing.
    pub fn has_places(&self, places: &[&str]) -> Result<(), ImageError> {
        let merged = Merged::new(self.inner.layers.clone(), self.inner.rights);
        for place in places {
            let found = merged.find(place.as_bytes());
            let found = found.map_err(|fault| fault.of(&self.digest().to_string(), Path::new("/")))?;
            if found.is_some_and(|path| !path.symlink_metadata().is_ok_and(|found| found.is_dir())) {
                let said = format!("its /{place} is not a directory, but a sandbox needs one there");
                return Err(ImageError::bad(self.digest().to_string(), said));
            }
        }
        Ok(())
    }

    /// What keeps the layers: they stay as long as any copy of this descriptor is open in any process. Whatever uses them and
    /// may outlive this process has to inherit one.
    pub fn hold(&self) -> BorrowedFd<'_> {
        self.inner.held.as_fd()
    }
}

/// What the store knows of an image. Written before its layers are there, so that what is on its way is not taken for waste.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ImageRecord {
    digest: Digest,
    /// Lowest first.
    diff_ids: Vec<Digest>,
    config: serde_json::Value,
}

/// What a name meant when it was pulled.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Name {
    name: String,
    platform: String,
    digest: Digest,
    /// Whether it was given to somebody without credentials: then anybody may have it.
    #[serde(default)]
    anonymous: bool,
}

/// Somebody who wants an image to stay though no process uses it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pin {
    owner: String,
    digest: Digest,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ImageStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: Folder,
    options: ImageOptions,
    rights: Rights,
    /// Layers at once.
    slots: Semaphore,
    /// What the connections of pulls that are checked share.
    connections: egress::Shared,
    /// Images that somebody in this process uses: a cache, which steers nothing.
    alive: Mutex<HashMap<Digest, Weak<Inner>>>,
}

impl ImageStore {
    /// Opens or makes a store. Blocks shortly. The folder becomes readable for its owner alone, since it holds other people's
    /// setuid programs.
    pub fn open(folder: &Path, options: ImageOptions) -> Result<ImageStore, ImageError> {
        let folder = Folder::open(folder)?;
        let rights = match options.rights {
            Some(rights) => rights,
            None => folder.try_rights()?,
        };
        folder.try_hiding()?;
        let slots = Semaphore::new(options.parallel.clamp(1, 64));
        let connections = egress::Shared::default();
        let shared = Shared { folder, rights, slots, connections, options, alive: Mutex::default() };
        Ok(ImageStore { shared: Arc::new(shared) })
    }

    /// What files are unpacked as.
    pub fn rights(&self) -> Rights {
        self.shared.rights
    }

    /// The image, which is fetched where it or a part of it is missing. Dropping the future stops what it does; what was
    /// loaded is kept for the next.
    pub async fn get(
        &self,
        source: &Source,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, ImageError> {
        self.get_with(source, true, progress).await
    }

    /// The same; without `credentials` only what registries give to anybody.
    pub async fn get_with(
        &self,
        source: &Source,
        credentials: bool,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, ImageError> {
        let name = source.to_string();
        let total = self.shared.options.waits.total;
        let origin = match source {
            Source::Host | Source::Checkpoint(_) => {
                return Err(ImageError::BadName {
                    text: name,
                    why: "it cannot be kept in the image store".to_owned(),
                });
            }
            other => other,
        };
        match tokio::time::timeout(total, self.find_or_fetch(origin, &name, credentials, progress)).await {
            Ok(result) => result,
            Err(_) => {
                let state = progress.borrow().to_string();
                Err(ImageError::TimedOut { image: name, after_s: total.as_secs(), state })
            }
        }
    }

    /// The image of this digest, if all of it is there. Nothing is fetched.
    pub async fn find(&self, digest: &Digest) -> Result<Option<Image>, ImageError> {
        let global = lock_store(&self.shared.folder.global(), false).await?;
        let (shared, digest) = (self.shared.clone(), digest.clone());
        blocking(move || {
            let _global = global;
            shared.there(&digest)
        })
        .await
    }

    /// Keeps an image though no process uses it, such as below a checkpoint, until [`ImageStore::unpin`]. An owner has one pin;
    /// a second moves it.
    pub async fn pin(&self, image: &Image, owner: &str) -> Result<(), ImageError> {
        let (shared, digest, owner) = (self.shared.clone(), image.digest().clone(), owner.to_owned());
        blocking(move || shared.folder.write_pin(&Pin { owner, digest })).await
    }

    /// Takes a pin back. One that is not there is fine.
    pub async fn unpin(&self, owner: &str) -> Result<(), ImageError> {
        let (shared, owner) = (self.shared.clone(), owner.to_owned());
        blocking(move || shared.folder.remove_pin(&owner)).await
    }

    async fn find_or_fetch(
        &self,
        source: &Source,
        name: &str,
        credentials: bool,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, ImageError> {
        let options = &self.shared.options;
        let strangers = options.strangers.as_ref();
        if let Source::Registry(reference) = source
            && (reference.digest().is_some() || options.pull == Pull::Missing)
            && let Some(image) = self.known(name, credentials).await?
        {
            progress.send_modify(|progress| progress.phase = Phase::Done);
            return Ok(image);
        }
        let origin = match source {
            Source::Registry(reference) => {
                let files: &[PathBuf] = if credentials { &options.credentials } else { &[] };
                let allowed = strangers.map(|strangers| Allowed::world_and(strangers.registries.clone()));
                let (plain_http, waits) = (&options.plain_http, options.waits);
                let (allowed, all) = (allowed.as_ref(), &self.shared.connections);
                let registry = Registry::open(reference, files, plain_http, waits, allowed, all).await?;
                Origin::Registry(Box::new(registry))
            }
            Source::Layout { folder: path, tag } | Source::Archive { file: path, tag } => {
                let (path, image) = (path.clone(), name.to_owned());
                let archive = matches!(source, Source::Archive { .. });
                let folders = strangers.map(|strangers| strangers.folders.clone());
                let layout = blocking(move || match folders {
                    Some(folders) => Layout::open_given(&folders, &path, archive, &image),
                    None => Layout::open(&path, archive, &image),
                });
                let layout = layout.await?;
                Origin::Layout(Arc::new(layout), tag.clone())
            }
            Source::Host | Source::Checkpoint(_) => unreachable!("refused by get"),
        };
        let resolved = origin.resolve(&options.platform, options.bounds.bytes_max, name).await?;
        let (record, held) = self.hold(&resolved).await?;
        let layers = fetch::Fetch { shared: &self.shared, origin: &origin, progress, name };
        let layers = layers.run(&resolved.layers).await?;
        let shared = self.shared.clone();
        let written = Name {
            name: name.to_owned(),
            platform: options.platform.to_string(),
            digest: record.digest.clone(),
            anonymous: origin.is_anonymous(),
        };
        blocking(move || shared.folder.write_name(&written)).await?;
        let image = self.image(record, layers, held);
        if options.size_max.is_some() {
            // The image is there all the same.
            if let Err(error) = self.prune().await {
                tracing::warn!(%error, "nothing was made room of");
            }
        }
        Ok(image)
    }

    /// What the name meant, if all of it is there. Without credentials what was given for some has to be asked for again.
    async fn known(&self, name: &str, credentials: bool) -> Result<Option<Image>, ImageError> {
        let shared = self.shared.clone();
        let (name, platform) = (name.to_owned(), self.shared.options.platform.to_string());
        let global = lock_store(&self.shared.folder.global(), false).await?;
        let found = blocking(move || {
            let _global = global;
            match shared.folder.read_name(&name, &platform)? {
                Some(name) if credentials || name.anonymous => shared.there(&name.digest),
                _ => Ok(None),
            }
        });
        found.await
    }

    /// Writes the image's record and holds it, before anything of it is there.
    async fn hold(&self, resolved: &Resolved) -> Result<(ImageRecord, File), ImageError> {
        let diff_ids = resolved.layers.iter().map(|layer: &LayerOf| layer.diff_id.clone()).collect();
        let record =
            ImageRecord { digest: resolved.digest.clone(), diff_ids, config: resolved.config.clone() };
        let global = lock_store(&self.shared.folder.global(), false).await?;
        let shared = self.shared.clone();
        blocking(move || {
            let _global = global;
            let held = shared.folder.hold(&record.digest)?;
            shared.folder.write_record(&record)?;
            Ok((record, held))
        })
        .await
    }

    fn image(&self, record: ImageRecord, layers: Vec<(PathBuf, Report)>, held: File) -> Image {
        self.shared.image(record, layers, held)
    }
}

impl Shared {
    /// The image, if all of it is there. Under the store's lock.
    fn there(&self, digest: &Digest) -> Result<Option<Image>, ImageError> {
        if let Some(inner) = self.alive(digest) {
            return Ok(Some(Image { inner }));
        }
        let Some(record) = self.folder.read_record(digest)? else { return Ok(None) };
        let Some(layers) = fetch::chosen(self, &record.diff_ids)? else { return Ok(None) };
        let held = self.folder.hold(&record.digest)?;
        Ok(Some(self.image(record, layers, held)))
    }

    fn alive(&self, digest: &Digest) -> Option<Arc<Inner>> {
        self.alive.lock().get(digest).and_then(Weak::upgrade)
    }

    fn image(&self, record: ImageRecord, layers: Vec<(PathBuf, Report)>, held: File) -> Image {
        let (mut layers, reports): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        if layers.is_empty() {
            layers.push(self.folder.empty());
        }
        let mut alive = self.alive.lock();
        if let Some(inner) = alive.get(&record.digest).and_then(Weak::upgrade) {
            return Image { inner };
        }
        alive.retain(|_, inner| inner.strong_count() > 0);
        let inner = Arc::new(Inner {
            config: ImageConfig::read(&record.config),
            raw: record.config,
            digest: record.digest.clone(),
            layers,
            reports,
            rights: self.rights,
            held,
        });
        alive.insert(record.digest, Arc::downgrade(&inner));
        Image { inner }
    }
}
