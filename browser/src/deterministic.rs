//! Deterministic episodes: the same actions on the same content give the same page, whenever and however quickly they
//! are done.
//!
//! Every document and dedicated worker of a context gets a clock of ours (`clock/clock.js`) and a realm over it
//! (`deterministic/realm.js`) before its own scripts. Time stands still, and goes on by a fixed budget in each step, once
//! what the action began has come to rest: in all frames, of other processes too, and in all workers, in lockstep.
//! Chromium's own virtual time is not used: it stops parsing and drawing, and does not reach frames of other processes.

use crate::connection::Session;
use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::page::inner::PageInner;
use crate::page::state::World;
use crate::protocol::{Evaluated, Raw};
use crate::script::{Place, Return};
use crate::value::into_rust;
use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::page::{
    AddScriptToEvaluateOnNewDocumentParams, RemoveScriptToEvaluateOnNewDocumentParams,
};
use chromiumoxide::cdp::js_protocol::runtime::EvaluateParams;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const CLOCK: &str = include_str!("clock/clock.js");
const REALM: &str = include_str!("deterministic/realm.js");
/// Where a realm keeps its clock.
pub(crate) const KEY: &str = "globalThis[Symbol.for('espalier.clock')]";
/// The least that time goes on by at once, in milliseconds: half a frame.
const SLICE_MS: f64 = 8.0;
/// Frames that must be drawn between two looks at a page that is to be at rest.
const FRAMES: u32 = 2;

/// What a deterministic episode is made of. Besides it the content must be the same: see
/// [`replay_archive`](BrowserContext::replay_archive).
///
/// Covered: `Date`, `performance`, timers, animation frames, idle callbacks, `Math.random`, `crypto.getRandomValues` and
/// `randomUUID`, CSS and SVG animations and transitions (finite ones at their end, endless ones at their beginning), the
/// caret, smooth scrolling, fonts, dedicated workers, frames of other processes. What is not covered is refused in the
/// page with an error, and fails the step with [`BrowserError::Unsupported`] that names it: WebRTC, WebSocket,
/// EventSource, WebTransport, Web Audio, media, shared and service workers, `Atomics.wait`, delayed `meta refresh`.
#[derive(Clone, Debug)]
pub struct DeterministicOptions {
    /// What random numbers are made from. Default: 0. Each document and worker has its own sequence, made from the seed
    /// and its address.
    pub seed: u64,
    /// The time at which the context begins. Default: 2026-01-01, 00:00 UTC.
    pub start: SystemTime,
    /// Used where the context names no locale. Default: `en-US`.
    pub locale: String,
    /// Used where the context names no time zone. Default: `UTC`.
    pub timezone: String,
    /// How far a step's time goes on. Default: 500 ms.
    pub step_budget: Duration,
    /// How long, in real time, pages may take to come to rest. Default: 15 s.
    pub rest_bound: Duration,
}

impl Default for DeterministicOptions {
    fn default() -> Self {
        DeterministicOptions {
            seed: 0,
            start: UNIX_EPOCH + Duration::from_secs(1_767_225_600),
            locale: "en-US".to_owned(),
            timezone: "UTC".to_owned(),
            step_budget: Duration::from_millis(500),
            rest_bound: Duration::from_secs(15),
        }
    }
}

/// The episode of a context.
pub(crate) struct Episode {
    options: DeterministicOptions,
    /// Milliseconds since 1970.
    now: Mutex<f64>,
    /// What was refused outside of pages since the last step.
    refused: Mutex<Vec<String>>,
    /// Steps follow one another.
    step: tokio::sync::Mutex<()>,
}

/// What a realm tells of itself.
#[derive(Debug, Default, Deserialize)]
struct RealmState {
    activity: u64,
    pending: u64,
    refused: Vec<String>,
    next: Option<f64>,
}

/// What all realms of a context tell.
#[derive(Debug, Default, PartialEq)]
struct Look {
    /// Activity by realm.
    activity: Vec<u64>,
    pending: u64,
    requests: usize,
    loading: bool,
    /// When the next timer is due.
    next: Option<f64>,
    refused: Vec<String>,
}

impl Look {
    fn is_busy(&self) -> bool {
        self.pending > 0 || self.requests > 0 || self.loading
    }
}

