//! Mouse, keyboard and touch, as a user's hands would give them.

mod keyboard;
mod mouse;
mod touch;

pub use keyboard::Keyboard;
pub use mouse::{Button, ClickOptions, Mouse};
pub use touch::Touchscreen;

use crate::connection::Call;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::keys::{ALT, CONTROL, META, SHIFT};
use chromiumoxide::cdp::browser_protocol::input::DragData;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

/// Keys that are held while something else is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Modifier {
    /// Alt, or Option.
    Alt,
    /// Control.
    Control,
    /// Windows, or Command.
    Meta,
    /// Shift.
    Shift,
}

impl Modifier {
    pub(crate) fn bit(self) -> i64 {
        match self {
            Modifier::Alt => ALT,
            Modifier::Control => CONTROL,
            Modifier::Meta => META,
            Modifier::Shift => SHIFT,
        }
    }
}

/// A place in the viewport of the main frame, in CSS pixels from its top left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Down.
    pub y: f64,
}

impl Point {
    /// A place.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y }
    }
}

/// What of a page's input is held at the moment.
#[derive(Debug, Default)]
pub(crate) struct InputState {
    at: Point,
    /// Chromium's bits: 1 left, 2 right, 4 middle, 8 back, 16 forward.
    buttons: i64,
    modifiers: i64,
    /// Codes of keys that are down.
    keys: BTreeSet<&'static str>,
    /// What is dragged since Chromium has told us to.
    drag: Option<DragData>,
    /// A drag that began, and that nobody has taken over yet.
    pub(crate) intercepted: Option<DragData>,
}

/// Waits for all answers. Input is handled in order, so that the last answer ends the wait in practice.
async fn all<R: DeserializeOwned>(calls: Vec<Result<Call<R>>>, deadline: Deadline, what: &str) -> Result<()> {
    for call in calls {
        call?.within(deadline).await.map_err(|error: BrowserError| {
            error.waiting_for(|| format!("the page to handle {what}; its scripts are busy"))
        })?;
    }
    Ok(())
}
