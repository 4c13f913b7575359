//! Compiled code on disk, keyed by the component's digest and the engine's compatibility hash.
//!
//! An entry is one file: a header of this module, then the code as wasmtime serialised it. It is written to a temporary
//! name and renamed, so a reader sees a whole entry or none; an entry that is damaged, or made by another engine, is
//! discarded with a warning and compiled again.
#![expect(
    unsafe_code,
    reason = "`Component::deserialize` trusts its bytes: they are the bytes this module wrote for this very engine, which \
              the checksum over header and code establishes before the call. Whoever can forge a checksum can write to \
              the cache folder, and so could replace the engine's own binary as well; the folder is made private (0700)"
)]

use crate::PluginError;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

/// First bytes of an entry; a changed layout is a new word.
const MAGIC: &[u8; 16] = b"espalier-code/1\n";
/// Magic, engine hash, component digest, length of the code, checksum.
const HEADER_BYTES: usize = 16 + 8 + 32 + 8 + 32;

/// Where a component came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// From an entry on disk.
    Cache,
    /// Compiled now.
    Compiled,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct CodeCache {
    folder: PathBuf,
    engine_hash: u64,
}

impl CodeCache {
    /// Opens the folder, makes it when missing.
    pub(crate) fn open(folder: &Path, engine: &Engine) -> Result<CodeCache, PluginError> {
        let fault =
            |error: std::io::Error| PluginError::Host(format!("cache folder {}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(fault)?;
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).map_err(fault)?;
        Ok(CodeCache { folder: folder.to_owned(), engine_hash: compatibility_hash(engine) })
    }

    /// The compiled component: from disk where a sound entry is there, else compiled and kept. An entry that cannot be
    /// written costs the next start time, nothing else.
    pub(crate) fn load(
        &self,
        engine: &Engine,
        digest: &blake3::Hash,
        wasm: &[u8],
    ) -> wasmtime::Result<(Component, Source)> {
        let path = self.entry(digest);
        match std::fs::read(&path) {
            Ok(entry) => match self.check(&entry, digest) {
                Ok(code) => {
                    // SAFETY: `check` has established that these are bytes which `write` stored for this engine.
                    match unsafe { Component::deserialize(engine, code) } {
                        Ok(component) => return Ok((component, Source::Cache)),
                        Err(error) => discard(&path, &format!("wasmtime refuses it: {error:#}")),
                    }
                }
                Err(reason) => discard(&path, reason),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => discard(&path, &format!("cannot be read: {error}")),
        }
        let code = engine.precompile_component(wasm)?;
        if let Err(error) = self.write(&path, digest, &code) {
            tracing::warn!(path = %path.display(), %error, "compiled code cannot be kept");
        }
        // SAFETY: the bytes come from `precompile_component` of this engine, one statement ago.
        let component = unsafe { Component::deserialize(engine, &code) }?;
        Ok((component, Source::Compiled))
    }

    /// `<digest>-<engine hash>.cwasm`.
    fn entry(&self, digest: &blake3::Hash) -> PathBuf {
        self.folder.join(format!("{}-{:016x}.cwasm", digest.to_hex(), self.engine_hash))
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

    fn check<'a>(&self, entry: &'a [u8], digest: &blake3::Hash) -> Result<&'a [u8], &'static str> {
        let (header, code) = entry.split_at_checked(HEADER_BYTES).ok_or("it is shorter than its header")?;
        if &header[..16] != MAGIC {
            return Err("it is no entry of this cache");
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

    fn write(&self, path: &Path, digest: &blake3::Hash, code: &[u8]) -> std::io::Result<()> {
        static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let temporary = self.folder.join(format!("{}-{}-{number}.tmp", digest.to_hex(), std::process::id()));
        let written = (|| {
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(&self.header(digest, code))?;
            file.write_all(code)?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}

fn discard(path: &Path, reason: &str) {
    tracing::warn!(path = %path.display(), reason, "discarding an entry of the code cache; it is compiled again");
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the entry cannot be removed");
    }
}

fn compatibility_hash(engine: &Engine) -> u64 {
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

    fn load(cache: &CodeCache, engine: &Engine) -> Source {
        let wasm = wat::parse_str(COMPONENT).unwrap();
        cache.load(engine, &blake3::hash(&wasm), &wasm).unwrap().1
    }

    #[test]
    fn a_sound_entry_is_used_and_any_other_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let engine = crate::engine::build(1).unwrap();
        let cache = CodeCache::open(folder.path(), &engine).unwrap();
        assert_eq!(load(&cache, &engine), Source::Compiled);
        assert_eq!(load(&cache, &engine), Source::Cache);
        let path = cache.entry(&blake3::hash(&wat::parse_str(COMPONENT).unwrap()));
        let sound = std::fs::read(&path).unwrap();
        let damages: Vec<(&str, Vec<u8>)> = vec![
            ("empty", Vec::new()),
            ("cut", sound[..sound.len() / 2].to_vec()),
            ("longer", [&sound[..], b"x"].concat()),
            ("foreign", b"MZ".repeat(200)),
            ("a bit of the code", {
                let mut bytes = sound.clone();
                *bytes.last_mut().unwrap() ^= 1;
                bytes
            }),
            ("another engine", {
                let mut bytes = sound.clone();
                bytes[16] ^= 1;
                bytes
            }),
            ("another component", {
                let mut bytes = sound.clone();
                bytes[24] ^= 1;
                bytes
            }),
        ];
        for (name, bytes) in damages {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(load(&cache, &engine), Source::Compiled, "{name}");
            assert_eq!(load(&cache, &engine), Source::Cache, "{name}: replaced");
            assert_eq!(std::fs::read(&path).unwrap(), sound, "{name}");
        }
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "no temporary file stays");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let engine = crate::engine::build(1).unwrap();
        let error = CodeCache::open(Path::new("/proc/none/cache"), &engine).unwrap_err();
        assert!(error.to_string().starts_with("plugin host: cache folder /proc/none/cache: "), "{error}");
    }
}
