//! The mouse: moves, presses, clicks, drags, wheel.

use super::{Modifier, Point, all};
use crate::connection::Call;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::page::state::World;
use crate::protocol::Done;
use crate::script::Return;
use chromiumoxide::cdp::browser_protocol::input::{
    DispatchDragEventParams, DispatchDragEventType, DispatchMouseEventParams, DispatchMouseEventType,
    DragData, MouseButton, SetInterceptDragsParams,
};
use std::time::Duration;

/// How long Chromium may take to tell what is dragged after a page has begun to drag.
const DRAG_BOUND: Duration = Duration::from_secs(5);

/// Listens in a frame's own world for a drag that begins with the next move.
const ARM: &str = "() => {
  let started = Promise.resolve(false), event = null;
  const onDrag = e => { event = e; };
  const onMove = () => {
    started = new Promise(resolve => {
      window.addEventListener('dragstart', onDrag, { once: true, capture: true });
      setTimeout(() => resolve(event !== null && !event.defaultPrevented), 0);
    });
  };
  window.addEventListener('mousemove', onMove, { once: true, capture: true });
  globalThis.__espalier_drag = async () => {
    const result = await started;
    window.removeEventListener('mousemove', onMove, { capture: true });
    window.removeEventListener('dragstart', onDrag, { capture: true });
    return result;
  };
}";

/// A button of the mouse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Button {
    /// The main one.
    #[default]
    Left,
    /// The wheel.
    Middle,
    /// For the context menu.
    Right,
    /// Back in the history.
    Back,
    /// Forward in the history.
    Forward,
}

impl Button {
    fn to_cdp(self) -> MouseButton {
        match self {
            Button::Left => MouseButton::Left,
            Button::Middle => MouseButton::Middle,
            Button::Right => MouseButton::Right,
            Button::Back => MouseButton::Back,
            Button::Forward => MouseButton::Forward,
        }
    }

    fn bit(self) -> i64 {
        match self {
            Button::Left => 1,
            Button::Right => 2,
            Button::Middle => 4,
            Button::Back => 8,
            Button::Forward => 16,
        }
    }
}

/// How to click.
#[derive(Clone, Debug)]
pub struct ClickOptions {
    /// Default: left.
    pub button: Button,
    /// 2 is a double click. Default: 1.
    pub count: u32,
    /// Held during the click, besides those that are held already.
    pub modifiers: Vec<Modifier>,
    /// Between press and release. Default: none.
    pub delay: Duration,
}

impl Default for ClickOptions {
    fn default() -> Self {
        ClickOptions { button: Button::Left, count: 1, modifiers: Vec::new(), delay: Duration::ZERO }
    }
}

/// The mouse of a page. Places are in CSS pixels of the main frame's viewport, whichever frame is there.
#[derive(Clone, Debug)]
pub struct Mouse {
    page: Page,
}

impl Mouse {
    pub(crate) fn new(page: Page) -> Mouse {
        Mouse { page }
    }

    /// Moves it there at once.
    pub async fn move_to(&self, x: f64, y: f64) -> Result<()> {
        self.move_in_steps(x, y, 1).await
    }

    /// Moves it there in that many even steps.
    pub async fn move_in_steps(&self, x: f64, y: f64, steps: u32) -> Result<()> {
        self.move_within(Point::new(x, y), steps.max(1), self.page.deadline()).await
    }

    /// Presses a button where the mouse is.
    pub async fn down(&self, button: Button) -> Result<()> {
        let calls = vec![self.press(button, 1, 0)];
        all(calls, self.page.deadline(), "the mouse").await
    }

    /// Releases a button where the mouse is: the end of a drag, too.
    pub async fn up(&self, button: Button) -> Result<()> {
        self.up_within(button, self.page.deadline()).await
    }

    /// Moves there and clicks.
    pub async fn click(&self, x: f64, y: f64) -> Result<()> {
        self.click_with(x, y, ClickOptions::default()).await
    }

    /// Moves there and double-clicks.
    pub async fn double_click(&self, x: f64, y: f64) -> Result<()> {
        self.click_with(x, y, ClickOptions { count: 2, ..ClickOptions::default() }).await
    }

    /// Like [`click`](Self::click).
    pub async fn click_with(&self, x: f64, y: f64, options: ClickOptions) -> Result<()> {
        self.click_within(Point::new(x, y), &options, self.page.deadline()).await
    }

