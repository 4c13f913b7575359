//! What a store holds, and how it is made smaller: never by what somebody uses, in this process or in another.

use super::folder::{lock_store, open_lock, remove_path, same_file};
use super::{ImageRecord, ImageStore, Name, Pin, Shared, fetch, try_lock};
use crate::origin::blocking;
use crate::unpack::Rights;
use crate::{Digest, ImageError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long a blob that was not loaded wholly waits for being gone on with.
const PARTIAL_KEPT: Duration = Duration::from_secs(24 * 3600);

/// An image in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Digest of its manifest.
    pub digest: Digest,
    /// What it was asked for as.
    pub names: Vec<String>,
    /// Layers.
    pub layers: usize,
    /// Bytes of its layers on the disk, also of those that other images share.
    pub bytes: u64,
    /// When somebody last began to use it.
    pub last_used: SystemTime,
    /// Whether a process uses it now.
    pub in_use: bool,
    /// Who else wants it to stay.
    pub pinned_by: Vec<String>,
    /// Whether all of it is there.
    pub complete: bool,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Images.
    pub images: Vec<Digest>,
    /// Unpacked layers.
    pub layers: u64,
    /// Bytes that became free, about.
    pub bytes: u64,
}

struct Known {
    record: ImageRecord,
    names: Vec<Name>,
    pins: Vec<String>,
    last_used: SystemTime,
    /// Held exclusively: nobody uses it, and nobody can until this is dropped. `None` where somebody does.
    unused: Option<File>,
}

impl Known {
    fn may_go(&self) -> bool {
        self.unused.is_some() && self.pins.is_empty()
    }
}

/// All that is there, under the store's own lock.
struct Inventory {
    images: Vec<Known>,
    /// Bytes on the disk by folder, and what they are.
    layers: BTreeMap<PathBuf, u64>,
}

impl ImageStore {
    /// What the store holds, by digest.
    pub async fn list(&self) -> Result<Vec<Listed>, ImageError> {
        let shared = self.shared.clone();
        // Exclusive as well: it tries locks, which others would take for use.
        let global = lock_store(&shared.folder.global(), true).await?;
        blocking(move || {
            let _global = global;
            let inventory = shared.inventory()?;
            let listed = inventory.images.iter().map(|known| {
                let folders = shared.folders_of(&known.record);
                let bytes = folders.iter().filter_map(|folder| inventory.layers.get(folder)).sum();
                Ok(Listed {
                    digest: known.record.digest.clone(),
                    names: known.names.iter().map(|name| name.name.clone()).collect(),
                    layers: known.record.diff_ids.len(),
                    bytes,
                    last_used: known.last_used,
                    in_use: known.unused.is_none(),
                    pinned_by: known.pins.clone(),
                    complete: fetch::chosen(&shared, &known.record.diff_ids)?.is_some(),
                })
            });
            listed.collect()
        })
        .await
    }

    /// Removes a name, or an image by its digest or last name. Layers that no other image has go with it.
    pub async fn remove(&self, name: &str) -> Result<Pruned, ImageError> {
        let shared = self.shared.clone();
        let name = name.to_owned();
        self.collect(move |inventory| {
            let means = |known: &&Known| {
                known.record.digest.as_str() == name || known.names.iter().any(|other| other.name == name)
            };
            let Some(known) = inventory.images.iter().find(means) else {
                let place = shared.folder.root().display().to_string();
                return Err(ImageError::Unknown {
                    image: name.clone(),
                    place,
                    said: "not in the store".to_owned(),
                });
            };
            let others = known.names.iter().any(|other| other.name != name);
            if known.record.digest.as_str() != name && others {
                for other in known.names.iter().filter(|other| other.name == name) {
                    let _ = std::fs::remove_file(shared.folder.name_path(&other.name, &other.platform));
                }
                return Ok(BTreeSet::new());
            }
            if !known.may_go() {
                return Err(ImageError::InUse { image: name.clone() });
            }
            Ok(BTreeSet::from([known.record.digest.clone()]))
        })
        .await
    }

    /// Removes what nobody can use any more, and then, while there is more than `size_max`, the image that was not used for
    /// longest.
    pub async fn prune(&self) -> Result<Pruned, ImageError> {
        let shared = self.shared.clone();
        self.collect(move |inventory| {
            let Some(size_max) = shared.options.size_max else { return Ok(BTreeSet::new()) };
            let mut users: BTreeMap<&PathBuf, usize> = BTreeMap::new();
            let folders: Vec<BTreeSet<PathBuf>> =
                inventory.images.iter().map(|known| shared.folders_of(&known.record)).collect();
            for folder in folders.iter().flatten() {
                *users.entry(folder).or_default() += 1;
            }
            let mut total: u64 = inventory
                .layers
                .iter()
                .filter(|(folder, _)| users.contains_key(folder))
                .map(|(_, bytes)| bytes)
                .sum();
            let mut unused: Vec<(&Known, &BTreeSet<PathBuf>)> =
                inventory.images.iter().zip(&folders).filter(|(known, _)| known.may_go()).collect();
            unused.sort_by_key(|(known, _)| known.last_used);
            let mut gone = BTreeSet::new();
            for (known, folders) in unused {
                if total <= size_max {
                    break;
                }
                for folder in folders {
                    let left = users.entry(folder).or_default();
                    *left -= 1;
                    if *left == 0 {
                        total -= inventory.layers.get(folder).unwrap_or(&0);
                    }
                }
                gone.insert(known.record.digest.clone());
            }
            Ok(gone)
        })
        .await
    }

