//! Waiting until a page has reacted: no document, script, style sheet or fetch is pending, and some animation frames in a
//! row were without a change. Bounded; what settled it is told.

use super::action::Action;
use super::options::SettleOptions;
use super::step::{Failure, FailureCode, SettleCause, Settled};
use super::urls;
use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::network::Request;
use crate::page::Page;
use crate::page::state::{LoadState, World};
use futures::future::join_all;
use serde_json::json;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Requests that are waited for. Pictures, fonts, media and streams of events are not.
const WAITED_FOR: [&str; 6] = ["document", "script", "stylesheet", "fetch", "xhr", "preflight"];
/// Frames whose changes are looked at.
pub(super) const FRAMES_MAX: usize = 16;
/// How long a frame may take to be drawn before it counts as one that is not drawn: the main frame, and others, which may
/// be scrolled away.
const UNDRAWN: Duration = Duration::from_millis(1_000);
const UNDRAWN_INNER: Duration = Duration::from_millis(100);
/// What is told of what is pending.
const PENDING_TOLD: usize = 10;
/// Requests that were given up on.
const GIVEN_UP_MAX: usize = 200;

/// Requests that a wait before has seen pending at its bound: they are not waited for again.
#[derive(Debug, Default)]
pub(super) struct GivenUp(VecDeque<Request>);

impl GivenUp {
    fn has(&self, request: &Request) -> bool {
        self.0.iter().any(|other| other.is_same(request))
    }

    fn add(&mut self, requests: Vec<Request>) {
        self.0.retain(|request| request.end().is_none());
        self.0.extend(requests);
        while self.0.len() > GIVEN_UP_MAX {
            self.0.pop_front();
        }
    }
}

/// What was before the action, for the cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) commits: u64,
    pub(super) dialogs: u64,
}

impl Before {
    pub(super) fn of(page: &Page) -> Before {
        let state = page.inner.state.lock();
        Before { commits: state.frames.main().commits, dialogs: state.dialogs.total() }
    }
}

/// What keeps a page busy.
enum Busy {
    Requests(Vec<Request>),
    /// The document is not parsed yet.
    Document,
    /// A page that was opened is not ready.
    Opening,
    Download(crate::download::Download),
}

/// Waits until the page has settled. Fails where the page crashed, or its context or browser is gone.
pub(super) async fn settle(
    page: &Page,
    before: Before,
    downloads_before: u64,
    options: &SettleOptions,
    given_up: &mut GivenUp,
) -> Result<Settled> {
    let start = Instant::now();
    let deadline = Deadline::after(options.bound);
    let ended = |cause, pending| {
        let after_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Settled { cause, after_ms, pending }
    };
    loop {
        match page.failure() {
            Some(BrowserError::Closed { what: "page" }) => return Ok(ended(SettleCause::Closed, Vec::new())),
            Some(error) => return Err(error),
            None => {}
        }
        if page.dialog().is_some() && page.inner.session.gate().blocked().is_some() {
            return Ok(ended(SettleCause::Dialog, Vec::new()));
        }
        let busy = busy(page, downloads_before, given_up);
        if deadline.remaining().is_zero() {
            let pending = busy.as_ref().map(told).unwrap_or_default();
            if let Some(Busy::Requests(requests)) = busy {
                given_up.add(requests);
            }
            return Ok(ended(SettleCause::Bound, pending));
        }
        if let Some(busy) = busy {
            wait_for(page, busy, deadline).await?;
            continue;
        }
        match quiet(page, options.quiet_frames, deadline).await? {
            Rest::Quiet => {
                if self::busy(page, downloads_before, given_up).is_some() {
                    continue;
                }
                let now = Before::of(page);
                let cause = match (now.dialogs > before.dialogs, now.commits > before.commits) {
                    (true, _) => SettleCause::Dialog,
                    (_, true) => SettleCause::Navigation,
                    _ => SettleCause::Quiet,
                };
                return Ok(ended(cause, Vec::new()));
            }
            Rest::Replaced => {}
            // It lasted until the bound.
            Rest::Unrest(what) => {
                let mut pending =
                    self::busy(page, downloads_before, given_up).as_ref().map(told).unwrap_or_default();
                pending.push(what);
                return Ok(ended(SettleCause::Bound, pending));
            }
        }
    }
}

/// In place of [`settle`] in a deterministic episode: once all pages are at rest, their time goes on by the budget of a step, or as long as
/// the action says. A page that cannot be kept repeatable fails the action by name.
pub(super) async fn pass_time(
    context: &BrowserContext,
    page: &Page,
    action: &Action,
    before: Before,
) -> Result<(Settled, Result<(), Failure>)> {
    let start = Instant::now();
    let time = match action {
        Action::Wait { time } => Some(*time),
        _ => None,
    };
    let (passed, pending) = match context.pass_time(time).await {
        Ok(()) => (Ok(()), Vec::new()),
        Err(BrowserError::Unsupported { what }) => {
            (Err(Failure::new(FailureCode::Unsupported, what)), Vec::new())
        }
        Err(error) if error.is_timeout() => {
            (Err(Failure::new(FailureCode::TimedOut, error.to_string())), vec![error.to_string()])
        }
        Err(error) => return Err(error),
    };
    let now = Before::of(page);
    let cause = match (pending.is_empty(), now.dialogs > before.dialogs, now.commits > before.commits) {
        (false, ..) => SettleCause::Bound,
        (_, true, _) => SettleCause::Dialog,
        (_, _, true) => SettleCause::Navigation,
        _ => SettleCause::Quiet,
    };
    let after_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok((Settled { cause, after_ms, pending }, passed))
}

