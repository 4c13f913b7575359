//! Clocks of pages: one of ours in the manner of Playwright, and Chromium's virtual time.

use crate::context::{BrowserContext, ContextInner};
use crate::deadline::Deadline;
use crate::deterministic::{CLOCK, KEY, documents, replace_script};
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::protocol::Raw;
use chromiumoxide::cdp::browser_protocol::page::AddScriptToEvaluateOnNewDocumentParams;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock of a context's pages: `Date`, `performance.now`, timers, animation frames and idle callbacks of all their
/// documents. Workers, CSS animations and media keep Chromium's time.
///
/// Until one of its functions is called pages have Chromium's clock; from then on one of ours, also in pages and
/// documents that are opened later. What a document asked of timers before is not moved: install it first.
#[derive(Clone, Debug)]
pub struct Clock {
    context: BrowserContext,
}

/// What the clock of a context shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClockState {
    /// What `Date` says where it is held, in milliseconds since 1970.
    fixed: Option<f64>,
    /// Milliseconds since 1970, at `since`.
    time: f64,
    /// When `time` was right, by the machine's clock, in milliseconds since 1970.
    since: f64,
    is_running: bool,
}

impl ClockState {
    fn started(time: f64) -> ClockState {
        ClockState { fixed: None, time, since: real_ms(), is_running: true }
    }

    /// The time now.
    fn now(&self) -> f64 {
        if self.is_running { self.time + real_ms() - self.since } else { self.time }
    }

    fn moved_to(self, time: f64) -> ClockState {
        ClockState { time, since: real_ms(), ..self }
    }

    /// What new documents run first.
    fn script(&self) -> AddScriptToEvaluateOnNewDocumentParams {
        let start = match self.is_running {
            true => format!("{} + Date.now() - {}", self.time, self.since),
            false => self.time.to_string(),
        };
        let mut source = format!("(() => {{ const clock = {}({start});", CLOCK.trim());
        if let Some(fixed) = self.fixed {
            source.push_str(&format!(" clock.fix({fixed});"));
        }
        if self.is_running {
            source.push_str(" clock.resume();");
        }
        source.push_str(" })()");
        let mut command = AddScriptToEvaluateOnNewDocumentParams::new(source);
        command.run_immediately = Some(true);
        command
    }
}

impl BrowserContext {
    /// The clock of its pages. Contexts with [`DeterministicOptions`](crate::DeterministicOptions) have their own: there
    /// its functions are [`BrowserError::Unsupported`].
    pub fn clock(&self) -> Clock {
        Clock { context: self.clone() }
    }
}

impl Clock {
    /// Sets the clock to `time`, from where it goes on with real time.
    pub async fn install(&self, time: SystemTime) -> Result<()> {
        let time = ms(time)?;
        self.apply(ClockState::started(time), &format!("clock.set({time}); clock.resume()")).await
    }

    /// `Date` says `time` from now on, always; timers go on as they do.
    pub async fn set_fixed_time(&self, time: SystemTime) -> Result<()> {
        let time = ms(time)?;
        let state = ClockState { fixed: Some(time), ..self.state() };
        self.apply(state, &format!("clock.fix({time})")).await
    }

    /// `Date` says `time` now and goes on from there; timers do not notice.
    pub async fn set_system_time(&self, time: SystemTime) -> Result<()> {
        let time = ms(time)?;
        let state = ClockState { fixed: None, ..self.state().moved_to(time) };
        self.apply(state, &format!("clock.set({time})")).await
    }

    /// Goes on by `by` at once, and calls everything that is due meanwhile, in order and as often as it is due.
    pub async fn run_for(&self, by: Duration) -> Result<()> {
        self.go_on(by, "run").await
    }

    /// Goes on by `by` at once, and calls what is due meanwhile once: as after a computer has slept.
    pub async fn fast_forward(&self, by: Duration) -> Result<()> {
        self.go_on(by, "jump").await
    }

    /// Goes on to `time` as [`fast_forward`](Self::fast_forward) does, and stands still there. An error where that is
    /// past.
    pub async fn pause_at(&self, time: SystemTime) -> Result<()> {
        let time = ms(time)?;
        let state = self.state();
        if time < state.now() {
            return Err(BrowserError::invalid(format!(
                "time {time} ms: expected one that is not past; the clock shows {} ms since 1970-01-01",
                state.now().floor()
            )));
        }
        let state = ClockState { is_running: false, ..state.moved_to(time) };
        self.apply(state, &format!("clock.pause(); return clock.jump({time} - clock.offset())")).await
    }

