//! Files that commands write for people: there when they are whole, and the one before until then.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes what `fill` writes, and puts it at `path`; what was there before stays if that fails.
pub fn write_whole(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new()
        .prefix(".espalier-")
        .permissions(PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)?;
    fill(&mut file)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
