//! Images: what a sandbox's root file system starts as.
//!
//! [`Source`] is how people name one, [`ImageStore`] fetches and unpacks it once and keeps it for every sandbox on this
//! machine, [`Image`] is what a backend lays an overlay over. It never mounts anything and runs nothing of an image.
//! Read `store.rs` next; what a hostile layer meets is in `unpack.rs`.

mod archive;
mod credentials;
mod digest;
mod entries;
mod error;
mod fault;
mod folders;
mod layer;
mod manifest;
mod merged;
mod origin;
mod registry;
mod source;
mod sparse;
mod stop;
mod store;
mod unpack;
mod write;

pub use credentials::credential_files;
pub use digest::Digest;
pub use error::{ImageError, Remedy};
pub use layer::{ExportedLayer, Upper, export};
pub use manifest::{ImageConfig, Platform};
pub use registry::Waits;
pub use source::Source;
pub use stop::Stop;
pub use store::{Image, ImageOptions, ImageStore, Listed, Phase, Progress, Pruned, Pull, Strangers};
pub use unpack::{LayerBounds, Report, Rights};
pub use write::{Draft, Written, write_archive, write_layout};

use std::path::PathBuf;

/// A path of any bytes.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
