//! Images for others: a layout folder or an archive of layers, alone or above an image of the store.

use crate::layer::{ExportedLayer, Upper, export_until};
use crate::manifest::{ImageConfig, TAG};
use crate::{Digest, Image, ImageError, Platform, Rights, Stop};
use oci_client::manifest as media;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Digest of the manifest.
    pub digest: Digest,
    /// Lowest first; those of the image below are written anew.
    pub layers: Vec<ExportedLayer>,
}

/// An image to be written.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Up to 128 letters, digits, `-`, `_` and `.`.
    pub tag: &'a str,
    /// Its layers come first, and its configuration counts where `config` says nothing.
    pub base: Option<&'a Image>,
    /// Above the layers of `base`, lowest first.
    pub uppers: &'a [Upper],
    /// What owners in `uppers` mean.
    pub rights: Rights,
    /// Environment, folder, user and labels instead of those of `base`.
    pub config: Option<&'a ImageConfig>,
}

/// Writes an image into a new folder as an OCI layout. The folder appears when it is whole. Blocks.
pub fn write_layout(folder: &Path, draft: &Draft<'_>) -> Result<Written, ImageError> {
    if folder.exists() {
        return Err(ImageError::store("making", folder, io::Error::from(io::ErrorKind::AlreadyExists)));
    }
    let parent = parent(folder);
    let tmp = Tmp(parent.join(format!(".{}.{}.tmp", name(folder), std::process::id())));
    let written = Layout { folder: &tmp.0, stop: &Stop::default() }.write(draft)?;
    std::fs::rename(&tmp.0, folder).map_err(|error| ImageError::store("making", folder, error))?;
    Ok(written)
}

/// The same as one file, an OCI archive. It replaces a regular file of that name, and the one that a link of that name leads to,
/// when it is whole; stopped before that, it leaves nothing. A device or a pipe is written into as it is. Blocks.
pub fn write_archive(file: &Path, draft: &Draft<'_>, stop: &Stop) -> Result<Written, ImageError> {
    let failed = |error: io::Error| ImageError::store("writing", file, error);
    if is_stream(file) {
        let into = File::options().write(true).open(file).map_err(failed)?;
        let tmp = tempfile::tempdir().map_err(failed)?;
        let written = Layout { folder: tmp.path(), stop }.write(draft)?;
        pack(tmp.path(), into, stop).map_err(failed)?;
        return Ok(written);
    }
    let place = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let tmp = Tmp(parent(&place).join(format!(".{}.{}.tmp", name(&place), std::process::id())));
    let written = Layout { folder: &tmp.0, stop }.write(draft)?;
    let archive = Tmp(tmp.0.with_extension("tar"));
    let packed = File::create(&archive.0).and_then(|file| pack(&tmp.0, file, stop));
    packed.and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(&archive.0, &place).map_err(failed)?;
    Ok(written)
}

/// Whether a path is not a regular file, or means what a process has open, which is not to be replaced under it.
fn is_stream(path: &Path) -> bool {
    let open = ["/dev", "/proc"].iter().any(|place| path.starts_with(place));
    std::fs::metadata(path).is_ok_and(|there| open || !(there.is_file() || there.is_dir()))
}

/// Writes a layout as one archive.
fn pack(layout: &Path, into: File, stop: &Stop) -> io::Result<File> {
    let mut tar = tar::Builder::new(BufWriter::new(stop.watch(into)));
    tar.mode(tar::HeaderMode::Deterministic);
    for name in ["oci-layout", "index.json", "blobs/sha256"] {
        let path = layout.join(name);
        if !path.is_dir() {
            tar.append_path_with_name(&path, name)?;
            continue;
        }
        let mut blobs: Vec<_> = std::fs::read_dir(&path)?.collect::<Result<_, _>>()?;
        blobs.sort_by_key(std::fs::DirEntry::file_name);
        for blob in blobs {
            tar.append_path_with_name(blob.path(), Path::new(name).join(blob.file_name()))?;
        }
    }
    Ok(tar.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?.into_inner())
}

fn parent(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Removed when it is still there in the end.
struct Tmp(PathBuf);

impl Drop for Tmp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Layout<'a> {
    folder: &'a Path,
    stop: &'a Stop,
}

