//! What happened between two moments, from what the pages' events left: counters and bounded lists, so that a page that
//! floods events hides nothing but the number of its own messages.

use super::options::DialogAnswer;
use super::settle::FRAMES_MAX;
use super::step::Effect;
use super::tabs::{title_of, told_url};
use super::urls;
use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::dialog::DialogKind;
use crate::download::{Download, DownloadState};
use crate::error::Result;
use crate::network::Response;
use crate::page::Page;
use crate::page::state::World;
use crate::script::Return;
use futures::future::join_all;
use serde::Deserialize;
use std::time::Duration;

/// The longest text of an error that is told, in characters.
const ERROR_CHARS_MAX: usize = 200;
/// Within which Chromium tells all of a navigation that it gave up.
const FAILURE_BOUND: Duration = Duration::from_millis(300);
/// What beginning to watch a document may take.
const WATCH_BOUND: Duration = Duration::from_secs(1);
/// Dialogs and downloads of one tab that a step tells.
const TOLD_MAX: usize = 20;
/// What comparing a document with what it was may take.
const CHANGES_BOUND: Duration = Duration::from_secs(2);

/// The tabs at one moment.
#[derive(Debug)]
pub(super) struct Moment {
    pages: Vec<(Page, Counters)>,
    pub(super) downloads: u64,
}

/// Counters of one page.
#[derive(Clone, Debug)]
struct Counters {
    url: String,
    commits: u64,
    same_document: u64,
    failures: u64,
    dialogs: u64,
    console: u64,
    errors: u64,
    windows: u64,
}

impl Counters {
    fn of(page: &Page) -> Counters {
        let url = told_url(page);
        let state = page.inner.state.lock();
        let marks = state.frames.main().marks();
        Counters {
            url,
            commits: marks.commits,
            same_document: marks.same_document,
            failures: marks.failures,
            dialogs: state.dialogs.total(),
            console: state.console.total(),
            errors: state.errors.total(),
            windows: state.windows.total(),
        }
    }

    /// A page that was not there.
    fn none() -> Counters {
        Counters {
            url: String::new(),
            commits: 0,
            same_document: 0,
            failures: 0,
            dialogs: 0,
            console: 0,
            errors: 0,
            windows: 0,
        }
    }
}

impl Moment {
    pub(super) fn of(context: &BrowserContext) -> Moment {
        let pages = context.pages().into_iter().map(|page| {
            let counters = Counters::of(&page);
            (page, counters)
        });
        Moment { pages: pages.collect(), downloads: context.inner.downloads_total() }
    }

    pub(super) fn index_of(&self, page: &Page) -> Option<usize> {
        self.pages.iter().position(|(other, _)| other == page)
    }

    fn counters_of(&self, page: &Page) -> Counters {
        let found = self.pages.iter().find(|(other, _)| other == page);
        found.map_or_else(Counters::none, |(_, counters)| counters.clone())
    }

    /// Whether the page shows another document than at this moment.
    pub(super) fn has_navigated(&self, page: &Page) -> bool {
        page.inner.state.lock().frames.main().commits > self.counters_of(page).commits
    }

    /// Pages that were opened since, the oldest first.
    pub(super) fn opened_since(&self, context: &BrowserContext) -> Vec<Page> {
        context.pages().into_iter().filter(|page| self.index_of(page).is_none()).collect()
    }

    /// Attempts since to leave for addresses that may not be opened.
    pub(super) async fn refusals_since(&self, context: &BrowserContext) -> Refusals {
        let mut refusals = Refusals::default();
        for page in context.pages() {
            let before = self.counters_of(&page);
            if page.inner.state.lock().frames.main().failures > before.failures {
                failed_since(&page, before.failures).await;
            }
            let state = page.inner.state.lock();
            for message in state.console.after(before.console).iter().filter(|message| message.from_browser) {
                if let Some(url) = urls::refused(&message.text) {
                    let of_navigation = message.text.contains("top frame");
                    refusals.add(url, of_navigation);
                }
            }
            for url in state.windows.after(before.windows) {
                if !urls::may_show(&url) && !url.starts_with("javascript:") {
                    refusals.add(&url, true);
                }
            }
            let main = state.frames.main();
            if main.failures > before.failures
                && let Some(failure) = main.last_failure()
            {
                let url = failed_url(&page, failure);
                if !urls::may_show(&url) || failure.reason == UNSAFE_REDIRECT {
                    refusals.add(&url, true);
                }
            }
        }
        refusals
    }
}

