//! Going somewhere and waiting until one is there.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::network::Response;
use crate::page::inner::PageState;
use crate::page::state::{Failure, LoadState, LoaderId, Marks};
use crate::protocol::Navigated;
use crate::url_match::UrlMatch;
use chromiumoxide::cdp::browser_protocol::page::{
    GetNavigationHistoryParams, NavigateParams, NavigateToHistoryEntryParams, ReloadParams,
};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const ABORTED: &str = "net::ERR_ABORTED";
/// After a navigation was aborted, Chromium may yet say that it has become a download, or that another one took its
/// place; it says so within milliseconds.
const ABORTED_GRACE: Duration = Duration::from_millis(500);
/// Chromium's page for an address that cannot be reached comes within milliseconds of the answer, where one comes at all.
const ERROR_PAGE_GRACE: Duration = Duration::from_millis(500);

/// How to go to an address.
#[derive(Clone, Debug, Default)]
pub struct GotoOptions {
    /// How far the document must be loaded. Default: [`LoadState::Load`].
    pub wait_until: LoadState,
    /// Default: that of the context.
    pub timeout: Option<Duration>,
    /// Sent as `Referer`.
    pub referer: Option<String>,
}

impl Frame {
    /// Goes to an address and waits until its document is loaded. The response is that of the last redirect; addresses
    /// such as `about:blank`, and a change of the hash only, have none.
    ///
    /// Fails with [`BrowserError::Navigation`] where no document came, and with [`BrowserError::Download`] where the
    /// address is a download. A status of 404 or 500 is a document like any other.
    pub async fn goto(&self, url: &str) -> Result<Option<Response>> {
        self.goto_with(url, GotoOptions::default()).await
    }

    /// Like [`goto`](Self::goto).
    pub async fn goto_with(&self, url: &str, options: GotoOptions) -> Result<Option<Response>> {
        let deadline = self.deadline(options.timeout);
        let before = self.marks()?;
        let session = self.with(|frame| Arc::clone(&frame.session)).ok_or(BrowserError::Detached)?;
        let mut command = NavigateParams::new(url);
        command.referrer = options.referer;
        command.frame_id = Some(self.id().to_owned().into());
        let waiting_for = || format!("{url} to answer");
        let answer: Navigated = match session.call_as(command, deadline).await {
            Ok(answer) => answer,
            Err(BrowserError::Protocol { message, .. }) => {
                return Err(BrowserError::Navigation { url: url.to_owned(), reason: message });
            }
            Err(error) => return Err(error.waiting_for(waiting_for)),
        };
        if let Some(reason) = answer.error_text {
            return Err(self.refused(url, reason, answer.is_download, before, deadline).await);
        }
        let Some(loader) = answer.loader_id else {
            let check = |state: &PageState| {
                let frame = state.frames.get(self.id());
                let there = frame.map(|frame| frame.same_document > before.same_document);
                there.map_or(Some(Err(BrowserError::Detached)), |there| there.then_some(Ok(None)))
            };
            return self.page().inner.wait(deadline, waiting_for, check).await;
        };
        self.wait_for_document(&loader, url, options.wait_until, deadline).await?;
        Ok(self.page().inner.network.response_of(&loader))
    }

    /// Waits until the address matches and its document is loaded. Returns at once where both hold.
    pub async fn wait_for_url(&self, urls: impl Into<UrlMatch>, options: GotoOptions) -> Result<()> {
        let deadline = self.deadline(options.timeout);
        let urls = urls.into();
        let waiting_for = || format!("the address to match {urls:?}; it is {}", self.url());
        self.page()
            .inner
            .wait(deadline, waiting_for, |state| match state.frames.get(self.id()) {
                None => Some(Err(BrowserError::Detached)),
                Some(frame) => {
                    let there =
                        urls.matches(&frame.url) && state.frames.reached(self.id(), options.wait_until);
                    there.then_some(Ok(()))
                }
            })
            .await
    }

    /// Waits until the present document is loaded this far. Returns at once where it is.
    pub async fn wait_for_load_state(&self, until: LoadState, timeout: Option<Duration>) -> Result<()> {
        let deadline = self.deadline(timeout);
        let waiting_for = || format!("{} to be loaded ({until:?})", self.url());
        self.page()
            .inner
            .wait(deadline, waiting_for, |state| match state.frames.get(self.id()) {
                None => Some(Err(BrowserError::Detached)),
                Some(_) => state.frames.reached(self.id(), until).then_some(Ok(())),
            })
            .await
    }

    /// Does `action`, which navigates this frame, and waits until the new document is loaded. A navigation within the
    /// document counts as one.
    ///
    /// ```ignore
    /// frame.expect_navigation(GotoOptions::default(), async { page.locator("a").click().await }).await?;
    /// ```
    pub async fn expect_navigation(
        &self,
        options: GotoOptions,
        action: impl Future<Output = Result<()>>,
    ) -> Result<Option<Response>> {
        let deadline = self.deadline(options.timeout);
        let before = self.marks()?;
        deadline.bound(|| "the action that navigates".to_owned(), action).await?;
        self.wait_for_change(before, options.wait_until, deadline).await
    }

    pub(crate) async fn reload(&self, options: &GotoOptions, ignore_cache: bool) -> Result<Option<Response>> {
        let deadline = self.deadline(options.timeout);
        let before = self.marks()?;
        let command = ReloadParams { ignore_cache: Some(ignore_cache), ..ReloadParams::default() };
        self.page().inner.session.call(command, deadline).await?;
        self.wait_for_change(before, options.wait_until, deadline).await
    }

