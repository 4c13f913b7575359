//! The image `host`: this machine's own programs, without what is this machine's business. `/usr` is seen as it is; `/etc` is a
//! copy of what everybody may read; homes, `/var`, `/tmp`, `/run` and the rest are empty. What lies in `/usr` and is not for
//! everybody to read is hidden; it is looked for again every hour, and whenever `/etc` or the upper folders of `/usr` change.

use espalier_keeper::wire::Overlay;
use parking_lot::Mutex;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Held while the folder below is made.
static MAKING: Mutex<()> = Mutex::new(());
/// Changes whenever the folder below is put together in another way.
const FORM: u32 = 3;
/// How long what was found hidden is believed.
const HIDDEN_BELIEVED: Duration = Duration::from_secs(3600);
/// In the folder at the bottom: the root file system.
const ROOT: &str = "root";
/// In the folder at the bottom: the paths of those files.
const HIDDEN: &str = "hidden";
/// In the folder at the bottom: what hides files of programs' folders, by their paths.
const HIDING: &str = "hiding";
/// Largest file of `/etc` that is copied; larger ones are data of programs that no sandbox has.
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

/// The overlays of the image; makes the folder at the bottom where it is missing.
/// Blocking: call it where that is fine.
pub fn overlays(folder: &Path) -> io::Result<Vec<Overlay>> {
    let base = folder.join(format!("host-{:016x}", state()));
    // One at a time in this process; between processes the name of the unfinished folder keeps them apart.
    let _turn = MAKING.lock();
    let made = fs::metadata(&base).and_then(|found| found.modified());
    let old = made.as_ref().is_ok_and(|made| made.elapsed().is_ok_and(|age| age > HIDDEN_BELIEVED));
    if old && fs::read(base.join(HIDDEN))? == list(&hidden()?) {
        fs::File::open(&base)?.set_modified(SystemTime::now())?;
    } else if old {
        // Sandboxes that stand on it keep it: a mount has its folder, whatever it is called.
        let past = folder.join(format!("host-old-{}-{}", std::process::id(), crate::random::id()));
        let _ = fs::rename(&base, &past);
    }
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
    let mut overlays = vec![Overlay { at: "/".into(), lowers: vec![base.join(ROOT)] }];
    for path in programs() {
        let hiding = base.join(HIDING).join(path.strip_prefix("/").unwrap_or(&path));
        let lowers = [path.clone()].into_iter().chain(hiding.is_dir().then_some(hiding));
        overlays.push(Overlay { at: path, lowers: lowers.collect() });
    }
    Ok(overlays)
}

/// What not everybody may read below the folders of programs. For root alone: an ordinary user reads no more of
/// it inside than outside.
fn hidden() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if rustix::process::geteuid().is_root() {
        for top in programs() {
            look_for_hidden(&top, fs::metadata(&top)?.dev(), &mut found)?;
        }
    }
    Ok(found)
}

fn look_for_hidden(folder: &Path, device: u64, hidden: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let (kind, mode) = (found.file_type(), found.mode());
        let open = kind.is_symlink() || mode & if kind.is_dir() { 0o001 } else { 0o004 } != 0;
        if !open {
            hidden.push(path);
        } else if kind.is_dir() && found.dev() == device {
            look_for_hidden(&path, device, hidden)?;
        }
    }
    Ok(())
}

/// Folders of programs that are not links to others.
fn programs() -> impl Iterator<Item = PathBuf> {
    let names = ["usr"].into_iter().chain(PROGRAMS).map(|name| Path::new("/").join(name));
    names.filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()))
}

/// The paths as they are kept, each with a zero behind it.
fn list(paths: &[PathBuf]) -> Vec<u8> {
    paths.iter().flat_map(|path| path.as_os_str().as_encoded_bytes().iter().copied().chain([0])).collect()
}

/// Whiteouts for these paths below a root, in a folder that stands for that root.
fn hide(paths: &[PathBuf], root: &Path, hiding: &Path) -> io::Result<()> {
    for path in paths {
        let mask = hiding.join(path.strip_prefix(root).unwrap_or(path));
        if let (Some(folder), Some(above)) = (path.parent(), mask.parent()) {
            cover(folder, above)?;
        }
        let (none, kind) = (rustix::fs::makedev(0, 0), rustix::fs::FileType::CharacterDevice);
        rustix::fs::mknodat(rustix::fs::CWD, &mask, kind, rustix::fs::Mode::empty(), none)?;
    }
    Ok(())
}

/// The folder that hides entries of another, with all above it; each looks like the one it lies over.
fn cover(top: &Path, hiding: &Path) -> io::Result<()> {
    if hiding.is_dir() {
        return Ok(());
    }
    if let (Some(above), Some(parent)) = (hiding.parent(), top.parent())
        && !above.is_dir()
    {
        cover(parent, above)?;
    }
    let found = fs::metadata(top)?;
    make_folder(hiding, found.mode() & 0o7777)?;
    own(hiding, &found);
    Ok(())
}

/// A number that changes with the machine's set-up.
fn state() -> u64 {
    let mut hasher = DefaultHasher::new();
    FORM.hash(&mut hasher);
    for path in [
        "/etc",
        "/etc/passwd",
        "/etc/group",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/ssl/certs",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/share",
        "/usr/local",
        "/usr/local/bin",
        "/usr/local/etc",
        "/usr/local/lib",
        "/usr/local/share",
    ] {
        let seen = fs::metadata(path).map(|found| (found.mtime(), found.mtime_nsec(), found.size()));
        seen.unwrap_or_default().hash(&mut hasher);
    }
    hasher.finish()
}

fn fill(whole: &Path) -> io::Result<()> {
    make_folder(whole, 0o755)?;
    make_folder(&whole.join(HIDING), 0o755)?;
    let hidden = hidden()?;
    fs::write(whole.join(HIDDEN), list(&hidden))?;
    hide(&hidden, Path::new("/"), &whole.join(HIDING))?;
    let base = &whole.join(ROOT);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_not_everybody_may_read_is_hidden() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (top, hiding) = (folder.path().join("top"), folder.path().join("hiding"));
        fs::create_dir(&hiding).unwrap();
        for (path, mode) in [("a", 0o755), ("a/deep", 0o750), ("b", 0o755), ("b/c", 0o711)] {
            fs::create_dir_all(top.join(path)).unwrap();
            fs::set_permissions(top.join(path), Permissions::from_mode(mode)).unwrap();
        }
        for (path, mode) in [("a/open", 0o644), ("a/deep/x", 0o644), ("b/c/secret", 0o600), ("b/open", 0o444)]
        {
            fs::write(top.join(path), "x").unwrap();
            fs::set_permissions(top.join(path), Permissions::from_mode(mode)).unwrap();
        }
        symlink("nowhere", top.join("a/link")).unwrap();
        let mut hidden = Vec::new();
        look_for_hidden(&top, fs::metadata(&top).unwrap().dev(), &mut hidden).unwrap();
        hide(&hidden, folder.path(), &hiding).unwrap();
        let mut found = Vec::new();
        walk(&hiding.join("top"), &mut found);
        found.sort();
        let hiding = |name: &str| hiding.join("top").join(name);
        assert_eq!(found, [hiding("a/deep"), hiding("b/c/secret")]);
        assert_eq!(fs::metadata(hiding("b/c")).unwrap().mode() & 0o7777, 0o711);
    }

    /// Everything but folders.
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), found);
            } else {
                assert_eq!(entry.metadata().unwrap().rdev(), 0);
                found.push(entry.path());
            }
        }
    }
}
