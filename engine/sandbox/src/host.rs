//! The image `host`: this machine's own programs, without what is this machine's business. `/usr` is seen as it is; `/etc` is a
//! copy of what everybody may read; homes, `/var`, `/tmp`, `/run` and the rest are empty.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Held while the folder below is made.
static MAKING: Mutex<()> = Mutex::new(());
/// Changes whenever the folder below is put together in another way.
const FORM: u32 = 1;
/// Of a file in `/etc`; larger ones are data of programs that no sandbox has.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Folders that are programs' own, or links to such.
const PROGRAMS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];
/// Empty folders with their modes.
const EMPTY: [(&str, u32); 20] = [
    ("dev", 0o755),
    ("proc", 0o755),
    ("sys", 0o755),
    ("usr", 0o755),
    ("root", 0o700),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("srv", 0o755),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    ("var/lib", 0o755),
    ("var/cache", 0o755),
    ("var/log", 0o755),
    ("var/spool", 0o755),
    ("var/mail", 0o755),
    ("var/local", 0o755),
];
/// What of `/etc` is this machine's identity, not its set-up.
const LEFT_OUT: [&str; 7] = ["hosts", "hostname", "resolv.conf", "mtab", "machine-id", "fstab", "adjtime"];

/// The overlays of the image, in the form of [`crate::backend::Root`]; makes the folder at the bottom where it is missing.
/// Blocking: call it where that is fine.
pub fn overlays(folder: &Path) -> io::Result<Vec<(PathBuf, Vec<PathBuf>)>> {
    let base = folder.join(format!("host-{:016x}", state()));
    // One at a time in this process; between processes the name of the unfinished folder keeps them apart.
    let _turn = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !base.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let partial = folder.join(format!("host-new-{}", std::process::id()));
        let _ = fs::remove_dir_all(&partial);
        fill(&partial)?;
        match fs::rename(&partial, &base) {
            // Another engine was quicker.
            Err(_) if base.is_dir() => fs::remove_dir_all(&partial)?,
            other => other?,
        }
    }
    let mut overlays = vec![(PathBuf::from("/"), vec![base])];
    let own = |name: &&str| fs::symlink_metadata(Path::new("/").join(name)).is_ok_and(|found| found.is_dir());
    for name in ["usr"].iter().chain(PROGRAMS.iter()).filter(|name| own(name)) {
        let path = Path::new("/").join(name);
        overlays.push((path.clone(), vec![path]));
    }
    Ok(overlays)
}

/// A number that changes with the machine's set-up.
fn state() -> u64 {
    let mut hasher = DefaultHasher::new();
    FORM.hash(&mut hasher);
    for path in
        ["/etc", "/etc/passwd", "/etc/group", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs"]
    {
        let seen = fs::metadata(path).map(|found| (found.mtime(), found.mtime_nsec(), found.size()));
        seen.unwrap_or_default().hash(&mut hasher);
    }
    hasher.finish()
}

fn fill(base: &Path) -> io::Result<()> {
    make_folder(base, 0o755)?;
    for (name, mode) in EMPTY {
        make_folder(&base.join(name), mode)?;
    }
    for name in PROGRAMS {
        let path = Path::new("/").join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => symlink(fs::read_link(&path)?, base.join(name))?,
            Ok(found) if found.is_dir() => make_folder(&base.join(name), 0o755)?,
            _ => {}
        }
    }
    symlink("/run", base.join("var/run"))?;
    copy_folder(Path::new("/etc"), &base.join("etc"), true)?;
    fs::write(base.join("etc/hosts"), "127.0.0.1\tlocalhost\n::1\tlocalhost\n")?;
    fs::write(base.join("etc/hostname"), "sandbox\n")?;
    Ok(())
}

/// Makes a folder with exactly this mode.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Copies what everybody may read.
fn copy_folder(from: &Path, to: &Path, top: bool) -> io::Result<()> {
    let found = fs::metadata(from)?;
    make_folder(to, found.mode() & 0o777)?;
    own(to, &found);
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if top && LEFT_OUT.iter().any(|left_out| OsStr::new(left_out) == name) {
            continue;
        }
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let target = to.join(&name);
        if found.is_symlink() {
            symlink(fs::read_link(&path)?, &target)?;
        } else if found.is_dir() && found.mode() & 0o005 == 0o005 {
            copy_folder(&path, &target, false)?;
        } else if found.is_file() && found.mode() & 0o004 != 0 && found.size() <= FILE_BYTES_MAX {
            fs::copy(&path, &target)?;
            fs::set_permissions(&target, Permissions::from_mode(found.mode() & 0o777))?;
            own(&target, &found);
        }
    }
    Ok(())
}

/// Owners, as far as this user may give files away and a sandbox has them.
fn own(path: &Path, like: &fs::Metadata) {
    if like.uid() < 65_536 && like.gid() < 65_536 {
        let _ = chown(path, Some(like.uid()), Some(like.gid()));
    }
}
