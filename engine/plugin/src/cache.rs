//! Compiled code on disk, keyed by the component's digest and the engine's compatibility hash.
//!
//! What is found is run, so the folder is one that nobody else can have put anything into ([`folder`]); without such a
//! folder nothing is kept. An entry is one file: a header of this module, then the code as wasmtime serialised it. It is written to a temporary
//! name and renamed, so a reader sees a whole entry or none; an entry that is damaged, or made by another engine, is
//! discarded with a warning and compiled again.
#![expect(
    unsafe_code,
    reason = "`Component::deserialize` trusts its bytes: they come from the compiler of this very engine, or from an entry \
              that only this user can have written (`folder`), for this engine and component, and whole: the header and \
              its checksum say so. The checksum is against damage; against others there are owner and mode"
)]

pub(crate) mod folder;

use crate::PluginError;
use folder::FolderError;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

/// First bytes of an entry; a changed layout is a new word.
const MAGIC: &[u8; 16] = b"espalier-code/1\n";
/// Magic, engine hash, component digest, length of the code, checksum.
const HEADER_BYTES: usize = 16 + 8 + 32 + 8 + 32;

/// Bytes of an entry: more than the largest component that is compiled becomes.
const ENTRY_BYTES_MAX: u64 = 1 << 30;

/// The folder, or none: then nothing is kept.
#[derive(Debug)]
pub(crate) struct CodeCache {
    folder: Option<Folder>,
    engine_hash: u64,
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
        Ok(CodeCache { folder, engine_hash: compatibility_hash(engine) })
    }

    /// Whether there is a folder.
    pub(crate) fn keeps(&self) -> bool {
        self.folder.is_some()
    }

    /// What tells this engine's code from that of others.
    pub(crate) fn engine_hash(&self) -> u64 {
        self.engine_hash
    }

    /// The compiled component, where a sound entry is there.
    pub(crate) fn find(&self, engine: &Engine, digest: &blake3::Hash) -> Option<Component> {
        let folder = self.folder.as_ref()?;
        let name = self.entry(digest);
        let found = folder.read(&name).and_then(|entry| match entry {
            Some(entry) => {
                let code = self.check(&entry, digest)?;
                component(engine, code).map(Some).map_err(|error| format!("wasmtime refuses it: {error:#}"))
            }
            None => Ok(None),
        });
        found.unwrap_or_else(|reason| {
            folder.discard(&name, &reason);
            None
        })
    }

    /// Keeps what was compiled. An entry that cannot be written costs the next start time, nothing else.
    pub(crate) fn keep(&self, digest: &blake3::Hash, code: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let name = self.entry(digest);
        if let Err(error) = folder.write(&name, &self.header(digest, code), code) {
            tracing::warn!(path = %folder.path.join(name).display(), %error, "cannot cache compiled code");
        }
    }

    /// `<digest>-<engine hash>.cwasm`.
    fn entry(&self, digest: &blake3::Hash) -> String {
        format!("{}-{:016x}.cwasm", digest.to_hex(), self.engine_hash)
    }

    fn header(&self, digest: &blake3::Hash, code: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..16].copy_from_slice(MAGIC);
        header[16..24].copy_from_slice(&self.engine_hash.to_le_bytes());
        header[24..56].copy_from_slice(digest.as_bytes());
        header[56..64].copy_from_slice(&(code.len() as u64).to_le_bytes());
        let mut checksum = blake3::Hasher::new();
        checksum.update(&header[..64]);
        checksum.update(code);
        header[64..].copy_from_slice(checksum.finalize().as_bytes());
        header
    }

    fn check<'a>(&self, entry: &'a [u8], digest: &blake3::Hash) -> Result<&'a [u8], String> {
        self.check_header(entry, digest).map_err(str::to_owned)
    }

    fn check_header<'a>(&self, entry: &'a [u8], digest: &blake3::Hash) -> Result<&'a [u8], &'static str> {
        let (header, code) = entry.split_at_checked(HEADER_BYTES).ok_or("it is shorter than its header")?;
        if &header[..16] != MAGIC {
            return Err("not an entry of this cache");
        }
        let expected = self.header(digest, code);
        if header[16..56] != expected[16..56] {
            return Err("it belongs to another engine or component");
        }
        if header[56..] != expected[56..] {
            return Err("its checksum is wrong");
        }
        Ok(code)
    }
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

    /// The bytes of a plain file that only this user can have written.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
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
        let mut entry = Vec::new();
        let read = std::fs::File::from(file).take(ENTRY_BYTES_MAX + 1).read_to_end(&mut entry);
        read.map_err(|error| format!("cannot be read: {error}"))?;
        if entry.len() as u64 > ENTRY_BYTES_MAX {
            return Err(format!("it has more than {ENTRY_BYTES_MAX} bytes"));
        }
        Ok(Some(entry))
    }

    fn write(&self, name: &str, header: &[u8], code: &[u8]) -> std::io::Result<()> {
        static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let temporary = format!("{name}-{}-{number}.tmp", std::process::id());
        // Left by a process of the same number that was killed.
        let _ = rustix::fs::unlinkat(&self.handle, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let written = (|| {
            let mut file = std::fs::File::from(rustix::fs::openat(&self.handle, &temporary, flags, mode)?);
            file.write_all(header)?;
            file.write_all(code)?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(&self.handle, &temporary, &self.handle, name)?)
        })();
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.handle, &temporary, AtFlags::empty());
        }
        written
    }

    fn discard(&self, name: &str, reason: &str) {
        let path = self.path.join(name);
        tracing::warn!(path = %path.display(), reason, "discarding an entry of the code cache; it is compiled again");
        if let Err(error) = rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()) {
            let error = std::io::Error::from(error);
            tracing::warn!(path = %path.display(), %error, "the entry cannot be removed");
        }
    }
}

/// The component of code that this very engine's compiler made.
pub(crate) fn component(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the callers pass what the compiler made a moment ago, or what `find` has established that `keep` stored for
    // this engine in a folder that nobody else can write to.
    unsafe { Component::deserialize(engine, code) }
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

    /// Whether it was found; else it is compiled and kept.
    fn is_found(cache: &CodeCache, engine: &Engine) -> bool {
        let wasm = wat::parse_str(COMPONENT).unwrap();
        let digest = blake3::hash(&wasm);
        if cache.find(engine, &digest).is_some() {
            return true;
        }
        cache.keep(&digest, &engine.precompile_component(&wasm).unwrap());
        false
    }

    /// A cache with its entry.
    fn filled(engine: &Engine) -> (tempfile::TempDir, CodeCache, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let cache = CodeCache::open(Some(folder.path()), engine).unwrap();
        assert!(!is_found(&cache, engine));
        assert!(is_found(&cache, engine));
        let entry = folder.path().join(cache.entry(&blake3::hash(&wat::parse_str(COMPONENT).unwrap())));
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
            ("another engine", changed(16)),
            ("another component", changed(24)),
        ];
        for (name, bytes) in damages {
            std::fs::write(&path, bytes).unwrap();
            assert!(!is_found(&cache, &engine), "{name}");
            assert!(is_found(&cache, &engine), "{name}: replaced");
            assert_eq!(std::fs::read(&path).unwrap(), sound, "{name}");
        }
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "no temporary file stays");
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
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
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
