//! Where an image is taken from, behind one face: a registry, or a layout on this machine.

use crate::archive::{Layout, Part};
use crate::manifest::{self, CONFIG_BYTES_MAX, Document, LayerOf, MANIFEST_BYTES_MAX, Platform, Resolved};
use crate::registry::{Registry, Seen};
use crate::{Digest, ImageError};
use oci_client::manifest::{ImageIndexEntry, OciDescriptor};
use std::path::Path;
use std::sync::Arc;

/// An index may point to another, but not without end.
const INDEXES_MAX: usize = 4;

pub(crate) enum Origin {
    Registry(Box<Registry>),
    /// With the tag.
    Layout(Arc<Layout>, Option<String>),
}

/// What is unpacked.
#[derive(Debug)]
pub(crate) struct LayerFile {
    pub(crate) part: Part,
    /// Whether its digest is known to be right.
    pub(crate) verified: bool,
    /// Where it was loaded to, to be removed once it is unpacked.
    pub(crate) loaded: Option<std::path::PathBuf>,
}

impl Origin {
    /// Whether what it gives was not given for credentials.
    pub(crate) fn is_anonymous(&self) -> bool {
        match self {
            Origin::Registry(registry) => registry.is_anonymous(),
            Origin::Layout(..) => true,
        }
    }

    /// Finds the manifest for this platform and its configuration.
    pub(crate) async fn resolve(
        &self,
        platform: &Platform,
        layer_bytes_max: u64,
        image: &str,
    ) -> Result<Resolved, ImageError> {
        let (mut digest, mut bytes) = match self {
            Origin::Registry(registry) => registry.manifest(None).await?,
            Origin::Layout(layout, tag) => {
                let (layout, tag, name) = (layout.clone(), tag.clone(), image.to_owned());
                let entries = blocking(move || layout.entries(tag.as_deref(), &name)).await?;
                self.entry(&entries.iter().collect::<Vec<_>>(), platform, image).await?
            }
        };
        for _ in 0..INDEXES_MAX {
            match manifest::document(&bytes, &format!("the manifest of image {image}"))? {
                Document::Index(index) => {
                    let entries: Vec<_> = index.manifests.iter().collect();
                    (digest, bytes) = self.entry(&entries, platform, image).await?;
                }
                Document::Image(found) => {
                    let what = format!("the configuration of image {image}");
                    let config = self.blob(&found.config, CONFIG_BYTES_MAX, &what).await?;
                    return manifest::resolved(digest, &found, &config, platform, layer_bytes_max, image);
                }
            }
        }
        Err(ImageError::bad(
            format!("image {image}"),
            format!("its indexes are nested more than {INDEXES_MAX} deep"),
        ))
    }

    /// The manifest that an index has for the platform.
    async fn entry(
        &self,
        entries: &[&ImageIndexEntry],
        platform: &Platform,
        image: &str,
    ) -> Result<(Digest, Vec<u8>), ImageError> {
        let entry = manifest::choose(entries, platform, image)?;
        let what = format!("a manifest of image {image}");
        let digest = Digest::parse(&entry.digest, &what)?;
        let bytes = match self {
            Origin::Registry(registry) => registry.manifest(Some(&digest)).await?.1,
            Origin::Layout(..) => {
                let descriptor = OciDescriptor {
                    digest: entry.digest.clone(),
                    media_type: entry.media_type.clone(),
                    size: entry.size,
                    ..OciDescriptor::default()
                };
                self.blob(&descriptor, MANIFEST_BYTES_MAX, &what).await?
            }
        };
        Ok((digest, bytes))
    }

    async fn blob(
        &self,
        descriptor: &OciDescriptor,
        bytes_max: u64,
        what: &str,
    ) -> Result<Vec<u8>, ImageError> {
        let (digest, size) = manifest::target(descriptor, bytes_max, what)?;
        match self {
            Origin::Registry(registry) => registry.blob(&digest, size, what).await,
            Origin::Layout(layout, _) => {
                let (layout, what) = (layout.clone(), what.to_owned());
                blocking(move || layout.blob(&digest, bytes_max, &what)).await
            }
        }
    }

    /// A layer's bytes as a file; those of a registry are loaded into the folder, or what is missing of them.
    pub(crate) async fn layer(
        &self,
        layer: &LayerOf,
        partial: &Path,
        seen: &Seen,
    ) -> Result<LayerFile, ImageError> {
        match self {
            Origin::Registry(registry) => {
                let path = partial.join(layer.blob.hex());
                let file = registry.load(&layer.blob, layer.size, &path, seen).await?;
                let part = Part { file, offset: 0, size: layer.size };
                Ok(LayerFile { part, verified: true, loaded: Some(path) })
            }
            Origin::Layout(layout, _) => {
                let (layout, layer, seen) = (layout.clone(), layer.clone(), seen.clone());
                blocking(move || {
                    let what = format!("layer {}", layer.blob);
                    let part = layout.open_blob(&layer.blob, "a layer")?;
                    if part.size != layer.size {
                        return Err(ImageError::bad(
                            what,
                            format!("{} bytes, not {}", part.size, layer.size),
                        ));
                    }
                    seen(layer.size);
                    Ok(LayerFile { part, verified: false, loaded: None })
                })
                .await
            }
        }
    }
}

/// Runs what blocks beside the runtime. Its owner is the caller; if that goes away, it runs to its end and its result is
/// dropped. A panic goes on in the caller.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going away, and the caller with it.
            Err(error) => Err(ImageError::Store {
                doing: "working beside",
                path: std::path::PathBuf::new(),
                source: std::io::Error::other(error),
            }),
        },
    }
}
