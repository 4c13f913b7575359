//! An overlay's upper folder as a layer that every tool reads: the other way round of `unpack`.

use crate::archive::PartReader;
use crate::digest::Hasher;
use crate::sparse;
use crate::unpack::{LAYER_BYTES_MAX, Rights, whiteout, xattrs};
use crate::{Digest, ImageError, Stop};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A layer that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedLayer {
    /// Digest of what was written.
    pub digest: Digest,
    /// Digest of the tar in it.
    pub diff_id: Digest,
    /// Bytes that were written.
    pub size: u64,
    /// Files, folders and marks in it.
    pub entries: u64,
    /// Sockets, which no layer can hold.
    pub skipped: u64,
}

/// A folder of what was written, and over what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The folder of the root file system that it lies over.
    pub at: PathBuf,
    /// An overlay's upper folder, or an unpacked layer.
    pub folder: PathBuf,
}

impl Upper {
    /// Over the whole root file system.
    pub fn root(folder: impl Into<PathBuf>) -> Upper {
        Upper { at: PathBuf::from("/"), folder: folder.into() }
    }
}

/// Writes what an overlay's upper folder (or an unpacked layer) holds as a gzipped tar. Whiteouts and opaque folders become
/// marks, in either form; hard links stay, holes of files stay holes, times are whole nanoseconds. With [`Rights::User`] every file is root's, as the
/// sandbox saw it. The same folder gives the same bytes. Blocks.
pub fn export(upper: &Upper, rights: Rights, out: impl Write) -> Result<ExportedLayer, ImageError> {
    export_until(&Stop::default(), upper, rights, out)
}

/// The same until it is stopped.
pub(crate) fn export_until(
    stop: &Stop,
    upper: &Upper,
    rights: Rights,
    out: impl Write,
) -> Result<ExportedLayer, ImageError> {
    let Upper { at, folder: upper } = upper;
    let out = HashWrite::new(out);
    let tar = HashWrite::new(GzEncoder::new(out, Compression::new(4)));
    let mut export = Export {
        tar: tar::Builder::new(stop.watch(tar)),
        root: upper.clone(),
        rights,
        stop,
        links: HashMap::new(),
        entries: 0,
        skipped: 0,
    };
    let stat = upper.symlink_metadata().map_err(|error| ImageError::store("reading", upper, error))?;
    export.folder(upper, at.strip_prefix("/").unwrap_or(at), &stat)?;
    let failed = |error| ImageError::store("writing the layer of", upper, error);
    let Export { tar, entries, skipped, .. } = export;
    let tar = tar.into_inner().map_err(failed)?.into_inner();
    let (gzip, diff_id, _) = tar.finish();
    let out = gzip.finish().map_err(failed)?;
    let (mut out, digest, size) = out.finish();
    out.flush().map_err(failed)?;
    Ok(ExportedLayer { digest, diff_id, size, entries, skipped })
}

/// Names and values of an extended header.
type Records = Vec<(String, Vec<u8>)>;

/// Longest file that is written, holes included: what readers take.
const FILE_BYTES_MAX: u64 = LAYER_BYTES_MAX;

struct Export<'a, W: Write> {
    tar: tar::Builder<W>,
    root: PathBuf,
    rights: Rights,
    stop: &'a Stop,
    /// Where a file with several names was first seen.
    links: HashMap<(u64, u64), PathBuf>,
    entries: u64,
    skipped: u64,
}

