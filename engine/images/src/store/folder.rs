//! Where what lies in a store, and the locks on it.
//!
//! ```text
//! lock                     shared while a record is written or found, exclusive while something is removed
//! images/HEX               what is known of an image; HEX.lock is held shared by who uses it, its time is the last use
//! names/HEX                which image a name meant
//! pins/HEX                 who wants an image to stay
//! layers/HEX/root          an unpacked layer, by the digest of its tar; beside it layer.json
//! layers/HEX-above/root    the same where it leans on what is below: by the digest of the chain
//! loads/00 ... ff          held exclusively by who makes layers whose digests begin so
//! partial/HEX              what was loaded of a blob
//! tmp/N                    half unpacked layers of a process; N.lock is held while it lives
//! empty                    the layer of an image that has none
//! ```
//! `layers-user` is `layers` as an ordinary user unpacks them.

use super::{ImageRecord, Name, Pin};
use crate::origin::blocking;
use crate::unpack::{Report, Rights, remove};
use crate::{Digest, ImageError};
use rustix::fs::{FileType, FlockOperation, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Far more than listing and renaming take.
const STORE_LOCK_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Temporary files of this process for this store.
    tmp: PathBuf,
    _tmp_lock: File,
    /// Names within `tmp`.
    count: AtomicU64,
}

/// A layer that is there.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct LayerRecord {
    pub(super) diff_id: Digest,
    pub(super) report: Report,
}

