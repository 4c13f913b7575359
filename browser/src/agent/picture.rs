//! Pictures of the current tab.

use super::options::{PictureFormat, PictureOptions};
use super::session::Session;
use super::spot::{Fault, Refs, element_of_ref, note_of};
use super::step::PixelArea;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::screenshot::{Area, ImageFormat, Rect, ScreenshotOptions};
use bytes::Bytes;
use std::time::Duration;

/// What a picture may take.
const BOUND: Duration = Duration::from_secs(30);
/// Pixels of a picture a CSS pixel, at most.
const SCALE_MAX: f64 = 4.0;

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The encoded picture.
    pub bytes: Bytes,
    /// Such as `image/png`.
    pub media_type: &'static str,
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
}

impl Session {
    /// A picture of the current tab. `part` of the options is a reference of the last description; one that is stale is
    /// [`BrowserError::Invalid`].
    pub async fn screenshot(&self, options: PictureOptions) -> Result<Picture> {
        if !(options.scale > 0.0 && options.scale <= SCALE_MAX) {
            let what = format!("scale {}: expected a number above 0, at most {SCALE_MAX}", options.scale);
            return Err(BrowserError::invalid(what));
        }
        let mut state = self.state.lock().await;
        self.find_active(&mut state).await?;
        let page = state.active.clone();
        let deadline = Deadline::after(BOUND);
        let area = match (&options.part, options.full_page) {
            (Some(reference), _) => part(&page, reference, &state.refs, deadline).await?,
            (None, true) => Area::FullPage,
            (None, false) if options.scale == 1.0 => Area::Viewport,
            (None, false) => {
                let size = page.viewport_size();
                let (width, height) = (f64::from(size.width), f64::from(size.height));
                Area::Clip(Rect { x: 0.0, y: 0.0, width, height })
            }
        };
        let (format, media_type) = match options.format {
            PictureFormat::Png => (ImageFormat::Png, "image/png"),
            PictureFormat::Jpeg => (ImageFormat::Jpeg(options.quality), "image/jpeg"),
            PictureFormat::Webp => (ImageFormat::Webp(options.quality), "image/webp"),
        };
        let timeout = Some(deadline.remaining());
        let shot =
            ScreenshotOptions { area, format, timeout, scale: options.scale, ..ScreenshotOptions::default() };
        let bytes = page.screenshot_with(shot).await?;
        let (width, height) = size_of(&bytes).ok_or_else(|| {
            BrowserError::invalid(format!("picture of {} bytes: unknown form", bytes.len()))
        })?;
        Ok(Picture { bytes, media_type, width, height })
    }
}

async fn part(page: &Page, reference: &str, refs: &Refs, deadline: Deadline) -> Result<Area> {
    let number = reference.strip_prefix('e').and_then(|digits| digits.parse().ok());
    let number = number
        .ok_or_else(|| BrowserError::invalid(format!("part {reference:?}: expected such as \"e12\"")))?;
    let element = element_of_ref(page, number, refs, deadline).await.map_err(|fault| match fault {
        Fault::Failed(failure) => BrowserError::invalid(format!("part {reference:?}: {}", failure.text)),
        Fault::Lost(error) => error,
    })?;
    let PixelArea { x, y, width, height } = note_of(&element, deadline).await?.area;
    Ok(Area::Clip(Rect { x, y, width, height }))
}

/// Width and height, as the head of the file says.
fn size_of(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => {
            let side = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
            Some((side(16)?, side(20)?))
        }
        [0xff, 0xd8, ..] => jpeg_size(bytes),
        [b'R', b'I', b'F', b'F', ..] => webp_size(bytes),
        _ => None,
    }
}

/// From the frame header, past the segments before it.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let mut at = 2;
    loop {
        let marker = word(at)?;
        let is_frame = matches!(marker, 0xffc0..=0xffcf) && !matches!(marker, 0xffc4 | 0xffc8 | 0xffcc);
        if is_frame {
            return Some((u32::from(word(at + 7)?), u32::from(word(at + 5)?)));
        }
        at += 2 + usize::from(word(at + 2)?);
    }
}

fn webp_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let low = |at: usize| Some(u32::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let three = |at: usize| Some(low(at)? | u32::from(*bytes.get(at + 2)?) << 16);
    match bytes.get(12..16)? {
        b"VP8X" => Some((three(24)? + 1, three(27)? + 1)),
        b"VP8 " => Some((low(26)? & 0x3fff, low(28)? & 0x3fff)),
        b"VP8L" => {
            let bits = low(21)? | low(23)? << 16;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        _ => None,
    }
}