    /// Turns the wheel where the mouse is, by CSS pixels to the right and down.
    pub async fn wheel(&self, delta_x: f64, delta_y: f64) -> Result<()> {
        self.wheel_within(delta_x, delta_y, self.page.deadline()).await
    }

    pub(crate) async fn wheel_within(&self, delta_x: f64, delta_y: f64, deadline: Deadline) -> Result<()> {
        let mut event = self.event(DispatchMouseEventType::MouseWheel, 0);
        event.delta_x = Some(delta_x);
        event.delta_y = Some(delta_y);
        all(vec![self.begin(event)], deadline, "the wheel").await
    }

    /// Presses the left button at `from`, moves to `to` and releases it: what drags elements, selects text and draws.
    pub async fn drag(&self, from: Point, to: Point) -> Result<()> {
        self.drag_within(from, to, self.page.deadline()).await
    }

    pub(crate) async fn drag_within(&self, from: Point, to: Point, deadline: Deadline) -> Result<()> {
        // Pages begin to drag after some pixels, and look where it goes before they take what is dropped.
        self.drag_in_steps(from, to, 5, deadline).await
    }

    pub(crate) async fn drag_in_steps(
        &self,
        from: Point,
        to: Point,
        steps: u32,
        deadline: Deadline,
    ) -> Result<()> {
        self.move_within(from, 1, deadline).await?;
        all(vec![self.press(Button::Left, 1, 0)], deadline, "the mouse").await?;
        self.move_within(to, steps, deadline).await?;
        self.move_within(to, 1, deadline).await?;
        self.up_within(Button::Left, deadline).await
    }

    pub(crate) async fn click_within(
        &self,
        at: Point,
        options: &ClickOptions,
        deadline: Deadline,
    ) -> Result<()> {
        let modifiers = options.modifiers.iter().fold(0, |bits, modifier| bits | modifier.bit());
        self.page.inner.input.lock().at = at;
        let mut moved = self.event(DispatchMouseEventType::MouseMoved, modifiers);
        moved.button = Some(MouseButton::None);
        let mut calls = vec![self.begin(moved)];
        for count in 1..=options.count.max(1) {
            calls.push(self.press(options.button, count, modifiers));
            if !options.delay.is_zero() {
                all(std::mem::take(&mut calls), deadline, "the mouse").await?;
                tokio::time::sleep(options.delay.min(deadline.remaining())).await;
            }
            calls.push(self.release(options.button, count, modifiers));
        }
        all(calls, deadline, "the click").await
    }

    pub(crate) async fn move_within(&self, to: Point, steps: u32, deadline: Deadline) -> Result<()> {
        let (from, dragging, may_drag) = {
            let input = self.page.inner.input.lock();
            (input.at, input.drag.clone(), input.buttons & 1 != 0)
        };
        let points = (1..=steps).map(|step| {
            let part = f64::from(step) / f64::from(steps);
            Point::new(from.x + (to.x - from.x) * part, from.y + (to.y - from.y) * part)
        });
        if let Some(data) = dragging {
            let calls = points.map(|at| {
                self.page.inner.input.lock().at = at;
                self.drag_event(DispatchDragEventType::DragOver, at, data.clone())
            });
            return all(calls.collect(), deadline, "the drag").await;
        }
        if may_drag {
            return self.move_that_may_drag(points.collect(), deadline).await;
        }
        let calls = points.map(|at| self.moved(at));
        all(calls.collect(), deadline, "the mouse").await
    }

    /// Moves with the left button down, and takes over where the page begins to drag.
    async fn move_that_may_drag(&self, points: Vec<Point>, deadline: Deadline) -> Result<()> {
        let session = &self.page.inner.session;
        session.call_as::<Done>(SetInterceptDragsParams::new(true), deadline).await?;
        self.page.inner.input.lock().intercepted = None;
        let mut places = Vec::new();
        for frame in self.page.frames() {
            // A frame that is just being replaced drags nothing.
            let place = frame.with(|state| state.place(World::Isolated)).flatten();
            if let Some(place) = place
                && place.call(ARM, &[], Return::Json, deadline).await.is_ok()
            {
                places.push(place);
            }
        }
        let mut points = points.into_iter();
        let mut result = Ok(());
        let mut began = false;
        for at in points.by_ref() {
            result = all(vec![self.moved(at)], deadline, "the mouse").await;
            began = result.is_ok() && self.page.inner.input.lock().intercepted.is_some();
            if began || result.is_err() {
                break;
            }
        }
        if result.is_ok() && !began {
            for place in &places {
                let started = place.evaluate("globalThis.__espalier_drag?.()", Return::Json, deadline).await;
                began |= started.is_ok_and(|object| crate::value::into_rust(&object) == Ok(Some(true)));
            }
        }
        if began {
            result = self.take_over(deadline.at_most(DRAG_BOUND)).await;
        }
        session.post(SetInterceptDragsParams::new(false));
        result?;
        let data = self.page.inner.input.lock().drag.clone();
        match data {
            None => Ok(()),
            Some(data) => {
                let calls = points.map(|at| {
                    self.page.inner.input.lock().at = at;
                    self.drag_event(DispatchDragEventType::DragOver, at, data.clone())
                });
                all(calls.collect(), deadline, "the drag").await
            }
        }
    }

