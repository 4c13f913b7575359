//! Compiled code on disk, keyed by the component's digest and the engine's compatibility hash.
//!
//! What is found is run, so the folder is one that nobody else can have put anything into ([`folder`]); without such a
//! folder nothing is kept. An entry is two files: the code as wasmtime serialised it, which is mapped and not read, and a record of it
//! ([`record`]). Each is written to a temporary name and renamed, so a reader sees a whole file or none. The code is hashed where its file
//! is not the one that was hashed last; an entry that is damaged, or made by another engine, is discarded with a warning and
//! compiled again.
#![expect(
    unsafe_code,
    reason = "`Component::deserialize` trusts its bytes: they come from the compiler of this very engine, or from an entry \
              that only this user can have written (`folder`), for this engine and component, and whole: record and \
              checksum say so. The checksum is against damage; against others there are owner and mode. A mapped file is \
              replaced by another, never written into"
)]

pub(crate) mod folder;
mod record;

use crate::{PluginError, World};
use folder::FolderError;
use record::{CodeRecord, FileRecord};
pub(crate) use record::{Identity, Lines};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Bytes of a record: more than the largest settings schema.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// Bytes of code: more than the largest component that is compiled becomes.
const CODE_BYTES_MAX: u64 = 1 << 30;
/// Components below are read and hashed in less time than a record of them.
const NOTED_BYTES_MIN: u64 = 1 << 20;

/// The folder, or none: then nothing is kept.
#[derive(Debug)]
pub(crate) struct CodeCache {
    folder: Option<Folder>,
    engine_hash: u64,
    /// The clock by which files have settled.
    now: fn() -> SystemTime,
}

/// A compiled component.
pub(crate) struct Found {
    pub(crate) component: Component,
    /// Its settings schema as it described it to a host that provides the same packages.
    pub(crate) schema: Option<String>,
}

/// A component that has been recognised before, known by its file alone.
pub(crate) struct KnownFile {
    pub(crate) digest: blake3::Hash,
    pub(crate) world: World,
    pub(crate) size_bytes: u64,
}

#[derive(Debug)]
struct Folder {
    /// For messages: every file is opened by the handle.
    path: PathBuf,
    handle: OwnedFd,
    user: u32,
}

impl CodeCache {
    /// Opens the folder, makes it when missing. One that is not this user's own, or that others can write to, is not used,
    /// which is told once.
    pub(crate) fn open(folder: Option<&Path>, engine: &Engine) -> Result<CodeCache, PluginError> {
        let folder = match folder {
            Some(path) => Folder::open(path)?,
            None => {
                let hint = "set ESPALIER_CACHE to a folder";
                tracing::warn!("compiled plugins are not cached: no cache folder is set; hint: {hint}");
                None
            }
        };
        Ok(CodeCache { folder, engine_hash: compatibility_hash(engine), now: SystemTime::now })
    }

    /// Whether there is a folder.
    pub(crate) fn keeps(&self) -> bool {
        self.folder.is_some()
    }

    /// What tells this engine's code from that of others.
    pub(crate) fn engine_hash(&self) -> u64 {
        self.engine_hash
    }

    /// The compiled component, where a sound entry is there. Its schema was described to a host that provides `packages`. Where
    /// a file of line tables is there, code without them does, if that file was refused for it.
    pub(crate) fn find(
        &self,
        engine: &Engine,
        digest: &blake3::Hash,
        packages: &str,
        lines: Option<&Identity>,
    ) -> Option<Found> {
        let folder = self.folder.as_ref()?;
        let names = self.names(digest);
        let found = folder.open_file(&names.code).and_then(|code| match code {
            Some(code) => self.checked(folder, engine, digest, &names, &code).map(Some),
            None => Ok(None),
        });
        let (component, record) = match found {
            Ok(found) => found.filter(|(_, record)| {
                record.has_lines || lines.is_none() || record.refused_lines.as_ref() == lines
            })?,
            Err(reason) => {
                folder.discard(&[&names.code, &names.record], &reason);
                return None;
            }
        };
        let schema = record.described.filter(|one| one.packages == packages && one.is_whole());
        Some(Found { component, schema: schema.map(|described| described.schema) })
    }