fn busy(page: &Page, downloads_before: u64, given_up: &GivenUp) -> Option<Busy> {
    let waited_for =
        |request: &Request| WAITED_FOR.contains(&request.resource_type()) && !given_up.has(request);
    let requests: Vec<Request> =
        page.requests_under_way().into_iter().filter(|request| waited_for(request)).collect();
    if !requests.is_empty() {
        return Some(Busy::Requests(requests));
    }
    let context = &page.context().inner;
    let is_parsed = {
        let state = page.inner.state.lock();
        // The first document of a page that another one opens is not loaded: it is just there.
        state.frames.main().url.is_empty()
            || state.frames.reached(state.frames.main_id(), LoadState::DomContentLoaded)
    };
    if !is_parsed {
        return Some(Busy::Document);
    }
    if context.all_pages().iter().any(|page| !page.hidden && page.ready().is_none()) {
        return Some(Busy::Opening);
    }
    let running = |download: &crate::download::Download| {
        matches!(download.state(), crate::download::DownloadState::Running { .. })
    };
    context.downloads_after(downloads_before).into_iter().find(running).map(Busy::Download)
}

fn told(busy: &Busy) -> Vec<String> {
    match busy {
        Busy::Requests(requests) => requests
            .iter()
            .take(PENDING_TOLD)
            .map(|request| format!("{} {}", request.resource_type(), urls::clip(request.url())))
            .collect(),
        Busy::Document => vec!["the document is not parsed yet".to_owned()],
        Busy::Opening => vec!["a tab that was opened".to_owned()],
        Busy::Download(download) => vec![format!("download of {}", urls::clip(download.url()))],
    }
}

/// Waits for a change of what keeps the page busy, at most until the deadline.
async fn wait_for(page: &Page, busy: Busy, deadline: Deadline) -> Result<()> {
    let result = match busy {
        Busy::Requests(requests) => {
            let ends = join_all(requests.iter().map(|request| request.finished(deadline.remaining())));
            // A held dialog stops the page, and with it its requests.
            let blocked = page.inner.wait(deadline, String::new, |_| None::<Result<()>>);
            tokio::select! {
                _ = ends => Ok(()),
                blocked = blocked => blocked,
            }
        }
        Busy::Document => {
            let id = page.main_frame().id().to_owned();
            let parsed = |state: &crate::page::inner::PageState| {
                state.frames.reached(&id, LoadState::DomContentLoaded).then_some(Ok(()))
            };
            page.inner.wait(deadline, String::new, parsed).await
        }
        Busy::Opening => {
            let opening = page.context().inner.all_pages();
            let ready = opening.iter().filter(|page| !page.hidden).map(|page| {
                page.wait_in_spite_of_dialogs(deadline, String::new, |state| {
                    state.ready.as_ref().map(|_| Ok(()))
                })
            });
            join_all(ready).await;
            Ok(())
        }
        // How it ended is told as an effect.
        Busy::Download(download) => download.path(deadline.remaining()).await.map(drop).or(Ok(())),
    };
    match result {
        // What happened to the page is looked at next.
        Err(error) if error.is_gone() || error.is_timeout() => Ok(()),
        Err(BrowserError::DialogOpen { .. }) => Ok(()),
        other => other,
    }
}

/// What some frames in a row showed.
enum Rest {
    Quiet,
    /// A document was replaced meanwhile.
    Replaced,
    Unrest(String),
}

async fn quiet(page: &Page, frames: u32, deadline: Deadline) -> Result<Rest> {
    let all: Vec<Frame> = page.frames().into_iter().take(FRAMES_MAX).collect();
    let looks = all.iter().enumerate().map(|(at, frame)| quiet_in(frame, at == 0, frames, deadline));
    let mut found = Rest::Quiet;
    for (at, look) in join_all(looks).await.into_iter().enumerate() {
        match look {
            Ok(None) => {}
            Ok(Some(unrest)) => found = Rest::Unrest(unrest),
            // A frame that goes is no change of the page by itself.
            Err(BrowserError::Detached) if at > 0 => {}
            Err(BrowserError::Navigated | BrowserError::Detached | BrowserError::Stale) => {
                return Ok(Rest::Replaced);
            }
            Err(error) if error.is_timeout() => {
                return Ok(Rest::Unrest("the page's scripts are busy".to_owned()));
            }
            Err(BrowserError::Closed { .. } | BrowserError::DialogOpen { .. }) => return Ok(Rest::Replaced),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// `None`: at rest.
async fn quiet_in(frame: &Frame, is_main: bool, frames: u32, deadline: Deadline) -> Result<Option<String>> {
    const QUIET: &str = "function(options) { return this.whenQuiet(options); }";
    // Frames that are just being made are looked at through their requests.
    if !is_main && frame.with(|state| state.place(World::Isolated).is_none()).unwrap_or(true) {
        return Ok(None);
    }
    let undrawn = if is_main { UNDRAWN } else { UNDRAWN_INNER };
    let undrawn = undrawn.min(deadline.remaining());
    let options = json!({
        "frames": frames.max(1), "limit_ms": deadline.in_page_ms(), "undrawn_ms": undrawn.as_secs_f64() * 1000.0,
    });
    frame.injected(deadline).await?.call(QUIET, &[options.into()], deadline).await
}
