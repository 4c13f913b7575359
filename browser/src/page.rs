//! A page: a tab with its frames.

mod dispatch;
mod flood;
pub(crate) mod inner;
mod settings;
pub(crate) mod startup;
pub(crate) mod state;

pub use state::LoadState;

use crate::console::{ConsoleMessage, ScriptError};
use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::dialog::{Dialog, DialogPolicy};
use crate::error::{BrowserError, Result};
use crate::event::PageEvent;
use crate::frame::Frame;
use crate::handle::JsHandle;
use crate::input::{Keyboard, Mouse, Touchscreen};
use crate::navigation::GotoOptions;
use crate::network::{Request, Response};
use crate::queue::EventStream;
use crate::url_match::UrlMatch;
use crate::value::{JsArg, JsValue};
use chromiumoxide::cdp::browser_protocol::page::{BringToFrontParams, CloseParams};
use chromiumoxide::cdp::browser_protocol::target::CloseTargetParams;
use inner::PageInner;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A page: a tab with its frames. Cheap to clone; the page stays open until [`close`](Page::close), or until its context
/// is closed.
#[derive(Clone)]
pub struct Page {
    pub(crate) inner: Arc<PageInner>,
    context: BrowserContext,
}

impl Page {
    pub(crate) fn new(inner: Arc<PageInner>, context: BrowserContext) -> Page {
        Page { inner, context }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &BrowserContext {
        &self.context
    }

    /// Chromium's id of the page.
    pub fn id(&self) -> &str {
        &self.inner.target_id
    }

    /// The page that opened it, where that is still open.
    pub fn opener(&self) -> Option<Page> {
        let opener = self.inner.opener.as_ref()?;
        self.context.pages().into_iter().find(|page| page.inner.target_id == *opener)
    }

    /// The frame that fills the page.
    pub fn main_frame(&self) -> Frame {
        let id = Arc::clone(self.inner.state.lock().frames.main_id());
        Frame::new(self.clone(), id)
    }

    /// All its frames, each after the frame it is in.
    pub fn frames(&self) -> Vec<Frame> {
        let ids = self.inner.state.lock().frames.in_order();
        ids.into_iter().map(|id| Frame::new(self.clone(), id)).collect()
    }

    /// The first frame whose element has this name.
    pub fn frame_named(&self, name: &str) -> Option<Frame> {
        self.frames().into_iter().find(|frame| frame.name() == name)
    }

    /// The first frame whose address matches.
    pub fn frame_at(&self, urls: impl Into<UrlMatch>) -> Option<Frame> {
        let urls = urls.into();
        self.frames().into_iter().find(|frame| urls.matches(&frame.url()))
    }

    /// Goes to an address and waits until it is loaded: see [`Frame::goto`].
    pub async fn goto(&self, url: &str) -> Result<Option<Response>> {
        self.main_frame().goto(url).await
    }

    /// Like [`goto`](Self::goto).
    pub async fn goto_with(&self, url: &str, options: GotoOptions) -> Result<Option<Response>> {
        self.main_frame().goto_with(url, options).await
    }

    /// Loads the page again.
    pub async fn reload(&self) -> Result<Option<Response>> {
        self.reload_with(GotoOptions::default(), false).await
    }

    /// Like [`reload`](Self::reload), without the cache where `ignore_cache`.
    pub async fn reload_with(&self, options: GotoOptions, ignore_cache: bool) -> Result<Option<Response>> {
        self.main_frame().reload(&options, ignore_cache).await
    }

    /// Goes back in the history. False: there is nothing to go back to.
    pub async fn go_back(&self) -> Result<bool> {
        self.go_back_with(GotoOptions::default()).await
    }

    /// Like [`go_back`](Self::go_back).
    pub async fn go_back_with(&self, options: GotoOptions) -> Result<bool> {
        self.main_frame().go_in_history(-1, &options).await
    }

    /// Goes forward in the history. False: there is nothing to go to.
    pub async fn go_forward(&self) -> Result<bool> {
        self.go_forward_with(GotoOptions::default()).await
    }

    /// Like [`go_forward`](Self::go_forward).
    pub async fn go_forward_with(&self, options: GotoOptions) -> Result<bool> {
        self.main_frame().go_in_history(1, &options).await
    }

    /// The address of the main frame.
    pub fn url(&self) -> String {
        self.main_frame().url()
    }

    /// The document's title.
    pub async fn title(&self) -> Result<String> {
        self.main_frame().title().await
    }

    /// The document as HTML.
    pub async fn content(&self) -> Result<String> {
        self.main_frame().content().await
    }

    /// Replaces the document's content and waits until it is loaded. The address stays.
    pub async fn set_content(&self, html: &str) -> Result<()> {
        self.main_frame().set_content(html).await
    }

    /// See [`Frame::evaluate`].
    pub async fn evaluate<T: DeserializeOwned>(&self, expression: &str) -> Result<T> {
        self.main_frame().evaluate(expression).await
    }

    /// See [`Frame::evaluate_value`].
    pub async fn evaluate_value(&self, expression: &str) -> Result<JsValue> {
        self.main_frame().evaluate_value(expression).await
    }

    /// See [`Frame::evaluate_handle`].
    pub async fn evaluate_handle(&self, expression: &str) -> Result<JsHandle> {
        self.main_frame().evaluate_handle(expression).await
    }

    /// See [`Frame::call`].
    pub async fn call<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        self.main_frame().call(function, args).await
    }