impl Layout<'_> {
    fn write(&self, draft: &Draft<'_>) -> Result<Written, ImageError> {
        let Draft { tag, base, uppers, rights, config: said } = *draft;
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if tag.is_empty() || tag.len() > 128 || tag.starts_with(['-', '.']) || !tag.chars().all(letter) {
            let why = "a tag is up to 128 letters, digits, `-`, `_` and `.`".to_owned();
            return Err(ImageError::BadName { text: tag.to_owned(), why });
        }
        let blobs = self.folder.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).map_err(|error| ImageError::store("making", &blobs, error))?;
        let mut layers = Vec::new();
        if let Some(base) = base {
            for layer in base.layers() {
                layers.push(self.layer(&blobs, &Upper::root(layer), base.rights())?);
            }
        }
        for upper in uppers {
            layers.push(self.layer(&blobs, upper, rights)?);
        }
        let config = config(base, &layers, uppers.len(), said);
        let config = self.blob(&blobs, &config)?;
        let entries: Vec<Value> = layers
            .iter()
            .map(|layer| {
                json!({
                    "mediaType": media::IMAGE_LAYER_GZIP_MEDIA_TYPE,
                    "digest": layer.digest.as_str(),
                    "size": layer.size,
                })
            })
            .collect();
        let manifest = self.blob(
            &blobs,
            &json!({
                "schemaVersion": 2,
                "mediaType": media::OCI_IMAGE_MEDIA_TYPE,
                "config": {"mediaType": media::IMAGE_CONFIG_MEDIA_TYPE, "digest": config.0.as_str(), "size": config.1},
                "layers": entries,
            }),
        )?;
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": media::OCI_IMAGE_MEDIA_TYPE,
                "digest": manifest.0.as_str(),
                "size": manifest.1,
                "annotations": {TAG: tag},
            }],
        });
        self.plain("index.json", &index)?;
        self.plain("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}))?;
        Ok(Written { digest: manifest.0, layers })
    }

    fn layer(&self, blobs: &Path, upper: &Upper, rights: Rights) -> Result<ExportedLayer, ImageError> {
        let tmp = blobs.join("layer");
        let failed = |error| ImageError::store("writing", &tmp, error);
        let mut file = BufWriter::new(File::create(&tmp).map_err(failed)?);
        let layer = export_until(self.stop, upper, rights, &mut file)?;
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .map_err(failed)?;
        std::fs::rename(&tmp, blobs.join(layer.digest.hex())).map_err(failed)?;
        Ok(layer)
    }

    fn blob(&self, blobs: &Path, value: &Value) -> Result<(Digest, u64), ImageError> {
        let bytes = serde_json::to_vec(value).expect("a JSON value is always written");
        let digest = Digest::of(&bytes);
        let path = blobs.join(digest.hex());
        std::fs::write(&path, &bytes).map_err(|error| ImageError::store("writing", &path, error))?;
        Ok((digest, bytes.len() as u64))
    }

    fn plain(&self, name: &str, value: &Value) -> Result<(), ImageError> {
        let path = self.folder.join(name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(value.to_string().as_bytes())?;
            file.sync_all()
        };
        write().map_err(|error| ImageError::store("writing", &path, error))
    }
}

/// The configuration of the image below with these layers; what was run below is kept in its history.
fn config(
    base: Option<&Image>,
    layers: &[ExportedLayer],
    uppers: usize,
    said: Option<&ImageConfig>,
) -> Value {
    let machine = Platform::this_machine();
    let empty = json!({"os": machine.os, "architecture": machine.architecture, "config": {}});
    let mut config = base.map_or(empty, |image| image.raw_config().clone());
    if let Some(said) = said {
        let env: Vec<String> = said.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        config["config"]["Env"] = env.into();
        config["config"]["WorkingDir"] = said.workdir.as_str().into();
        config["config"]["User"] = said.user.as_str().into();
        config["config"]["Labels"] = json!(said.labels);
    }
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
    let with_layer = |entry: &&Value| !entry["empty_layer"].as_bool().unwrap_or(false);
    let mut history: Vec<Value> = config["history"].as_array().cloned().unwrap_or_default();
    let below = layers.len() - uppers;
    if history.iter().filter(with_layer).count() != below {
        history = vec![json!({"created_by": "the image below"}); below];
    }
    history.extend(vec![json!({"created_by": "espalier"}); uppers]);
    config["history"] = history.into();
    config
}
