//! From a point or a reference to the element there, through frames of any process.

use super::action::Target;
use super::step::{ElementNote, Failure, FailureCode, PixelPoint};
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::handle::JsHandle;
use crate::input::Point;
use crate::page::Page;
use crate::page::state::World;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;

/// Frames in frames that are looked into.
const DEPTH_MAX: usize = 20;
/// Documents that may be replaced while an element is looked for.
const ATTEMPTS_MAX: usize = 3;

/// Why an action is not done: an outcome of its step, or an error of the call.
#[derive(Debug)]
pub(super) enum Fault {
    Failed(Failure),
    Lost(BrowserError),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Fault::Failed(failure)
    }
}

impl From<BrowserError> for Fault {
    fn from(error: BrowserError) -> Self {
        match Failure::from_error(error) {
            Ok(failure) => Fault::Failed(failure),
            Err(error) => Fault::Lost(error),
        }
    }
}

/// Where an element is, and what it is.
#[derive(Debug, Default)]
pub(super) struct Spot {
    pub(super) at: PixelPoint,
    pub(super) note: Option<ElementNote>,
    /// The frames at the point, the outermost first, each with the point in it.
    pub(super) frames: Vec<(Frame, Point)>,
}

/// References of the last page description.
#[derive(Debug, Default)]
pub(super) struct Refs {
    /// The tab that was described.
    pub(super) page: Option<Page>,
    pub(super) places: HashMap<u64, RefPlace>,
}

/// The document that a reference is of.
#[derive(Clone, Debug)]
pub(super) struct RefPlace {
    pub(super) frame: Frame,
    /// The execution context in which it was given.
    pub(super) context: i64,
}

/// What the page tells of a point.
#[derive(Deserialize)]
struct Found {
    note: Option<ElementNote>,
    frame: Option<PixelPoint>,
}

/// What the page tells of a reference.
#[derive(Deserialize)]
struct Reached {
    note: ElementNote,
    problem: Option<String>,
    #[serde(default)]
    x: f64,
    #[serde(default)]
    y: f64,
}

/// The pixel of a point in thousandths, within the viewport.
pub(super) fn pixel(page: &Page, x: f64, y: f64) -> PixelPoint {
    let size = page.viewport_size();
    let scaled = |part: f64, side: u32| {
        let side = f64::from(side);
        (part / 1000.0 * side).round().clamp(0.0, side - 1.0)
    };
    PixelPoint { x: scaled(x, size.width), y: scaled(y, size.height) }
}

/// The element at a point. A frame that is just being replaced has none.
pub(super) async fn at_point(page: &Page, at: PixelPoint, deadline: Deadline) -> Result<Spot> {
    const SPOT: &str = "function(x, y) { return this.spotAt(x, y); }";
    const FRAME: &str = "function(x, y) { return this.elementAt(x, y); }";
    let mut spot = Spot { at, ..Spot::default() };
    let mut frame = page.main_frame();
    let mut point = Point::new(at.x, at.y);
    for _ in 0..DEPTH_MAX {
        let args = [point.x.into(), point.y.into()];
        spot.frames.push((frame.clone(), point));
        let injected = frame.injected(deadline).await?;
        let found: Option<Found> = injected.call(SPOT, &args, deadline).await?;
        match found {
            Some(Found { note: Some(mut note), .. }) => {
                note.area.x += at.x - point.x;
                note.area.y += at.y - point.y;
                spot.note = Some(note);
                break;
            }
            Some(Found { frame: Some(inner), .. }) => {
                let Some(element) = injected.call_handle(&frame, FRAME, &args, deadline).await? else {
                    break;
                };
                let Some(child) = frame.frame_of(&element, deadline).await? else { break };
                frame = child;
                point = Point::new(inner.x, inner.y);
            }
            _ => break,
        }
    }
    Ok(spot)
}

/// Where a target is. What it needs: `enabled`, and that nothing covers it.
pub(super) async fn reach(
    page: &Page,
    target: Target,
    refs: &Refs,
    enabled: bool,
    deadline: Deadline,
) -> Result<Spot, Fault> {
    match target {
        Target::Point(x, y) => {
            let at = pixel(page, x, y);
            for _ in 1..ATTEMPTS_MAX {
                match at_point(page, at, deadline).await {
                    Err(BrowserError::Navigated | BrowserError::Stale | BrowserError::Detached) => {}
                    other => return Ok(other?),
                }
            }
            // The document is replaced again and again: a user would click all the same.
            Ok(Spot { at, ..Spot::default() })
        }
        Target::Ref(number) => by_ref(page, number, refs, enabled, deadline).await,
    }
}