    /// The component of an entry, hashed where its file has changed since it was last.
    fn checked(
        &self,
        folder: &Folder,
        engine: &Engine,
        digest: &blake3::Hash,
        names: &Names,
        code: &std::fs::File,
    ) -> Result<(Component, CodeRecord), String> {
        let mut record: CodeRecord = folder.record(&names.record)?.ok_or("it has no record")?;
        let identity = Identity::of(code).map_err(|error| format!("cannot be read: {error}"))?;
        if !record.is_of(self.engine_hash, digest) {
            return Err("it belongs to another engine or component".to_owned());
        }
        if record.hashed.as_ref() != Some(&identity) {
            let bytes = read(code)?;
            if !record.is_whole(&bytes) {
                return Err("its checksum is wrong".to_owned());
            }
            // One that was written just now may still change unseen.
            if identity.is_settled((self.now)()) {
                record.hashed = Some(identity);
                folder.keep_record(&names.record, &record);
            }
        }
        let component = map(engine, code).map_err(|error| format!("wasmtime refuses it: {error:#}"))?;
        Ok((component, record))
    }

    /// Keeps what was compiled. An entry that cannot be written costs the next start time, nothing else.
    pub(crate) fn keep(&self, digest: &blake3::Hash, code: &[u8], lines: Lines) {
        let Some(folder) = &self.folder else { return };
        let names = self.names(digest);
        match folder.write(&names.code, code) {
            Ok(()) => {
                let record = CodeRecord::of(self.engine_hash, digest, code, lines);
                folder.keep_record(&names.record, &record);
            }
            Err(error) => {
                let path = folder.path.join(&names.code);
                tracing::warn!(path = %path.display(), %error, "cannot cache compiled code");
            }
        }
    }

    /// Keeps the schema that a component has described to a host that provides `packages`.
    pub(crate) fn keep_schema(&self, digest: &blake3::Hash, packages: &str, schema: &str) {
        let Some(folder) = &self.folder else { return };
        let names = self.names(digest);
        if let Ok(Some(record)) = folder.record::<CodeRecord>(&names.record) {
            folder.keep_record(&names.record, &record.describing(packages, schema));
        }
    }

    /// What a file holds, if it is the one that was recognised by a host that provides `packages`.
    pub(crate) fn known_file(&self, path: &Path, packages: &str) -> Option<KnownFile> {
        let folder = self.folder.as_ref()?;
        let identity = Identity::of_path(path).ok()?;
        let record: FileRecord = folder.record(&record::file_name(path)).ok()??;
        record.known(path, &identity, packages)
    }

    /// Keeps what a file holds. `identity` is from before it was read; a file that has changed since, or just before, is not noted.
    pub(crate) fn note_file(&self, path: &Path, identity: &Identity, known: &KnownFile, packages: &str) {
        let Some(folder) = &self.folder else { return };
        if known.size_bytes < NOTED_BYTES_MIN || !identity.is_settled((self.now)()) {
            return;
        }
        if Identity::of_path(path).is_ok_and(|now| now == *identity) {
            folder.keep_record(&record::file_name(path), &FileRecord::of(path, identity, known, packages));
        }
    }

    /// `<digest>-<engine hash>`, `.cwasm` and `.json`.
    fn names(&self, digest: &blake3::Hash) -> Names {
        let entry = format!("{}-{:016x}", digest.to_hex(), self.engine_hash);
        Names { code: format!("{entry}.cwasm"), record: format!("{entry}.json") }
    }
}

/// The files of an entry.
struct Names {
    code: String,
    record: String,
}

impl Folder {
    fn open(path: &Path) -> Result<Option<Folder>, PluginError> {
        let user = rustix::process::geteuid().as_raw();
        match folder::open_own_folder(path) {
            Ok(handle) => Ok(Some(Folder { path: path.to_owned(), handle, user })),
            Err(FolderError::Untrusted(reason)) => {
                let path = path.display();
                tracing::warn!(
                    "compiled plugins are not cached in {path}: {reason}; hint: set ESPALIER_CACHE to a folder that you own"
                );
                Ok(None)
            }
            Err(FolderError::Io(source)) => Err(PluginError::CacheFolder { folder: path.to_owned(), source }),
        }
    }

