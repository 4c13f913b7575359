//! A folder that is served: read once and kept in memory, so that what a run serves is what its digest says.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use walkdir::WalkDir;

/// Bytes of all its files.
const BYTES_MAX: u64 = 256 << 20;
/// Its files.
const FILES_MAX: usize = 20_000;

/// The files of a folder, by their paths from it, parts joined by `/`.
#[derive(Debug)]
pub struct Folder {
    files: BTreeMap<String, Bytes>,
    digest: String,
}

impl Folder {
    /// Reads it, hidden files left out. Links lead to where they lead. Errors: what is wrong, without the folder's name. Blocks.
    pub fn read(folder: &Path) -> Result<Folder, String> {
        if !folder.is_dir() {
            return Err("no such folder".to_owned());
        }
        let mut files = BTreeMap::new();
        let mut bytes = 0;
        let hidden = |entry: &walkdir::DirEntry| {
            entry.depth() > 0 && entry.file_name().to_str().is_some_and(|name| name.starts_with('.'))
        };
        let entries = WalkDir::new(folder).follow_links(true).max_depth(32);
        for entry in entries.into_iter().filter_entry(|entry| !hidden(entry)) {
            let entry = entry.map_err(|error| error.to_string())?;
            if !entry.file_type().is_file() {
                continue;
            }
            let path = entry.path().strip_prefix(folder).unwrap_or(entry.path());
            let parts: Option<Vec<&str>> = path.iter().map(|part| part.to_str()).collect();
            let name =
                parts.ok_or_else(|| format!("{}: a name that is not UTF-8", path.display()))?.join("/");
            let length = entry.metadata().map_err(|error| error.to_string())?.len();
            bytes += length;
            if bytes > BYTES_MAX || files.len() >= FILES_MAX {
                return Err(format!("more than {} MiB, or than {FILES_MAX} files", BYTES_MAX >> 20));
            }
            let content = std::fs::read(entry.path()).map_err(|error| format!("{name}: {error}"))?;
            files.insert(name, Bytes::from(content));
        }
        Ok(Folder::of(files))
    }

    fn of(files: BTreeMap<String, Bytes>) -> Folder {
        let mut hasher = blake3::Hasher::new();
        for (name, content) in &files {
            for part in [name.as_bytes(), content] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        let digest = hasher.finalize().to_hex().to_string();
        Folder { files, digest }
    }

    /// blake3 over names and contents, hex.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The file at a path, which begins without `/`. `..` leads nowhere: names are looked up, not followed.
    pub fn file(&self, path: &str) -> Option<&Bytes> {
        self.files.get(path)
    }

    /// The paths of all files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

/// The media type of a file, by the end of its name.
pub fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end).to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "txt" | "md" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_contents_make_the_digest_and_hidden_files_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("index.html", "a");
        write("core/core.js", "b");
        write(".git/config", "c");
        let read = || Folder::read(folder.path()).unwrap();
        let first = read();
        assert_eq!(first.paths().collect::<Vec<_>>(), ["core/core.js", "index.html"]);
        assert_eq!(first.file("core/core.js").unwrap(), "b");
        assert_eq!(first.file("core/../index.html"), None);
        write(".git/config", "d");
        assert_eq!(read().digest(), first.digest());
        write("core/core.js", "c");
        assert_ne!(read().digest(), first.digest());
        assert_eq!(Folder::read(&folder.path().join("no")).unwrap_err(), "no such folder");
    }
}
