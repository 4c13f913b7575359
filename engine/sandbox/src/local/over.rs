//! Images of files that lie over this machine's own programs.

use super::base::{BASE, HOST};
use espalier_images::{Draft, ImageConfig, ImageError, Rights, Upper, Written, write_layout};
use std::path::Path;

/// Writes folders, lowest first, as an image that goes over the image `host` of the machine that makes a sandbox of it: a new folder
/// in the OCI layout. Blocks.
pub fn write_over_host(
    folder: &Path,
    tag: &str,
    uppers: &[Upper],
    rights: Rights,
    config: &ImageConfig,
) -> Result<Written, ImageError> {
    let mut config = config.clone();
    config.labels.insert(BASE.to_owned(), HOST.to_owned());
    write_layout(folder, &Draft { tag, base: None, uppers, rights, config: Some(&config) })
}