    /// Removes the images that `choose` takes, and all that belongs to no image.
    async fn collect(
        &self,
        choose: impl FnOnce(&Inventory) -> Result<BTreeSet<Digest>, ImageError> + Send + 'static,
    ) -> Result<Pruned, ImageError> {
        let shared = self.shared.clone();
        let global = lock_store(&shared.folder.global(), true).await?;
        blocking(move || {
            let inventory = shared.inventory()?;
            let gone = choose(&inventory)?;
            let mut pruned = Pruned { images: gone.iter().cloned().collect(), ..Pruned::default() };
            let mut kept = BTreeSet::new();
            for known in &inventory.images {
                if !gone.contains(&known.record.digest) {
                    kept.extend(shared.folders_of(&known.record));
                    continue;
                }
                for name in &known.names {
                    let _ = std::fs::remove_file(shared.folder.name_path(&name.name, &name.platform));
                }
                let _ = std::fs::remove_file(shared.folder.record_path(&known.record.digest));
                let _ = std::fs::remove_file(shared.folder.hold_path(&known.record.digest));
            }
            let mut waste = Vec::new();
            for (folder, bytes) in &inventory.layers {
                if kept.contains(folder) {
                    continue;
                }
                let tmp = shared.folder.new_tmp();
                std::fs::rename(folder, &tmp.path)
                    .map_err(|error| ImageError::store("removing", folder, error))?;
                pruned.layers += 1;
                pruned.bytes += bytes;
                waste.push(tmp);
            }
            pruned.bytes += shared.old_parts();
            drop((inventory, global));
            // What takes long is done when others can go on.
            shared.dead_processes();
            drop(waste);
            Ok(pruned)
        })
        .await
    }
}

impl Shared {
    /// Under the store's own lock, taken exclusively.
    fn inventory(&self) -> Result<Inventory, ImageError> {
        let mut names: BTreeMap<Digest, Vec<Name>> = BTreeMap::new();
        for path in list(&self.folder.path("names"))? {
            let read =
                std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Name>(&bytes).ok());
            if let Some(name) = read {
                names.entry(name.digest.clone()).or_default().push(name);
            }
        }
        let mut pins: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
        for path in list(&self.folder.path("pins"))? {
            let read = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Pin>(&bytes).ok());
            if let Some(pin) = read {
                pins.entry(pin.digest).or_default().push(pin.owner);
            }
        }
        let mut images = Vec::new();
        for path in list(&self.folder.path("images"))? {
            if path.extension().is_some() {
                continue;
            }
            let read = std::fs::read(&path)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<ImageRecord>(&bytes).ok());
            let Some(record) = read else { continue };
            let held = self.folder.hold_path(&record.digest);
            let failed = |error| ImageError::store("locking", &held, error);
            let last_used =
                held.metadata().and_then(|stat| stat.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            let file = open_lock(&held)?;
            let unused = try_lock(&file, true).map_err(failed)?.then_some(file);
            let names = names.remove(&record.digest).unwrap_or_default();
            let pins = pins.remove(&record.digest).unwrap_or_default();
            images.push(Known { record, names, pins, last_used, unused });
        }
        let mut layers = BTreeMap::new();
        for rights in [Rights::Root, Rights::User] {
            for folder in list(&self.folder.layers(rights))? {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let bytes =
                    self.folder.read_layer(&name, rights)?.map_or(0, |record| record.report.disk_bytes);
                layers.insert(folder, bytes);
            }
        }
        Ok(Inventory { images, layers })
    }

    /// Every folder that a layer of the image may lie in.
    fn folders_of(&self, record: &ImageRecord) -> BTreeSet<PathBuf> {
        let mut names = fetch::chain_names(&record.diff_ids);
        names.extend(record.diff_ids.iter().map(|diff_id| diff_id.hex().to_owned()));
        let both = [Rights::Root, Rights::User].map(|rights| self.folder.layers(rights));
        names.iter().flat_map(|name| both.each_ref().map(|folder| folder.join(name))).collect()
    }

    /// Removes what was begun and forgotten; returns its bytes.
    fn old_parts(&self) -> u64 {
        let mut bytes = 0;
        for path in list(&self.folder.path("partial")).unwrap_or_default() {
            let Ok(stat) = path.metadata() else { continue };
            let age = stat.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
            let unused = || open_lock(&path).is_ok_and(|file| try_lock(&file, true).unwrap_or(false));
            if age > PARTIAL_KEPT && unused() && std::fs::remove_file(&path).is_ok() {
                bytes += stat.blocks() * 512;
            }
        }
        bytes
    }

    /// Removes what processes left that died.
    fn dead_processes(&self) {
        for path in list(&self.folder.path("tmp")).unwrap_or_default() {
            if path.extension().is_none() {
                continue;
            }
            let Ok(file) = open_lock(&path) else { continue };
            if try_lock(&file, true).unwrap_or(false) && same_file(&file, &path) {
                remove_path(&path.with_extension(""));
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let failed = |error| ImageError::store("listing", folder, error);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
}
