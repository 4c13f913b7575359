//! Pictures of pages, and pages as PDF.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::page::state::World;
use crate::protocol::Done;
use crate::script::Return;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::dom::Rgba;
use chromiumoxide::cdp::browser_protocol::emulation::SetDefaultBackgroundColorOverrideParams;
use chromiumoxide::cdp::browser_protocol::page::{
    CaptureScreenshotFormat, CaptureScreenshotParams, GetLayoutMetricsParams, PrintToPdfParams, Viewport,
};
use serde::Deserialize;
use std::time::Duration;

/// The tallest picture: Chromium draws no larger surface.
const SIDE_MAX: f64 = 16_384.0;

/// How a picture is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// Without loss.
    #[default]
    Png,
    /// Without loss, larger and quicker than `Png`.
    FastPng,
    /// Quality 0 to 100.
    Jpeg(u8),
    /// Quality 0 to 100.
    Webp(u8),
}

/// A rectangle in CSS pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rect {
    /// To the right.
    pub x: f64,
    /// Down.
    pub y: f64,
    /// Above 0 in a picture.
    pub width: f64,
    /// Above 0 in a picture.
    pub height: f64,
}

impl Rect {
    /// Its middle.
    pub fn center(&self) -> crate::Point {
        crate::Point::new(self.x + self.width / 2.0, self.y + self.height / 2.0)
    }
}

/// What a picture shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Area {
    /// What is visible.
    #[default]
    Viewport,
    /// The whole document, at most 16,384 pixels high. Neither the viewport nor the place scrolled to changes.
    FullPage,
    /// A part of the document, in pixels from its top left corner.
    Document(Rect),
    /// A part of the viewport, in pixels from its top left corner.
    Clip(Rect),
}

/// How a picture is taken.
#[derive(Clone, Debug)]
pub struct ScreenshotOptions {
    /// Default: the viewport.
    pub area: Area,
    /// Default: PNG.
    pub format: ImageFormat,
    /// Whether the page's white background is left out. Default: false.
    pub transparent: bool,
    /// Pixels of the picture a device pixel, of every area but `Area::Viewport`. Default: 1.
    pub scale: f64,
    /// Default: that of the context.
    pub timeout: Option<Duration>,
}

impl Default for ScreenshotOptions {
    fn default() -> Self {
        ScreenshotOptions {
            area: Area::Viewport,
            format: ImageFormat::Png,
            transparent: false,
            scale: 1.0,
            timeout: None,
        }
    }
}

/// How a page is printed. Lengths are inches.
#[derive(Clone, Debug)]
pub struct PdfOptions {
    /// Default: 8.5.
    pub width: f64,
    /// Default: 11.
    pub height: f64,
    /// On all sides. Default: 0.4.
    pub margin: f64,
    /// 0.1 to 2. Default: 1.
    pub scale: f64,
    /// Default: false.
    pub landscape: bool,
    /// Background colours and images. Default: false.
    pub background: bool,
    /// Such as `1-5, 8`. Default: all.
    pub pages: Option<String>,
    /// Whether the document's `@page` size counts. Default: false.
    pub prefer_css_page_size: bool,
    /// Default: that of the context.
    pub timeout: Option<Duration>,
}

impl Default for PdfOptions {
    fn default() -> Self {
        PdfOptions {
            width: 8.5,
            height: 11.0,
            margin: 0.4,
            scale: 1.0,
            landscape: false,
            background: false,
            pages: None,
            prefer_css_page_size: false,
            timeout: None,
        }
    }
}

/// The answer to `Page.captureScreenshot` and `Page.printToPDF`.
#[derive(Deserialize)]
struct Data {
    data: String,
}

/// The answer to `Page.getLayoutMetrics`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metrics {
    css_content_size: Size,
    css_visual_viewport: Visible,
}

#[derive(Deserialize)]
struct Size {
    width: f64,
    height: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Visible {
    page_x: f64,
    page_y: f64,
    client_width: f64,
    client_height: f64,
}

struct Clip {
    viewport: Viewport,
    /// Whether it shows more than is visible.
    beyond: bool,
}

/// What the library's own world of a main frame runs before the page's scripts. Drawing beyond the viewport leaves layout
/// and sizes as they are, yet Chromium fires a `resize` event within some frames: the page does not see it, unless sizes
/// have changed indeed.
pub(crate) const SWALLOW_RESIZE: &str = "if (window === window.top) {
  globalThis.__espalier_listen = () => addEventListener('resize', event => {
    const quiet = globalThis.__espalier_quiet;
    const same = quiet && quiet.width === innerWidth && quiet.height === innerHeight;
    if (same && performance.now() < quiet.until) event.stopImmediatePropagation();
  });
  globalThis.__espalier_listen();
}";
/// From before a picture until 5 s after it, which a busy machine may take.
const QUIET: &str = "until => {
  globalThis.__espalier_quiet = { width: innerWidth, height: innerHeight, until: performance.now() + until };
}";
impl Page {
    /// The visible part of the page as PNG.
    pub async fn screenshot(&self) -> Result<Bytes> {
        self.screenshot_with(ScreenshotOptions::default()).await
    }