    /// A plain file that only this user can have written.
    fn open_file(&self, name: &str) -> Result<Option<std::fs::File>, String> {
        let failed = |error: Errno| format!("cannot be read: {}", std::io::Error::from(error));
        // A FIFO of that name is not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err("it is a link".to_owned()),
            Err(error) => return Err(failed(error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("it is not a regular file".to_owned());
        }
        if stat.st_uid != self.user || stat.st_mode & 0o022 != 0 {
            let mode = stat.st_mode & 0o7777;
            return Err(format!("other users could have written it (uid {}, mode {mode:04o})", stat.st_uid));
        }
        let most = if name.ends_with(".json") { RECORD_BYTES_MAX } else { CODE_BYTES_MAX };
        if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > most {
            return Err(format!("it has more than {most} bytes"));
        }
        Ok(Some(file.into()))
    }

    fn record<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let record = serde_json::from_slice(&read(&file)?);
        record.map(Some).map_err(|error| format!("its record is damaged: {error}"))
    }

    /// A record that cannot be written costs the next start time, nothing else.
    fn keep_record(&self, name: &str, record: &impl Serialize) {
        let bytes = serde_json::to_vec(record).expect("a record is JSON");
        if let Err(error) = self.write(name, &bytes) {
            tracing::warn!(path = %self.path.join(name).display(), %error, "cannot keep a record of compiled code");
        }
    }

    /// Puts a whole file there.
    fn write(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let temporary = format!("{name}-{}-{number}.tmp", std::process::id());
        // Left by a process of the same number that was killed.
        let _ = rustix::fs::unlinkat(&self.handle, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let written = (|| {
            let mut file = std::fs::File::from(rustix::fs::openat(&self.handle, &temporary, flags, mode)?);
            file.write_all(bytes)?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(&self.handle, &temporary, &self.handle, name)?)
        })();
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.handle, &temporary, AtFlags::empty());
        }
        written
    }

    fn discard(&self, names: &[&str], reason: &str) {
        let path = self.path.join(names[0]);
        tracing::warn!(path = %path.display(), reason, "discarding an entry of the code cache; it is compiled again");
        for name in names {
            match rustix::fs::unlinkat(&self.handle, *name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    let (path, error) = (self.path.join(name), std::io::Error::from(error));
                    tracing::warn!(path = %path.display(), %error, "the entry cannot be removed");
                }
            }
        }
    }
}

fn read(mut file: &std::fs::File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(bytes)
}

/// The component of code that this very engine's compiler made.
pub(crate) fn component(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the caller passes what the compiler made a moment ago, or `map` what `checked` has established that `keep` stored for
    // this engine in a folder that nobody else can write to.
    unsafe { Component::deserialize(engine, code) }
}

/// The same of a file, without reading it; where /proc is not mounted it is read.
fn map(engine: &Engine, code: &std::fs::File) -> wasmtime::Result<Component> {
    let by_handle = PathBuf::from(format!("/proc/self/fd/{}", code.as_raw_fd()));
    if by_handle.exists() {
        // SAFETY: as in `component`; nobody writes into the file, which is only ever replaced by another.
        return unsafe { Component::deserialize_file(engine, by_handle) };
    }
    component(engine, &read(code).map_err(wasmtime::Error::msg)?)
}

