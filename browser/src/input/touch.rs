//! The touch screen, in contexts that have one.

use super::{Point, all};
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::protocol::{Done, Raw};
use serde_json::json;

/// The touch screen of a page, in contexts with [`ContextOptions::touch`](crate::ContextOptions::touch).
#[derive(Clone, Debug)]
pub struct Touchscreen {
    page: Page,
}

impl Touchscreen {
    pub(crate) fn new(page: Page) -> Touchscreen {
        Touchscreen { page }
    }

    /// Touches a place and lets go.
    pub async fn tap(&self, x: f64, y: f64) -> Result<()> {
        self.gesture(&[Point::new(x, y)]).await
    }

    /// Touches the first place, moves over the others and lets go at the last.
    pub async fn swipe(&self, points: &[Point]) -> Result<()> {
        self.gesture(points).await
    }

    async fn gesture(&self, points: &[Point]) -> Result<()> {
        let has_touch = self.page.context().inner.emulated.lock().touch;
        if !has_touch {
            return Err(BrowserError::invalid(
                "touch: the context has no touch screen (ContextOptions::touch)",
            ));
        }
        let Some((first, rest)) = points.split_first() else { return Ok(()) };
        let mut calls = vec![self.event("touchStart", Some(*first))];
        calls.extend(rest.iter().map(|at| self.event("touchMove", Some(*at))));
        calls.push(self.event("touchEnd", None));
        all(calls, self.page.deadline(), "the touch").await
    }

    fn event(&self, kind: &str, at: Option<Point>) -> Result<crate::connection::Call<Done>> {
        let points: Vec<_> = at.iter().map(|at| json!({ "x": at.x, "y": at.y })).collect();
        let modifiers = self.page.inner.input.lock().modifiers;
        let params = json!({ "type": kind, "touchPoints": points, "modifiers": modifiers });
        self.page.inner.session.begin_as(Raw::new("Input.dispatchTouchEvent", params))
    }
}
