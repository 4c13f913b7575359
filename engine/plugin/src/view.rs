//! A finished rollout as rewards see it: texts over 64 KiB leave it and become blobs, so that a view stays small.

use crate::bindings::reward::espalier::plugin::scores;
use crate::convert::view_out;
use espalier_core::chat::{Message, Part};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::trajectory::RolloutView;

/// Longest text inside a view, bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 64 << 10;

/// The view for a guest. Errors: of keeping a blob.
pub(crate) async fn prepare(
    mut view: RolloutView,
    blobs: Option<&dyn Blobs>,
) -> Result<scores::RolloutView, Failure> {
    for turn in &mut view.turns {
        spill(&mut turn.message, blobs).await?;
        for message in &mut turn.results {
            spill(message, blobs).await?;
        }
    }
    let mut observation_blobs = Vec::with_capacity(view.steps.len());
    for step in &mut view.steps {
        if step.observation.len() <= TEXT_BYTES_MAX {
            observation_blobs.push(None);
            continue;
        }
        let whole = std::mem::take(&mut step.observation);
        let cut = whole.floor_char_boundary(TEXT_BYTES_MAX);
        step.observation = whole[..cut].to_owned();
        observation_blobs.push(Some(put(blobs, whole).await?));
    }
    Ok(view_out(view, observation_blobs))
}

async fn put(blobs: Option<&dyn Blobs>, text: String) -> Result<String, Failure> {
    let blobs = blobs.ok_or_else(|| Failure::Denied("espalier:base/blobs".to_owned()))?;
    blobs.put(text.into_bytes(), "text/plain").await
}

async fn spill(message: &mut Message, blobs: Option<&dyn Blobs>) -> Result<(), Failure> {
    for part in &mut message.parts {
        if let Part::Text(text) = part
            && text.len() > TEXT_BYTES_MAX
        {
            let text = std::mem::take(text);
            *part = Part::TextBlob(put(blobs, text).await?);
        }
    }
    Ok(())
}
