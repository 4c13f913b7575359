//! A session: the tabs of one context, driven by calls of tools, one after the other.

use super::action::Action;
use super::effects::{Comparison, DocumentChanges, Moment, Refusals, document_changes, watch};
use super::options::{DialogAnswer, SessionOptions};
use super::perform::Report;
use super::settle::{Before, GivenUp, pass_time, settle};
use super::spot::{Fault, Refs};
use super::step::{Effect, ElementNote, Failure, FailureCode, SettleCause, Settled, Step, StepOutcome};
use super::tabs::{self, Tab};
use super::tools::{ToolCall, ToolSchema, parse, tools};
use super::urls;
use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::dialog::{DialogKind, DialogPolicy};
use crate::error::{BrowserError, Result};
use crate::navigation::GotoOptions;
use crate::page::Page;
use crate::page::state::{LoadState, World};
use crate::script::Return;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// What an evaluation by the host may take.
const EVALUATE_BOUND: Duration = Duration::from_secs(30);

/// Where [`Session::evaluate`] runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptWorld {
    /// With the page's own scripts, which may have changed anything.
    Main,
    /// The same document with globals of its own, which the page cannot change.
    #[default]
    Isolated,
}

/// A browser as an agent uses it: the tabs of one context. Calls are carried out one after the other; each ends within the
/// bounds of its options.
#[derive(Debug)]
pub struct Session {
    pub(super) context: BrowserContext,
    pub(super) options: SessionOptions,
    pub(super) state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// The tab that actions act on.
    pub(super) active: Page,
    /// Its index when it was last seen.
    index: usize,
    /// References of the last page description.
    pub(super) refs: Refs,
    /// The number of the next reference; no number is ever given twice.
    pub(super) next_ref: u64,
    given_up: GivenUp,
    /// The drop-down list that the last action opened.
    pub(super) open_list: Option<ElementNote>,
    /// How things were at the end of the last step.
    last: Moment,
}

/// What a step came to, before it is told.
struct Outcome {
    result: Result<(), Failure>,
    settled: Option<Settled>,
    refusals: Refusals,
    changes: Option<DocumentChanges>,
}

impl Session {
    /// Takes a context over: its dialogs, downloads and tabs. Opens a first tab where it has none.
    pub async fn open(context: BrowserContext, options: SessionOptions) -> Result<Session> {
        crate::emulation::check_viewport(options.viewport)?;
        context.inner.bound_downloads(u64::from(options.downloads_max), options.download_bytes_max);
        context.inner.emulated.lock().viewport = options.viewport;
        let mut pages = context.pages();
        if pages.is_empty() {
            pages.push(context.new_page().await?);
        }
        let active = pages.remove(0);
        for page in pages.iter().chain([&active]) {
            page.set_viewport_size(options.viewport).await?;
            page.set_dialog_policy(policy(&options.dialogs));
        }
        let last = Moment::of(&context);
        let state = State {
            active,
            index: 0,
            refs: Refs::default(),
            next_ref: 1,
            given_up: GivenUp::default(),
            open_list: None,
            last,
        };
        Ok(Session { context, options, state: Mutex::new(state) })
    }

    /// The context whose tabs these are.
    pub fn context(&self) -> &BrowserContext {
        &self.context
    }

    /// Its options.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// The tools that its options offer.
    pub fn tools(&self) -> Vec<ToolSchema> {
        tools(&self.options.tools)
    }

    /// Carries out the calls of one answer of a model: one step for each. A call that fails, opens another document or tab,
    /// makes the page show a dialog, or ends the episode stops the chain: the rest is skipped, since it was meant for a page
    /// that is not there any more.
    ///
    /// Fails where the browser, the context or the current tab was lost, never for what a model asked.
    pub async fn act(&self, calls: &[ToolCall]) -> Result<Vec<Step>> {
        let mut state = self.state.lock().await;
        let mut steps = Vec::with_capacity(calls.len());
        let mut stop: Option<&'static str> = None;
        for (index, call) in calls.iter().enumerate() {
            let step = match stop {
                Some(reason) => skipped(call, reason),
                None => self.step(&mut state, call, index == 0).await?,
            };
            stop = stop.or_else(|| stop_reason(&step));
            steps.push(step);
        }
        Ok(steps)
    }

    /// Opens an address in the current tab, as `goto_url` does, by the host.
    pub async fn goto(&self, url: &str) -> Result<Step> {
        let call = ToolCall::new("goto_url", serde_json::json!({ "url": url }));
        let mut state = self.state.lock().await;
        self.step(&mut state, &call, true).await
    }

    /// Its tabs.
    pub async fn tabs(&self) -> Result<Vec<Tab>> {
        let mut state = self.state.lock().await;
        self.find_active(&mut state).await?;
        tabs::list(&self.context, &state.active).await
    }

