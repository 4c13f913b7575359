//! From a locator to its frame and element: the object of the injected script, and the way down through frames.

use super::Locator;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::handle::JsHandle;
use crate::injected::SOURCE;
use crate::page::state::World;
use crate::protocol::{Raw, RemoteObject};
use crate::script::{Place, Return, SCRIPT};
use crate::selector::{Step, describe, steps_json};
use crate::value::{JsArg, into_rust};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;

/// `Promise` of the first element of a query, or of null.
const FIRST: &str = "async function(steps, limit) {
  const found = await this.waitFor(steps, ['attached'], { limit_ms: limit, strict: true });
  if (found.count > 1) throw new Error('strict ' + found.count);
  return found.element;
}";

/// The answer to `DOM.describeNode`, of which the frame's id is read.
#[derive(Deserialize)]
struct Described {
    node: Node,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    frame_id: Option<Arc<str>>,
    backend_node_id: i64,
}

/// The answer to `DOM.resolveNode`.
#[derive(Deserialize)]
struct Resolved {
    object: RemoteObject,
}

/// The injected script in a frame's present document.
pub(crate) struct Injected {
    pub(crate) place: Place,
    object_id: Arc<str>,
}

impl Injected {
    /// Calls a function declaration whose `this` is the object of the injected script.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        function: &str,
        args: &[JsArg],
        deadline: Deadline,
    ) -> Result<T> {
        let object = self.place.call_on(&self.object_id, function, args, Return::Json, deadline).await;
        into_rust(&object.map_err(understand)?)
    }

    pub(crate) async fn call_handle(
        &self,
        frame: &Frame,
        function: &str,
        args: &[JsArg],
        deadline: Deadline,
    ) -> Result<Option<JsHandle>> {
        let object = self.place.call_on(&self.object_id, function, args, Return::Handle, deadline).await;
        Ok(JsHandle::new(frame.clone(), self.place.clone(), object.map_err(understand)?))
    }
}

/// Errors that the injected script throws for its caller say what was wrong with the call.
fn understand(error: BrowserError) -> BrowserError {
    match &error {
        BrowserError::Script { message, .. } => match message.split_once(": ") {
            Some(("QueryError", what)) => BrowserError::invalid(format!("query: {what}")),
            Some(("ActionError", what)) => BrowserError::invalid(format!("action: {what}")),
            _ => error,
        },
        // The object of the injected script went with its document.
        BrowserError::Stale => BrowserError::Navigated,
        _ => error,
    }
}

impl Frame {
    /// The injected script, evaluated once a document.
    pub(crate) async fn injected(&self, deadline: Deadline) -> Result<Injected> {
        let place = self.place(World::Isolated, deadline).await?;
        let known = self.with(|frame| frame.injected.clone()).flatten();
        if let Some(object_id) = known {
            return Ok(Injected { place, object_id });
        }
        let object = place.evaluate(SOURCE, Return::Handle, deadline).await?;
        let object_id = object.object_id.ok_or(BrowserError::Navigated)?;
        let mut state = self.page().inner.state.lock();
        if let Some(frame) = state.frames.get_mut(self.id())
            && frame.place(World::Isolated).is_some_and(|now| now.context == place.context)
        {
            frame.injected = Some(Arc::clone(&object_id));
        }
        Ok(Injected { place, object_id })
    }

    /// The frame in an element, once it is attached.
    async fn frame_in(&self, steps: &[Step], deadline: Deadline) -> Result<Frame> {
        let injected = self.injected(deadline).await?;
        let args = [steps_json(steps).into(), deadline.in_page_ms().into()];
        let found = injected.call_handle(self, FIRST, &args, deadline).await;
        let element = match found {
            Ok(element) => element,
            Err(BrowserError::Script { message, .. }) if message.starts_with("Error: strict ") => {
                let count = message.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(2);
                return Err(BrowserError::Strict { selector: describe(steps), count, samples: Vec::new() });
            }
            Err(error) => return Err(error),
        };
        let missing =
            || deadline.timeout(format!("frame {} to be attached; no element matches", describe(steps)));
        let element = element.ok_or_else(missing)?;
        let found = self.frame_of(&element, deadline).await?;
        found.ok_or_else(|| BrowserError::invalid(format!("{}: expected an iframe", describe(steps))))
    }

    /// The frame that an element of this frame holds; `None` where it holds none.
    pub(crate) async fn frame_of(&self, element: &JsHandle, deadline: Deadline) -> Result<Option<Frame>> {
        let command = Raw::new("DOM.describeNode", json!({ "objectId": element.object_id() }));
        let described: Described = element.place().session.call_as(command, deadline).await?;
        let Some(id) = described.node.frame_id.filter(|id| **id != *self.id()) else { return Ok(None) };
        let known = |state: &crate::page::inner::PageState| {
            let frame = || Frame::new(self.page().clone(), Arc::clone(&id));
            state.frames.get(&id).is_some().then(|| Ok(Some(frame())))
        };
        self.page().inner.wait(deadline, || format!("frame {id}"), known).await
    }

