//! What the cache keeps beside code: which component and engine it belongs to, and which files have been hashed already.

use super::KnownFile;
use crate::World;
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A changed layout is a new number.
const LAYOUT: u32 = 2;
/// A file that has not changed for this long cannot have changed within the same tick of its file system's clock.
const SETTLED: Duration = Duration::from_secs(2);

/// Which file it is, and that nobody has written to it since: the kernel sets the time of the last change itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// ns since 1970.
    modified_ns: i64,
    /// The same of the last change of content, name or mode.
    changed_ns: i64,
}

impl Identity {
    pub(super) fn of(file: &std::fs::File) -> std::io::Result<Identity> {
        Ok(Identity::of_metadata(&file.metadata()?))
    }

    pub(crate) fn of_path(path: &Path) -> std::io::Result<Identity> {
        Ok(Identity::of_metadata(&std::fs::metadata(path)?))
    }

    fn of_metadata(data: &std::fs::Metadata) -> Identity {
        let ns = |seconds: i64, part: i64| seconds.saturating_mul(1_000_000_000).saturating_add(part);
        Identity {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.size(),
            modified_ns: ns(data.mtime(), data.mtime_nsec()),
            changed_ns: ns(data.ctime(), data.ctime_nsec()),
        }
    }

    /// Whether the last change is so long ago that another one would show.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        let changed = u64::try_from(self.changed_ns).map(Duration::from_nanos).unwrap_or_default();
        now.duration_since(UNIX_EPOCH).is_ok_and(|now| now.saturating_sub(changed) > SETTLED)
    }
}

/// Of one entry of compiled code.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CodeRecord {
    layout: u32,
    /// Compatibility hash of the engine, hex.
    engine: String,
    /// Digest of the component, hex.
    component: String,
    bytes: u64,
    /// blake3 of the code, hex.
    checksum: String,
    /// Whether it was compiled with line tables.
    pub(super) has_lines: bool,
    /// A file of line tables that was there and belongs to another build.
    #[serde(default)]
    pub(super) refused_lines: Option<Identity>,
    /// The file that was hashed last, and had settled before.
    pub(super) hashed: Option<Identity>,
    #[serde(default)]
    pub(super) described: Option<Described>,
}

/// What a component said of its settings.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Described {
    /// What the host provided, which checked the types of its exports.
    pub(super) packages: String,
    pub(super) schema: String,
    /// blake3 of the schema, hex.
    #[serde(default)]
    checksum: String,
}

impl Described {
    pub(super) fn is_whole(&self) -> bool {
        self.checksum == blake3::hash(self.schema.as_bytes()).to_hex().as_str()
    }
}

/// What became of the line tables beside a component when it was compiled.
pub(crate) enum Lines {
    /// There were none.
    None,
    /// They are in the code.
    Used,
    /// This file belongs to another build.
    Refused(Identity),
}

impl CodeRecord {
    pub(super) fn of(engine_hash: u64, digest: &blake3::Hash, code: &[u8], lines: Lines) -> CodeRecord {
        let (has_lines, refused_lines) = match lines {
            Lines::None => (false, None),
            Lines::Used => (true, None),
            Lines::Refused(file) => (false, Some(file)),
        };
        CodeRecord {
            layout: LAYOUT,
            engine: format!("{engine_hash:016x}"),
            component: digest.to_hex().to_string(),
            bytes: code.len() as u64,
            checksum: blake3::hash(code).to_hex().to_string(),
            has_lines,
            refused_lines,
            hashed: None,
            described: None,
        }
    }

    pub(super) fn is_of(&self, engine_hash: u64, digest: &blake3::Hash) -> bool {
        self.layout == LAYOUT
            && self.engine == format!("{engine_hash:016x}")
            && self.component == digest.to_hex().as_str()
    }

    pub(super) fn is_whole(&self, code: &[u8]) -> bool {
        self.bytes == code.len() as u64 && self.checksum == blake3::hash(code).to_hex().as_str()
    }

    pub(super) fn describing(self, packages: &str, schema: &str) -> CodeRecord {
        let checksum = blake3::hash(schema.as_bytes()).to_hex().to_string();
        let described = Described { packages: packages.to_owned(), schema: schema.to_owned(), checksum };
        CodeRecord { described: Some(described), ..self }
    }
}

/// Of a component's own file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileRecord {
    layout: u32,
    path: String,
    file: Identity,
    digest: String,
    world: String,
    packages: String,
}

impl FileRecord {
    pub(super) fn of(path: &Path, file: &Identity, known: &KnownFile, packages: &str) -> FileRecord {
        FileRecord {
            layout: LAYOUT,
            path: path.to_string_lossy().into_owned(),
            file: file.clone(),
            digest: known.digest.to_hex().to_string(),
            world: known.world.as_str().to_owned(),
            packages: packages.to_owned(),
        }
    }

    pub(super) fn known(&self, path: &Path, file: &Identity, packages: &str) -> Option<KnownFile> {
        let is_same = self.layout == LAYOUT
            && self.path == path.to_string_lossy()
            && self.file == *file
            && self.packages == packages;
        let world = World::ALL.into_iter().find(|world| world.as_str() == self.world);
        let digest = blake3::Hash::from_hex(&self.digest).ok().filter(|_| is_same)?;
        Some(KnownFile { digest, world: world?, size_bytes: file.bytes })
    }
}

/// The name of the record of a component's own file.
pub(super) fn file_name(path: &Path) -> String {
    format!("file-{}.json", blake3::hash(path.as_os_str().as_bytes()).to_hex())
}