    /// Evaluates an expression in the current tab and awaits it where it is a promise; at most 30 s. `undefined` is null.
    pub async fn evaluate(&self, expression: &str, world: ScriptWorld) -> Result<Value> {
        let mut state = self.state.lock().await;
        self.find_active(&mut state).await?;
        let deadline = Deadline::after(EVALUATE_BOUND);
        let world = match world {
            ScriptWorld::Main => World::Main,
            ScriptWorld::Isolated => World::Isolated,
        };
        let place = state.active.main_frame().place(world, deadline).await?;
        crate::value::into_rust(&place.evaluate(expression, Return::Json, deadline).await?)
    }

    /// Waits until the current tab is at rest, as after an action.
    pub async fn settle(&self) -> Result<Settled> {
        let mut state = self.state.lock().await;
        self.find_active(&mut state).await?;
        let before = Before::of(&state.active);
        let downloads = self.context.inner.downloads_total();
        let page = state.active.clone();
        settle(&page, before, downloads, &self.options.settle, &mut state.given_up).await
    }

    /// Closes the context with all its tabs and downloads.
    pub async fn close(&self) {
        if let Err(error) = self.context.close().await {
            tracing::debug!(%error, "the context was not closed in order");
        }
    }

    /// The current tab; the nearest one where it was closed, and an empty one where none is left.
    pub(super) async fn find_active(&self, state: &mut State) -> Result<()> {
        self.context.inner.check_open()?;
        if let Some(error) = state.active.failure().filter(|error| *error != closed_page()) {
            return Err(error);
        }
        let pages = self.context.pages();
        if let Some(index) = pages.iter().position(|page| *page == state.active) {
            state.index = index;
            return Ok(());
        }
        let nearest = pages.get(state.index.min(pages.len().saturating_sub(1))).cloned();
        let page = match nearest {
            Some(page) => page,
            None => self.context.new_page().await?,
        };
        self.switch(state, page)
    }

    /// Makes a tab the current one.
    pub(super) fn switch(&self, state: &mut State, page: Page) -> Result<()> {
        if let Some(error) = page.failure() {
            return Err(error);
        }
        page.set_dialog_policy(policy(&self.options.dialogs));
        let pages = self.context.pages();
        state.index = pages.iter().position(|other| *other == page).unwrap_or(0);
        state.active = page;
        Ok(())
    }

    async fn step(&self, state: &mut State, call: &ToolCall, is_first: bool) -> Result<Step> {
        let start = Instant::now();
        let mut step = Step {
            tool: call.name.trim().to_owned(),
            outcome: StepOutcome::Done,
            element: None,
            point: None,
            meanwhile: Vec::new(),
            effects: Vec::new(),
            settled: None,
            duration_ms: 0,
            text: String::new(),
        };
        if is_first {
            step.meanwhile = self.meanwhile(state).await?;
        } else {
            self.find_active(state).await?;
        }
        let mut report = Report::default();
        match parse(call, &self.options.tools) {
            Err(failure) => step.outcome = failed(failure),
            Ok(Action::Done { response }) => step.outcome = StepOutcome::Ended { response, status: None },
            Ok(Action::Terminate { status, response }) => {
                step.outcome = StepOutcome::Ended { response, status: Some(status) };
            }
            Ok(Action::CallUser { message }) => step.outcome = StepOutcome::Asked { message },
            Ok(action) => self.carry_out(state, &action, &mut step, &mut report).await?,
        }
        state.last = Moment::of(&self.context);
        step.element = report.element;
        step.point = report.point;
        step.duration_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        step.text = step.line(&report.note);
        Ok(step)
    }

    /// What happened by itself since the last step.
    async fn meanwhile(&self, state: &mut State) -> Result<Vec<Effect>> {
        let acted_on = state.active.clone();
        self.find_active(state).await?;
        let refusals = self.leave_blocked(state, &Moment::of(&self.context)).await?;
        self.close_excess(&state.last).await?;
        let comparison = Comparison {
            context: &self.context,
            before: &state.last,
            acted_on: &acted_on,
            active: &state.active,
            dialogs: &self.options.dialogs,
            changes: None,
        };
        let mut effects = comparison.effects().await?;
        effects.extend(refusals.urls.into_iter().map(|url| Effect::Blocked { url }));
        Ok(effects)
    }

