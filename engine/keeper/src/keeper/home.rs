//! The keeper's folder: what is written down of sandboxes and checkpoints, so that whoever comes next finds them.

use crate::wire::{Checkpoint, Environment, RECORD_BYTES_MAX, SandboxRecord};
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest id of a sandbox or checkpoint.
pub(super) const ID_BYTES_MAX: usize = 40;
/// Longest file that is read: a record of version 2, which has the environment in it.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// In front of the id in the name of a checkpoint's disk.
pub(super) const CHECKPOINT: &str = "checkpoint-";

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

    /// Writes a sandbox down; its environment has a file of its own, which is written before.
    pub(super) fn write_record(&self, record: &SandboxRecord) -> io::Result<()> {
        write_record(&self.record(&record.order.id), record)
    }

    /// Writes down the environment of a sandbox that is to be made; it never changes.
    pub(super) fn write_environment(&self, id: &str, environment: &Environment) -> io::Result<()> {
        write(&environment_beside(&self.record(id)), &environment.0)
    }

    /// Writes a checkpoint down, with the environment of its sandbox.
    pub(super) fn write_checkpoint(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        let path = self.checkpoint(&checkpoint.id);
        // A copy: what happens to one file happens to no other.
        let environment = read_bytes(&environment_beside(&self.record(&checkpoint.sandbox)))?;
        write(&environment_beside(&path), &environment)?;
        write_record(&path, checkpoint)
    }

    /// The environment of commands in the sandbox of a checkpoint.
    pub(super) fn checkpoint_environment(&self, id: &str) -> io::Result<Environment> {
        read_bytes(&environment_beside(&self.checkpoint(id))).map(Environment)
    }

    /// Forgets a sandbox.
    pub(super) fn forget(&self, id: &str) {
        let _ = std::fs::remove_file(self.socket(id));
        forget(&self.record(id));
    }

    /// Forgets a checkpoint.
    pub(super) fn forget_checkpoint(&self, id: &str) {
        forget(&self.checkpoint(id));
    }

    /// All that is written down of sandboxes.
    pub(super) fn records(&self) -> Vec<SandboxRecord> {
        read_all(&self.folder.join("sandboxes"))
    }

    /// All that is written down of checkpoints.
    pub(super) fn checkpoints(&self) -> Vec<Checkpoint> {
        read_all(&self.folder.join("checkpoints"))
    }

    /// Removes what lies beside records that are not there, of sandboxes and checkpoints that nobody knows.
    pub(super) fn sweep(&self, is_sandbox: impl Fn(&str) -> bool, is_checkpoint: impl Fn(&str) -> bool) {
        let sweep = |folder: &str, is_known: &dyn Fn(&str) -> bool| {
            for path in files(&self.folder.join(folder), &["sock", "environ", "new"]) {
                if !path.file_stem().and_then(OsStr::to_str).is_some_and(is_known) {
                    let _ = std::fs::remove_file(path);
                }
            }
        };
        sweep("sandboxes", &is_sandbox);
        sweep("checkpoints", &is_checkpoint);
    }
}

/// What is written down with an environment beside it.
trait Written: Serialize + DeserializeOwned {
    fn id(&self) -> &str;
    /// As version 2 wrote it: within the record.
    fn environment_within(&mut self) -> &mut Option<Environment>;
}

impl Written for SandboxRecord {
    fn id(&self) -> &str {
        &self.order.id
    }

    fn environment_within(&mut self) -> &mut Option<Environment> {
        &mut self.order.environment
    }
}

impl Written for Checkpoint {
    fn id(&self) -> &str {
        &self.id
    }

    fn environment_within(&mut self) -> &mut Option<Environment> {
        &mut self.environment
    }
}

fn environment_beside(record: &Path) -> PathBuf {
    record.with_extension("environ")
}

fn forget(record: &Path) {
    let _ = std::fs::remove_file(record);
    let _ = std::fs::remove_file(environment_beside(record));
}

fn write_record(path: &Path, value: &impl Written) -> io::Result<()> {
    write(path, &text_of(value)?)
}

/// Refuses what would not fit into a list.
fn text_of(value: &impl Written) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(value)?;
    if text.len() > RECORD_BYTES_MAX {
        let text = format!(
            "it has {} bytes, most of them labels; at most {RECORD_BYTES_MAX} are allowed are allowed",
            text.len()
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(text)
}

/// As a whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, path)
}