    /// Goes on with real time.
    pub async fn resume(&self) -> Result<()> {
        let state = self.state();
        let state = ClockState { is_running: true, ..state.moved_to(state.now()) };
        self.apply(state, "clock.resume()").await
    }

    async fn go_on(&self, by: Duration, how: &str) -> Result<()> {
        let by = by.as_secs_f64() * 1000.0;
        let state = self.state();
        let state = state.moved_to(state.now() + by);
        self.apply(state, &format!("return clock.{how}(clock.now() - clock.offset() + {by})")).await
    }

    /// As it is, or as it would be if it were installed now.
    fn state(&self) -> ClockState {
        self.context.inner.clock.lock().unwrap_or_else(|| ClockState::started(real_ms()))
    }

    /// Tells the documents that are there, and those to come.
    async fn apply(&self, state: ClockState, script: &str) -> Result<()> {
        if self.context.inner.episode.is_some() {
            let what = "the clock of a deterministic context: its time goes on in steps";
            return Err(BrowserError::unsupported(what));
        }
        let deadline = self.context.deadline();
        let before = {
            let mut clock = self.context.inner.clock.lock();
            let before = clock.unwrap_or_else(|| ClockState::started(real_ms()));
            *clock = Some(state);
            before
        };
        // Documents without a clock of ours get the one of before first, and then all are moved alike.
        let install = before.script().source;
        let script = format!("(() => {{ {install}; const clock = {KEY}; {script}; }})()");
        for page in self.context.pages() {
            for realm in documents(&page.inner) {
                match realm.evaluate::<Value>(&script, deadline).await {
                    Ok(_) | Err(BrowserError::Navigated | BrowserError::Detached) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        replace_script(&self.context, &state.script(), deadline).await
    }
}

impl ContextInner {
    /// What gives new documents their clock; `None` where that is Chromium's.
    pub(crate) fn clock_script(&self) -> Option<AddScriptToEvaluateOnNewDocumentParams> {
        let clock = || self.clock.lock().map(|state| state.script());
        self.episode.as_ref().map(|episode| episode.init_script()).or_else(clock)
    }
}

fn ms(time: SystemTime) -> Result<f64> {
    let since = time.duration_since(UNIX_EPOCH);
    let since = since.map_err(|_| BrowserError::invalid("time: expected one after 1970-01-01"))?;
    Ok((since.as_secs_f64() * 1000.0).floor())
}

fn real_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0
}

impl Page {
    /// Stops the page's clock, at `now` where that is given: timers, animations, `Date` and `performance.now()` stand
    /// still until [`advance_time`](Self::advance_time). Requests go on. It cannot be undone. Pause a page that is loaded:
    /// while time stands still documents are not parsed and pages are not drawn anew, so that navigations and pictures may
    /// run into their deadlines. Unlike [`Clock`] it reaches what Chromium times itself, such as CSS animations.
    pub async fn pause_time(&self, now: Option<SystemTime>) -> Result<()> {
        let mut params = json!({ "policy": "pause" });
        if let Some(now) = now {
            let since = now.duration_since(UNIX_EPOCH);
            let since = since.map_err(|_| BrowserError::invalid("time: expected one after 1970-01-01"))?;
            params["initialVirtualTime"] = json!(since.as_secs_f64());
        }
        self.set_time_policy(params, self.deadline()).await
    }

    /// Lets the page's clock, which [`pause_time`](Self::pause_time) has stopped, go on by this much, as quickly as the
    /// page can, and waits until it has. Time stands while requests are under way.
    pub async fn advance_time(&self, by: Duration) -> Result<()> {
        let deadline = self.deadline();
        let before = self.inner.state.lock().virtual_time_expired;
        let ms = by.as_secs_f64() * 1000.0;
        let params = json!({ "policy": "pauseIfNetworkFetchesPending", "budget": ms });
        self.set_time_policy(params, deadline).await?;
        let waiting_for = || format!("{ms} ms of virtual time to pass; requests or scripts hold it up");
        self.inner
            .wait(deadline, waiting_for, |state| (state.virtual_time_expired > before).then_some(Ok(())))
            .await
    }

    async fn set_time_policy(&self, params: Value, deadline: Deadline) -> Result<()> {
        let command = Raw::new("Emulation.setVirtualTimePolicy", params);
        self.inner.session.call_as::<Value>(command, deadline).await?;
        Ok(())
    }
}