/// A reason of Chromium's, with what it means where its name does not say so.
pub(super) fn told_reason(reason: &str) -> String {
    match reason {
        "net::ERR_TUNNEL_CONNECTION_FAILED" => {
            format!(
                "{reason} (the network of this browser does not let it through, or nothing answers there)"
            )
        }
        _ => reason.to_owned(),
    }
}

/// A redirect to an address of another kind.
pub(super) const UNSAFE_REDIRECT: &str = "net::ERR_UNSAFE_REDIRECT";

/// Where the navigation since `failures` that failed was to go. Chromium tells it just after it gave up, in two events of any
/// order: the failure, and the response whose redirect it did not take.
pub(super) async fn failed_since(page: &Page, failures: u64) -> Option<String> {
    let network = &page.inner.network;
    let told = |state: &crate::page::inner::PageState| {
        let main = state.frames.main();
        let failure = main.last_failure().filter(|_| main.failures > failures)?;
        let loader = failure.loader.as_ref();
        let is_explained = failure.download
            || failure.reason != crate::navigation::ABORTED
            || loader.is_none_or(|loader| network.redirect_of(loader).is_some());
        is_explained.then(|| Ok(failure.clone()))
    };
    let explained = page.inner.wait(Deadline::after(FAILURE_BOUND), String::new, told).await.ok();
    let failure = explained.or_else(|| {
        let state = page.inner.state.lock();
        let main = state.frames.main();
        main.last_failure().filter(|_| main.failures > failures).cloned()
    })?;
    Some(failed_url(page, &failure))
}

/// Where a navigation that failed was to go: a redirect that Chromium does not take fails under the address before.
fn failed_url(page: &Page, failure: &crate::page::state::Failure) -> String {
    let redirect = failure.loader.as_ref().and_then(|loader| page.inner.network.redirect_of(loader));
    // One to a path leads to the same site.
    redirect.filter(|to| urls::has_scheme(to)).unwrap_or_else(|| failure.url.clone())
}

/// Attempts to leave for addresses that may not be opened.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    pub(super) urls: Vec<String>,
    /// Whether one of them was surely a navigation, and no picture or script of a page.
    pub(super) is_navigation: bool,
}

impl Refusals {
    const URLS_MAX: usize = 10;

    pub(super) fn add(&mut self, url: &str, is_navigation: bool) {
        self.is_navigation |= is_navigation;
        let url = urls::clip(url);
        if self.urls.len() < Self::URLS_MAX && !self.urls.contains(&url) {
            self.urls.push(url);
        }
    }
}

/// What changed in a document: the answer of `changesSeen`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct DocumentChanges {
    added: u64,
    removed: u64,
    texts: u64,
    attributes: u64,
    inputs: u64,
    scrolls: u64,
    focus: Option<String>,
}

impl DocumentChanges {
    /// Forgets that the focus has moved to this element.
    pub(super) fn expect_focus(&mut self, told: &str) {
        self.focus.take_if(|focus| focus == told);
    }

    /// Whether the document itself changed, besides its focus and what is seen of it.
    pub(super) fn has_content(&self) -> bool {
        self.added + self.removed + self.texts + self.attributes + self.inputs > 0
    }

    fn is_none(&self) -> bool {
        !self.has_content() && self.scrolls == 0 && self.focus.is_none()
    }

    fn add(&mut self, other: DocumentChanges) {
        self.added += other.added;
        self.removed += other.removed;
        self.texts += other.texts;
        self.attributes += other.attributes;
        self.inputs += other.inputs;
        self.scrolls += other.scrolls;
        // The element in an inner frame says more than the frame around it.
        self.focus = other.focus.filter(|focus| !focus.is_empty()).or(self.focus.take());
    }

