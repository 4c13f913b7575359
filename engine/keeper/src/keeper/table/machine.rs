//! What a keeper asks of the machine around its sandboxes: locks, ends of processes, mounts, names.

use crate::keeper::cgroups::STORE_PREFIX;
use crate::keeper::home::Home;
use crate::keeper::kernel;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions};
use rustix::thread::LinkNameSpaceType;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Folders whose mounts a keeper needs, beside that of its own folder.
const NEEDED: [&str; 11] =
    ["/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"];

/// Locks files, shared: whoever would remove what they stand for asks for the lock alone.
pub(super) fn hold(files: &[PathBuf]) -> Vec<OwnedFd> {
    let lock = |path: &PathBuf| {
        let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).ok().map(|()| file)
    };
    files.iter().filter_map(lock).collect()
}

/// Reaps a child that has ended and says how it did.
pub(super) fn wait(process: &OwnedFd) -> String {
    let waited = rustix::process::waitid(
        WaitId::PidFd(process.as_fd()),
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
    );
    match waited.ok().flatten().map(|status| (status.exit_status(), status.terminating_signal())) {
        // The agent's own codes.
        Some((Some(0), _)) => "its agent was told to end".to_owned(),
        Some((Some(3), _)) => "its lease expired: it received no request from an engine".to_owned(),
        Some((Some(code), _)) => format!("its agent exited with code {code}"),
        Some((_, Some(signal))) => format!("its agent was killed by signal {signal}"),
        _ => "its agent has ended".to_owned(),
    }
}

/// Mounts of the keeper are its own; those that the machine makes later are seen. Others than it needs are let go: a disk that the
/// machine unmounts would stay busy here.
pub(super) fn own_mounts(folder: &Path) -> Result<(), Errno> {
    kernel::own_mounts()?;
    let flags = rustix::mount::MountPropagationFlags::DOWNSTREAM | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags)?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    let needed = |place: &Path| {
        folder.starts_with(place)
            || place.starts_with(folder)
            || NEEDED.iter().any(|own| place.starts_with(own))
    };
    for place in places.filter(|place| !needed(place)) {
        let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
    }
    Ok(())
}

/// A socket that listens on a port of 127.0.0.1 as a process of a sandbox sees it. The keeper has one thread, which goes into the
/// network of that process and comes back.
pub(super) fn listen_within(process: u32, port: u16) -> io::Result<OwnedFd> {
    let network = |process: &str| {
        let path = format!("/proc/{process}/ns/net");
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    };
    let (own, other) = (network("self")?, network(&process.to_string())?);
    let enter = |network: &OwnedFd| {
        rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
    };
    enter(&other)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", port));
    if let Err(error) = enter(&own) {
        // A keeper in a sandbox's network is none: the next one takes over.
        eprintln!("the keeper cannot come back from the network of a sandbox: {error}");
        std::process::abort();
    }
    listener.map(OwnedFd::from)
}

/// Names this store's groups: one word for each folder.
pub(super) fn group_name(home: &Home) -> String {
    // FNV-1a: any spread will do, and the name must be the same for ever.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in home.folder.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{STORE_PREFIX}{hash:016x}")
}
