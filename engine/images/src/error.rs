//! Why there is no image, told apart by what the caller can do.

use crate::Stop;
use std::io;
use std::path::{Path, PathBuf};

/// Anything that keeps an image from being used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The text names no image. Reject the task.
    #[error("invalid image name {text:?}: {why}")]
    BadName {
        /// As it was written.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such image at that place. Reject the task.
    #[error("no image {image}: {place} says {said:?}")]
    Unknown {
        /// The image.
        image: String,
        /// Registry, folder or file.
        place: String,
        /// What was answered.
        said: String,
    },
    /// A stranger names what is in no folder that is given to strangers; whether it is anywhere else is not told. Reject the task.
    #[error("no image {image} in the image folders of the service")]
    NotGiven {
        /// The image.
        image: String,
    },
    /// A stranger names a registry, or is led to an address, that strangers are not let through to. Reject the task.
    #[error("image {image} is not allowed: {why}")]
    NotReachable {
        /// The image.
        image: String,
        /// Which address, and why not.
        why: String,
    },
    /// The place wants other credentials than it was given. Reject the task.
    #[error("{place} refuses image {image} {credentials}: {said}")]
    Denied {
        /// The image.
        image: String,
        /// Registry.
        place: String,
        /// Which credentials were shown.
        credentials: String,
        /// What was answered.
        said: String,
    },
    /// None of an index's images is for this machine. Reject the task.
    #[error("image {image} is not available for {wanted}, only for {available}")]
    NoPlatform {
        /// The image.
        image: String,
        /// `os/architecture`.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// What came is not what the digest, the manifest or the format promise, or would reach outside. Reject the task.
    #[error("bad content of {what}: {why}")]
    BadContent {
        /// Image, manifest, layer or file.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// More than a layer may hold. Reject the task, or raise the bound.
    #[error("{what} has more than {bound}")]
    TooLarge {
        /// The layer.
        what: String,
        /// Which bound.
        bound: String,
    },
    /// The place cannot be reached or fails. Retry later; it is nobody's fault in the sandbox.
    #[error("{place} did not return the {what} after {attempts} attempts: {said}")]
    Unreachable {
        /// Registry.
        place: String,
        /// Image, manifest or layer.
        what: String,
        /// How often it was tried.
        attempts: u32,
        /// The last fault.
        said: String,
    },
    /// It took longer than allowed. Retry later.
    #[error("image {image} was not ready after {after_s} s ({state})")]
    TimedOut {
        /// The image.
        image: String,
        /// The bound, in seconds.
        after_s: u64,
        /// What was waited for.
        state: String,
    },
    /// Nothing more fits. Stop, or make room and retry.
    #[error("no space left for {path}")]
    DiskFull {
        /// What was written.
        path: PathBuf,
        /// The operating system's words.
        #[source]
        source: io::Error,
    },
    /// A file of credentials or a helper cannot be used. Stop.
    #[error("credentials for {registry}: {place}: {why}")]
    Credentials {
        /// Registry.
        registry: String,
        /// File or helper.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// Whoever asked for it has stopped it; nothing of it is left.
    #[error("writing {path} was stopped")]
    Stopped {
        /// What was written.
        path: PathBuf,
    },
    /// Somebody uses the image. Try again when they are done.
    #[error("image {image} is in use")]
    InUse {
        /// The image.
        image: String,
    },
    /// The store's folder does not do what it should. Stop.
    #[error("{doing} {path}")]
    Store {
        /// The act.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's words.
        #[source]
        source: io::Error,
    },
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// No attempt at this task can succeed.
    RejectTask,
    /// The same may succeed later.
    Retry,
    /// Somebody has to repair this machine first.
    Stop,
}

impl ImageError {
    /// What can be done.
    pub fn remedy(&self) -> Remedy {
        use ImageError as E;
        match self {
            E::BadName { .. } | E::Unknown { .. } | E::Denied { .. } | E::NoPlatform { .. } => {
                Remedy::RejectTask
            }
            E::NotGiven { .. } | E::NotReachable { .. } => Remedy::RejectTask,
            E::BadContent { .. } | E::TooLarge { .. } => Remedy::RejectTask,
            E::Unreachable { .. } | E::TimedOut { .. } | E::InUse { .. } | E::Stopped { .. } => Remedy::Retry,
            E::DiskFull { .. } | E::Credentials { .. } | E::Store { .. } => Remedy::Stop,
        }
    }

    /// What to try next, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            ImageError::BadName { .. } => {
                "use host, NAME:TAG, HOST/NAME@DIGEST, oci:FOLDER[:TAG], oci-archive:FILE[:TAG] or checkpoint:ID".to_owned()
            }
            ImageError::Unknown { .. } => "check the name and the tag; a private image needs credentials".to_owned(),
            ImageError::NotGiven { .. } => {
                "`espalier serve --image-folder FOLDER` allows the images in a folder".to_owned()
            }
            ImageError::NotReachable { .. } => {
                "`espalier serve --registry HOST:PORT` allows a registry in a private network".to_owned()
            }
            ImageError::Denied { place, .. } => {
                format!("log in with `docker login {place}` or `podman login {place}`")
            }
            ImageError::NoPlatform { available, .. } => format!("use an image for one of {available}"),
            ImageError::TooLarge { .. } => "raise the size limit of the image store, or use a smaller image".to_owned(),
            ImageError::Unreachable { place, .. } => {
                format!("check the network and that {place} is up; downloaded parts are kept")
            }
            ImageError::TimedOut { .. } => "try again: downloaded parts are kept".to_owned(),
            ImageError::DiskFull { path, .. } => {
                format!("free space on the file system of {}, or limit the size of the image store", path.display())
            }
            ImageError::InUse { .. } => "delete the sandboxes and checkpoints made from it first".to_owned(),
            ImageError::BadContent { .. }
            | ImageError::Credentials { .. }
            | ImageError::Stopped { .. }
            | ImageError::Store { .. } => return None,
        };
        Some(hint)
    }

    /// An operation on the store's own files failed.
    pub(crate) fn store(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> ImageError {
        let source = source.into();
        let path = path.to_path_buf();
        if Stop::is_of(&source) {
            return ImageError::Stopped { path };
        }
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ImageError::DiskFull { path, source }
            }
            _ => ImageError::Store { doing, path, source },
        }
    }

    /// What came is wrong.
    pub(crate) fn bad(what: impl Into<String>, why: impl Into<String>) -> ImageError {
        ImageError::BadContent { what: what.into(), why: why.into() }
    }
}