impl<W: Write> Export<'_, W> {
    /// `name` is that within the layer.
    fn folder(&mut self, path: &Path, name: &Path, stat: &Metadata) -> Result<(), ImageError> {
        let failed = |error| ImageError::store("reading", path, error);
        let attributes = xattrs(path).map_err(|error| failed(error.into()))?;
        let opaque = |attribute: &(Vec<u8>, Vec<u8>)| {
            let (name, value) = attribute;
            [Rights::Root, Rights::User].iter().any(|rights| rights.opaque().as_bytes() == name)
                && value == b"y"
        };
        let marked = attributes.iter().any(opaque);
        let mut header = self.header(stat, tar::EntryType::Directory);
        let own = if name.as_os_str().is_empty() { Path::new("./").to_path_buf() } else { name.join("") };
        self.entry(&own, stat, &mut header, &attributes, None)?;
        if marked {
            self.mark(&name.join(".wh..wh..opq"), stat)?;
        }
        let mut names: Vec<OsString> = std::fs::read_dir(path)
            .map_err(failed)?
            .map(|entry| entry.map(|entry| entry.file_name()).map_err(failed))
            .collect::<Result<_, _>>()?;
        names.sort();
        for inner in names {
            self.any(&path.join(&inner), &name.join(&inner), &inner)?;
        }
        Ok(())
    }

    fn any(&mut self, path: &Path, name: &Path, last: &OsStr) -> Result<(), ImageError> {
        let failed = |error| ImageError::store("reading", path, error);
        self.stop.check().map_err(failed)?;
        let stat = path.symlink_metadata().map_err(failed)?;
        let kind = stat.file_type();
        let raw = rustix::fs::lstat(path).map_err(|error| failed(error.into()))?;
        let attributes = if kind.is_symlink() {
            Vec::new()
        } else {
            xattrs(path).map_err(|error| failed(error.into()))?
        };
        let hides = |name: &[u8]| {
            stat.len() == 0 && (name == b"trusted.overlay.whiteout" || name == b"user.overlay.whiteout")
        };
        if whiteout(&raw) || kind.is_file() && attributes.iter().any(|(name, _)| hides(name)) {
            let mut marked = b".wh.".to_vec();
            marked.extend_from_slice(last.as_bytes());
            return self.mark(&name.with_file_name(OsStr::from_bytes(&marked)), &stat);
        }
        if last.as_bytes().starts_with(b".wh.") {
            return Err(self.refused(path, "a layer cannot represent this name"));
        }
        if kind.is_dir() {
            return self.folder(path, name, &stat);
        }
        if kind.is_socket() {
            self.skipped += 1;
            return Ok(());
        }
        if stat.nlink() > 1 {
            if let Some(first) = self.links.get(&(stat.dev(), stat.ino())) {
                let first = first.clone();
                let mut header = self.header(&stat, tar::EntryType::Link);
                return self.entry(name, &stat, &mut header, &[], Some(&first));
            }
            self.links.insert((stat.dev(), stat.ino()), name.to_path_buf());
        }
        if kind.is_symlink() {
            let target = std::fs::read_link(path).map_err(failed)?;
            let mut header = self.header(&stat, tar::EntryType::Symlink);
            return self.entry(name, &stat, &mut header, &[], Some(&target));
        }
        if kind.is_file() {
            return self.file(path, name, &stat, &attributes);
        }
        let node = if kind.is_fifo() {
            tar::EntryType::Fifo
        } else if kind.is_block_device() {
            tar::EntryType::Block
        } else {
            tar::EntryType::Char
        };
        let mut header = self.header(&stat, node);
        let numbers = header.set_device_major(rustix::fs::major(stat.rdev()));
        numbers.and_then(|()| header.set_device_minor(rustix::fs::minor(stat.rdev()))).map_err(failed)?;
        self.entry(name, &stat, &mut header, &attributes, None)
    }

    fn file(
        &mut self,
        path: &Path,
        name: &Path,
        stat: &Metadata,
        attributes: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), ImageError> {
        let failed = |error| ImageError::store("reading", path, error);
        let size = stat.len();
        if size > FILE_BYTES_MAX {
            let why = format!(
                "it has {size} bytes, a file of a layer at most {FILE_BYTES_MAX}; delete or shorten it before the checkpoint"
            );
            return Err(self.refused(path, &why));
        }
        let mut records = self.records(path, stat, attributes)?;
        let file = File::open(path).map_err(failed)?;
        // One less: a hole at the end takes one.
        let most = sparse::PIECES_MAX - 1;
        let pieces = sparse::pieces(&file, size, most).map_err(failed)?;
        let pieces =
            pieces.ok_or_else(|| self.refused(path, &format!("its data is in more than {most} pieces")))?;
        self.entries += 1;
        let left = if sparse::is_sparse(&pieces, size) {
            let (data, length) = sparse::data(&file, &pieces, size);
            let mut own = |key: &str, value: &[u8]| records.push((key.to_owned(), value.to_vec()));
            own("GNU.sparse.major", b"1");
            own("GNU.sparse.minor", b"0");
            own("GNU.sparse.name", name.as_os_str().as_bytes());
            own("GNU.sparse.realsize", size.to_string().as_bytes());
            self.pax(&records)?;
            // GNU tar takes the form for its older one in a header of GNU's.
            let mut header = self.header_of(tar::Header::new_ustar(), stat, tar::EntryType::Regular);
            header.set_size(length);
            let mut data = data.take(length);
            self.tar.append_data(&mut header, sparse_name(name), &mut data).map_err(failed)?;
            data.limit()
        } else {
            self.pax(&records)?;
            let mut header = self.header(stat, tar::EntryType::Regular);
            header.set_size(size);
            let mut data = PartReader::new(&file, 0, size).take(size);
            self.tar.append_data(&mut header, name, &mut data).map_err(failed)?;
            data.limit()
        };
        if left > 0 {
            return Err(self.refused(path, "it was truncated while it was being read"));
        }
        Ok(())
    }

    fn mark(&mut self, name: &Path, stat: &Metadata) -> Result<(), ImageError> {
        let mut header = self.header(stat, tar::EntryType::Regular);
        header.set_size(0);
        header.set_mode(0o600);
        header.set_mtime(0);
        self.entries += 1;
        self.tar.append_data(&mut header, name, io::empty()).map_err(|error| self.writing(error))
    }

    /// What has no data.
    fn entry(
        &mut self,
        name: &Path,
        stat: &Metadata,
        header: &mut tar::Header,
        attributes: &[(Vec<u8>, Vec<u8>)],
        link: Option<&Path>,
    ) -> Result<(), ImageError> {
        let records = self.records(name, stat, attributes)?;
        self.pax(&records)?;
        self.entries += 1;
        let done = match link {
            Some(target) => self.tar.append_link(header, name, target),
            None => self.tar.append_data(header, name, io::empty()),
        };
        done.map_err(|error| self.writing(error))
    }

    fn header(&self, stat: &Metadata, kind: tar::EntryType) -> tar::Header {
        self.header_of(tar::Header::new_gnu(), stat, kind)
    }

    fn header_of(&self, mut header: tar::Header, stat: &Metadata, kind: tar::EntryType) -> tar::Header {
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(stat.mode() & 0o7777);
        let (uid, gid) = match self.rights {
            Rights::Root => (stat.uid(), stat.gid()),
            Rights::User => (0, 0),
        };
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_mtime(u64::try_from(stat.mtime()).unwrap_or_default());
        header
    }

    /// What does not fit into a header: parts of a second, and attributes but the overlay's own.
    fn records(
        &self,
        path: &Path,
        stat: &Metadata,
        attributes: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Records, ImageError> {
        let mut records = Records::new();
        if stat.mtime_nsec() != 0 || stat.mtime() < 0 {
            records.push(("mtime".to_owned(), decimal(stat.mtime(), stat.mtime_nsec()).into_bytes()));
        }
        for (name, value) in attributes {
            let shown = String::from_utf8_lossy(name);
            let own = shown.strip_prefix("trusted.overlay.").or_else(|| shown.strip_prefix("user.overlay."));
            match own {
                Some("metacopy" | "redirect") => {
                    let why = format!("in this overlay mount {shown} refers to content of lower layers");
                    return Err(self.refused(path, &why));
                }
                Some(_) => {}
                None if shown.starts_with("user.")
                    || shown == "security.capability"
                    || shown.starts_with("system.posix_acl_") =>
                {
                    records.push((format!("SCHILY.xattr.{shown}"), value.clone()));
                }
                None => {}
            }
        }
        Ok(records)
    }

    /// The header in front of an entry that says so; of two only the later would count.
    fn pax(&mut self, records: &Records) -> Result<(), ImageError> {
        if records.is_empty() {
            return Ok(());
        }
        let records = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.tar.append_pax_extensions(records).map_err(|error| self.writing(error))
    }

    fn refused(&self, path: &Path, why: &str) -> ImageError {
        // Without the slash that a folder's name ends with.
        let inner = path.strip_prefix(&self.root).unwrap_or(path).components();
        let inner = inner.as_path();
        ImageError::bad(format!("{} in {}", inner.display(), self.root.display()), why)
    }

    fn writing(&self, error: io::Error) -> ImageError {
        ImageError::store("writing the layer of", &self.root, error)
    }
}

/// What stands in the header of a sparse file, for those who do not know the form; never longer than that has room for.
fn sparse_name(name: &Path) -> PathBuf {
    let last = name.file_name().unwrap_or_default().as_bytes();
    let fits = last.len() <= 64 && last.is_ascii();
    Path::new("GNUSparseFile.0").join(if fits { OsStr::from_bytes(last) } else { OsStr::new("file") })
}

/// Seconds as pax writes them: what is before 1970 counts down.
fn decimal(seconds: i64, nanos: i64) -> String {
    if seconds < 0 && nanos > 0 {
        return format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos);
    }
    if nanos == 0 { seconds.to_string() } else { format!("{seconds}.{nanos:09}") }
}

/// Counts and digests what passes.
pub(crate) struct HashWrite<W> {
    inner: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W: Write> HashWrite<W> {
    pub(crate) fn new(inner: W) -> HashWrite<W> {
        HashWrite { inner, hasher: Hasher::default(), bytes: 0 }
    }

    pub(crate) fn finish(self) -> (W, Digest, u64) {
        (self.inner, self.hasher.finish(), self.bytes)
    }
}

impl<W: Write> Write for HashWrite<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
