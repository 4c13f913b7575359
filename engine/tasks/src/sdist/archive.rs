//! Source archives: which file it is, and what it holds. Nothing of them is ever carried out here, nor written anywhere.

use super::{SdistError, SourceFile, Tree, Version, plain};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Most bytes that an archive holds, unpacked.
const BYTES_MAX: u64 = 64 << 20;
/// Most files of an archive.
const FILES_MAX: usize = 20_000;

/// The archive of a release in a folder; names of packages are written in several ways.
pub(super) fn find(folder: &Path, name: &str, version: &str) -> Option<PathBuf> {
    let wanted = format!("{}_{}", plain(name), plain(version));
    // 1.0 and 1.0.0 are one version.
    let same = |stem: &str| {
        let (package, other) = stem.rsplit_once('-')?;
        Some(plain(package) == plain(name) && Version::parse(other)? == Version::parse(version)?)
    };
    let entries = std::fs::read_dir(folder).ok()?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().find(|path| {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem = file.strip_suffix(".tar.gz");
        stem.is_some_and(|stem| plain(stem) == wanted || same(stem).unwrap_or(false))
    })
}

/// The files of an archive without the one folder around them, and the version that it says of itself. Links are left out.
pub(super) fn read(file: &Path) -> Result<(Tree, Option<String>), SdistError> {
    let bad = |why: &str| SdistError::Archive { file: file.to_owned(), why: why.to_owned() };
    let read = |error: io::Error| bad(&format!("cannot be read as .tar.gz: {error}"));
    let opened = File::open(file).map_err(|error| bad(&error.to_string()))?;
    let mut archive = tar::Archive::new(MultiGzDecoder::new(opened).take(BYTES_MAX + 1));
    let mut tree = Tree::new();
    let mut bytes_in_all = 0;
    for entry in archive.entries().map_err(read)? {
        let mut entry = entry.map_err(read)?;
        let path = entry.path().map_err(read)?.into_owned();
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = inner(&path).map_err(|why| bad(&format!("{} {why}", path.display())))?;
        // What lies beside the folder is not part of the release.
        if name.is_empty() {
            continue;
        }
        bytes_in_all += entry.size();
        if bytes_in_all > BYTES_MAX || tree.len() >= FILES_MAX {
            let text = format!("more than {} MiB or {FILES_MAX} files", BYTES_MAX >> 20);
            return Err(bad(&text));
        }
        let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(read)?;
        tree.insert(name, SourceFile { bytes, executable });
    }
    let said = tree.get("PKG-INFO").and_then(|file| version_of(&file.bytes));
    if tree.is_empty() { Err(bad("it contains no files")) } else { Ok((tree, said)) }
}

/// A name below the archive's one folder; empty: above it. Or why it is none.
fn inner(path: &Path) -> Result<String, &'static str> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.to_str().ok_or("has a name that is not UTF-8")?),
            Component::CurDir => {}
            _ => return Err("would be outside of the archive"),
        }
    }
    Ok(names.get(1..).unwrap_or_default().join("/"))
}

fn version_of(metadata: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(metadata);
    let head = text.split("\n\n").next().unwrap_or_default();
    head.lines().find_map(|line| line.strip_prefix("Version:")).map(|version| version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn packed<P: AsRef<[u8]>>(files: &[(P, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, text) in files {
            let path = path.as_ref();
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(if path.ends_with(b".sh") { 0o755 } else { 0o644 });
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path);
            header.set_cksum();
            tar.append(&header, text.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn an_archive_is_read_without_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("My.Lib-1.0.tar.gz");
        let files = [
            ("my-1.0/PKG-INFO", "Name: x\nVersion: 1.0\n\nVersion: 2"),
            ("my-1.0/a/b.sh", "x"),
            ("loose", ""),
        ];
        std::fs::write(&file, packed(&files)).unwrap();
        let (tree, said) = read(&file).unwrap();
        assert_eq!(tree.keys().collect::<Vec<_>>(), ["PKG-INFO", "a/b.sh"]);
        assert!(tree["a/b.sh"].executable && !tree["PKG-INFO"].executable);
        assert_eq!(said.as_deref(), Some("1.0"));
        assert_eq!(find(folder.path(), "my-lib", "1.0"), Some(file.clone()));
        assert_eq!(find(folder.path(), "my-lib", "1.0.0"), Some(file));
        assert_eq!(find(folder.path(), "lib", "1.0"), None);
        assert_eq!(find(folder.path(), "my-lib", "1.0.1"), None);
    }

    #[test]
    fn what_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |bytes: &[u8], expect: &str| {
            let file = folder.path().join("x.tar.gz");
            std::fs::write(&file, bytes).unwrap();
            let error = read(&file).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&packed(&[("x/../../etc/passwd", "")]), "would be outside of the archive");
        check(&packed(&[("/etc/passwd", "")]), "would be outside of the archive");
        check(&packed(&[(b"x/\xff.py", "")]), "has a name that is not UTF-8");
        check(b"no archive", "cannot be read as .tar.gz");
        check(&packed::<&str>(&[]), "it contains no files");
        assert!(read(&folder.path().join("none")).unwrap_err().to_string().contains("No such file"));
    }
}
