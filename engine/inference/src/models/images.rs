//! Whether a model takes images, and how: as data URLs in messages, or as tokens with the features of the server's render step.
//!
//! Whether a server takes them is asked once: before the first rollout where the experiment says `images = true`, else with the first
//! image. A server that renders is sent one image alone; the tokens that stand for it are put into prompts where the template prints
//! its marker for one, and no token of the history is made again.

use super::{Exact, Model};
use crate::config::ModelConfig;
use crate::endpoint::{EndpointInfo, PromptImage, RenderedImage};
use crate::error::EndpointError;
use crate::images;
use crate::tokenizer::{ImageIds, TokenizerError};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::samples::ImageSpan;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Bytes of rendered images that one model keeps.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// What is known of one model and images. Shared by all rollouts.
#[derive(Default)]
pub(crate) struct ImageSupport {
    /// `Err`: why it takes none.
    tried: OnceCell<Result<Way, String>>,
    rendered: Mutex<Rendered>,
}

/// How images reach the model.
#[derive(Clone)]
enum Way {
    /// As data URLs in messages.
    Urls,
    /// As tokens, between these.
    Tokens { before: Arc<[u32]>, after: Arc<[u32]> },
}

/// Images as the server rendered them, least recently used first. What does not stay is rendered again.
#[derive(Default)]
struct Rendered {
    images: VecDeque<(String, Arc<RenderedImage>)>,
    bytes: usize,
}

impl Rendered {
    fn get(&mut self, blob: &str) -> Option<Arc<RenderedImage>> {
        let at = self.images.iter().position(|(kept, _)| kept == blob)?;
        let found = self.images.remove(at)?;
        let image = found.1.clone();
        self.images.push_back(found);
        Some(image)
    }

    fn keep(&mut self, blob: &str, image: &Arc<RenderedImage>) {
        if self.images.iter().any(|(kept, _)| kept == blob) {
            return;
        }
        self.bytes += image.data.len();
        self.images.push_back((blob.to_owned(), Arc::clone(image)));
        while self.bytes > KEPT_BYTES_MAX
            && self.images.len() > 1
            && let Some((_, oldest)) = self.images.pop_front()
        {
            self.bytes -= oldest.data.len();
        }
    }
}

/// Why an image cannot be shown.
pub(crate) enum ImageError {
    /// The model takes none; the reason.
    NotTaken(String),
    /// The server did not answer.
    Endpoint(EndpointError),
    /// The tokenizer's route did not.
    Tokenizer(TokenizerError),
    /// The image cannot be read.
    Blob(Failure),
}

impl From<EndpointError> for ImageError {
    fn from(error: EndpointError) -> Self {
        match error {
            // Rendering is refused for what this image is, or for what the model is.
            EndpointError::Refused { .. } | EndpointError::Unsupported { .. } => {
                ImageError::NotTaken(error.to_string())
            }
            error => ImageError::Endpoint(error),
        }
    }
}

impl Model {
    /// Finds out whether the model takes images, once. Errors: `NotTaken` with the reason, or what kept it from being found out.
    pub(crate) async fn takes_images(&self) -> Result<(), ImageError> {
        self.image_way().await.map(drop)
    }

    async fn image_way(&self) -> Result<Way, ImageError> {
        let found = self.images.tried.get_or_try_init(|| async {
            match self.try_images().await {
                Ok(way) => Ok(Ok(way)),
                Err(ImageError::NotTaken(reason)) => Ok(Err(reason)),
                Err(error) => Err(error),
            }
        });
        found.await?.clone().map_err(ImageError::NotTaken)
    }

    async fn try_images(&self) -> Result<Way, ImageError> {
        if let Some(reason) = refused_by(&self.config, &self.info) {
            return Err(ImageError::NotTaken(reason));
        }
        let Some(exact) = &self.exact else {
            if self.config.images == Some(true) {
                self.endpoint.try_image(images::SQUARE).await?;
            }
            return Ok(Way::Urls);
        };
        let rendered = self.endpoint.render_image(images::SQUARE).await?;
        let (before, after) = marker(exact, &rendered).await?;
        Ok(Way::Tokens { before, after })
    }

