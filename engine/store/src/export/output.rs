//! Where an export goes: a file or folder that appears whole, or what takes bytes as they come: standard output, a pipe,
//! a device. Only a regular file is ever replaced.

use super::atif::{ImageFile, ImageFiles};
use super::{ExportError, Format};
use espalier_core::image::ImageKind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Gathered before the file is written to, bytes.
const BUFFER_BYTES: usize = 1 << 18;
/// Links that are followed, as many as the kernel follows.
const LINKS_MAX: usize = 40;

pub(super) struct Output {
    path: PathBuf,
    target: Target,
    bytes: u64,
    images: Option<ImageFolder>,
}

/// Images beside a file, or in the folder of documents.
struct ImageFolder {
    /// Where they are written.
    written: PathBuf,
    /// Where they are when all is whole.
    place: PathBuf,
    /// Beside a file, until both are whole; `None` in the folder of documents, which becomes whole with them.
    unfinished: Option<Unfinished>,
    /// By digest.
    kinds: BTreeMap<String, ImageKind>,
}

impl ImageFolder {
    /// Gives it its name. What lies there from an earlier export stays: names are digests.
    fn finish(self) -> io::Result<()> {
        let Some(unfinished) = self.unfinished else { return Ok(()) };
        if !self.place.exists() {
            return unfinished.finish(&self.place);
        }
        for (digest, kind) in &self.kinds {
            let name = image_name(digest, *kind);
            fs::rename(self.written.join(&name), self.place.join(&name))?;
        }
        Ok(())
    }
}

enum Target {
    /// Takes bytes as they come: standard output, or something at the path that is not a regular file.
    Stream(BufWriter<Box<dyn Write + Send>>),
    // Fields drop in order: the file is closed before its name goes.
    File {
        file: BufWriter<File>,
        unfinished: Unfinished,
        place: PathBuf,
    },
    Folder {
        unfinished: Unfinished,
        place: PathBuf,
    },
}

/// What lies beside its place until it is whole. Removed when it is dropped, however that comes about.
struct Unfinished(PathBuf);

impl Unfinished {
    /// Gives it its name.
    fn finish(self, place: &Path) -> io::Result<()> {
        // The name is gone then, so there is nothing to remove.
        fs::rename(&self.0, place)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = match fs::symlink_metadata(&self.0) {
            Ok(there) if there.is_dir() => fs::remove_dir_all(&self.0),
            Ok(_) => fs::remove_file(&self.0),
            Err(_) => Ok(()),
        };
    }
}

