//! The file system that a sandbox sees, made by its process 1 before anything else runs in it: overlays, private `/dev`, `/proc`
//! with what is the machine's masked, an empty `/sys`. When it returns, nothing of the machine's own tree is reachable.

use super::kernel;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where the tree is put together: a folder that every machine has and everybody may enter.
const STAGE: &str = "/tmp";
/// Devices that a sandbox has.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Files of `/proc` that say or do more than a sandbox should.
const MASKED: [&str; 14] = [
    "cmdline",
    "config.gz",
    "diskstats",
    "partitions",
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "latency_stats",
    "timer_list",
    "sched_debug",
    "vmallocinfo",
    "kallsyms",
    "sysrq-trigger",
];
/// Folders of it, the same.
const MASKED_FOLDERS: [&str; 4] = ["acpi", "scsi", "asound", "firmware"];
/// What may be read there and not written.
const READ_ONLY: [&str; 3] = ["bus", "fs", "irq"];
/// Kinds of namespace that are never made inside.
const FORBIDDEN: [&str; 5] = ["mnt", "ipc", "uts", "cgroup", "time"];
/// Kinds that are made inside where the order says so.
const ALLOWED: [&str; 3] = ["user", "pid", "net"];
/// How many of each kind every user of such a sandbox may have at once: a browser has one of users and of networks, and one of
/// processes for each page.
const NAMESPACES_MAX: u32 = 128;

/// What the tree is made of.
#[derive(Debug)]
pub(super) struct Materials {
    /// The first at `/`.
    pub overlays: Vec<Layers>,
    /// Where what is written goes.
    pub disk: Disk,
    /// Whether the sandbox has users beside root.
    pub has_users: bool,
    /// Bytes of `/dev/shm`.
    pub shared_memory: u64,
    /// Whether namespaces may be made inside.
    pub namespaces: bool,
}

/// Folders seen through each other.
#[derive(Debug)]
pub(super) struct Layers {
    /// Where in the sandbox.
    pub at: PathBuf,
    /// Lowest first.
    pub lowers: Vec<Lower>,
}

/// A folder below.
#[derive(Debug)]
pub(super) enum Lower {
    /// A detached mount made outside.
    Mount(OwnedFd),
    /// A path that this process may open.
    Path(PathBuf),
}

/// Where what is written goes.
#[derive(Debug)]
pub(super) enum Disk {
    /// A detached mount made outside.
    Mount(OwnedFd),
    /// Memory, with bounds.
    Memory {
        /// Bytes.
        bytes_max: u64,
        /// Files.
        files_max: u64,
    },
}

/// A step that failed.
pub(super) type Fault = (String, Errno);

/// A step with its name.
fn at<T>(what: impl Into<String>, result: Result<T, Errno>) -> Result<T, Fault> {
    result.map_err(|error| (what.into(), error))
}

/// Makes the tree and moves into it. Returns the folder for outputs that are too large for memory, on the sandbox's disk.
pub(super) fn make(materials: Materials) -> Result<OwnedFd, Fault> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    at("private mounts", rustix::mount::mount_change("/", private))?;
    // Before the stage hides what may lie in its place.
    let overlays: Result<Vec<(PathBuf, Vec<OwnedFd>)>, Fault> =
        materials.overlays.into_iter().map(|layers| Ok((layers.at, open_lowers(layers.lowers)?))).collect();
    let overlays = overlays?;
    let devices: Result<Vec<(&str, OwnedFd)>, Fault> =
        DEVICES.into_iter().map(|name| Ok((name, tree(format!("/dev/{name}"))?))).collect();
    let devices = devices?;
    let shm_bytes = materials.shared_memory.to_string();
    put(memory(&[("size", "1M"), ("mode", "755")], MountAttrFlags::empty())?, STAGE)?;
    let disk = match materials.disk {
        Disk::Mount(mount) => mount,
        Disk::Memory { bytes_max, files_max } => {
            let (bytes, files) = (bytes_max.to_string(), files_max.to_string());
            memory(
                &[("size", &bytes), ("nr_inodes", &files), ("mode", "755")],
                MountAttrFlags::MOUNT_ATTR_NODEV,
            )?
        }
    };
    let stage = Path::new(STAGE);
    let disk_folder = folder(&stage.join("d"))?;
    put(disk, &disk_folder)?;
    let spill = spill(&disk_folder)?;
    let root = folder(&stage.join("r"))?;
    for (number, (place, lowers)) in overlays.into_iter().enumerate() {
        let mount = overlay(stage, &disk_folder, number, lowers)?;
        if number == 0 {
            put(mount, &root)?;
        } else {
            put_inside(&root, mount, &place)?;
        }
    }
    at("the root folder", rustix::process::chdir(&root))?;
    at("changing the root", rustix::process::pivot_root(".", "."))?;
    // The machine's tree now lies over the new one, at `.`; the new one's own paths begin with a slash.
    proc(&devices)?;
    dev(devices, materials.has_users, &shm_bytes)?;
    sys()?;
    seal(materials.namespaces)?;
    at("leaving the machine's tree", rustix::mount::unmount(".", UnmountFlags::DETACH))?;
    at("the root folder", rustix::process::chdir("/"))?;
    Ok(spill)
}