pub(crate) fn compatibility_hash(engine: &Engine) -> u64 {
    /// Feeds what is hashed into blake3: the standard hasher may change between releases of Rust, and with it the key.
    struct Stable(blake3::Hasher);
    impl Hasher for Stable {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            let hash = self.0.finalize();
            u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
        }
    }
    let mut hasher = Stable(blake3::Hasher::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPONENT: &str = "(component)";
    const PACKAGES: &str = "espalier:base@0.1.0";

    /// Whether it was found; else it is compiled and kept.
    fn is_found(cache: &CodeCache, engine: &Engine) -> bool {
        let wasm = wat::parse_str(COMPONENT).unwrap();
        let digest = blake3::hash(&wasm);
        if cache.find(engine, &digest, PACKAGES, None).is_some() {
            return true;
        }
        cache.keep(&digest, &engine.precompile_component(&wasm).unwrap(), Lines::None);
        false
    }

    /// A cache with its entry.
    fn filled(engine: &Engine) -> (tempfile::TempDir, CodeCache, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let cache = CodeCache::open(Some(folder.path()), engine).unwrap();
        assert!(!is_found(&cache, engine));
        assert!(is_found(&cache, engine));
        let names = cache.names(&blake3::hash(&wat::parse_str(COMPONENT).unwrap()));
        let entry = folder.path().join(names.code);
        (folder, cache, entry)
    }

    #[test]
    fn a_sound_entry_is_used_and_any_other_is_replaced() {
        let engine = crate::engine::build(1).unwrap();
        let (folder, cache, path) = filled(&engine);
        let sound = std::fs::read(&path).unwrap();
        let changed = |at: usize| {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            bytes
        };
        let damages: Vec<(&str, Vec<u8>)> = vec![
            ("empty", Vec::new()),
            ("cut", sound[..sound.len() / 2].to_vec()),
            ("longer", [&sound[..], b"x"].concat()),
            ("foreign", b"MZ".repeat(200)),
            ("a bit of the code", changed(sound.len() - 1)),
        ];
        for (name, bytes) in damages {
            std::fs::write(&path, bytes).unwrap();
            assert!(!is_found(&cache, &engine), "{name}");
            assert!(is_found(&cache, &engine), "{name}: replaced");
            assert_eq!(std::fs::read(&path).unwrap(), sound, "{name}");
        }
        let record = path.with_extension("json");
        let kept = std::fs::read_to_string(&record).unwrap();
        let value: serde_json::Value = serde_json::from_str(&kept).unwrap();
        let with = |key: &str, other: serde_json::Value| {
            let mut value = value.clone();
            value[key] = other;
            value.to_string()
        };
        let damages = [
            ("no record", None),
            ("a record cut off", Some(kept[..kept.len() / 2].to_owned())),
            ("another engine", Some(with("engine", "0".repeat(16).into()))),
            ("another component", Some(with("component", "0".repeat(64).into()))),
            ("another layout", Some(with("layout", 1.into()))),
        ];
        for (name, text) in damages {
            match text {
                Some(text) => std::fs::write(&record, text).unwrap(),
                None => std::fs::remove_file(&record).unwrap(),
            }
            assert!(!is_found(&cache, &engine), "{name}");
            assert!(is_found(&cache, &engine), "{name}: replaced");
        }
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 2, "no temporary file stays");
    }

    /// When files of a test have settled.
    fn later() -> SystemTime {
        SystemTime::now() + std::time::Duration::from_secs(60)
    }

    /// A copy of the same bytes is hashed once and found again.
    #[test]
    fn code_is_hashed_where_its_file_is_another() {
        let engine = crate::engine::build(1).unwrap();
        let (_folder, cache, path) = filled(&engine);
        let cache = CodeCache { now: later, ..cache };
        let record = || std::fs::read_to_string(path.with_extension("json")).unwrap();
        assert!(is_found(&cache, &engine));
        let before = record();
        assert!(is_found(&cache, &engine));
        assert_eq!(record(), before, "the same file is not hashed again");
        let copy = path.with_extension("copy");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        assert!(is_found(&cache, &engine));
        assert_ne!(record(), before, "it says which file was hashed");
    }

    #[test]
    fn a_schema_is_kept_for_hosts_that_provide_the_same() {
        let engine = crate::engine::build(1).unwrap();
        let (_folder, cache, path) = filled(&engine);
        let digest = blake3::hash(&wat::parse_str(COMPONENT).unwrap());
        let schema = |packages: &str| cache.find(&engine, &digest, packages, None).unwrap().schema;
        assert_eq!(schema(PACKAGES), None);
        cache.keep_schema(&digest, PACKAGES, "{}");
        assert_eq!(schema(PACKAGES), Some("{}".to_owned()));
        assert_eq!(schema("espalier:base@0.2.0"), None);
        let record = path.with_extension("json");
        let damaged = std::fs::read_to_string(&record).unwrap().replace("\"{}\"", "\"[]\"");
        std::fs::write(&record, damaged).unwrap();
        assert_eq!(schema(PACKAGES), None, "a damaged one is asked for again");
    }

    #[test]
    fn code_without_line_tables_gives_way_to_code_with_them() {
        let engine = crate::engine::build(1).unwrap();
        let (folder, cache, _) = filled(&engine);
        let wasm = wat::parse_str(COMPONENT).unwrap();
        let digest = blake3::hash(&wasm);
        let lines = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            Identity::of_path(&path).unwrap()
        };
        let (one, other) = (lines("one"), lines("another"));
        let is_found = |lines| cache.find(&engine, &digest, PACKAGES, lines).is_some();
        assert_eq!((is_found(None), is_found(Some(&one))), (true, false));
        let code = engine.precompile_component(&wasm).unwrap();
        cache.keep(&digest, &code, Lines::Refused(one.clone()));
        assert_eq!((is_found(Some(&one)), is_found(Some(&other))), (true, false), "refused once is enough");
        cache.keep(&digest, &code, Lines::Used);
        assert_eq!((is_found(None), is_found(Some(&one))), (true, true));
    }

    #[test]
    fn a_file_is_known_until_it_changes() {
        let engine = crate::engine::build(1).unwrap();
        let (folder, cache, _) = filled(&engine);
        let path = folder.path().join("plugin.wasm");
        let bytes = vec![7; 2 << 20];
        std::fs::write(&path, &bytes).unwrap();
        let known =
            KnownFile { digest: blake3::hash(&bytes), world: World::Harness, size_bytes: bytes.len() as u64 };
        let fresh = Identity::of_path(&path).unwrap();
        cache.note_file(&path, &fresh, &known, PACKAGES);
        assert!(cache.known_file(&path, PACKAGES).is_none(), "what was written just now may change unseen");
        let cache = CodeCache { now: later, ..cache };
        cache.note_file(&path, &fresh, &known, PACKAGES);
        let found = cache.known_file(&path, PACKAGES).unwrap();
        assert_eq!((found.digest, found.world), (known.digest, known.world));
        assert!(cache.known_file(&path, "espalier:base@0.2.0").is_none());
        std::fs::write(&path, &bytes[1..]).unwrap();
        assert!(cache.known_file(&path, PACKAGES).is_none());
    }

    /// Sound bytes count for nothing where somebody else may have written them.
    #[test]
    fn an_entry_that_others_may_have_written_is_replaced() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let engine = crate::engine::build(1).unwrap();
        let (folder, cache, path) = filled(&engine);
        let elsewhere = folder.path().join("elsewhere");
        std::fs::copy(&path, &elsewhere).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let root = rustix::process::geteuid().is_root();
        let given = || std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let attacks: [(&str, &dyn Fn()); 5] = [
            ("written by all", &|| mode(0o666)),
            ("written by the group", &|| mode(0o660)),
            ("a link", &|| {
                std::fs::remove_file(&path).unwrap();
                symlink(&elsewhere, &path).unwrap();
            }),
            ("a FIFO", &|| {
                std::fs::remove_file(&path).unwrap();
                rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
            }),
            // Only root can give files away.
            ("of another user", &|| if root { given() } else { mode(0o606) }),
        ];
        for (name, attack) in attacks {
            attack();
            assert!(!is_found(&cache, &engine), "{name}");
            assert!(is_found(&cache, &engine), "{name}: replaced");
        }
    }

    #[test]
    fn without_a_folder_of_ones_own_nothing_is_kept() {
        use std::os::unix::fs::PermissionsExt;
        let engine = crate::engine::build(1).unwrap();
        let (folder, _, path) = filled(&engine);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        for named in [Some(folder.path()), None] {
            let cache = CodeCache::open(named, &engine).unwrap();
            assert!(!is_found(&cache, &engine));
            assert!(!is_found(&cache, &engine));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let engine = crate::engine::build(1).unwrap();
        let error = CodeCache::open(Some(Path::new("/proc/none/cache")), &engine).unwrap_err();
        assert!(matches!(error, PluginError::CacheFolder { .. }), "{error}");
        assert_eq!(error.to_string(), "plugin host: cache folder /proc/none/cache");
    }

    /// Code is made by an engine that reserves no memory for instances.
    #[test]
    fn the_compilers_engine_makes_code_for_the_hosts() {
        let compiling = compatibility_hash(&crate::engine::for_compiling().unwrap());
        assert_eq!(compiling, compatibility_hash(&crate::engine::build(1).unwrap()));
    }
}
