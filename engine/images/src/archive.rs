//! OCI layouts on this machine: a folder, or a tar of one. Nothing is unpacked of the tar; blobs are read where they lie.

use crate::folders::{self, Found};
use crate::manifest::TAG;
use crate::{Digest, ImageError};
use oci_client::manifest::{ImageIndexEntry, OciImageIndex};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most members of an archive: far above what an image of 500 layers has.
const MEMBERS_MAX: usize = 100_000;

/// A layout.
#[derive(Debug)]
pub(crate) enum Layout {
    Folder(PathBuf),
    /// Below whose folder no link is followed. With its name.
    Given(PathBuf, OwnedFd),
    Archive {
        path: PathBuf,
        file: File,
        members: HashMap<String, (u64, u64)>,
    },
}

/// Bytes within a file.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: File,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl Part {
    /// From its first byte.
    pub(crate) fn reader(&self) -> PartReader<'_> {
        PartReader::new(&self.file, self.offset, self.size)
    }
}

/// Reads a part without moving the file's own position.
pub(crate) struct PartReader<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl PartReader<'_> {
    pub(crate) fn new(file: &File, offset: u64, left: u64) -> PartReader<'_> {
        PartReader { file, offset, left }
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

impl Layout {
    /// Opens a folder or an archive of those that are given to strangers; of what is elsewhere nothing is told. Blocks.
    pub(crate) fn open_given(
        folders: &[PathBuf],
        path: &Path,
        archive: bool,
        image: &str,
    ) -> Result<Layout, ImageError> {
        match folders::find(folders, path) {
            Some(Found::Folder(folder)) if !archive => Ok(Layout::Given(path.to_path_buf(), folder)),
            Some(Found::File(file)) if archive => Layout::archive(path, file),
            _ => Err(ImageError::NotGiven { image: image.to_owned() }),
        }
    }