    async fn carry_out(
        &self,
        state: &mut State,
        action: &Action,
        step: &mut Step,
        report: &mut Report,
    ) -> Result<()> {
        let before = Moment::of(&self.context);
        let acted_on = state.active.clone();
        let mut outcome = self.perform_and_settle(state, action, &before, report).await?;
        let has_content = outcome.changes.as_ref().is_some_and(DocumentChanges::has_content);
        // A button has the focus once it is clicked: that says nothing of what it does.
        if let (Action::Click { .. }, Some(changes), Some(element)) =
            (action, &mut outcome.changes, &report.element)
            && matches!(element.role.as_deref(), Some("button" | "link"))
        {
            changes.expect_focus(&element.told());
        }
        step.settled = outcome.settled;
        let comparison = Comparison {
            context: &self.context,
            before: &before,
            acted_on: &acted_on,
            active: &state.active,
            dialogs: &self.options.dialogs,
            changes: outcome.changes,
        };
        step.effects = std::mem::take(&mut report.effects);
        let is_scroll = !step.effects.is_empty();
        let mut effects = comparison.effects().await?;
        // What the tool itself says of scrolling is exact; a hover changes styles, which no one sees in the document.
        effects.retain(|effect| match effect {
            Effect::NothingChanged => {
                !is_scroll && !matches!(action, Action::Hover { .. } | Action::Wait { .. })
            }
            Effect::Changed { summary } => !(is_scroll && summary == "scrolled"),
            _ => true,
        });
        step.effects.extend(effects);
        step.effects.extend(outcome.refusals.urls.iter().map(|url| Effect::Blocked { url: url.clone() }));
        step.outcome = match outcome.result {
            Err(failure) => failed(failure),
            Ok(()) => verdict(&step.effects, &outcome.refusals, has_content),
        };
        Ok(())
    }

    async fn perform_and_settle(
        &self,
        state: &mut State,
        action: &Action,
        before: &Moment,
        report: &mut Report,
    ) -> Result<Outcome> {
        let page = state.active.clone();
        let deadline = Deadline::after(self.options.action_timeout);
        let settled_before = Before::of(&page);
        let is_watched = watch(&page, deadline).await;
        let result = match self.perform(state, action, report).await {
            Ok(()) => Ok(()),
            Err(Fault::Failed(failure)) => Err(failure),
            // The page closed itself, which is an effect like others.
            Err(Fault::Lost(BrowserError::Closed { what: "page" })) if self.context.failure().is_none() => {
                Ok(())
            }
            Err(Fault::Lost(error)) => return Err(error),
        };
        // What did not reach the page has no effects to wait for.
        if result.as_ref().is_err_and(|failure| !report.has_acted || failure.code == FailureCode::TimedOut) {
            let changes = None;
            return Ok(Outcome { result, settled: None, refusals: Refusals::default(), changes });
        }
        let options = &self.options.settle;
        let downloads = before.downloads;
        // The tab that a tool leaves is not waited for.
        let leaves = matches!(action, Action::NewTab | Action::SwitchTab { .. } | Action::CloseTab);
        let (mut result, is_paced) = (result, self.context.is_deterministic());
        let mut settled = match (is_paced, leaves) {
            (true, _) => {
                let (settled, passed) = pass_time(&self.context, &page, action, settled_before).await?;
                result = result.and(passed);
                settled
            }
            (false, true) => Settled { cause: SettleCause::Quiet, after_ms: 0, pending: Vec::new() },
            (false, false) => settle(&page, settled_before, downloads, options, &mut state.given_up).await?,
        };
        let refusals = self.leave_blocked(state, before).await?;
        self.take_over_opened(state, before, report).await?;
        self.find_active(state).await?;
        if state.active != page && !is_paced {
            let active = state.active.clone();
            let later = settle(&active, Before::of(&active), downloads, options, &mut state.given_up).await?;
            settled.after_ms += later.after_ms;
            if leaves || later.cause == SettleCause::Bound {
                settled.cause = later.cause;
                settled.pending = later.pending;
            }
        }
        let changes = match !is_watched || before.has_navigated(&page) || page.failure().is_some() {
            true => None,
            false => document_changes(&page).await,
        };
        Ok(Outcome { result, settled: Some(settled), refusals, changes })
    }

    /// Makes the tab current that the page opened.
    async fn take_over_opened(&self, state: &mut State, before: &Moment, report: &Report) -> Result<()> {
        let newest = self.close_excess(before).await?;
        match newest.filter(|page| !report.keeps_tab && page.failure().is_none()) {
            Some(page) => self.switch(state, page),
            None => Ok(()),
        }
    }

    /// Closes tabs that were opened since and are too many. The newest of those that stay.
    async fn close_excess(&self, before: &Moment) -> Result<Option<Page>> {
        let room = usize::try_from(self.options.tabs_max).unwrap_or(usize::MAX);
        let mut newest = None;
        for page in before.opened_since(&self.context) {
            if self.context.pages().len() > room {
                page.close().await?;
            } else {
                page.set_dialog_policy(policy(&self.options.dialogs));
                newest = Some(page);
            }
        }
        Ok(newest)
    }