    /// Waits for what is dragged, and brings it to where the mouse is.
    async fn take_over(&self, deadline: Deadline) -> Result<()> {
        let inner = &self.page.inner;
        let data = inner
            .wait(
                deadline,
                || "what is dragged".to_owned(),
                |_| inner.input.lock().intercepted.take().map(Ok),
            )
            .await?;
        let at = {
            let mut input = inner.input.lock();
            input.drag = Some(data.clone());
            input.at
        };
        let enter = self.drag_event(DispatchDragEventType::DragEnter, at, data.clone());
        all(vec![enter, self.drag_event(DispatchDragEventType::DragOver, at, data)], deadline, "the drag")
            .await
    }

    async fn up_within(&self, button: Button, deadline: Deadline) -> Result<()> {
        let dropped = {
            let mut input = self.page.inner.input.lock();
            let data = input.drag.take_if(|_| button == Button::Left);
            if data.is_some() {
                input.buttons &= !button.bit();
            }
            data.map(|data| (data, input.at))
        };
        let call = match dropped {
            Some((data, at)) => self.drag_event(DispatchDragEventType::Drop, at, data),
            None => self.release(button, 1, 0),
        };
        all(vec![call], deadline, "the mouse").await
    }

    fn moved(&self, at: Point) -> Result<Call<Done>> {
        let held = {
            let mut input = self.page.inner.input.lock();
            input.at = at;
            input.buttons
        };
        let mut event = self.event(DispatchMouseEventType::MouseMoved, 0);
        event.button = Some(if held & 1 != 0 { MouseButton::Left } else { MouseButton::None });
        self.begin(event)
    }

    fn press(&self, button: Button, count: u32, modifiers: i64) -> Result<Call<Done>> {
        self.page.inner.input.lock().buttons |= button.bit();
        self.begin(self.button_event(DispatchMouseEventType::MousePressed, button, count, modifiers))
    }

    fn release(&self, button: Button, count: u32, modifiers: i64) -> Result<Call<Done>> {
        self.page.inner.input.lock().buttons &= !button.bit();
        self.begin(self.button_event(DispatchMouseEventType::MouseReleased, button, count, modifiers))
    }

    fn button_event(
        &self,
        kind: DispatchMouseEventType,
        button: Button,
        count: u32,
        modifiers: i64,
    ) -> DispatchMouseEventParams {
        let mut event = self.event(kind, modifiers);
        event.button = Some(button.to_cdp());
        event.click_count = Some(i64::from(count));
        event
    }

    fn event(&self, kind: DispatchMouseEventType, modifiers: i64) -> DispatchMouseEventParams {
        let input = self.page.inner.input.lock();
        let mut event = DispatchMouseEventParams::new(kind, input.at.x, input.at.y);
        event.modifiers = Some(input.modifiers | modifiers);
        event.buttons = Some(input.buttons);
        event
    }

    fn begin(&self, event: DispatchMouseEventParams) -> Result<Call<Done>> {
        if !(event.x.is_finite() && event.y.is_finite()) {
            return Err(BrowserError::invalid(format!(
                "place {}, {}: expected finite numbers",
                event.x, event.y
            )));
        }
        self.page.inner.session.begin_as(event)
    }

    fn drag_event(&self, kind: DispatchDragEventType, at: Point, data: DragData) -> Result<Call<Done>> {
        let mut event = DispatchDragEventParams::new(kind, at.x, at.y, data);
        event.modifiers = Some(self.page.inner.input.lock().modifiers);
        self.page.inner.session.begin_as(event)
    }
}
