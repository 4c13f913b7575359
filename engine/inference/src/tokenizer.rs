//! From text to token ids and back.
//!
//! Two implementations: [`local::LocalTokenizer`] reads a `tokenizer.json`; [`remote::RemoteTokenizer`] asks the
//! endpoint's own tokenize route, where that route can take control-token text as plain text (llama.cpp; a GGUF carries
//! no `tokenizer.json`). Nothing here adds tokens of its own: a beginning-of-text token stands in a prompt where the
//! template writes it, or where [`Tokenizer::prefix`] says so and there is no template.
//!
//! Read next: `template.rs`, which says which text is literal.

pub mod local;
pub(crate) mod recorded;
pub mod remote;

pub use crate::endpoint::{Encoded, SpecialToken};

use crate::template::Rendered;
use async_trait::async_trait;
use espalier_core::cause::Failed;
use espalier_core::samples::ImageSpan;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What can go wrong between text and ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be used: change the experiment.
    #[error("tokenizer {path}")]
    File {
        /// As named in the experiment.
        path: String,
        /// Why.
        #[source]
        source: Failed,
    },
    /// The endpoint could not be asked: retried already.
    #[error("tokenize route")]
    Unavailable(#[source] Failed),
    /// The endpoint's route cannot serve message content: change the experiment.
    #[error("{0}")]
    Unsuited(String),
    /// A text that the tokenizer refuses, or an id it does not know.
    #[error("tokenizer")]
    Refused(#[source] Failed),
}

/// Both ways between text and ids. Every method is cancel-safe.
#[async_trait]
pub trait Tokenizer: Send + Sync {
    /// Encodes `text` without adding anything. With `special`, text that equals a special token becomes that token;
    /// without, it becomes the tokens of its letters. Added tokens that are not special (`<think>` of many models) are
    /// ordinary vocabulary and are found either way.
    async fn encode(&self, text: &str, special: bool) -> Result<Encoded, TokenizerError>;

    /// The bytes of these tokens, special ones as their text. Bytes, since a token may end inside a character.
    async fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError>;

    /// All special tokens, longest text first.
    fn special_tokens(&self) -> &[SpecialToken];

    /// What the tokenizer puts before a text by default (often the beginning-of-text token); used with `template =
    /// "plain"` alone, since a chat template writes it itself.
    fn prefix(&self) -> &[u32];

    /// Whether its answers come over the network, so that they cannot be computed again.
    fn asks_a_server(&self) -> bool {
        false
    }

    /// The special token with this id.
    fn special(&self, id: u32) -> Option<&SpecialToken> {
        self.special_tokens().iter().find(|token| token.id == id)
    }
}

/// A rendered text as ids, each with where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedIds {
    /// Token ids, in order.
    pub ids: Vec<u32>,
    /// For each id: whether it covers any byte of a message's content (else it is the template's own markup).
    pub content: Vec<bool>,
    /// For each id the byte range of [`Rendered::text`] it covers; an empty one for those of images.
    pub offsets: Vec<(u32, u32)>,
    /// Where images stand among the ids, in order.
    pub images: Vec<ImageSpan>,
}

/// The tokens of an image: markers, what stands for the image itself, markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageIds {
    /// Before it.
    pub before: Arc<[u32]>,
    /// What the model's server replaces by the image.
    pub ids: Arc<[u32]>,
    /// Behind it.
    pub after: Arc<[u32]>,
}