fn open_lowers(lowers: Vec<Lower>) -> Result<Vec<OwnedFd>, Fault> {
    let open = |lower| match lower {
        Lower::Mount(mount) => Ok(mount),
        Lower::Path(path) => tree(&path),
    };
    lowers.into_iter().map(open).collect()
}

/// A detached copy of the mount at a path, without what is mounted below it.
fn tree(path: impl AsRef<Path>) -> Result<OwnedFd, Fault> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    at(path.as_ref().display().to_string(), rustix::mount::open_tree(CWD, path.as_ref(), flags))
}

/// A detached file system in memory.
fn memory(options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Fault> {
    file_system("tmpfs", options, attributes | MountAttrFlags::MOUNT_ATTR_NOSUID)
}

fn file_system(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Fault> {
    let make = || {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            if value.is_empty() {
                rustix::mount::fsconfig_set_flag(&context, *key)?;
            } else {
                rustix::mount::fsconfig_set_string(&context, *key, *value)?;
            }
        }
        rustix::mount::fsconfig_create(&context)?;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    at(kind, make())
}

/// Attaches a detached mount.
#[expect(clippy::needless_pass_by_value, reason = "the descriptor has done its work: the mount is attached")]
fn put(mount: OwnedFd, place: impl AsRef<Path>) -> Result<(), Fault> {
    let place = place.as_ref();
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    at(place.display().to_string(), rustix::mount::move_mount(&mount, "", CWD, place, flags))
}

/// Attaches a mount at a path in an image, whose links must not lead elsewhere.
#[expect(clippy::needless_pass_by_value, reason = "as in `put`")]
fn put_inside(root: &Path, mount: OwnedFd, place: &Path) -> Result<(), Fault> {
    let name = place.display().to_string();
    let open = || {
        let root = rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&root, place, flags, Mode::empty(), rustix::fs::ResolveFlags::IN_ROOT)
    };
    let target = at(&*name, open())?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    at(name, rustix::mount::move_mount(&mount, "", &target, "", flags))
}

fn folder(path: &Path) -> Result<PathBuf, Fault> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Err(error) if error != Errno::EXIST => Err((path.display().to_string(), error)),
        _ => Ok(path.to_owned()),
    }
}