    /// See [`Frame::wait_for_url`].
    pub async fn wait_for_url(&self, urls: impl Into<UrlMatch>) -> Result<()> {
        self.main_frame().wait_for_url(urls, GotoOptions::default()).await
    }

    /// See [`Frame::wait_for_load_state`].
    pub async fn wait_for_load_state(&self, until: LoadState) -> Result<()> {
        self.main_frame().wait_for_load_state(until, None).await
    }

    /// See [`Frame::expect_navigation`].
    pub async fn expect_navigation(
        &self,
        action: impl Future<Output = Result<()>>,
    ) -> Result<Option<Response>> {
        self.main_frame().expect_navigation(GotoOptions::default(), action).await
    }

    /// What happens on the page from now on.
    pub fn events(&self) -> EventStream<PageEvent> {
        self.inner.events.subscribe()
    }

    /// Console messages so far: the last 500, and how many older ones are lost.
    pub fn console_messages(&self) -> (Vec<ConsoleMessage>, u64) {
        let state = self.inner.state.lock();
        (state.console.all(), state.console.dropped())
    }

    /// Errors that no script caught, so far: the last 200, and how many older ones are lost.
    pub fn script_errors(&self) -> (Vec<ScriptError>, u64) {
        let state = self.inner.state.lock();
        (state.errors.all(), state.errors.dropped())
    }

    /// Dialogs so far: the last 100.
    pub fn dialogs(&self) -> Vec<Dialog> {
        self.inner.state.lock().dialogs.all()
    }

    /// The dialog that is open now.
    pub fn dialog(&self) -> Option<Dialog> {
        self.inner.state.lock().dialog.clone().filter(|dialog| !dialog.is_answered())
    }

    /// What becomes of dialogs from now on. Default: [`DialogPolicy::Dismiss`].
    pub fn set_dialog_policy(&self, policy: DialogPolicy) {
        self.inner.state.lock().dialog_policy = policy;
    }

    /// Gives dialogs to a handler from now on: see [`DialogPolicy::Handler`].
    pub fn on_dialog<F>(&self, handler: impl Fn(Dialog) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.set_dialog_policy(DialogPolicy::Handler(Arc::new(move |dialog| Box::pin(handler(dialog)))));
    }

    /// Requests that have neither succeeded nor failed.
    pub fn requests_under_way(&self) -> Vec<Request> {
        self.inner.network.under_way()
    }

    /// Why it cannot be used any more: closed, or crashed. `None`: it is open.
    pub fn failure(&self) -> Option<BrowserError> {
        self.inner.session.ended()
    }

    /// The mouse.
    pub fn mouse(&self) -> Mouse {
        Mouse::new(self.clone())
    }

    /// The keyboard.
    pub fn keyboard(&self) -> Keyboard {
        Keyboard::new(self.clone())
    }

    /// The touch screen.
    pub fn touchscreen(&self) -> Touchscreen {
        Touchscreen::new(self.clone())
    }

    /// Brings it to the front of its window.
    pub async fn bring_to_front(&self) -> Result<()> {
        self.inner.session.call(BringToFrontParams::default(), self.deadline()).await?;
        Ok(())
    }

    /// Closes it without asking its `beforeunload` handlers, and waits until it is gone. Closing twice does nothing.
    pub async fn close(&self) -> Result<()> {
        let root = self.context.inner.browser.root();
        let command = CloseTargetParams::new(self.inner.target_id.to_string());
        match root.call(command, self.deadline()).await {
            Ok(_) => {}
            Err(error) if error.is_gone() => return Ok(()),
            // It is gone already.
            Err(BrowserError::Protocol { .. }) => {}
            Err(error) => return Err(error),
        }
        self.until_closed().await
    }

    /// Closes it as a user would: its `beforeunload` handlers run, and may keep it open. Waits until it is gone.
    pub async fn close_asking(&self) -> Result<()> {
        match self.inner.session.call(CloseParams::default(), self.deadline()).await {
            Ok(_) => self.until_closed().await,
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn until_closed(&self) -> Result<()> {
        let never = |_: &inner::PageState| None;
        let waiting_for = || "the page to close".to_owned();
        match self.inner.wait_in_spite_of_dialogs::<()>(self.deadline(), waiting_for, never).await {
            Err(error) if error.is_gone() => Ok(()),
            other => other,
        }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.context.deadline()
    }

    pub(crate) fn deadline_of(&self, timeout: Option<Duration>) -> Deadline {
        timeout.map_or_else(|| self.deadline(), Deadline::after)
    }
}

impl PartialEq for Page {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Page {}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({})", self.url())
    }
}