/// Encodes a rendered text piece by piece: literal pieces as plain text, all others with special tokens.
///
/// `images`: the tokens of each image that stands in it, by its blob; one that is missing is `Refused`.
pub async fn encode_rendered(
    tokenizer: &dyn Tokenizer,
    rendered: &Rendered,
    images: &BTreeMap<String, ImageIds>,
) -> Result<RenderedIds, TokenizerError> {
    let mut out = RenderedIds::default();
    let mut waiting = rendered.images.iter().peekable();
    for piece in rendered.pieces() {
        let mut at = piece.range.start;
        while let Some((place, blob)) = waiting.next_if(|(place, _)| *place < piece.range.end) {
            out.push(tokenizer, rendered, at..*place, piece.literal).await?;
            out.push_image(*place, blob, images)?;
            at = *place;
        }
        out.push(tokenizer, rendered, at..piece.range.end, piece.literal).await?;
    }
    for (place, blob) in waiting {
        out.push_image(*place, blob, images)?;
    }
    out.content = content_flags(&out.offsets, rendered);
    for image in &out.images {
        let ids = &images[&image.digest];
        let from = image.start as usize - ids.before.len();
        out.content[from..][..ids.before.len() + ids.ids.len() + ids.after.len()].fill(true);
    }
    Ok(out)
}

/// One walk over both sorted lists.
fn content_flags(offsets: &[(u32, u32)], rendered: &Rendered) -> Vec<bool> {
    let mut contents: Vec<Range<usize>> =
        rendered.contents.iter().map(|content| content.range.clone()).collect();
    contents.sort_by_key(|range| range.start);
    let mut at = 0;
    offsets
        .iter()
        .map(|(from, to)| {
            let (from, to) = (*from as usize, *to as usize);
            while at < contents.len() && contents[at].end <= from {
                at += 1;
            }
            contents.get(at).is_some_and(|range| range.start < to && from < range.end)
        })
        .collect()
}

impl RenderedIds {
    async fn push(
        &mut self,
        tokenizer: &dyn Tokenizer,
        rendered: &Rendered,
        range: Range<usize>,
        literal: bool,
    ) -> Result<(), TokenizerError> {
        let text = &rendered.text[range.clone()];
        if text.is_empty() {
            return Ok(());
        }
        let encoded = tokenizer.encode(text, !literal).await?;
        let offsets = match encoded.offsets {
            Some(offsets) => offsets,
            None => vec![(0, u32_len(text)); encoded.ids.len()],
        };
        let base = u32::try_from(range.start).unwrap_or(u32::MAX);
        self.ids.extend(encoded.ids);
        self.offsets.extend(offsets.into_iter().map(|(from, to)| (from + base, to + base)));
        Ok(())
    }

    fn push_image(
        &mut self,
        place: usize,
        blob: &str,
        images: &BTreeMap<String, ImageIds>,
    ) -> Result<(), TokenizerError> {
        let missing = || TokenizerError::Refused(Failed::from(format!("image {blob} was not rendered")));
        let image = images.get(blob).ok_or_else(missing)?;
        let start = (self.ids.len() + image.before.len()) as u32;
        for ids in [&image.before, &image.ids, &image.after] {
            self.ids.extend_from_slice(ids);
        }
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        self.offsets.resize(self.ids.len(), (place, place));
        self.images.push(ImageSpan { digest: blob.to_owned(), start, len: image.ids.len() as u32 });
        Ok(())
    }
}

fn u32_len(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

fn longest_first(tokens: &mut [SpecialToken]) {
    tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
}

impl RenderedIds {
    /// How many ids at the start of a suffix the model has sampled already: all up to and with the end-of-turn token
    /// that `last_sampled` is. 0 where the answer was cut, so that it gets the template's whole end of turn.
    ///
    /// Only special tokens count: a space that ends a turn is printed again.
    pub fn sampled_already(
        &self,
        rendered: &Rendered,
        last_sampled: Option<u32>,
        tokenizer: &dyn Tokenizer,
    ) -> usize {
        let Some(last) = last_sampled else { return 0 };
        let of_end = self.offsets.iter().take_while(|(_, to)| *to as usize <= rendered.end_of_turn).count();
        let special = self.ids[..of_end].iter().take_while(|id| tokenizer.special(**id).is_some()).count();
        self.ids[..special].iter().position(|id| *id == last).map_or(0, |at| at + 1)
    }
}
