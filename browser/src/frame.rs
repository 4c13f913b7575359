//! Frames: a page's main frame and those in it, in the same process or another.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::handle::JsHandle;
use crate::page::Page;
use crate::page::state::{FrameId, FrameState, World};
use crate::script::{Place, Return};
use crate::value::{JsArg, JsValue, into_rust};
use serde::de::DeserializeOwned;
use std::fmt;

/// A frame of a page. It stays the same frame over navigations, until it is removed from its page.
#[derive(Clone)]
pub struct Frame {
    page: Page,
    id: FrameId,
}

impl Frame {
    pub(crate) fn new(page: Page, id: FrameId) -> Frame {
        Frame { page, id }
    }

    /// Chromium's id, the same over navigations.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The page it is in.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The address it shows; empty where it is detached.
    pub fn url(&self) -> String {
        self.with(|frame| frame.url.clone()).unwrap_or_default()
    }

    /// The `name` of its element.
    pub fn name(&self) -> String {
        self.with(|frame| frame.name.clone()).unwrap_or_default()
    }

    /// The frame it is in; the main frame has none.
    pub fn parent(&self) -> Option<Frame> {
        let id = self.with(|frame| frame.parent.clone()).flatten()?;
        Some(Frame::new(self.page.clone(), id))
    }

    /// Frames directly in it.
    pub fn children(&self) -> Vec<Frame> {
        let ids = self.with(|frame| frame.children.clone()).unwrap_or_default();
        ids.into_iter().map(|id| Frame::new(self.page.clone(), id)).collect()
    }

    /// Whether it is gone from its page.
    pub fn is_detached(&self) -> bool {
        self.with(|_| ()).is_none()
    }

    /// Evaluates an expression in the page's own world, awaits it where it is a promise, and reads the result as JSON
    /// gives it to `T` (`undefined` is null).
    pub async fn evaluate<T: DeserializeOwned>(&self, expression: &str) -> Result<T> {
        into_rust(&self.run(expression, Return::Json).await?)
    }

    /// Like [`evaluate`](Self::evaluate), with what JSON cannot say.
    pub async fn evaluate_value(&self, expression: &str) -> Result<JsValue> {
        JsValue::from_remote(&self.run(expression, Return::Deep).await?)
    }

    /// Like [`evaluate`](Self::evaluate), with a handle of the result. A result without identity is an error.
    pub async fn evaluate_handle(&self, expression: &str) -> Result<JsHandle> {
        let deadline = self.page.deadline();
        let place = self.place(World::Main, deadline).await?;
        let object = place.evaluate(expression, Return::Handle, deadline).await?;
        self.handle(place, object)
    }

    /// Calls a function, such as `(a, b) => a + b`, in the page's own world.
    ///
    /// ```ignore
    /// let sum: f64 = frame.call("(a, b) => a + b", &[1.into(), 2.into()]).await?;
    /// ```
    pub async fn call<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        let deadline = self.page.deadline();
        let place = self.place(World::Main, deadline).await?;
        into_rust(&place.call(function, args, Return::Json, deadline).await?)
    }

    /// Like [`call`](Self::call), with a handle of the result.
    pub async fn call_handle(&self, function: &str, args: &[JsArg]) -> Result<JsHandle> {
        let deadline = self.page.deadline();
        let place = self.place(World::Main, deadline).await?;
        let object = place.call(function, args, Return::Handle, deadline).await?;
        self.handle(place, object)
    }

    /// The document's title.
    pub async fn title(&self) -> Result<String> {
        self.isolated("() => document.title", &[]).await
    }

    /// The document as HTML, with its doctype.
    pub async fn content(&self) -> Result<String> {
        const CONTENT: &str = "() => {
          const doctype = document.doctype ? new XMLSerializer().serializeToString(document.doctype) : '';
          return doctype + (document.documentElement?.outerHTML ?? '');
        }";
        self.isolated(CONTENT, &[]).await
    }

    /// Replaces the document's content and waits until it is loaded. The address stays.
    pub async fn set_content(&self, html: &str) -> Result<()> {
        // `document.open` removes all listeners, ours too.
        const SET_CONTENT: &str = "html => {
          document.open();
          globalThis.__espalier_listen?.();
          document.write(html);
          document.close();
          return new Promise(resolve => {
            if (document.readyState === 'complete') resolve();
            else window.addEventListener('load', () => resolve(), { once: true });
          });
        }";
        let waiting_for = || "the content to be loaded".to_owned();
        self.isolated(SET_CONTENT, &[html.into()])
            .await
            .map_err(|error: BrowserError| error.waiting_for(waiting_for))
    }

    /// Calls a function in the library's own world.
    pub(crate) async fn isolated<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        self.isolated_within(function, args, self.page.deadline()).await
    }

    pub(crate) async fn isolated_within<T: DeserializeOwned>(
        &self,
        function: &str,
        args: &[JsArg],
        deadline: Deadline,
    ) -> Result<T> {
        let place = self.place(World::Isolated, deadline).await?;
        into_rust(&place.call(function, args, Return::Json, deadline).await?)
    }

    /// Where scripts of this world run now. Waits while a document is just being replaced.
    pub(crate) async fn place(&self, world: World, deadline: Deadline) -> Result<Place> {
        let waiting_for = || format!("the document of frame {}", self.url());
        self.page
            .inner
            .wait(deadline, waiting_for, |state| match state.frames.get(&self.id) {
                None => Some(Err(BrowserError::Detached)),
                Some(frame) => frame.place(world).map(Ok),
            })
            .await
    }

    pub(crate) fn handle(&self, place: Place, object: crate::protocol::RemoteObject) -> Result<JsHandle> {
        let kind = object.kind.clone();
        JsHandle::new(self.clone(), place, object).ok_or_else(|| {
            BrowserError::invalid(format!("result: expected an object, got a value of type {kind}"))
        })
    }

    pub(crate) fn with<T>(&self, read: impl FnOnce(&FrameState) -> T) -> Option<T> {
        self.page.inner.state.lock().frames.get(&self.id).map(read)
    }

    async fn run(&self, expression: &str, returns: Return) -> Result<crate::protocol::RemoteObject> {
        let deadline = self.page.deadline();
        let place = self.place(World::Main, deadline).await?;
        place.evaluate(expression, returns, deadline).await
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.page == other.page
    }
}

impl Eq for Frame {}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({})", self.url())
    }
}