    /// A picture of the page.
    pub async fn screenshot_with(&self, options: ScreenshotOptions) -> Result<Bytes> {
        let deadline = self.deadline_of(options.timeout);
        self.stand_still(deadline).await?;
        let clip = self.clip(options.area, options.scale, deadline).await?;
        let mut command = CaptureScreenshotParams::default();
        let (format, quality) = match options.format {
            ImageFormat::Png | ImageFormat::FastPng => (CaptureScreenshotFormat::Png, None),
            ImageFormat::Jpeg(quality) => (CaptureScreenshotFormat::Jpeg, Some(quality)),
            ImageFormat::Webp(quality) => (CaptureScreenshotFormat::Webp, Some(quality)),
        };
        command.format = Some(format);
        command.quality = quality.map(|quality| i64::from(quality.min(100)));
        command.optimize_for_speed = (options.format == ImageFormat::FastPng).then_some(true);
        command.capture_beyond_viewport = Some(clip.as_ref().is_some_and(|clip| clip.beyond));
        let quiet = match clip.as_ref().is_some_and(|clip| clip.beyond) {
            true => Some(self.main_frame().place(World::Isolated, deadline).await?),
            false => None,
        };
        if let Some(place) = &quiet {
            let until = deadline.remaining().as_secs_f64() * 1000.0;
            place.call(QUIET, &[until.into()], Return::Json, deadline).await?;
        }
        command.clip = clip.map(|clip| clip.viewport);
        let session = &self.inner.session;
        if options.transparent {
            let background = SetDefaultBackgroundColorOverrideParams {
                color: Some(Rgba { r: 0, g: 0, b: 0, a: Some(0.0) }),
            };
            session.call_as::<Done>(background, deadline).await?;
        }
        let shot = session.call_as::<Data>(command, deadline).await;
        if options.transparent {
            session.post(SetDefaultBackgroundColorOverrideParams::default());
        }
        if let Some(place) = quiet {
            // Where its document is gone, so is its listener.
            let _ = place.call(QUIET, &[5000.into()], Return::Json, deadline).await;
        }
        let shot = shot.map_err(|error| error.waiting_for(|| "the page to be drawn".to_owned()))?;
        decode(&shot, "screenshot")
    }

    /// The page as PDF.
    pub async fn pdf(&self, options: PdfOptions) -> Result<Bytes> {
        let deadline = self.deadline_of(options.timeout);
        let command = PrintToPdfParams {
            landscape: Some(options.landscape),
            print_background: Some(options.background),
            scale: Some(options.scale),
            paper_width: Some(options.width),
            paper_height: Some(options.height),
            margin_top: Some(options.margin),
            margin_bottom: Some(options.margin),
            margin_left: Some(options.margin),
            margin_right: Some(options.margin),
            page_ranges: options.pages,
            prefer_css_page_size: Some(options.prefer_css_page_size),
            ..PrintToPdfParams::default()
        };
        let pdf = self.inner.session.call_as::<Data>(command, deadline).await;
        decode(&pdf.map_err(|error| error.waiting_for(|| "the page to be printed".to_owned()))?, "PDF")
    }

    async fn clip(&self, area: Area, scale: f64, deadline: Deadline) -> Result<Option<Clip>> {
        let (rect, in_viewport) = match area {
            Area::Viewport => return Ok(None),
            Area::FullPage => (None, false),
            Area::Document(rect) => (Some(rect), false),
            Area::Clip(rect) => (Some(rect), true),
        };
        if let Some(rect) = rect
            && !(rect.width > 0.0 && rect.height > 0.0 && rect.x.is_finite() && rect.y.is_finite())
        {
            return Err(BrowserError::invalid(format!(
                "area {rect:?}: expected finite numbers and sides above 0"
            )));
        }
        let metrics: Metrics =
            self.inner.session.call_as(GetLayoutMetricsParams::default(), deadline).await?;
        let size = metrics.css_content_size;
        let mut rect = rect.unwrap_or(Rect { x: 0.0, y: 0.0, width: size.width, height: size.height });
        if in_viewport {
            rect.x += metrics.css_visual_viewport.page_x;
            rect.y += metrics.css_visual_viewport.page_y;
        }
        let (width, height) = (rect.width.min(SIDE_MAX), rect.height.min(SIDE_MAX));
        let visible = metrics.css_visual_viewport;
        let beyond = rect.x < visible.page_x
            || rect.y < visible.page_y
            || rect.x + width > visible.page_x + visible.client_width
            || rect.y + height > visible.page_y + visible.client_height;
        Ok(Some(Clip { viewport: Viewport { x: rect.x, y: rect.y, width, height, scale }, beyond }))
    }
}

fn decode(data: &Data, what: &str) -> Result<Bytes> {
    let bytes = STANDARD.decode(&data.data);
    bytes.map(Bytes::from).map_err(|error| BrowserError::invalid(format!("{what}: {error}")))
}