async fn by_ref(
    page: &Page,
    number: u64,
    refs: &Refs,
    enabled: bool,
    deadline: Deadline,
) -> Result<Spot, Fault> {
    const REACH: &str = "function(ref, options) { return this.reach(ref, options); }";
    let frame = frame_of_ref(page, number, refs)?;
    let options = json!({
        "limit_ms": deadline.in_page_ms(), "nested": frame.parent().is_some(), "enabled": enabled, "force": false,
    });
    let injected = frame.injected(deadline).await.map_err(|error| stale(number, error))?;
    let args = [format!("e{number}").into(), options.into()];
    let reached: Result<Reached> = injected.call(REACH, &args, deadline).await;
    let Reached { note, problem, x, y } = reached.map_err(|error| stale(number, error))?;
    let told = format!("e{number} ({})", note.told());
    if let Some(problem) = problem {
        let (code, text) = match problem.as_str() {
            "disabled" => (FailureCode::NotInteractive, "is disabled".to_owned()),
            "hidden" | "no_box" | "detached" => (FailureCode::NotInteractive, "is not visible".to_owned()),
            "moving" => (FailureCode::NotInteractive, "does not come to rest".to_owned()),
            "outside_viewport" => (FailureCode::NotInteractive, "cannot be scrolled into view".to_owned()),
            covered => (FailureCode::Covered, format!("is {covered}")),
        };
        return Err(Failure::new(code, format!("{told} {text}")).into());
    }
    let main = frame.to_main((x, y), deadline).await.map_err(|error| stale(number, error))?;
    if let Some(covered) = main.covered {
        return Err(Failure::new(FailureCode::Covered, format!("{told} is covered by {covered}")).into());
    }
    let mut note = note;
    note.area.x += main.x - x;
    note.area.y += main.y - y;
    Ok(Spot {
        at: PixelPoint { x: main.x, y: main.y },
        note: Some(note),
        frames: vec![(frame, Point::new(x, y))],
    })
}

/// The element of a reference, as a handle.
pub(super) async fn element_of_ref(
    page: &Page,
    number: u64,
    refs: &Refs,
    deadline: Deadline,
) -> Result<JsHandle, Fault> {
    const RESOLVE: &str = "function(ref) { return this.resolveRef(ref); }";
    let frame = frame_of_ref(page, number, refs)?;
    let injected = frame.injected(deadline).await.map_err(|error| stale(number, error))?;
    let args = [format!("e{number}").into()];
    let element = injected.call_handle(&frame, RESOLVE, &args, deadline).await;
    let element = element.map_err(|error| stale(number, error))?;
    element.ok_or_else(|| stale(number, BrowserError::Stale))
}

fn frame_of_ref(page: &Page, number: u64, refs: &Refs) -> Result<Frame, Failure> {
    let stale = |text: String| Err(Failure::new(FailureCode::StaleReference, text));
    let Some(of) = &refs.page else {
        return stale(format!("e{number} is not known: the page has not been described"));
    };
    let Some(place) = refs.places.get(&number) else {
        return stale(format!("e{number} is not in the last page description"));
    };
    if of != page {
        return stale(format!("e{number} is of another tab than the current one"));
    }
    let context = place.frame.with(|frame| frame.place(World::Isolated).map(|place| place.context)).flatten();
    if context != Some(place.context) {
        return stale(format!("e{number} is of a document that is gone"));
    }
    Ok(place.frame.clone())
}

/// What an error of a reference is: the injected script says why it is stale.
fn stale(number: u64, error: BrowserError) -> Fault {
    let text = match &error {
        BrowserError::Script { message, .. } => {
            message.strip_prefix("StaleError: ").map(str::to_owned).unwrap_or_else(|| message.clone())
        }
        BrowserError::Navigated | BrowserError::Stale | BrowserError::Detached => {
            format!("e{number} is of a document that is gone")
        }
        _ => return error.into(),
    };
    Failure::new(FailureCode::StaleReference, text).into()
}

/// The element that has the focus, in whichever frame.
pub(super) async fn with_focus(page: &Page, deadline: Deadline) -> Result<Option<JsHandle>> {
    const FOCUSED: &str = "function() { return this.focused(); }";
    let mut frame = page.main_frame();
    for _ in 0..DEPTH_MAX {
        let injected = frame.injected(deadline).await?;
        let Some(element) = injected.call_handle(&frame, FOCUSED, &[], deadline).await? else {
            return Ok(None);
        };
        match frame.frame_of(&element, deadline).await? {
            Some(child) => frame = child,
            None => return Ok(Some(element)),
        }
    }
    Ok(None)
}

/// What an element is, with its box in the viewport of the tab.
pub(super) async fn note_of(element: &JsHandle, deadline: Deadline) -> Result<ElementNote> {
    const NOTE: &str = "function(element) { return this.note(element); }";
    let frame = element.frame();
    let injected = frame.injected(deadline).await?;
    let mut note: ElementNote = injected.call(NOTE, &[element.into()], deadline).await?;
    let main = frame.to_main((note.area.x, note.area.y), deadline).await?;
    note.area.x = main.x;
    note.area.y = main.y;
    Ok(note)
}
