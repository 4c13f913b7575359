//! Files of the sandbox, as the agent's user sees them. Every open goes through [`open`]: no magic links of `/proc`, and nothing
//! of the agent's own process, wherever a link planted by a command may lead.

pub mod folder;
pub mod place;
pub mod reading;
pub mod writing;

use crate::{Reason, refusal};
use espalier_agent_protocol::v1::{FileKind, FileStat};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tonic::Status;

/// Where `/proc` says so in `statfs`.
const PROC_MAGIC: u64 = 0x9fa0;

/// A path of the wire: absolute, without NUL.
pub fn path(bytes: &[u8]) -> Result<CString, Status> {
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    if bytes.first() != Some(&b'/') {
        return Err(refusal(Reason::Invalid, format!("path `{}`: not absolute", shown())));
    }
    CString::new(bytes).map_err(|_| refusal(Reason::Invalid, format!("path `{}`: a NUL byte", shown())))
}

/// A name that nobody guesses.
pub fn random_name() -> String {
    let mut bytes = [0; 12];
    let _ = crate::agent::random(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A failure of the machine as a refusal.
pub fn fault(path: &[u8], error: Errno) -> Status {
    let reason = match error {
        Errno::NOENT => Reason::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP | Errno::BUSY | Errno::TXTBSY => {
            Reason::Denied
        }
        Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY => Reason::Kind,
        Errno::NOSPC | Errno::DQUOT => Reason::DiskFull,
        Errno::NAMETOOLONG | Errno::INVAL => Reason::Invalid,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Reason::Bound,
        _ => Reason::Io,
    };
    let error = std::io::Error::from(error);
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default().to_ascii_lowercase();
    refusal(reason, format!("`{}`: {text}", String::from_utf8_lossy(path)))
}

/// The same for std's errors.
pub fn fault_io(path: &[u8], error: &std::io::Error) -> Status {
    match error.raw_os_error() {
        Some(number) => fault(path, Errno::from_raw_os_error(number)),
        None => refusal(Reason::Io, format!("`{}`: {error}", String::from_utf8_lossy(path))),
    }
}

/// Opens a path below a folder (or an absolute one). Links are followed unless the flags say otherwise; magic links never.
pub fn open(folder: impl AsFd, path: &CStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    // With PATH the kernel takes few other flags.
    let more = if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { OFlags::CLOEXEC | OFlags::NOCTTY };
    let flags = flags | more;
    let opened = match rustix::fs::openat2(folder.as_fd(), path, flags, mode, ResolveFlags::NO_MAGICLINKS) {
        // A seccomp profile may not know the call.
        Err(Errno::NOSYS) => rustix::fs::openat(folder.as_fd(), path, flags, mode),
        other => other,
    }?;
    if is_own_process(&opened) { Err(Errno::ACCESS) } else { Ok(opened) }
}

/// Whether it is a file of `/proc` about the agent: its memory, its environment, its descriptors.
fn is_own_process(file: &OwnedFd) -> bool {
    let on_proc = rustix::fs::fstatfs(file)
        .is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(|kind| kind == PROC_MAGIC));
    if !on_proc {
        return false;
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let own = std::process::id().to_string();
    match rustix::fs::readlink(link, Vec::new()) {
        Ok(target) => target.to_bytes().split(|byte| *byte == b'/').any(|part| part == own.as_bytes()),
        Err(_) => true,
    }
}

/// What the wire says of a file.
pub fn describe(stat: &Stat, target: Vec<u8>) -> FileStat {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Link,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => FileKind::Other,
    };
    FileStat {
        kind: kind.into(),
        mode: stat.st_mode & 0o7777,
        user_id: stat.st_uid,
        group_id: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified_s: stat.st_mtime,
        modified_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        target: target.into(),
        inode: stat.st_ino,
        links: stat.st_nlink,
        allocated: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        version: version(stat),
    }
}

/// A number that changes whenever the content may have: of device, inode, size and the times that only the kernel sets.
pub fn version(stat: &Stat) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::hash::DefaultHasher::new();
    (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec).hash(&mut hasher);
    (stat.st_ctime, stat.st_ctime_nsec).hash(&mut hasher);
    hasher.finish() | 1
}

/// The stat of an entry itself, with where it points if it is a link.
pub fn stat_entry(folder: impl AsFd, name: &CStr) -> Result<FileStat, Errno> {
    let stat = rustix::fs::statat(folder.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        rustix::fs::readlinkat(folder.as_fd(), name, Vec::new()).map(CString::into_bytes).unwrap_or_default()
    } else {
        Vec::new()
    };
    Ok(describe(&stat, target))
}

/// Work on files, on a thread that may wait for a disk.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(refusal(Reason::Io, format!("work on files failed: {error}"))),
    }
}