    /// Leaves addresses that may not be shown: tabs that were opened for them are closed, others go back.
    async fn leave_blocked(&self, state: &State, before: &Moment) -> Result<Refusals> {
        let mut refusals = before.refusals_since(&self.context).await;
        for page in self.context.pages() {
            let is_new = before.index_of(&page).is_none();
            let (url, is_error) = {
                let tree = page.inner.state.lock();
                let main = tree.frames.main();
                (main.url.clone(), main.unreachable.is_some())
            };
            let is_empty = url.is_empty() && is_new && refusals.is_navigation;
            if is_error || (urls::may_show(&url) && !is_empty) {
                continue;
            }
            if !is_empty {
                refusals.add(&url, true);
            }
            if is_new && page != state.active {
                page.close().await?;
                continue;
            }
            let options = GotoOptions {
                wait_until: LoadState::Commit,
                timeout: Some(self.options.action_timeout),
                ..GotoOptions::default()
            };
            let back = page.go_back_with(options.clone()).await;
            if !matches!(back, Ok(true)) || !urls::may_show(&page.url()) {
                page.goto_with("about:blank", options).await?;
            }
        }
        Ok(refusals)
    }
}

/// What a step that was done comes to: a way that was barred is a failure where it was all that the step led to.
fn verdict(effects: &[Effect], refusals: &Refusals, has_content: bool) -> StepOutcome {
    let changed = |effect: &Effect| {
        matches!(
            effect,
            Effect::Navigated { within_document: false, .. }
                | Effect::TabOpened { .. }
                | Effect::Downloaded { .. }
        )
    };
    let is_all = !has_content && !effects.iter().any(changed);
    if let Some(url) = refusals.urls.first()
        && (refusals.is_navigation || is_all)
    {
        return failed(urls::blocked(url));
    }
    let refused = effects.iter().find_map(|effect| match effect {
        Effect::DownloadRefused { name, reason } => Some((name, reason)),
        _ => None,
    });
    match refused {
        Some((name, reason)) if is_all => {
            let text = format!("the download of {name:?} was refused: {reason}");
            failed(Failure::new(FailureCode::DownloadRefused, text))
        }
        _ => StepOutcome::Done,
    }
}

fn failed(failure: Failure) -> StepOutcome {
    StepOutcome::Failed { code: failure.code, text: failure.text }
}

/// Why the calls after this step are skipped.
fn stop_reason(step: &Step) -> Option<&'static str> {
    match &step.outcome {
        StepOutcome::Failed { .. } => return Some("an action before it failed"),
        StepOutcome::Ended { .. } => return Some("the episode ended before it"),
        StepOutcome::Asked { .. } => return Some("the user is asked first"),
        StepOutcome::Skipped { .. } | StepOutcome::Done => {}
    }
    let is_tool = |tool: &str| step.tool.eq_ignore_ascii_case(tool);
    step.effects.iter().find_map(|effect| match effect {
        Effect::Navigated { within_document: false, .. } | Effect::NavigationFailed { .. } => {
            Some("an action before it opened another page")
        }
        Effect::TabOpened { is_active: true, .. } if !is_tool("new_tab") && !is_tool("close_tab") => {
            Some("an action before it opened another tab")
        }
        Effect::TabClosed { .. } if !is_tool("close_tab") => Some("an action before it closed the tab"),
        Effect::Dialog { .. } => Some("the page showed a dialog before it"),
        _ => None,
    })
}

fn skipped(call: &ToolCall, reason: &str) -> Step {
    let mut step = Step {
        tool: call.name.trim().to_owned(),
        outcome: StepOutcome::Skipped { reason: reason.to_owned() },
        element: None,
        point: None,
        meanwhile: Vec::new(),
        effects: Vec::new(),
        settled: None,
        duration_ms: 0,
        text: String::new(),
    };
    step.text = step.line("");
    step
}

fn closed_page() -> BrowserError {
    BrowserError::closed("page")
}

fn policy(answer: &DialogAnswer) -> DialogPolicy {
    match answer {
        DialogAnswer::Dismiss => DialogPolicy::Dismiss,
        DialogAnswer::Accept => DialogPolicy::Accept,
        DialogAnswer::AcceptWith(text) => {
            let text = text.clone();
            DialogPolicy::Handler(Arc::new(move |dialog| {
                let text = text.clone();
                Box::pin(async move {
                    let text = (dialog.kind() == DialogKind::Prompt).then_some(text.as_str());
                    // Fails where the page went away with its dialog.
                    let _ = dialog.accept(text);
                })
            }))
        }
    }
}