impl Output {
    /// Waits for a reader where the path is a named pipe.
    pub(super) fn open(path: &Path, format: Format) -> Result<Output, ExportError> {
        let failed = |source| ExportError::Output { path: path.to_owned(), source };
        let lines = path.extension().is_some_and(|extension| extension == "jsonl");
        let folder = matches!(format, Format::Atif | Format::SwebenchPredictions) && !lines;
        let there = fs::metadata(path).ok();
        let target = if path.as_os_str() == "-" {
            stream(io::stdout())
        } else if folder {
            if there.is_some() {
                return Err(ExportError::Exists(path.to_owned()));
            }
            let place = resolve(path).map_err(failed)?;
            let unfinished = beside(&place).map_err(failed)?;
            fs::create_dir(&unfinished).map_err(failed)?;
            Target::Folder { unfinished: Unfinished(unfinished), place }
        } else if there.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(failed(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder")));
        } else if there.is_some_and(|there| !there.is_file() || is_open_file(path)) {
            stream(File::options().write(true).open(path).map_err(failed)?)
        } else {
            let place = resolve(path).map_err(failed)?;
            let unfinished = beside(&place).map_err(failed)?;
            let file = File::create_new(&unfinished).map_err(failed)?;
            let file = BufWriter::with_capacity(BUFFER_BYTES, file);
            Target::File { file, unfinished: Unfinished(unfinished), place }
        };
        Ok(Output { path: path.to_owned(), target, bytes: 0, images: None })
    }

    /// One value as one line of JSON.
    pub(super) fn line(&mut self, value: &impl Serialize) -> Result<(), ExportError> {
        let mut line = serde_json::to_vec(value).map_err(|error| self.failed(error.into()))?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Bytes behind their length, u32 little-endian.
    pub(super) fn framed(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        let too_long =
            || io::Error::other(format!("a group of {} bytes does not fit its length field", bytes.len()));
        let length = u32::try_from(bytes.len()).map_err(|_| self.failed(too_long()))?;
        self.write(&length.to_le_bytes())?;
        self.write(bytes)
    }

    /// One document: a file of its own in a folder, else a line.
    pub(super) fn document(&mut self, name: &str, value: &impl Serialize) -> Result<(), ExportError> {
        let Target::Folder { unfinished, .. } = &self.target else { return self.line(value) };
        let file = unfinished.0.join(format!("{name}.json"));
        let mut text = serde_json::to_vec_pretty(value).map_err(|error| self.failed(error.into()))?;
        text.push(b'\n');
        fs::write(&file, &text).map_err(|source| ExportError::Output { path: file, source })?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// A line of JSON that is written already: in a folder at the end of a file of its own, else where all lines go.
    pub(super) fn line_of(&mut self, name: &str, line: &str) -> Result<(), ExportError> {
        let line = format!("{line}\n");
        let Target::Folder { unfinished, .. } = &self.target else { return self.write(line.as_bytes()) };
        let path = unfinished.0.join(format!("{name}.jsonl"));
        let opened = File::options().create(true).append(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|source| ExportError::Output { path, source })?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Whether this image is to be written: there is a place beside, and it is not there yet.
    pub(super) fn takes_image(&self, digest: &str) -> bool {
        let is_there = self.images.as_ref().is_some_and(|images| images.kinds.contains_key(digest));
        !matches!(self.target, Target::Stream(_)) && !is_there
    }

    /// Those of these images that have a file, with its path from the document that is written next.
    pub(super) fn image_files<'a>(&self, digests: impl Iterator<Item = &'a str>) -> ImageFiles {
        let Some(images) = &self.images else { return ImageFiles::new() };
        let folder = images.place.file_name().unwrap_or_default().to_string_lossy();
        let file = |digest: &str| {
            let kind = *images.kinds.get(digest)?;
            let path = format!("{folder}/{}", image_name(digest, kind));
            Some((digest.to_owned(), ImageFile { path, kind }))
        };
        digests.filter_map(file).collect()
    }

    /// Writes an image into the folder `NAME.images` beside the file, or into the folder `images` of documents.
    pub(super) fn image(&mut self, digest: &str, kind: ImageKind, bytes: &[u8]) -> Result<(), ExportError> {
        if self.images.is_none() {
            let (place, made) = match &self.target {
                Target::Stream(_) => return Ok(()),
                Target::File { place, .. } => {
                    let place = beside_file(place);
                    let made = beside(&place).and_then(|written| {
                        fs::create_dir(&written)?;
                        Ok((written.clone(), Some(Unfinished(written))))
                    });
                    (place, made)
                }
                Target::Folder { unfinished, place } => {
                    let written = in_folder(&unfinished.0);
                    (in_folder(place), fs::create_dir(&written).map(|()| (written, None)))
                }
            };
            let (written, unfinished) =
                made.map_err(|source| ExportError::Output { path: place.clone(), source })?;
            self.images = Some(ImageFolder { written, place, unfinished, kinds: BTreeMap::new() });
        }
        if let Some(images) = &mut self.images {
            let name = image_name(digest, kind);
            let path = images.written.join(&name);
            fs::write(&path, bytes).map_err(|source| ExportError::Output { path, source })?;
            images.kinds.insert(digest.to_owned(), kind);
        }
        Ok(())
    }

    /// The folder of images, where there is one.
    pub(super) fn images_folder(&self) -> Option<&Path> {
        self.images.as_ref().map(|images| images.place.as_path())
    }

    /// Gives it its name. Returns the bytes written. Without this, what was written is removed.
    pub(super) fn finish(self) -> Result<u64, ExportError> {
        let Output { path, target, bytes, images } = self;
        // First: who finds the file finds its images.
        if let Some(images) = images {
            let place = images.place.clone();
            images.finish().map_err(|source| ExportError::Output { path: place, source })?;
        }
        let finish = || match target {
            Target::Stream(mut out) => out.flush(),
            Target::File { file, unfinished, place } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.sync_all()?;
                unfinished.finish(&place)
            }
            Target::Folder { unfinished, place } => unfinished.finish(&place),
        };
        let finished = finish();
        finished.map(|()| bytes).map_err(|source| ExportError::Output { path, source })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        let written = match &mut self.target {
            Target::Stream(out) => out.write_all(bytes),
            Target::File { file, .. } => file.write_all(bytes),
            Target::Folder { .. } => Err(io::Error::other("a folder takes documents, not bytes")),
        };
        written.map_err(|source| self.failed(source))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> ExportError {
        ExportError::Output { path: self.path.clone(), source }
    }
}

fn beside_file(place: &Path) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(".images");
    place.with_file_name(name)
}

fn in_folder(place: &Path) -> PathBuf {
    place.join("images")
}

fn image_name(digest: &str, kind: ImageKind) -> String {
    format!("{digest}.{}", kind.extension())
}

fn stream(out: impl Write + Send + 'static) -> Target {
    Target::Stream(BufWriter::with_capacity(BUFFER_BYTES, Box::new(out)))
}

/// Whether the path means what a process has open: `/dev/stdout` is a regular file where a shell sends it to one, and
/// must not be replaced under the shell.
fn is_open_file(path: &Path) -> bool {
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|place| path.starts_with(place))
}

/// The place that a path means: a link is followed, also to where nothing is yet, so that it stays.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        if !fs::symlink_metadata(&place).is_ok_and(|there| there.is_symlink()) {
            return Ok(place);
        }
        let target = fs::read_link(&place)?;
        // Relative to the folder of the link; an absolute one stands alone.
        place = place.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other(format!("more than {LINKS_MAX} links in a row")))
}

/// `.NAME.PID.unfinished`, in the same folder, so that a rename suffices.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name =
        path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.unfinished", std::process::id()));
    Ok(path.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in [("g.jsonl", Format::GroupJsonl), ("atif", Format::Atif)] {
            let path = folder.path().join(name);
            let mut given_up = Output::open(&path, format).unwrap();
            given_up.document("one", &1).unwrap();
            assert_eq!(names(folder.path()).len(), 1);
            drop(given_up);
            assert_eq!(names(folder.path()), [""; 0]);
        }
        // The last step fails: a folder has taken the name meanwhile.
        let path = folder.path().join("g.jsonl");
        let output = Output::open(&path, Format::GroupJsonl).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(output.finish().is_err());
        assert_eq!(names(folder.path()), ["g.jsonl"]);
        let Err(refused) = Output::open(&path, Format::GroupJsonl) else { panic!("a folder takes no lines") };
        assert!(refused.to_string().contains("g.jsonl"), "{refused}");
    }
}