/// Takes a lock, or says that somebody else has it.
pub(crate) fn try_lock(file: &File, exclusive: bool) -> io::Result<bool> {
    let how = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the store's own lock, which nobody holds for long unless somebody stopped them.
pub(super) async fn lock_store(path: &Path, exclusive: bool) -> Result<File, ImageError> {
    match tokio::time::timeout(STORE_LOCK_WAIT, lock(path, exclusive)).await {
        Ok(locked) => locked,
        Err(_) => Err(ImageError::store("waiting for", path, io::Error::from(io::ErrorKind::TimedOut))),
    }
}

/// Waits for a lock; the caller bounds that.
pub(super) async fn lock(path: &Path, exclusive: bool) -> Result<File, ImageError> {
    let place = path.to_path_buf();
    let file = blocking(move || open_lock(&place)).await?;
    let mut pause = Duration::from_millis(2);
    while !try_lock(&file, exclusive).map_err(|error| ImageError::store("locking", path, error))? {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
    Ok(file)
}

pub(super) fn open_lock(path: &Path) -> Result<File, ImageError> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|error| ImageError::store("opening", path, error))
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Folder, ImageError> {
        let failed = |error| ImageError::store("opening the image store", path, error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
        let parts = ["images", "names", "pins", "layers", "layers-user", "loads", "partial", "tmp", "empty"];
        for part in parts {
            let part = path.join(part);
            std::fs::create_dir_all(&part).map_err(|error| ImageError::store("making", &part, error))?;
        }
        let (tmp, lock) = own_tmp(&path.join("tmp"))?;
        Ok(Folder { path, tmp, _tmp_lock: lock, count: AtomicU64::new(0) })
    }

    pub(super) fn path(&self, part: &str) -> PathBuf {
        self.path.join(part)
    }

    pub(super) fn root(&self) -> &Path {
        &self.path
    }

    pub(super) fn global(&self) -> PathBuf {
        self.path.join("lock")
    }

    pub(super) fn empty(&self) -> PathBuf {
        self.path.join("empty")
    }

    pub(super) fn layers(&self, rights: Rights) -> PathBuf {
        self.path.join(match rights {
            Rights::Root => "layers",
            Rights::User => "layers-user",
        })
    }

    /// The lock of those who make this layer. There are 256 of them, so that none has to be removed.
    pub(super) fn load_lock(&self, layer: &str) -> PathBuf {
        self.path.join("loads").join(layer.get(..2).unwrap_or("00"))
    }

    /// A folder of this process, not made yet.
    pub(super) fn new_tmp(&self) -> TmpFolder {
        TmpFolder { path: self.tmp.join(self.count.fetch_add(1, Ordering::Relaxed).to_string()) }
    }

    /// Tries what the process may do.
    pub(super) fn try_rights(&self) -> Result<Rights, ImageError> {
        let tmp = self.new_tmp();
        let failed = |error: Errno| ImageError::store("trying out", &tmp.path, error);
        std::fs::create_dir(&tmp.path).map_err(|error| ImageError::store("making", &tmp.path, error))?;
        let fd = open_folder(&tmp.path).map_err(failed)?;
        let tried = || -> Result<(), Errno> {
            rustix::fs::fsetxattr(&fd, Rights::Root.opaque(), b"y", XattrFlags::empty())?;
            rustix::fs::fchown(&fd, Some(Uid::from_raw(65_532)), Some(Gid::from_raw(65_532)))?;
            let device = rustix::fs::makedev(1, 3);
            rustix::fs::mknodat(&fd, "null", FileType::CharacterDevice, Mode::from_raw_mode(0o600), device)
        };
        match tried() {
            Ok(()) => Ok(Rights::Root),
            Err(Errno::PERM | Errno::INVAL | Errno::ACCESS | Errno::OPNOTSUPP) => Ok(Rights::User),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether this process can hide files of lower layers here: an ordinary user needs Linux 5.8.
    pub(super) fn try_hiding(&self) -> Result<(), ImageError> {
        let tmp = self.new_tmp();
        let failed = |error: Errno| {
            ImageError::store("making a device 0:0, which needs Linux 5.8, as", &tmp.path, error)
        };
        let parent = open_folder(&self.tmp).map_err(failed)?;
        let name = tmp.path.file_name().unwrap_or_default();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(&parent, name, FileType::CharacterDevice, mode, 0).map_err(failed)
    }

    /// Opens and locks what says that an image is used, and notes the time. Under the global lock.
    pub(super) fn hold(&self, digest: &Digest) -> Result<File, ImageError> {
        let path = self.hold_path(digest);
        let failed = |error: io::Error| ImageError::store("locking", &path, error);
        let file = open_lock(&path)?;
        if !try_lock(&file, false).map_err(failed)? {
            return Err(failed(io::ErrorKind::ResourceBusy.into()));
        }
        file.set_modified(std::time::SystemTime::now()).map_err(failed)?;
        Ok(file)
    }

    pub(super) fn hold_path(&self, digest: &Digest) -> PathBuf {
        self.path.join("images").join(format!("{}.lock", digest.hex()))
    }

    pub(super) fn record_path(&self, digest: &Digest) -> PathBuf {
        self.path.join("images").join(digest.hex())
    }

    pub(super) fn name_path(&self, name: &str, platform: &str) -> PathBuf {
        self.path.join("names").join(Digest::of(format!("{platform} {name}").as_bytes()).hex())
    }

    fn pin_path(&self, owner: &str) -> PathBuf {
        self.path.join("pins").join(Digest::of(owner.as_bytes()).hex())
    }

    pub(super) fn write_pin(&self, pin: &Pin) -> Result<(), ImageError> {
        self.write_json(&self.pin_path(&pin.owner), pin)
    }

    pub(super) fn remove_pin(&self, owner: &str) -> Result<(), ImageError> {
        let path = self.pin_path(owner);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| ImageError::store("removing", &path, error)),
        }
    }

    pub(super) fn read_name(&self, name: &str, platform: &str) -> Result<Option<Name>, ImageError> {
        read_json(&self.name_path(name, platform))
    }

    pub(super) fn read_record(&self, digest: &Digest) -> Result<Option<ImageRecord>, ImageError> {
        read_json(&self.record_path(digest))
    }

    pub(super) fn write_name(&self, name: &Name) -> Result<(), ImageError> {
        self.write_json(&self.name_path(&name.name, &name.platform), name)
    }

    pub(super) fn write_record(&self, record: &ImageRecord) -> Result<(), ImageError> {
        self.write_json(&self.record_path(&record.digest), record)
    }

    /// What is said of a layer, if it is there.
    pub(super) fn read_layer(&self, name: &str, rights: Rights) -> Result<Option<LayerRecord>, ImageError> {
        read_json(&self.layers(rights).join(name).join("layer.json"))
    }

    /// Lets unpacked layers appear, all of them safe from a loss of power.
    pub(super) fn commit(&self, layers: Vec<(TmpFolder, String)>, rights: Rights) -> Result<(), ImageError> {
        if layers.is_empty() {
            return Ok(());
        }
        let failed = |error: Errno| ImageError::store("syncing", &self.path, error);
        rustix::fs::syncfs(open_folder(&self.path).map_err(failed)?).map_err(failed)?;
        for (tmp, name) in layers {
            let to = self.layers(rights).join(name);
            match std::fs::rename(&tmp.path, &to) {
                // Somebody else was quicker with the same.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                done => done.map_err(|error| ImageError::store("moving in", &to, error))?,
            }
        }
        Ok(())
    }

    fn write_json(&self, path: &Path, value: &impl serde::Serialize) -> Result<(), ImageError> {
        let tmp = self.new_tmp();
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec(value)?;
            let mut file = File::create_new(&tmp.path)?;
            io::Write::write_all(&mut file, &bytes)?;
            file.sync_data()?;
            std::fs::rename(&tmp.path, path)
        };
        write().map_err(|error| ImageError::store("writing", path, error))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove_path(&self.tmp);
        let _ = std::fs::remove_file(lock_of(&self.tmp));
    }
}