    /// Where the frame's viewport begins in that of the main frame, and a function of ours that hears of each element
    /// on the way up. A point that something covers in a frame further up is told by `covered`.
    pub(crate) async fn to_main(&self, point: (f64, f64), deadline: Deadline) -> Result<InMain> {
        const UP: &str = "function(element, x, y) {
          const box = this.contentBox(element);
          if (box === null) return null;
          const point = { x: box.x + x, y: box.y + y };
          const hit = this.hitTarget(element, point);
          return [point.x, point.y, hit === null ? null : hit.from ?? hit.description];
        }";
        let (mut x, mut y) = point;
        let mut covered = None;
        let mut frame = self.clone();
        while let Some(parent) = frame.parent() {
            let injected = parent.injected(deadline).await?;
            let owner = Raw::new("DOM.getFrameOwner", json!({ "frameId": frame.id() }));
            let owner: Owner = injected.place.session.call_as(owner, deadline).await?;
            let element = parent.resolve(owner.backend_node_id, &injected.place, deadline).await?;
            let args = [(&element).into(), x.into(), y.into()];
            let up: Option<(f64, f64, Option<String>)> = injected.call(UP, &args, deadline).await?;
            let Some((up_x, up_y, hit)) = up else { return Err(BrowserError::Stale) };
            (x, y) = (up_x, up_y);
            covered = covered.or(hit);
            frame = parent;
        }
        Ok(InMain { x, y, covered })
    }

    /// The node as an object of a world of this frame.
    pub(crate) async fn resolve(&self, node: i64, place: &Place, deadline: Deadline) -> Result<JsHandle> {
        let params = json!({ "backendNodeId": node, "executionContextId": place.context });
        let command = Raw::new("DOM.resolveNode", params);
        let resolved: Resolved = place.session.call_as(command, deadline).await?;
        JsHandle::new(self.clone(), place.clone(), resolved.object).ok_or(BrowserError::Stale)
    }

    /// A node of the library's own world as an object of the page's.
    pub(crate) async fn adopt(&self, element: &JsHandle, deadline: Deadline) -> Result<JsHandle> {
        let place = self.place(World::Main, deadline).await?;
        let command = Raw::new("DOM.describeNode", json!({ "objectId": element.object_id() }));
        let described: Described = place.session.call_as(command, deadline).await?;
        self.resolve(described.node.backend_node_id, &place, deadline).await
    }
}

/// The answer to `DOM.getFrameOwner`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    backend_node_id: i64,
}

/// A point of a frame in the viewport of the main frame.
pub(crate) struct InMain {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// What lies above the frame there.
    pub(crate) covered: Option<String>,
}

impl Locator {
    /// The frame in which its last steps are looked up.
    pub(super) async fn target_frame(&self, deadline: Deadline) -> Result<Frame> {
        self.parsed()?;
        let mut frame = self.frame.clone();
        for steps in &self.frames {
            frame = frame.frame_in(steps, deadline).await?;
        }
        Ok(frame)
    }

    /// Repeats `attempt` while documents are replaced under it, until the deadline.
    pub(super) async fn retrying<T, F>(
        &self,
        deadline: Deadline,
        waiting_for: impl FnOnce() -> String,
        mut attempt: impl FnMut(Frame) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.parsed()?;
        let attempts = async {
            loop {
                let frame = match self.target_frame(deadline).await {
                    Ok(frame) => frame,
                    Err(error) if self.passes(&error) => continue,
                    Err(error) => return Err(error),
                };
                match attempt(frame).await {
                    Err(error) if self.passes(&error) => {}
                    other => return other,
                }
            }
        };
        let result = deadline.bound(String::new, attempts).await;
        result.map_err(|error| match &error {
            // The page said nothing of what is missing: it did not answer at all.
            BrowserError::Timeout { waiting_for: said, .. } if said.is_empty() || said == SCRIPT => {
                error.waiting_for(waiting_for)
            }
            _ => error,
        })
    }

    /// Whether another attempt makes sense: a document went away, or a frame on the way down. Every attempt waits for an
    /// answer of the browser, so that this never spins.
    fn passes(&self, error: &BrowserError) -> bool {
        match error {
            BrowserError::Navigated | BrowserError::Stale => true,
            BrowserError::Detached => !self.frames.is_empty() && !self.frame.is_detached(),
            _ => false,
        }
    }
}