/// A document or a worker.
pub(crate) enum Realm {
    Document(Place),
    Worker(Arc<Session>),
}

impl Episode {
    pub(crate) fn new(options: DeterministicOptions) -> Result<Episode> {
        let start = options.start.duration_since(UNIX_EPOCH);
        let start = start.map_err(|_| BrowserError::invalid("start: expected a time after 1970-01-01"))?;
        if options.step_budget > Duration::from_secs(3600) {
            return Err(BrowserError::invalid(format!(
                "step_budget {} s: expected at most 3600",
                options.step_budget.as_secs()
            )));
        }
        let now = Mutex::new((start.as_millis() as f64).floor());
        Ok(Episode { options, now, refused: Mutex::default(), step: tokio::sync::Mutex::new(()) })
    }

    /// What new documents and workers run first.
    pub(crate) fn script(&self) -> String {
        let (now, seed) = (*self.now.lock(), self.options.seed);
        format!("{}({}({now}), {:?})", REALM.trim(), CLOCK.trim(), seed.to_string())
    }

    /// The step under way fails with this name.
    pub(crate) fn refuse(&self, name: &str) {
        let mut refused = self.refused.lock();
        if !refused.iter().any(|other| other == name) {
            refused.push(name.to_owned());
        }
    }

    /// A worker stands before its first script.
    pub(crate) fn begin_worker(&self, session: &Arc<Session>) {
        session.post(EvaluateParams::new(self.script()));
        session.post(Raw::new("Debugger.resume", json!({})));
        session.post(Raw::new("Debugger.disable", json!({})));
    }

    pub(crate) fn init_script(&self) -> AddScriptToEvaluateOnNewDocumentParams {
        let mut command = AddScriptToEvaluateOnNewDocumentParams::new(self.script());
        command.run_immediately = Some(true);
        command
    }
}

/// A worker's global object is not complete before its first script: its realm is made where that is about to run.
pub(crate) fn stop_before_first_script(session: &Arc<Session>) {
    session.post(Raw::new("Debugger.enable", json!({})));
    let before = json!({ "instrumentation": "beforeScriptExecution" });
    session.post(Raw::new("Debugger.setInstrumentationBreakpoint", before));
}

/// Chromium's id of a script that was added.
pub(crate) fn script_id(answer: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Added {
        identifier: String,
    }
    serde_json::from_slice::<Added>(answer).ok().map(|added| added.identifier)
}

/// Keeps CSS animations where they are.
pub(crate) fn hold_animations() -> Raw {
    Raw::new("Animation.setPlaybackRate", json!({ "playbackRate": 0 }))
}

impl Page {
    /// Does `action` and lets the time of its context go on by the budget of a step, once all that the action began has
    /// come to rest. Only in contexts with [`DeterministicOptions`]. Time stands still while the action runs, so that it
    /// must not wait for timers of the page: an action that fails is followed by the same time as one that does not.
    ///
    /// ```ignore
    /// page.step(page.goto("https://example.com")).await?;
    /// page.step(page.locator("#next").click()).await?;
    /// ```
    pub async fn step<T>(&self, action: impl Future<Output = Result<T>>) -> Result<T> {
        let context = self.context();
        let episode = context.episode()?;
        let _turn = episode.step.lock().await;
        let result = action.await;
        if let Err(error) = &result
            && error.is_gone()
        {
            return result;
        }
        let passed = Box::pin(context.pass(episode, episode.options.step_budget)).await;
        let value = result?;
        passed?;
        Ok(value)
    }

    /// Before a picture of a deterministic episode: fonts and images are ready, and everything is drawn.
    pub(crate) async fn stand_still(&self, deadline: Deadline) -> Result<()> {
        let Ok(episode) = self.context().episode() else { return Ok(()) };
        let deadline = deadline.at_most(episode.options.rest_bound);
        let ready = format!("{KEY}?.realm.ready()");
        for realm in documents(&self.inner) {
            match realm.evaluate::<Option<()>>(&ready, deadline).await {
                Err(error) if error.is_gone() => return Err(error),
                // A document that is replaced meanwhile is looked at below.
                _ => {}
            }
        }
        self.context().rest(FRAMES, deadline).await.map(drop)
    }
}