fn spill(disk: &Path) -> Result<OwnedFd, Fault> {
    let path = folder(&disk.join("spill"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    at("the folder of outputs", rustix::fs::openat(CWD, &path, flags, Mode::empty()))
}

/// Lower folders seen through what is written, which lies on the disk as `u<number>`.
fn overlay(stage: &Path, disk: &Path, number: usize, lowers: Vec<OwnedFd>) -> Result<OwnedFd, Fault> {
    let mut names = Vec::new();
    for (index, lower) in lowers.into_iter().enumerate() {
        let path = folder(&stage.join(format!("{number}-{index}")))?;
        put(lower, &path)?;
        names.push(path);
    }
    let upper = folder(&disk.join(format!("u{number}")))?;
    let work = disk.join(format!("w{number}"));
    // A copied disk brings that of its origin along.
    clear(&work);
    let work = folder(&work)?;
    let make = || {
        let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // The option counts from the top.
        let text: Vec<String> = names.iter().rev().map(|path| path.display().to_string()).collect();
        if text.iter().map(|path| path.len() + 1).sum::<usize>() < 250 {
            rustix::mount::fsconfig_set_string(&context, "lowerdir", text.join(":"))?;
        } else {
            // One by one: an option has at most 255 bytes.
            for path in &text {
                rustix::mount::fsconfig_set_string(&context, "lowerdir+", path.as_str())?;
            }
        }
        rustix::mount::fsconfig_set_string(&context, "upperdir", &upper)?;
        rustix::mount::fsconfig_set_string(&context, "workdir", &work)?;
        rustix::mount::fsconfig_set_flag(&context, "userxattr")?;
        // What a sandbox writes need not outlive the machine.
        rustix::mount::fsconfig_set_flag(&context, "volatile")?;
        rustix::mount::fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    at(format!("overlay {number}"), make())
}

/// Removes a folder and what is in it, without following anything.
fn clear(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
}

fn proc(devices: &[(&str, OwnedFd)]) -> Result<(), Fault> {
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    folder(Path::new("/proc"))?;
    put(file_system("proc", &[], safe)?, "/proc")?;
    let null = devices.iter().find(|(name, _)| *name == "null").map(|(_, device)| device);
    for name in MASKED {
        let path = format!("/proc/{name}");
        if let Some(null) = null
            && Path::new(&path).exists()
        {
            put(copy(null)?, &path)?;
        }
    }
    for name in MASKED_FOLDERS {
        let path = format!("/proc/{name}");
        if Path::new(&path).is_dir() {
            put(memory(&[("size", "4k")], MountAttrFlags::MOUNT_ATTR_RDONLY)?, &path)?;
        }
    }
    for name in READ_ONLY {
        let path = format!("/proc/{name}");
        if Path::new(&path).is_dir() {
            let copy = tree(&path)?;
            at(&*path, kernel::read_only(copy.as_fd()))?;
            put(copy, &path)?;
        }
    }
    Ok(())
}

/// Few or no namespaces can be made inside, and no setting of the kernel changed. The last step: a detached mount is a namespace too.
fn seal(namespaces: bool) -> Result<(), Fault> {
    let settings = tree("/proc/sys")?;
    let own = tree("/proc/1").and_then(|own| {
        at("/proc/1", kernel::read_only(own.as_fd()))?;
        Ok(own)
    });
    at("/proc/sys", kernel::read_only(settings.as_fd()))?;
    let allowed = if namespaces { NAMESPACES_MAX } else { 0 };
    let bounds = FORBIDDEN.map(|kind| (kind, 0)).into_iter().chain(ALLOWED.map(|kind| (kind, allowed)));
    for (kind, most) in bounds {
        let path = format!("/proc/sys/user/max_{kind}_namespaces");
        let written = std::fs::write(&path, most.to_string());
        at(path, written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    }
    put(settings, "/proc/sys")?;
    // The agent's own files there belong to the sandbox's root, who may not write them.
    let own = own?;
    put(own, "/proc/1")
}

/// Another detached copy of a mount.
fn copy(mount: &OwnedFd) -> Result<OwnedFd, Fault> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    at("a device", rustix::mount::open_tree(mount, "", flags))
}

fn dev(devices: Vec<(&str, OwnedFd)>, has_users: bool, shm_bytes: &str) -> Result<(), Fault> {
    folder(Path::new("/dev"))?;
    put(memory(&[("size", "64k"), ("mode", "755")], MountAttrFlags::MOUNT_ATTR_NOEXEC)?, "/dev")?;
    for (name, device) in devices {
        let path = format!("/dev/{name}");
        let made = rustix::fs::openat(
            CWD,
            &path,
            OFlags::CREATE | OFlags::CLOEXEC | OFlags::WRONLY,
            Mode::from_raw_mode(0o666),
        );
        drop(at(&*path, made)?);
        put(device, &path)?;
    }
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mut options = vec![("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];
    if has_users {
        options.push(("gid", "5"));
    }
    folder(Path::new("/dev/pts"))?;
    put(file_system("devpts", &options, safe)?, "/dev/pts")?;
    folder(Path::new("/dev/shm"))?;
    put(memory(&[("size", shm_bytes), ("mode", "1777")], MountAttrFlags::MOUNT_ATTR_NODEV)?, "/dev/shm")?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        at(name, rustix::fs::symlinkat(target, CWD, format!("/dev/{name}")))?;
    }
    Ok(())
}

/// An empty `/sys`, but for what programs count processors by.
fn sys() -> Result<(), Fault> {
    let processors = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let count =
        processors.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let range = if count > 1 { format!("0-{}\n", count - 1) } else { "0\n".to_owned() };
    folder(Path::new("/sys"))?;
    put(memory(&[("size", "64k"), ("mode", "755")], MountAttrFlags::MOUNT_ATTR_NODEV)?, "/sys")?;
    let cpu = Path::new("/sys/devices/system/cpu");
    let filled = std::fs::create_dir_all(cpu).and_then(|()| {
        std::fs::create_dir_all("/sys/fs/cgroup")?;
        ["online", "possible", "present"].iter().try_for_each(|name| std::fs::write(cpu.join(name), &range))
    });
    at("/sys", filled.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let copy = tree("/sys")?;
    at("/sys", kernel::read_only(copy.as_fd()))?;
    put(copy, "/sys")
}

/// Whether a file is there, links in it not followed.
pub(super) fn is_there(path: &str) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