    /// Opens a folder or an archive. Blocks.
    pub(crate) fn open(path: &Path, archive: bool, image: &str) -> Result<Layout, ImageError> {
        let unknown = |said: String| ImageError::Unknown {
            image: image.to_owned(),
            place: path.display().to_string(),
            said,
        };
        let opened = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => unknown("no such file".to_owned()),
            _ => ImageError::store("opening", path, error),
        };
        if !archive {
            let stat = path.metadata().map_err(opened)?;
            if !stat.is_dir() {
                return Err(unknown("not a folder".to_owned()));
            }
            return Ok(Layout::Folder(path.to_path_buf()));
        }
        let file = File::open(path).map_err(opened)?;
        if file.metadata().map_err(opened)?.is_dir() {
            return Err(unknown("a folder, not an archive".to_owned()));
        }
        Layout::archive(path, file)
    }

    fn archive(path: &Path, mut file: File) -> Result<Layout, ImageError> {
        let opened = |error: io::Error| ImageError::store("opening", path, error);
        let mut magic = [0; 4];
        let count = file.read_at(&mut magic, 0).map_err(opened)?;
        if magic.starts_with(b"\x1f\x8b") || magic == *b"\x28\xb5\x2f\xfd" || count < 4 {
            return Err(ImageError::bad(
                path.display().to_string(),
                "not a tar archive; decompress it first",
            ));
        }
        let members = members(&mut file, path)?;
        Ok(Layout::Archive { path: path.to_path_buf(), file, members })
    }

    /// Folder or file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Layout::Folder(path) | Layout::Given(path, _) | Layout::Archive { path, .. } => path,
        }
    }

    /// The entries that the tag means; all where there is none.
    pub(crate) fn entries(&self, tag: Option<&str>, image: &str) -> Result<Vec<ImageIndexEntry>, ImageError> {
        let unknown = |said: String| ImageError::Unknown {
            image: image.to_owned(),
            place: self.path().display().to_string(),
            said,
        };
        let Some(part) = self.part("index.json")? else {
            return Err(unknown("not an OCI layout: index.json is missing".to_owned()));
        };
        let bytes = self.bytes(&part, crate::manifest::MANIFEST_BYTES_MAX, "index.json")?;
        let index: OciImageIndex = serde_json::from_slice(&bytes).map_err(|error| {
            ImageError::bad(self.path().join("index.json").display().to_string(), error.to_string())
        })?;
        let tag_of =
            |entry: &ImageIndexEntry| entry.annotations.as_ref().and_then(|notes| notes.get(TAG).cloned());
        let mut tags: Vec<String> = index.manifests.iter().filter_map(tag_of).collect();
        tags.sort();
        tags.dedup();
        let there =
            || if tags.is_empty() { "no tags".to_owned() } else { format!("tags {}", tags.join(", ")) };
        match tag {
            Some(tag) => {
                let fits = |entry: &ImageIndexEntry| {
                    tag_of(entry).is_some_and(|own| own == tag || own.rsplit(':').next() == Some(tag))
                };
                let entries: Vec<_> = index.manifests.into_iter().filter(fits).collect();
                if entries.is_empty() { Err(unknown(there())) } else { Ok(entries) }
            }
            None if tags.len() > 1 => Err(unknown(format!("{}, so one must be named", there()))),
            None if index.manifests.is_empty() => Err(unknown("no image".to_owned())),
            None => Ok(index.manifests),
        }
    }

    /// A blob's bytes, verified.
    pub(crate) fn blob(&self, digest: &Digest, bytes_max: u64, what: &str) -> Result<Vec<u8>, ImageError> {
        let part = self.open_blob(digest, what)?;
        let bytes = self.bytes(&part, bytes_max, what)?;
        digest.check(&bytes, what)?;
        Ok(bytes)
    }

    /// A blob, not verified yet.
    pub(crate) fn open_blob(&self, digest: &Digest, what: &str) -> Result<Part, ImageError> {
        let name = format!("blobs/{}/{}", digest.algorithm(), digest.hex());
        let missing =
            || ImageError::bad(self.path().display().to_string(), format!("{what}, {digest}, is missing"));
        self.part(&name)?.ok_or_else(missing)
    }

    fn part(&self, name: &str) -> Result<Option<Part>, ImageError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error: io::Error| ImageError::store("opening", &path, error)
        };
        match self {
            Layout::Folder(folder) => {
                let path = folder.join(name);
                let file = match File::open(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    file => file.map_err(failed(&path))?,
                };
                let size = file.metadata().map_err(failed(&path))?.len();
                Ok(Some(Part { file, offset: 0, size }))
            }
            Layout::Given(path, folder) => {
                let file = match folders::open_file(folder, Path::new(name)) {
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
                    file => file.map_err(|error| failed(path)(error.into()))?,
                };
                let size = file.metadata().map_err(failed(path))?.len();
                Ok(Some(Part { file, offset: 0, size }))
            }
            Layout::Archive { path, file, members } => {
                let Some((offset, size)) = members.get(name).copied() else { return Ok(None) };
                Ok(Some(Part { file: file.try_clone().map_err(failed(path))?, offset, size }))
            }
        }
    }

    fn bytes(&self, part: &Part, bytes_max: u64, what: &str) -> Result<Vec<u8>, ImageError> {
        if part.size > bytes_max {
            return Err(ImageError::TooLarge { what: what.to_owned(), bound: format!("{bytes_max} bytes") });
        }
        let mut bytes = Vec::new();
        part.reader()
            .read_to_end(&mut bytes)
            .map_err(|error| ImageError::store("reading", self.path(), error))?;
        Ok(bytes)
    }
}

/// Where each member of an archive lies.
fn members(file: &mut File, path: &Path) -> Result<HashMap<String, (u64, u64)>, ImageError> {
    // The message of the reader about a file that is not an archive would show its content.
    let bad = |error: io::Error| match error.raw_os_error() {
        Some(_) => ImageError::store("reading", path, error),
        None => ImageError::bad(path.display().to_string(), "not a tar archive"),
    };
    let length =
        file.seek(SeekFrom::End(0)).and_then(|length| file.rewind().map(|()| length)).map_err(bad)?;
    let mut archive = tar::Archive::new(&*file);
    let mut members = HashMap::new();
    for (number, entry) in archive.entries_with_seek().map_err(bad)?.enumerate() {
        let entry = entry.map_err(bad)?;
        let (offset, size) = (entry.raw_file_position(), entry.size());
        if offset.checked_add(size).is_none_or(|end| end > length) || number >= MEMBERS_MAX {
            return Err(ImageError::bad(path.display().to_string(), "it is truncated or too large"));
        }
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        members.insert(name.trim_start_matches("./").to_owned(), (offset, size));
    }
    Ok(members)
}