    fn summary(&self) -> String {
        let count = |count: u64, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{count} {many}")),
        };
        let mut parts: Vec<String> = [
            count(self.added, "node added", "nodes added"),
            count(self.removed, "node removed", "nodes removed"),
            count(self.texts, "text changed", "texts changed"),
            count(self.attributes, "attribute changed", "attributes changed"),
            (self.inputs > 0).then(|| "a field has another value".to_owned()),
            (self.scrolls > 0).then(|| "scrolled".to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect();
        match self.focus.as_deref() {
            Some("") => parts.push("no element has the focus now".to_owned()),
            Some(focus) => parts.push(format!("the focus is on {focus}")),
            None => {}
        }
        parts.join(", ")
    }
}

/// Begins to count what changes in the page's documents. False: the main one does not answer.
pub(super) async fn watch(page: &Page, deadline: Deadline) -> bool {
    const WATCH: &str = "function() { this.watchChanges(); }";
    let deadline = deadline.at_most(WATCH_BOUND);
    let frames = page.frames().into_iter().take(FRAMES_MAX);
    let frames = frames.filter(|frame| frame.with(|state| state.place(World::Isolated)).flatten().is_some());
    let begin = frames.map(|frame| async move {
        let injected = frame.injected(deadline).await?;
        injected.call::<()>(WATCH, &[], deadline).await
    });
    // The main frame comes first. Another that does not answer, or is just being replaced, is one less that is watched.
    join_all(begin).await.first().is_some_and(Result::is_ok)
}

/// What changed in the documents that are watched, and whether any of them still is.
pub(super) async fn document_changes(page: &Page) -> Option<DocumentChanges> {
    const CHANGES: &str = "function() { return this.changesSeen(); }";
    let deadline = Deadline::after(CHANGES_BOUND);
    let injected = page.frames().into_iter().take(FRAMES_MAX).filter_map(|frame| {
        let place = frame.with(|state| state.place(World::Isolated)).flatten()?;
        let object = frame.with(|state| state.injected.clone()).flatten()?;
        Some((place, object))
    });
    let looks = injected.map(|(place, object)| async move {
        let object = place.call_on(&object, CHANGES, &[], Return::Json, deadline).await.ok()?;
        crate::value::into_rust::<Option<DocumentChanges>>(&object).ok().flatten()
    });
    let mut sum: Option<DocumentChanges> = None;
    for changes in join_all(looks).await.into_iter().flatten() {
        sum.get_or_insert_default().add(changes);
    }
    sum
}

/// What is compared at the end of a step.
pub(super) struct Comparison<'a> {
    pub(super) context: &'a BrowserContext,
    pub(super) before: &'a Moment,
    /// The tab that the step acted on.
    pub(super) acted_on: &'a Page,
    /// The current tab now.
    pub(super) active: &'a Page,
    pub(super) dialogs: &'a DialogAnswer,
    /// `None`: the document is another one, or does not answer.
    pub(super) changes: Option<DocumentChanges>,
}

impl Comparison<'_> {
    /// All that happened, in the order of what it means to the model.
    pub(super) async fn effects(self) -> Result<Vec<Effect>> {
        let mut effects = Vec::new();
        let now = self.context.pages();
        for (index, (page, _)) in self.before.pages.iter().enumerate() {
            if !now.contains(page) {
                effects.push(Effect::TabClosed { index });
            }
        }
        if now.contains(self.acted_on) && self.before.index_of(self.acted_on).is_some() {
            effects.extend(navigation(self.acted_on, &self.before.counters_of(self.acted_on)).await?);
        }
        for (index, page) in now.iter().enumerate().filter(|(_, page)| self.before.index_of(page).is_none()) {
            effects.push(Effect::TabOpened { index, url: told_url(page), is_active: page == self.active });
        }
        for page in &now {
            let before = self.before.counters_of(page);
            effects.extend(dialogs(page, &before, self.dialogs));
        }
        for download in self.context.inner.downloads_after(self.before.downloads).into_iter().take(TOLD_MAX) {
            effects.push(downloaded(&download).await);
        }
        effects.extend(console_errors(&now, self.before));
        match self.changes {
            Some(changes) if !changes.is_none() => {
                effects.push(Effect::Changed { summary: changes.summary() });
            }
            Some(_) if effects.iter().all(|effect| matches!(effect, Effect::ConsoleErrors { .. })) => {
                effects.push(Effect::NothingChanged);
            }
            _ => {}
        }
        Ok(effects)
    }
}