/// Files of a folder by the end of their names.
fn files(folder: &Path, kinds: &'static [&'static str]) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(move |path| path.extension().is_some_and(|kind| kinds.iter().any(|wanted| kind == *wanted)))
}

/// What is not a record of the id that its file is named by is put aside under another name, and said once: ids become names of
/// files, disks and groups that are removed. One that cannot be used keeps no other from being read.
fn read_all<T: Written>(folder: &Path) -> Vec<T> {
    let read = |path: PathBuf| {
        let fault = match read::<T>(&path) {
            Ok(value) => return Some(value),
            Err(error) => error.to_string(),
        };
        let aside = path.with_extension("broken");
        let moved = std::fs::rename(&path, &aside);
        let place = if moved.is_ok() { &aside } else { &path };
        eprintln!("a record that cannot be used is left in {}: {fault}", place.display());
        None
    };
    // The folder is read to its end before files in it get other names.
    let found: Vec<PathBuf> = files(folder, &["json"]).collect();
    found.into_iter().filter_map(read).collect()
}

fn read<T: Written>(path: &Path) -> io::Result<T> {
    let mut value: T = serde_json::from_slice(&read_bytes(path)?)?;
    let named = path.file_stem().and_then(OsStr::to_str);
    if !is_id(value.id()) || named != Some(value.id()) {
        return Err(io::Error::other(format!("it is of {:?}", value.id())));
    }
    let environment = value.environment_within().take();
    let text = text_of(&value)?;
    if let Some(environment) = environment {
        write(&environment_beside(path), &environment.0)?;
        write(path, &text)?;
    }
    Ok(value)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it is too long: {} bytes, at most {FILE_BYTES_MAX}",
            found.len()
        )));
    }
    Ok(bytes)
}

/// Whether a text may be an id: it becomes the name of files, disks and groups.
pub(super) fn is_id(id: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !id.starts_with('-')
}

/// Whether a text may be the id of a sandbox, or that of a checkpoint in the name of its disk.
pub(super) fn is_name(name: &str) -> bool {
    is_id(name.strip_prefix(CHECKPOINT).unwrap_or(name))
}

/// The name of a checkpoint's disk.
pub(super) fn checkpoint_name(id: &str) -> String {
    format!("{CHECKPOINT}{id}")
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
    use std::collections::BTreeMap;

    #[test]
    fn records_are_of_the_id_that_names_them_and_others_are_put_aside() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::open(place.path()).unwrap();
        let made = |id: &str| Checkpoint {
            id: id.to_owned(),
            sandbox: "s".to_owned(),
            overlays: Vec::new(),
            holds: Vec::new(),
            environment: Some(Environment::of(&[("A".to_owned(), id.to_owned())])),
            labels: std::collections::BTreeMap::new(),
            created_s: 0,
            frozen_ms: 0,
            bytes: None,
            folder: PathBuf::new(),
        };
        let folder = place.path().join("checkpoints");
        let write = |name: &str, value: &Checkpoint| {
            std::fs::write(folder.join(name), serde_json::to_vec(value).unwrap()).unwrap();
        };
        write("good.json", &made("good"));
        write("evil.json", &made("../../../../tmp/evil"));
        write("other.json", &made("good"));
        std::fs::write(folder.join("garbage.json"), "{").unwrap();
        std::os::unix::fs::symlink(folder.join("good.json"), folder.join("linked.json")).unwrap();
        std::fs::create_dir(folder.join("folder.json")).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("pipe.json"), pipe, mode, 0).unwrap();
        std::fs::File::create(folder.join("huge.json")).unwrap().set_len(1 << 42).unwrap();
        let labels = BTreeMap::from([("a".to_owned(), "x".repeat(RECORD_BYTES_MAX))]);
        write("labels.json", &Checkpoint { labels, ..made("labels") });
        for _ in 0..2 {
            let found: Vec<(String, bool)> =
                home.checkpoints().into_iter().map(|made| (made.id, made.environment.is_some())).collect();
            assert_eq!(found, [("good".to_owned(), false)]);
        }
        let environment = home.checkpoint_environment("good").unwrap();
        assert_eq!(environment.variables(), [("A".to_owned(), "good".to_owned())]);
        let mut left: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("good."))
            .collect();
        left.sort();
        let names = ["evil", "folder", "garbage", "huge", "labels", "linked", "other", "pipe"];
        let aside: Vec<String> = names.iter().map(|name| format!("{name}.broken")).collect();
        assert_eq!(left, aside);
    }
}