impl BrowserContext {
    /// Lets time go on by one step's budget without an action. Only in contexts with [`DeterministicOptions`].
    pub async fn idle_step(&self) -> Result<()> {
        self.pass_time(None).await
    }

    /// As [`idle_step`](Self::idle_step), by this time in place of the budget.
    pub(crate) async fn pass_time(&self, time: Option<Duration>) -> Result<()> {
        let episode = self.episode()?;
        let _turn = episode.step.lock().await;
        Box::pin(self.pass(episode, time.unwrap_or(episode.options.step_budget))).await
    }

    /// Whether its time goes on in steps: see [`DeterministicOptions`].
    pub fn is_deterministic(&self) -> bool {
        self.inner.episode.is_some()
    }

    /// The time that its pages see. Only in contexts with [`DeterministicOptions`].
    pub fn virtual_time(&self) -> Result<SystemTime> {
        let now = *self.episode()?.now.lock();
        Ok(UNIX_EPOCH + Duration::try_from_secs_f64(now / 1000.0).unwrap_or_default())
    }

    fn episode(&self) -> Result<&Episode> {
        self.inner.episode.as_ref().ok_or_else(|| {
            BrowserError::invalid("step: expected a context with `ContextOptions::deterministic`")
        })
    }

    /// Time goes on by `budget`.
    async fn pass(&self, episode: &Episode, budget: Duration) -> Result<()> {
        let deadline = Deadline::after(episode.options.rest_bound);
        let mut look = self.rest(FRAMES, deadline).await?;
        let mut refused = std::mem::take(&mut look.refused);
        let mut now = *episode.now.lock();
        let end = now + budget.as_secs_f64() * 1000.0;
        while now < end {
            let next = look.next.unwrap_or(end).max(now + SLICE_MS).min(end);
            let before = look.activity;
            look = self.look(&format!("{KEY}?.realm.run({next})"), deadline).await?;
            now = next;
            *episode.now.lock() = now;
            refused.append(&mut look.refused);
            // Messages to other realms, and what a document began, end before time goes on.
            if look.is_busy() || (look.activity.len() > 1 && look.activity != before) {
                look = self.rest(FRAMES, deadline).await?;
                refused.append(&mut look.refused);
            }
        }
        refused.append(&mut self.rest(FRAMES, deadline).await?.refused);
        replace_script(self, &episode.init_script(), deadline).await?;
        refused.append(&mut episode.refused.lock());
        refused.sort();
        refused.dedup();
        match refused.is_empty() {
            true => Ok(()),
            false => {
                let what = format!("{} in a deterministic episode", refused.join(", "));
                Err(BrowserError::unsupported(what))
            }
        }
    }

    /// Waits until two looks in turn show the same and nothing is under way.
    async fn rest(&self, frames: u32, deadline: Deadline) -> Result<Look> {
        let script = format!("{KEY}?.realm.rest({frames})");
        let mut refused = Vec::new();
        let mut before: Option<Look> = None;
        loop {
            let mut look = match self.look(&script, deadline).await {
                Err(error) if error.is_timeout() => {
                    let seen = before.unwrap_or_default();
                    return Err(deadline.timeout(self.waiting_for(&seen)));
                }
                other => other?,
            };
            refused.append(&mut look.refused);
            if !look.is_busy() && before.as_ref().is_some_and(|before| before.activity == look.activity) {
                look.refused = refused;
                return Ok(look);
            }
            if deadline.remaining().is_zero() {
                return Err(deadline.timeout(self.waiting_for(&look)));
            }
            if look.requests > 0 || look.loading {
                // Their ends change the page's state; its bound is that of the whole wait.
                self.changed_or_soon().await;
            }
            before = Some(look);
        }
    }

    fn waiting_for(&self, look: &Look) -> String {
        let requests = self.inner.all_pages().into_iter().flat_map(|page| page.network.under_way());
        let urls: Vec<String> = requests.take(3).map(|request| request.url().to_owned()).collect();
        let why = match (urls.is_empty(), look.loading) {
            (false, _) => format!("requests are under way: {}", urls.join(", ")),
            (true, true) => "a document is loading".to_owned(),
            (true, false) if look.pending > 0 => format!("{} operations are under way", look.pending),
            _ => "they go on changing".to_owned(),
        };
        format!("the pages to come to rest; {why}")
    }

