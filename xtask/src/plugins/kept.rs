//! Built plugins in the user's cache folder, by what they are made of: another checkout of the same source builds none of them again.

use crate::place;
use crate::stamp::Stamp;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Nobody has asked for it that long: it goes.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The place of one plugin.
pub struct Kept {
    file: PathBuf,
}

impl Kept {
    /// The kept build of a plugin that is made of what the stamp names.
    pub fn of(inputs: &Stamp, name: &str) -> Kept {
        Kept { file: place::cache().join("plugins-built").join(format!("{}-{name}.wasm", inputs.name())) }
    }

    /// Puts it where it is wanted; `false`: it is not kept.
    pub fn take(&self, output: &Path) -> Result<bool, String> {
        if !self.file.is_file() {
            return Ok(false);
        }
        super::replace(&self.file, output)?;
        // Its time says when it was last asked for; whoever may not write there has it all the same.
        let _ = std::fs::File::options()
            .append(true)
            .open(&self.file)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Ok(true)
    }

    /// Keeps what was built, and removes what nobody has asked for in 30 days.
    pub fn keep(&self, output: &Path) -> Result<(), String> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        super::replace(output, &self.file)?;
        for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            let modified = entry.metadata().and_then(|known| known.modified());
            let unused =
                modified.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > UNUSED_MAX);
            if unused {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}