async fn navigation(page: &Page, before: &Counters) -> Result<Option<Effect>> {
    let now = Counters::of(page);
    let within_document = now.commits == before.commits;
    if within_document && (now.same_document == before.same_document || now.url == before.url) {
        return Ok(None);
    }
    let (unreachable, status) = {
        let state = page.inner.state.lock();
        let main = state.frames.main();
        let reason = main.last_failure().map(|failure| told_reason(&failure.reason));
        let reason =
            main.unreachable.is_some().then(|| reason.unwrap_or_else(|| "net::ERR_FAILED".to_owned()));
        let loader = main.loader.clone().filter(|_| !within_document);
        let response = loader.and_then(|loader| page.inner.network.response_of(&loader));
        let of_proxy = response.as_ref().and_then(Response::proxy_error);
        (reason.or(of_proxy), response.map(|response| response.status()))
    };
    Ok(Some(match unreachable {
        Some(reason) => Effect::NavigationFailed { url: now.url, reason },
        None => Effect::Navigated { title: title_of(page).await?, url: now.url, status, within_document },
    }))
}

fn dialogs(page: &Page, before: &Counters, answer: &DialogAnswer) -> Vec<Effect> {
    let dialogs = page.inner.state.lock().dialogs.after(before.dialogs);
    let told = dialogs.into_iter().take(TOLD_MAX).map(|dialog| {
        let is_accepted = dialog.kind() == DialogKind::BeforeUnload || *answer != DialogAnswer::Dismiss;
        let answer = match (dialog.is_answered(), is_accepted) {
            (false, _) => "left open",
            (true, true) => "accepted",
            (true, false) => "dismissed",
        };
        Effect::Dialog { dialog: dialog.kind(), message: clip(dialog.message()), answer: answer.to_owned() }
    });
    told.collect()
}

async fn downloaded(download: &Download) -> Effect {
    let name = clip(download.suggested_name());
    let url = urls::clip(download.url());
    match download.state() {
        DownloadState::Running { received, .. } => {
            Effect::Downloaded { name, url, size: received, path: None }
        }
        DownloadState::Complete => match download.path(Duration::ZERO).await {
            Ok(path) => {
                let size = download.size(&path).await;
                Effect::Downloaded { name, url, size, path: Some(path) }
            }
            Err(error) => Effect::DownloadRefused { name, reason: error.to_string() },
        },
        DownloadState::Failed => {
            let reason = download.refusal().unwrap_or("it failed, or downloads are off");
            Effect::DownloadRefused { name, reason: reason.to_owned() }
        }
    }
}

fn console_errors(pages: &[Page], before: &Moment) -> Option<Effect> {
    let mut count = 0;
    let mut first: Option<String> = None;
    for page in pages {
        let before = before.counters_of(page);
        let state = page.inner.state.lock();
        let errors = state.errors.after(before.errors);
        let console = state.console.after(before.console);
        let console = console.iter().filter(|message| message.kind == "error" || message.kind == "assert");
        count += state.errors.total() - before.errors.min(state.errors.total());
        for text in errors.iter().map(|error| &error.message) {
            first.get_or_insert_with(|| clip(text));
        }
        for text in console.map(|message| &message.text) {
            count += 1;
            first.get_or_insert_with(|| clip(text));
        }
    }
    first.map(|first| Effect::ConsoleErrors { count, first })
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
