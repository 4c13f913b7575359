//! Disks of sandboxes, for a keeper that is root: one btrfs file system in one sparse file, a subvolume with a quota for each
//! sandbox, a snapshot for each checkpoint. A disk takes microseconds to make, and a snapshot costs what changed.
//!
//! The pool is mounted in the keeper's own mount namespace alone: it leaves no mount behind, however the keeper ends.

use super::kernel::{control, control_number};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Share of the free space that a new pool takes, in percent.
const SHARE: u64 = 90;
/// The pool is never larger.
const BYTES_MAX: u64 = 4 << 40;
/// A smaller pool has few groups of blocks.
const SMALL: u64 = 16 << 30;
/// Smallest file system that is worth making.
const BYTES_MIN: u64 = 512 << 20;
/// What must stay free below the pool: a sparse file that cannot grow breaks every sandbox in it.
pub(super) const RESERVE: u64 = 512 << 20;

/// More is never on its way to the disk at once, as far as this asks.
const LATE_MAX: u64 = 16 << 30;

/// Numbers of `ioctl`s on btrfs, by the rule of the kernel's headers.
const fn request(direction: u64, number: u64, size: u64) -> libc::c_ulong {
    (direction << 30) | (size << 16) | (0x94 << 8) | number
}
const SNAPSHOT: libc::c_ulong = request(1, 1, 4096);
const CREATE: libc::c_ulong = request(1, 14, 4096);
const DESTROY: libc::c_ulong = request(1, 15, 4096);
const QUOTA: libc::c_ulong = request(3, 40, 16);
const LIMIT: libc::c_ulong = request(2, 43, 48);
const LOOK_UP: libc::c_ulong = request(3, 18, 4096);
const START_SYNC: libc::c_ulong = request(2, 24, 8);
const ABOUT: libc::c_ulong = request(2, 31, 1024);
/// Object that every subvolume begins with.
const FIRST_OBJECT: u64 = 256;

/// Request number of `ioctl` on loop devices.
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_FREE: libc::c_ulong = 0x4C82;
const LOOP_AUTOCLEAR: u32 = 4;

/// Name of a subvolume, and for a snapshot what it is made from.
#[repr(C)]
struct VolumeArguments {
    from: i64,
    name: [u8; 4088],
}

#[repr(C)]
struct LimitArguments {
    group: u64,
    flags: u64,
    referenced_max: u64,
    exclusive_max: u64,
    reserved: [u64; 2],
}

/// A subvolume's id, for its first object.
#[repr(C)]
struct LookUpArguments {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// What a file system is.
#[repr(C)]
struct AboutArguments {
    numbers: [u64; 2],
    id: [u8; 16],
    rest: [u8; 992],
}

#[repr(C)]
struct LoopConfiguration {
    file: u32,
    block_bytes: u32,
    numbers: [u64; 5],
    words: [u32; 4],
    texts: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    /// Where it is mounted.
    pub folder: PathBuf,
    root: OwnedFd,
    file: OwnedFd,
    /// Where the kernel says how much each subvolume has.
    counts: PathBuf,
}

/// Bytes that can still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    /// Below the pool.
    pub below: u64,
    /// How much of it is on its way there; not counted where there is plenty.
    pub late: u64,
    /// In the pool.
    pub inside: u64,
}

impl Pool {
    /// Opens the pool in `file`, making it if it is not there, and mounts it at `folder`.
    pub(super) fn open(file: &Path, folder: &Path) -> Result<Pool, String> {
        let says = |what: &str, error: &dyn std::fmt::Display| {
            format!("the pool of disks {}: {what}: {error}", file.display())
        };
        if !file.exists() {
            make(file).map_err(|error| says("cannot be made", &error))?;
        }
        let backing = std::fs::OpenOptions::new().read(true).write(true).open(file);
        let backing: OwnedFd = backing.map_err(|error| says("cannot be opened", &error))?.into();
        let (device, _held) = match attached(file) {
            Some(device) => (device, None),
            None => attach(&backing).map_err(|error| says("no loop device", &error))?,
        };
        std::fs::create_dir_all(folder).map_err(|error| says("its folder", &error))?;
        // With room for what describes files set aside early: where data has taken all there is, no disk could be made, and the
        // room of removed ones could not be used again for a long time.
        let bytes = rustix::fs::fstat(&backing).map_or(0, |found| found.st_size.cast_unsigned());
        let options = if bytes < SMALL {
            c"discard=async,commit=30,metadata_ratio=2"
        } else {
            c"discard=async,commit=30,metadata_ratio=16"
        };
        let flags = rustix::mount::MountFlags::NODEV
            | rustix::mount::MountFlags::NOSUID
            | rustix::mount::MountFlags::NOATIME;
        rustix::mount::mount(&device, folder, c"btrfs", flags, options)
            .map_err(|error| says("cannot be mounted", &error))?;
        let root = open_folder(folder).map_err(|error| says("its root", &error))?;
        let counts = counts(&root).map_err(|error| says("its id", &error))?;
        let pool = Pool { folder: folder.to_owned(), root, file: backing, counts };
        pool.count().map_err(|error| says("no quotas", &error))?;
        Ok(pool)
    }