    /// The tokens of these images, for a model of token ids.
    pub(crate) async fn image_ids(
        &self,
        blobs_named: &[&str],
        blobs: Option<&dyn Blobs>,
    ) -> Result<BTreeMap<String, ImageIds>, ImageError> {
        let mut ids = BTreeMap::new();
        for blob in blobs_named {
            let Way::Tokens { before, after } = self.image_way().await? else { continue };
            if !ids.contains_key(*blob) {
                let rendered = self.rendered(blob, blobs).await?;
                ids.insert((*blob).to_owned(), ImageIds { before, ids: rendered.ids.clone(), after });
            }
        }
        Ok(ids)
    }

    /// Markers before and behind an image: how many tokens they are. `(0, 0)` while no image has been shown.
    pub(crate) fn image_markers(&self) -> (u32, u32) {
        match self.images.tried.get() {
            Some(Ok(Way::Tokens { before, after })) => (before.len() as u32, after.len() as u32),
            _ => (0, 0),
        }
    }

    /// What the server needs beside the ids of a prompt with these images.
    pub(crate) async fn prompt_images(
        &self,
        places: &[ImageSpan],
        blobs: Option<&dyn Blobs>,
    ) -> Result<Arc<[PromptImage]>, ImageError> {
        let mut images = Vec::with_capacity(places.len());
        for place in places {
            let image = self.rendered(&place.digest, blobs).await?;
            if image.ids.len() != place.len as usize {
                return Err(ImageError::NotTaken(format!(
                    "the server renders image {} as {} tokens now, {} before",
                    place.digest,
                    image.ids.len(),
                    place.len
                )));
            }
            images.push(PromptImage { start: place.start, image });
        }
        Ok(images.into())
    }

    async fn rendered(
        &self,
        blob: &str,
        blobs: Option<&dyn Blobs>,
    ) -> Result<Arc<RenderedImage>, ImageError> {
        if let Some(image) = self.images.rendered.lock().get(blob) {
            return Ok(image);
        }
        let blobs =
            blobs.ok_or_else(|| ImageError::Blob(Failure::Invalid("there are no blobs here".into())))?;
        let url = images::read_one(blob, blobs).await.map_err(ImageError::Blob)?;
        let image = Arc::new(self.endpoint.render_image(&url).await?);
        self.images.rendered.lock().keep(blob, &image);
        Ok(image)
    }
}

/// What configuration and server say against images, in words.
fn refused_by(config: &ModelConfig, info: &EndpointInfo) -> Option<String> {
    let kind = config.kind.as_str();
    if config.images == Some(false) {
        return Some("`images = false` is set for it".to_owned());
    }
    if !config.kind.may_take_images() {
        return Some(format!(
            "kind {kind} takes text alone; kinds \"openai-chat\", \"vllm\" and \"scripted\" take images"
        ));
    }
    let says_none = info.images == Some(false) && config.images != Some(true);
    says_none.then(|| {
        let model = info.model.as_deref().unwrap_or("the model");
        format!("the server lists {model} as one of text alone; `images = true` tries it nevertheless")
    })
}

/// The markers that the template prints around an image, as ids. They must be what the server prints.
async fn marker(exact: &Exact, image: &RenderedImage) -> Result<(Arc<[u32]>, Arc<[u32]>), ImageError> {
    let none = || "its chat template prints nothing for an image in a user message".to_owned();
    let text = exact.template.image_marker().ok_or_else(none).map_err(ImageError::NotTaken)?;
    let ids = exact.tokenizer.encode(&text, true).await.map_err(ImageError::Tokenizer)?.ids;
    let fits = |at: &usize| {
        image.ids.contains(&ids[*at])
            && image.before.ends_with(&ids[..*at])
            && image.after.starts_with(&ids[at + 1..])
    };
    let Some(at) = (0..ids.len()).find(fits) else {
        return Err(ImageError::NotTaken(format!(
            "its chat template prints {text:?} for an image, which is not what the server renders"
        )));
    };
    Ok((ids[..at].into(), ids[at + 1..].into()))
}