/// Something of this process alone, removed when this is dropped unless it was moved away.
#[derive(Debug)]
pub(super) struct TmpFolder {
    pub(super) path: PathBuf,
}

impl TmpFolder {
    /// Makes it with an empty `root` inside, which is returned.
    pub(super) fn make(&self) -> Result<OwnedFd, ImageError> {
        let root = self.path.join("root");
        std::fs::create_dir_all(&root).map_err(|error| ImageError::store("making", &root, error))?;
        open_folder(&root).map_err(|error| ImageError::store("opening", &root, error))
    }
}

impl Drop for TmpFolder {
    fn drop(&mut self) {
        remove_path(&self.path);
    }
}

fn lock_of(tmp: &Path) -> PathBuf {
    tmp.with_extension("lock")
}

/// A folder for this process, and nobody else's.
fn own_tmp(tmp: &Path) -> Result<(PathBuf, File), ImageError> {
    let mut number = u64::from(std::process::id());
    loop {
        let own = tmp.join(number.to_string());
        let path = lock_of(&own);
        let failed = |error: io::Error| ImageError::store("locking", &path, error);
        let file = open_lock(&path)?;
        // The file may have been removed between the two, by its owner or a collector.
        if try_lock(&file, true).map_err(failed)? && same_file(&file, &path) {
            remove_path(&own);
            std::fs::create_dir(&own).map_err(|error| ImageError::store("making", &own, error))?;
            return Ok((own, file));
        }
        number = number.wrapping_add(1 << 32);
    }
}

/// Whether the path still names the open file.
pub(super) fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let pair = file.metadata().ok().zip(path.metadata().ok());
    pair.is_some_and(|(one, other)| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Removes a file or folder as far as it can be removed.
pub(super) fn remove_path(path: &Path) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    let Ok(parent) = open_folder(parent) else { return };
    if let Err(error) = remove(parent.as_fd(), name.as_encoded_bytes()) {
        tracing::warn!(path = %path.display(), %error, "not removed");
    }
}

pub(super) fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, ImageError> {
    match std::fs::read(path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                // As if it were not there: it is made again.
                tracing::warn!(path = %path.display(), %error, "unreadable record");
                Ok(None)
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ImageError::store("reading", path, error)),
    }
}