    /// `step` -1 is back, 1 is forward. False: there is nothing there.
    pub(crate) async fn go_in_history(&self, step: i64, options: &GotoOptions) -> Result<bool> {
        let deadline = self.deadline(options.timeout);
        let session = &self.page().inner.session;
        let history = session.call(GetNavigationHistoryParams::default(), deadline).await?;
        let entry = usize::try_from(history.current_index + step).ok().and_then(|at| history.entries.get(at));
        let Some(entry) = entry else { return Ok(false) };
        let before = self.marks()?;
        session.call(NavigateToHistoryEntryParams::new(entry.id), deadline).await?;
        self.wait_for_change(before, options.wait_until, deadline).await?;
        Ok(true)
    }

    pub(crate) fn marks(&self) -> Result<Marks> {
        self.with(|frame| frame.marks()).ok_or(BrowserError::Detached)
    }

    /// Waits for what comes after `before`: a document, a change within it, or a failure.
    pub(crate) async fn wait_for_change(
        &self,
        before: Marks,
        until: LoadState,
        deadline: Deadline,
    ) -> Result<Option<Response>> {
        let inner = &self.page().inner;
        let waiting_for = || format!("a navigation; {}", inner.state.lock().main_progress());
        let check = |state: &PageState, aborted_counts: bool| {
            let Some(frame) = state.frames.get(self.id()) else { return Some(Err(BrowserError::Detached)) };
            let now = frame.marks();
            if now.commits > before.commits {
                if let Some(url) = &frame.unreachable {
                    let reason = frame.last_failure().map(|failure| failure.reason.clone());
                    let reason = reason.unwrap_or_else(|| "net::ERR_FAILED".to_owned());
                    return Some(Err(BrowserError::Navigation { url: url.clone(), reason }));
                }
                return state.frames.reached(self.id(), until).then(|| Ok(frame.loader.clone()));
            }
            if now.same_document > before.same_document {
                return Some(Ok(None));
            }
            // A navigation that was replaced by another one fails, too, and the other is under way.
            let failed = now.failures > before.failures && frame.pending.is_none();
            let failure = frame.last_failure().filter(|_| failed)?;
            let counts = aborted_counts || failure.download || failure.reason != ABORTED;
            counts.then(|| Err(as_error(failure)))
        };
        let mut result = inner.wait(deadline, waiting_for, |state| check(state, true)).await;
        if matches!(&result, Err(BrowserError::Navigation { reason, .. }) if reason == ABORTED) {
            let grace = deadline.at_most(ABORTED_GRACE);
            let later = inner.wait(grace, waiting_for, |state| check(state, false)).await;
            if !later.as_ref().is_err_and(BrowserError::is_timeout) {
                result = later;
            }
        }
        let loader = result?;
        Ok(loader.and_then(|loader| inner.network.response_of(&loader)))
    }

    async fn wait_for_document(
        &self,
        loader: &LoaderId,
        url: &str,
        until: LoadState,
        deadline: Deadline,
    ) -> Result<()> {
        let waiting_for = || format!("{url} to be loaded ({until:?})");
        let check = |state: &PageState| {
            let Some(frame) = state.frames.get(self.id()) else { return Some(Err(BrowserError::Detached)) };
            if frame.has_committed(loader) {
                return state.frames.reached(self.id(), until).then_some(Ok(()));
            }
            frame.failure_of(loader).map(|failure| Err(as_error(failure)))
        };
        self.page().inner.wait(deadline, waiting_for, check).await
    }

    async fn refused(
        &self,
        url: &str,
        reason: String,
        is_download: bool,
        before: Marks,
        deadline: Deadline,
    ) -> BrowserError {
        if let Some(gone) = self.page().failure() {
            return gone;
        }
        if is_download {
            // Told a moment before or after: the next navigation must not take it for its own.
            let told = |state: &PageState| {
                let frame = state.frames.get(self.id());
                let told = frame.is_none_or(|frame| {
                    let download = frame.last_failure().is_some_and(|failure| failure.download);
                    frame.failures > before.failures && download
                });
                told.then_some(Ok(()))
            };
            let grace = deadline.at_most(ABORTED_GRACE);
            // What matters is that the download is known; that nothing tells of it changes nothing.
            let _ = self.page().inner.wait(grace, String::new, told).await;
            return BrowserError::Download { url: url.to_owned() };
        }
        if reason != ABORTED {
            // Chromium shows a page of its own that says so. What is asked of the page next must not meet its arrival.
            let shown = |state: &PageState| {
                let frame = state.frames.get(self.id());
                frame.is_none_or(|frame| frame.commits > before.commits).then_some(Ok(()))
            };
            let _ = self.page().inner.wait(deadline.at_most(ERROR_PAGE_GRACE), String::new, shown).await;
        }
        BrowserError::Navigation { url: url.to_owned(), reason }
    }

    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        timeout.map_or_else(|| self.page().deadline(), Deadline::after)
    }
}

fn as_error(failure: &Failure) -> BrowserError {
    match failure.download {
        true => BrowserError::Download { url: failure.url.clone() },
        false => BrowserError::Navigation { url: failure.url.clone(), reason: failure.reason.clone() },
    }
}
