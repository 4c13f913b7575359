//! The images that rows name by digest: in a folder beside the export, in the groups themselves, or left out.

use super::output::Output;
use super::{ExportError, ExportOptions, ExportSummary, Format, group};
use crate::error::StoreError;
use crate::store::Store;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use espalier_core::image::ImageKind;
use espalier_core::samples::Group;
use espalier_core::samples::advantages::Whitening;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of the images in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Images {
    /// In the folder `PATH.images`, each once, as `DIGEST.png`, `.jpg` or `.webp`. Left out where PATH is no file.
    #[default]
    Beside,
    /// In each group under `image_data`, by digest: `media_type` and `data` (base64; in msgpack bytes). Conversations have
    /// theirs beside.
    Embed,
    /// Left out: they are named by digest.
    Omit,
}

/// A group with what its rows name.
#[derive(Serialize)]
struct WithImages<'a> {
    #[serde(flatten)]
    group: &'a Group,
    image_data: BTreeMap<&'a str, ImageData>,
}

#[derive(Serialize)]
struct ImageData {
    media_type: &'static str,
    #[serde(serialize_with = "base64_or_bytes")]
    data: Vec<u8>,
}

fn base64_or_bytes<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.serialize_str(&STANDARD.encode(data))
    } else {
        serializer.serialize_bytes(data)
    }
}

impl Store {
    /// One group in one of the two forms of `group/v1`, with its images.
    pub(super) async fn write_samples(
        &self,
        group: &Group,
        options: &ExportOptions,
        output: &mut Output,
        summary: &mut ExportSummary,
    ) -> Result<(), ExportError> {
        summary.images += u64::from(group.images);
        if options.images != Images::Embed || group.images == 0 {
            self.write_beside(digests(group), options, output, summary).await?;
            return write(group, options.format, output);
        }
        let embedded = self.with_images(group).await?;
        summary.image_files += embedded.image_data.len() as u64;
        summary.image_bytes += embedded.image_data.values().map(|image| image.data.len() as u64).sum::<u64>();
        write(&embedded, options.format, output)
    }

    /// The bytes of one closed group, as [`Store::export`] writes them to a file of `options.format`, without the length in front or the line
    /// end behind. The group is checked as there. [`StoreError::Invalid`] where the format is not one of the two of `group/v1`.
    pub async fn group_bytes(
        &self,
        options: &ExportOptions,
        group_index: u64,
    ) -> Result<Vec<u8>, ExportError> {
        let mut content = self.group_content(&options.run_id, group_index).await?;
        // What judges sampled is in groups of their own.
        content.take_judged();
        options.prepare(&mut content.group, Whitening::NONE)?;
        ExportSummary::default().add(&content.group)?;
        let group = &content.group;
        if options.images != Images::Embed || group.images == 0 {
            return encode(group, options.format);
        }
        encode(&self.with_images(group).await?, options.format)
    }

    async fn with_images<'a>(&self, group: &'a Group) -> Result<WithImages<'a>, StoreError> {
        let mut image_data = BTreeMap::new();
        for digest in digests(group) {
            let (kind, data) = self.image(digest).await?;
            image_data.insert(digest, ImageData { media_type: kind.media_type(), data });
        }
        Ok(WithImages { group, image_data })
    }

    /// Images into the folder beside, where there is one, each once.
    pub(super) async fn write_beside(
        &self,
        digests: impl IntoIterator<Item = &str> + Send,
        options: &ExportOptions,
        output: &mut Output,
        summary: &mut ExportSummary,
    ) -> Result<(), ExportError> {
        if options.images == Images::Omit {
            return Ok(());
        }
        let digests: BTreeSet<&str> = digests.into_iter().collect();
        for digest in digests {
            if output.takes_image(digest) {
                let (kind, bytes) = self.image(digest).await?;
                summary.image_files += 1;
                summary.image_bytes += bytes.len() as u64;
                output.image(digest, kind, &bytes)?;
            }
        }
        Ok(())
    }

    async fn image(&self, digest: &str) -> Result<(ImageKind, Vec<u8>), StoreError> {
        let bytes = self.blobs().read_whole(digest).await?;
        let kind = ImageKind::of(&bytes).ok_or_else(|| StoreError::Damaged {
            place: format!("blob {digest}"),
            text: "a row names it as an image, and it is none".to_owned(),
        })?;
        Ok((kind, bytes))
    }
}

fn write(group: &impl Serialize, format: Format, output: &mut Output) -> Result<(), ExportError> {
    match format {
        Format::GroupMsgpack => output.framed(&rmp_serde::to_vec_named(group).map_err(group::unwritable)?),
        _ => output.line(group),
    }
}

fn encode(group: &impl Serialize, format: Format) -> Result<Vec<u8>, ExportError> {
    let unwritable = |error: serde_json::Error| StoreError::Failed {
        place: "JSON of a group".into(),
        source: Box::new(error),
    };
    match format {
        Format::GroupMsgpack => rmp_serde::to_vec_named(group).map_err(group::unwritable),
        Format::GroupJsonl => Ok(serde_json::to_vec(group).map_err(unwritable)?),
        other => {
            let detail = format!("format `{}` has no form of one group", other.as_str());
            Err(StoreError::Invalid(detail).into())
        }
    }
}

fn digests(group: &Group) -> BTreeSet<&str> {
    let rows = group.all().flat_map(|one| &one.segments);
    rows.flat_map(|segment| &segment.images).map(|image| image.digest.as_str()).collect()
}
