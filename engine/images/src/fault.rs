//! What goes wrong while a layer is read and unpacked, before it is known which layer of which image it was.

use crate::ImageError;
use crate::digest::BoundPassed;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) enum Fault {
    /// The stream does not go on.
    Read(io::Error),
    /// It is not what it should be.
    Bad(String),
    /// It holds more than allowed.
    Large(String),
    /// The folder does not take it.
    Write { doing: &'static str, path: PathBuf, source: io::Error },
}

impl Fault {
    pub(crate) fn bad(why: impl Into<String>) -> Fault {
        Fault::Bad(why.into())
    }

    /// For `map_err` on what is done to `path`.
    pub(crate) fn write<E: Into<io::Error>>(doing: &'static str, path: &[u8]) -> impl FnOnce(E) -> Fault {
        let path = crate::path_of(path);
        move |source| Fault::Write { doing, path, source: source.into() }
    }

    /// As the layer's error: `what` it is, and the folder or file that it was read into or from.
    pub(crate) fn of(self, what: &str, place: &Path) -> ImageError {
        match self {
            Fault::Bad(why) => ImageError::bad(what, why),
            Fault::Large(bound) => ImageError::TooLarge { what: what.to_owned(), bound },
            Fault::Write { doing, path, source } => {
                let place = if path.as_os_str().is_empty() { place.to_path_buf() } else { place.join(path) };
                ImageError::store(doing, &place, source)
            }
            Fault::Read(error) => {
                if let Some(passed) = error.get_ref().and_then(|inner| inner.downcast_ref::<BoundPassed>()) {
                    return ImageError::TooLarge { what: what.to_owned(), bound: passed.to_string() };
                }
                // Decompressors find faults of the content; the file itself fails by a number of the system.
                match error.raw_os_error() {
                    Some(_) => ImageError::store("reading", place, error),
                    None => ImageError::bad(what, error.to_string()),
                }
            }
        }
    }
}