    /// What all realms tell after they have run a script, one after the other: pages in order of their opening, in each
    /// its frames from the outside, then its workers.
    async fn look(&self, script: &str, deadline: Deadline) -> Result<Look> {
        let mut all = Look::default();
        for page in self.pages() {
            let page = &page.inner;
            let workers = page.state.lock().workers.clone().into_iter().map(Realm::Worker);
            let realms: Vec<Realm> = documents(page).into_iter().chain(workers).collect();
            for realm in realms {
                let state = match realm.evaluate::<Option<RealmState>>(script, deadline).await {
                    Ok(state) => state.unwrap_or_default(),
                    Err(error) if error.is_gone() => {
                        // A page that has closed itself is no fault.
                        match page.session.ended() {
                            Some(BrowserError::Closed { what: "page" }) => break,
                            _ => return Err(error),
                        }
                    }
                    Err(BrowserError::Navigated | BrowserError::Detached) => {
                        all.loading = true;
                        continue;
                    }
                    Err(error) => {
                        return Err(error.waiting_for(|| "a page or worker to come to rest".to_owned()));
                    }
                };
                all.activity.push(state.activity);
                all.pending += state.pending;
                all.refused.extend(state.refused);
                all.next = match (all.next, state.next) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
            all.requests += page.network.under_way().len();
            all.loading |= page.state.lock().frames.is_loading();
        }
        Ok(all)
    }

    /// Waits for a change of any page, at most 20 ms.
    async fn changed_or_soon(&self) {
        const SOON: Duration = Duration::from_millis(20);
        let changes = self.inner.all_pages().into_iter().map(|page| {
            Box::pin(async move {
                let mut changed = page.subscribe();
                let _ = changed.changed().await;
            })
        });
        let changes: Vec<_> = changes.collect();
        if !changes.is_empty() {
            let _ = tokio::time::timeout(SOON, futures::future::select_all(changes)).await;
        }
    }
}

/// New documents of a context run this script first, in place of the one before.
pub(crate) async fn replace_script(
    context: &BrowserContext,
    script: &AddScriptToEvaluateOnNewDocumentParams,
    deadline: Deadline,
) -> Result<()> {
    let mut calls = Vec::new();
    for page in context.inner.all_pages().into_iter().filter(|page| !page.hidden) {
        let sessions = {
            let state = page.state.lock();
            let is_worker =
                |session: &Arc<Session>| state.workers.iter().any(|worker| Arc::ptr_eq(worker, session));
            let documents = state.sessions.iter().filter(|session| !is_worker(session));
            documents.cloned().collect::<Vec<_>>()
        };
        for session in sessions {
            if let Some(old) = session.clock_script.lock().take() {
                session.post(RemoveScriptToEvaluateOnNewDocumentParams::new(old));
            }
            // A document that has its clock keeps it.
            if let Ok(call) = session.begin(script.clone()) {
                calls.push((session, call));
            }
        }
    }
    for (session, call) in calls {
        match call.within(deadline).await {
            Ok(added) => *session.clock_script.lock() = Some(added.identifier.into()),
            Err(error) if error.is_gone() || error == BrowserError::Detached => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The main worlds of a page's frames, as far as they have documents.
pub(crate) fn documents(page: &PageInner) -> Vec<Realm> {
    let state = page.state.lock();
    let ids = state.frames.in_order();
    let places = ids.iter().filter_map(|id| state.frames.get(id)?.place(World::Main));
    places.map(Realm::Document).collect()
}

impl Realm {
    pub(crate) async fn evaluate<T: serde::de::DeserializeOwned>(
        &self,
        script: &str,
        deadline: Deadline,
    ) -> Result<T> {
        match self {
            Realm::Document(place) => into_rust(&place.evaluate(script, Return::Json, deadline).await?),
            Realm::Worker(session) => {
                let mut command = EvaluateParams::new(script);
                command.await_promise = Some(true);
                command.return_by_value = Some(true);
                let answer = session.call_as::<Evaluated>(command, deadline).await?;
                into_rust(&answer.result)
            }
        }
    }
}