    /// Turns quotas on: the simple ones, which cost nothing for snapshots, where the kernel has them.
    fn count(&self) -> Result<(), Errno> {
        match control(self.root.as_fd(), QUOTA, &mut [4u64, 0]) {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(_) => match control(self.root.as_fd(), QUOTA, &mut [1u64, 0]) {
                Ok(_) | Err(Errno::EXIST | Errno::INVAL) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    /// A new empty disk.
    pub(super) fn make(&self, name: &str, bytes_max: u64) -> Result<OwnedFd, Errno> {
        self.room()?;
        control(self.root.as_fd(), CREATE, &mut arguments(name, 0)?)?;
        self.limited(name, bytes_max)
    }

    /// A new disk with the files of another, or of a checkpoint.
    pub(super) fn copy(&self, from: &str, name: &str, bytes_max: u64) -> Result<OwnedFd, Errno> {
        self.room()?;
        let source = self.open_disk(from)?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&source);
        control(self.root.as_fd(), SNAPSHOT, &mut arguments(name, i64::from(descriptor))?)?;
        self.limited(name, bytes_max)
    }

    fn limited(&self, name: &str, bytes_max: u64) -> Result<OwnedFd, Errno> {
        let disk = self.open_disk(name)?;
        let mut limit = LimitArguments {
            group: 0,
            flags: 1,
            referenced_max: bytes_max,
            exclusive_max: 0,
            reserved: [0; 2],
        };
        match control(disk.as_fd(), LIMIT, &mut limit) {
            Ok(_) => Ok(disk),
            Err(error) => {
                self.remove(name);
                Err(error)
            }
        }
    }

    /// A disk by name.
    pub(super) fn open_disk(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, name, flags, Mode::empty())
    }

    /// Removes a disk; the kernel frees its blocks by and by. True when it is gone.
    pub(super) fn remove(&self, name: &str) -> bool {
        let Ok(mut arguments) = arguments(name, 0) else { return true };
        matches!(control(self.root.as_fd(), DESTROY, &mut arguments), Ok(_) | Err(Errno::NOENT))
    }

    /// Names of all disks.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// A disk's id, which no other has had.
    pub(super) fn disk_id(&self, name: &str) -> Result<u64, Errno> {
        let disk = self.open_disk(name)?;
        let mut found = LookUpArguments { tree: 0, object: FIRST_OBJECT, name: [0; 4080] };
        control(disk.as_fd(), LOOK_UP, &mut found)?;
        Ok(found.tree)
    }

    /// Bytes that the disk of this id holds, with what is on its way; `None` where the kernel does not say.
    pub(super) fn written(&self, disk: u64) -> Option<u64> {
        let count = |name: &str| -> Option<u64> {
            let text = std::fs::read_to_string(self.counts.join(format!("0_{disk}")).join(name)).ok()?;
            text.trim().parse().ok()
        };
        Some(count("referenced")?.saturating_add(count("rsv_data").unwrap_or(0)))
    }

    /// What can still be written; `None` where the machine does not say.
    pub(super) fn free(&self) -> Option<Free> {
        let below = rustix::fs::fstatvfs(&self.file).ok()?;
        let below = below.f_bavail.saturating_mul(below.f_frsize);
        let inside = rustix::fs::fstatvfs(&self.root).ok()?;
        // Nothing is available for data, too, where only what describes files lacks room.
        let has_room = inside.f_bfree > inside.f_blocks / 4;
        let inside = inside.f_frsize.saturating_mul(if has_room { inside.f_bfree } else { inside.f_bavail });
        // Most of the time that is all that has to be asked.
        let late = if below < RESERVE + LATE_MAX { late_bytes() } else { 0 };
        Some(Free { below, late, inside })
    }

    /// Bytes of the whole file system below.
    pub(super) fn whole_below(&self) -> Result<u64, Errno> {
        let below = rustix::fs::fstatvfs(&self.file)?;
        Ok(below.f_blocks.saturating_mul(below.f_frsize))
    }

    /// Begins to give back what was removed: the pool forgets it, then tells the disk below.
    pub(super) fn give_back(&self) -> std::io::Result<Child> {
        // The end of a transaction wakes who frees blocks. Nothing to end is fine.
        let _ = control(self.root.as_fd(), START_SYNC, &mut 0u64);
        Command::new("fstrim").arg(&self.folder).stdin(Stdio::null()).stdout(Stdio::null()).spawn()
    }

    /// Refuses while the disk below the pool could not take what sandboxes write.
    fn room(&self) -> Result<(), Errno> {
        let below = rustix::fs::fstatvfs(&self.file)?;
        if below.f_bavail * below.f_frsize < RESERVE { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.folder, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Bytes that the machine has taken and not written yet.
fn late_bytes() -> u64 {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> Option<u64> {
        memory
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok())
    };
    (kib("Dirty:").unwrap_or(0) + kib("Writeback:").unwrap_or(0)) << 10
}

/// Where the kernel counts what subvolumes of this file system hold.
fn counts(root: &OwnedFd) -> Result<PathBuf, Errno> {
    let mut about = AboutArguments { numbers: [0; 2], id: [0; 16], rest: [0; 992] };
    control(root.as_fd(), ABOUT, &mut about)?;
    let id = hex::encode(about.id);
    let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
    Ok(Path::new("/sys/fs/btrfs").join(parts.join("-")).join("qgroups"))
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn arguments(name: &str, from: i64) -> Result<VolumeArguments, Errno> {
    let mut arguments = VolumeArguments { from, name: [0; 4088] };
    if name.is_empty() || name.len() > 200 || name.contains(['/', '\0']) {
        return Err(Errno::INVAL);
    }
    arguments.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(arguments)
}

/// A file with an empty file system, under its name only when whole.
fn make(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let space = rustix::fs::statvfs(folder).map_err(|error| error.to_string())?;
    let free = space.f_bavail * space.f_frsize;
    let bytes = (free / 100 * SHARE).min(BYTES_MAX) & !((1 << 20) - 1);
    if bytes < BYTES_MIN {
        return Err(format!(
            "{} MiB are free, but at least {} are needed",
            free >> 20,
            (BYTES_MIN >> 20) * 100 / SHARE
        ));
    }
    let partial = file.with_extension("new");
    let _ = rustix::fs::unlinkat(CWD, &partial, AtFlags::empty());
    let made = std::fs::File::create(&partial).and_then(|file| file.set_len(bytes));
    made.map_err(|error| error.to_string())?;
    let options = ["-q", "-f", "-m", "single", "-d", "single"];
    let output = Command::new("mkfs.btrfs").args(options).arg(&partial).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| format!("mkfs.btrfs: {error} (Debian: apt-get install btrfs-progs)"))?;
    if !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
        return Err(format!("mkfs.btrfs: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    std::fs::rename(&partial, file).map_err(|error| error.to_string())
}

/// The loop device that has this file already, from a keeper that was killed.
fn attached(file: &Path) -> Option<PathBuf> {
    let file = std::fs::canonicalize(file).ok()?;
    let devices = std::fs::read_dir("/sys/block").ok()?.flatten();
    devices.into_iter().find_map(|device| {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end()) == file).then(|| Path::new("/dev").join(device.file_name()))
    })
}

/// A new loop device, which goes with its last user.
fn attach(file: &OwnedFd) -> Result<(PathBuf, Option<OwnedFd>), String> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control_device = rustix::fs::openat(CWD, "/dev/loop-control", flags, Mode::empty());
    let control_device = control_device.map_err(|error| format!("/dev/loop-control: {error}"))?;
    // Another may take the free one first.
    for _ in 0..32 {
        let number =
            control_number(control_device.as_fd(), LOOP_FREE, 0).map_err(|error| error.to_string())?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = rustix::fs::openat(CWD, &path, flags, Mode::empty());
        let device = device.map_err(|error| format!("{}: {error}", path.display()))?;
        let mut configuration = LoopConfiguration {
            file: std::os::fd::AsRawFd::as_raw_fd(file).cast_unsigned(),
            block_bytes: 4096,
            numbers: [0; 5],
            words: [0, 0, 0, LOOP_AUTOCLEAR],
            texts: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        match control(device.as_fd(), LOOP_CONFIGURE, &mut configuration) {
            // To be held until it is mounted: the last user takes it along.
            Ok(_) => return Ok((path, Some(device))),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Err("every free one was taken by another".to_owned())
}
