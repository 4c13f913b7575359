//! The keeper's folder: what is written down of sandboxes and checkpoints, so that whoever comes next finds them.

use crate::local::wire::{Checkpoint, Record};
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest id of a sandbox or checkpoint.
pub(super) const ID_BYTES_MAX: usize = 40;
/// Longest record; a request is no longer.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Home {
    /// Owned by the engine's user, closed to all others.
    pub folder: PathBuf,
}

impl Home {
    /// Makes what is missing.
    pub(super) fn open(folder: &Path) -> io::Result<Home> {
        use std::os::unix::fs::DirBuilderExt;
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for part in ["sandboxes", "checkpoints"] {
            builder.create(folder.join(part))?;
        }
        Ok(Home { folder: std::fs::canonicalize(folder)? })
    }

    /// What is written down of a sandbox.
    pub(super) fn record(&self, id: &str) -> PathBuf {
        self.folder.join("sandboxes").join(format!("{id}.json"))
    }

    /// Where its agent listens.
    pub(super) fn socket(&self, id: &str) -> PathBuf {
        self.folder.join("sandboxes").join(format!("{id}.sock"))
    }

    /// What is written down of a checkpoint.
    pub(super) fn checkpoint(&self, id: &str) -> PathBuf {
        self.folder.join("checkpoints").join(format!("{id}.json"))
    }

    /// Writes a sandbox down.
    pub(super) fn write_record(&self, record: &Record) -> io::Result<()> {
        write(&self.record(&record.order.id), record)
    }

    /// Writes a checkpoint down.
    pub(super) fn write_checkpoint(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        write(&self.checkpoint(&checkpoint.id), checkpoint)
    }

    /// Forgets a sandbox.
    pub(super) fn forget(&self, id: &str) {
        let _ = std::fs::remove_file(self.socket(id));
        let _ = std::fs::remove_file(self.record(id));
    }

    /// All that is written down of sandboxes.
    pub(super) fn records(&self) -> Vec<Record> {
        read_all(&self.folder.join("sandboxes"), |record: &Record| &record.order.id)
    }

    /// All that is written down of checkpoints.
    pub(super) fn checkpoints(&self) -> Vec<Checkpoint> {
        read_all(&self.folder.join("checkpoints"), |checkpoint: &Checkpoint| &checkpoint.id)
    }
}

/// As a whole or not at all.
fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(value)?)?;
    std::fs::rename(&new, path)
}

/// What is no record of the id that its file is named by is put aside under another name, and said once: ids become names of
/// files, disks and groups that are removed.
fn read_all<T: DeserializeOwned>(folder: &Path, id: fn(&T) -> &str) -> Vec<T> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    let read = |path: PathBuf| {
        let fault = match read(&path) {
            Ok(value) => {
                let named = path.file_stem().and_then(OsStr::to_str);
                if is_id(id(&value)) && named == Some(id(&value)) {
                    return Some(value);
                }
                format!("it is of {:?}", id(&value))
            }
            Err(error) => error.to_string(),
        };
        let aside = path.with_extension("broken");
        let moved = std::fs::rename(&path, &aside);
        let place = if moved.is_ok() { &aside } else { &path };
        eprintln!("a record that cannot be used is left in {}: {fault}", place.display());
        None
    };
    files.filter_map(read).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.len() > RECORD_BYTES_MAX {
        return Err(io::Error::other("it is too long"));
    }
    Ok(serde_json::from_reader(io::BufReader::new(file.take(RECORD_BYTES_MAX)))?)
}

/// Whether a text may be an id: it becomes the name of files, disks and groups.
pub(super) fn is_id(id: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !id.starts_with('-')
}

/// When a process started, in clock ticks since boot; `None`: it is gone.
pub(super) fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; after its closing bracket come the fields from the third on.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    if fields.first() == Some(&"Z") { None } else { fields.get(19)?.parse().ok() }
}

/// Names the machine's boot.
pub(super) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_of_the_id_that_names_them_and_others_are_put_aside() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::open(place.path()).unwrap();
        let made = |id: &str| Checkpoint {
            id: id.to_owned(),
            sandbox: "s".to_owned(),
            overlays: Vec::new(),
            holds: Vec::new(),
            environment: Vec::new(),
            labels: std::collections::BTreeMap::new(),
            created_s: 0,
            frozen_ms: 0,
            folder: PathBuf::new(),
        };
        home.write_checkpoint(&made("good")).unwrap();
        let folder = place.path().join("checkpoints");
        let write = |name: &str, value: &Checkpoint| write(&folder.join(name), value).unwrap();
        write("evil.json", &made("../../../../tmp/evil"));
        write("other.json", &made("good"));
        std::fs::write(folder.join("garbage.json"), "{").unwrap();
        std::os::unix::fs::symlink(folder.join("good.json"), folder.join("linked.json")).unwrap();
        for _ in 0..2 {
            let ids: Vec<String> = home.checkpoints().into_iter().map(|made| made.id).collect();
            assert_eq!(ids, ["good"]);
        }
        let mut left: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["evil.broken", "garbage.broken", "good.json", "linked.broken", "other.broken"]);
    }
}
