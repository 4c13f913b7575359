//! The image of a task: the interpreter's environment and the old source, over this machine's own programs.

use super::others::{self, Names};
use super::python::Installed;
use super::{Draft, PYTHON, SdistError, Tree, WORKDIR, plain};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Its only one.
pub(super) const TAG: &str = "latest";
/// What the image `host` shows of this machine's programs.
const PROGRAMS: &str = "/usr";

/// An image to be written as a folder in the OCI layout, of upper folders over the image `host`.
#[derive(Debug)]
pub struct ImageOrder<'a> {
    /// Where it is written; nothing is there.
    pub folder: &'a Path,
    /// Its tag.
    pub tag: &'static str,
    /// What lies over the root, the lowest first. Deletions are marked by `user.overlay` attributes.
    pub uppers: [&'a Path; 2],
    /// `PATH` of its commands.
    pub path: String,
    /// Folder in which its commands start.
    pub workdir: &'static str,
}

/// Lays the folders out and has `write` make the image of them, in the place of what is there. Blocks.
pub(super) fn lay_out(
    folder: &Path,
    draft: &Draft,
    installed: &Installed,
    write: impl FnOnce(&ImageOrder<'_>) -> Result<(), SdistError>,
) -> Result<(), SdistError> {
    let machine = || SdistError::machine(folder.display().to_string());
    let around = folder.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(around).map_err(machine())?;
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(machine())?;
    }
    let upper = tempfile::Builder::new().prefix(".tree-").tempdir_in(around).map_err(machine())?;
    std::fs::set_permissions(upper.path(), PermissionsExt::from_mode(0o755)).map_err(machine())?;
    fill(upper.path(), draft, installed).map_err(machine())?;
    let names = Names { library: &draft.library, modules: &draft.modules };
    let releases = others::find(Path::new(PROGRAMS), &names).map_err(SdistError::machine(PROGRAMS))?;
    releases.iter().try_for_each(|path| hide(upper.path(), path)).map_err(machine())?;
    let bin = Path::new(PYTHON).parent().unwrap_or(Path::new("/")).display();
    let path = format!("{bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    write(&ImageOrder { folder, tag: TAG, uppers: [&installed.upper, upper.path()], path, workdir: WORKDIR })
}

fn fill(upper: &Path, draft: &Draft, installed: &Installed) -> io::Result<()> {
    let inner = |path: &str| upper.join(path.trim_start_matches('/'));
    put(&inner(WORKDIR), &draft.start)?;
    let packages = upper.join(&installed.packages);
    std::fs::create_dir_all(&packages)?;
    let root = if draft.root.is_empty() { WORKDIR.to_owned() } else { format!("{WORKDIR}/{}", draft.root) };
    std::fs::write(packages.join("code-under-test.pth"), root + "\n")?;
    if !draft.installed.is_empty() {
        let folder = format!("{}-{}.dist-info", plain(&draft.library), draft.old);
        put(&packages.join(folder), &draft.installed)?;
    }
    Ok(())
}

/// As the upper folder of an overlay marks what is not there any more.
fn hide(upper: &Path, path: &Path) -> io::Result<()> {
    let mark = upper.join(path.strip_prefix("/").unwrap_or(path));
    std::fs::create_dir_all(mark.parent().unwrap_or(upper))?;
    std::fs::write(&mark, "")?;
    rustix::fs::setxattr(&mark, "user.overlay.whiteout", b"", rustix::fs::XattrFlags::empty())?;
    Ok(())
}

fn put(folder: &Path, tree: &Tree) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (path, file) in tree {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(&path, &file.bytes)?;
        if file.executable {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        }
    }
    Ok(())
}
