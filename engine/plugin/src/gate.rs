//! Where every import passes: one place that sees call and result.
//!
//! [`Gate::enter`] admits a call, refuses it as a budget or a cancel demands, or stops the guest; [`Gate::leave`] sees the
//! result, records it, and starts the grace when it is the first budget error. Futures of capabilities run on the
//! engine's `io` runtime in between ([`Gate::pass`]), with the deadline of the import, of the rollout and of the grace;
//! none of them, and no timer, lives on the guests' threads.

use crate::CancelToken;
use crate::cpu::CpuClock;
use crate::logs::Logs;
use crate::trap::Stop;
use espalier_core::failure::{BudgetKind, Failure};
use espalier_core::journal::{
    Call, Limit, Measured, PAYLOAD_BYTES_MAX, PAYLOADS_BYTES_MAX, Payload, Reply, Verdict, measure,
};
use espalier_core::limits::{DurationText, GRACE, GRACE_CALLS};
use espalier_core::meter::Meter;
use espalier_core::trajectory::HostCall;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Host calls that are recorded; later ones are counted.
const RECORDED_MAX: usize = 100_000;
/// What an import that waits for something keeps of `import_wall` to gather its answer.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// What an import waits for. On the heap once: by value it would be part of every future around it, and of the guest's stack,
/// which keeps the pages that it ever touched while a rollout is parked.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// What a gate is built from.
pub(crate) struct GateSetup {
    pub(crate) io: Handle,
    pub(crate) meter: Arc<Meter>,
    pub(crate) logs: Logs,
    pub(crate) cancel: CancelToken,
    /// From now to the end of the rollout, or of the scoring.
    pub(crate) wall: Option<Duration>,
    /// ms since 1970.
    pub(crate) start_ms: u64,
    /// Whether the clock stands still.
    pub(crate) frozen: bool,
    /// What the clock says from each call on, in the place of the time.
    pub(crate) recorded_ms: Option<Arc<[u64]>>,
    /// Why imports are refused altogether, while a plugin describes its settings.
    pub(crate) closed: Option<&'static str>,
    /// Whether arguments and replies are kept with the record, within their bounds.
    pub(crate) record_calls: bool,
}

/// The choke point of one instance.
pub(crate) struct Gate {
    io: Handle,
    meter: Arc<Meter>,
    logs: Logs,
    cancel: CancelToken,
    pub(crate) cpu: Arc<CpuClock>,
    started: Instant,
    deadline: Option<Instant>,
    start_ms: u64,
    now_ms: u64,
    frozen: bool,
    recorded_ms: Option<Arc<[u64]>>,
    closed: Option<&'static str>,
    grace: Option<Grace>,
    cancel_seen: Option<Instant>,
    wall: bool,
    /// When the turn under way has to be over; none before the first, or without `limits.turn_wall`.
    turn_until: Option<Instant>,
    turn_wall: bool,
    /// Whether an import failed for a budget, a cancel, or something that was lost.
    refused: bool,
    kill: Arc<AtomicBool>,
    calls: Vec<HostCall>,
    total: u64,
    last: &'static str,
    /// Verdict of the last call.
    verdict: Verdict,
    /// Bytes of arguments and replies that may still be kept; `None`: none are.
    payload_bytes_left: Option<u64>,
}

/// What is left to a guest after its first budget error.
struct Grace {
    cause: Failure,
    calls_left: u32,
    until: Instant,
}

/// A call as the guest makes it.
pub(crate) struct Asked {
    name: &'static str,
    measured: Measured,
    /// Kept for the record.
    call: Option<Box<Call<'static>>>,
}

/// A call under way.
pub(crate) struct Entered {
    asked: Asked,
    at: Instant,
    refusal: Option<Failure>,
}

impl Entered {
    /// What became of a call that was refused.
    fn refused(refusal: &Failure) -> Verdict {
        match refusal {
            Failure::Cancelled => Verdict::Cancelled,
            _ => Verdict::Refused,
        }
    }
}

impl Gate {
    pub(crate) fn new(setup: GateSetup) -> Gate {
        let started = Instant::now();
        Gate {
            io: setup.io,
            meter: setup.meter,
            logs: setup.logs,
            cancel: setup.cancel,
            cpu: CpuClock::new(),
            started,
            deadline: setup.wall.and_then(|wall| started.checked_add(wall)),
            start_ms: setup.start_ms,
            now_ms: setup.start_ms,
            frozen: setup.frozen,
            recorded_ms: setup.recorded_ms,
            closed: setup.closed,
            grace: None,
            cancel_seen: None,
            wall: false,
            turn_until: None,
            turn_wall: false,
            refused: false,
            kill: Arc::new(AtomicBool::new(false)),
            calls: Vec::new(),
            total: 0,
            last: "none",
            verdict: Verdict::Passed,
            payload_bytes_left: setup.record_calls.then_some(PAYLOADS_BYTES_MAX),
        }
    }

    /// A call as it will be recorded.
    #[inline]
    pub(crate) fn asked(&mut self, call: Call<'_>) -> Asked {
        let (name, measured) = (call.name(), measure(&call));
        let call = self.keeps(measured).then(|| Box::new(call.into_owned()));
        Asked { name, measured, call }
    }

    /// The same, where the arguments may be none for this function.
    pub(crate) fn checked<A>(
        &mut self,
        name: &'static str,
        arguments: &Result<A, Failure>,
        call: impl FnOnce(&A) -> Call<'_>,
    ) -> Asked {
        let call = match arguments {
            Ok(arguments) => call(arguments),
            Err(failure) => Call::Invalid { import: Cow::Borrowed(name), failure: Cow::Borrowed(failure) },
        };
        self.asked(call)
    }

    /// Whether something of this size is kept, counting it.
    #[inline]
    fn keeps(&mut self, measured: Measured) -> bool {
        let Some(left) = &mut self.payload_bytes_left else { return false };
        if measured.bytes > PAYLOAD_BYTES_MAX.min(*left) {
            return false;
        }
        *left -= measured.bytes;
        true
    }

    /// An import that takes no time: random numbers, what a conversation is told. The clock is read once, at its start.
    #[inline]
    pub(crate) fn pass_now<T>(
        &mut self,
        asked: Asked,
        work: impl FnOnce(&Gate) -> Result<T, Failure>,
        reply: impl FnOnce(&T) -> Reply<'_>,
    ) -> wasmtime::Result<Result<T, Failure>> {
        let mut entered = self.enter(asked)?;
        let (result, verdict) = match entered.refusal.take() {
            Some(refusal) => {
                let verdict = Entered::refused(&refusal);
                (Err(refusal), verdict)
            }
            None => (work(self), Verdict::Passed),
        };
        let now = entered.at;
        self.leave(entered, now, told(&result, reply), result.as_ref().err(), verdict, None);
        Ok(result)
    }

    /// An import whose WIT has no failure: it is answered whatever the budgets say, but counts against the grace.
    #[inline]
    pub(crate) fn pass_always<T>(
        &mut self,
        asked: Asked,
        work: impl FnOnce(&Gate) -> T,
        reply: impl FnOnce(&T) -> Reply<'_>,
    ) -> wasmtime::Result<T> {
        let mut entered = self.enter(asked)?;
        let refusal = entered.refusal.take();
        let result = work(self);
        let verdict = refusal.as_ref().map_or(Verdict::Passed, Entered::refused);
        let now = entered.at;
        self.leave(entered, now, reply(&result), refusal.as_ref(), verdict, None);
        Ok(result)
    }

    /// An import that may wait: it runs on the `io` runtime until it is ready, or until the import, the rollout or the
    /// grace is out of time, or the run is cancelled; then it is dropped.
    pub(crate) fn pass<T: Send + 'static>(
        &mut self,
        asked: Asked,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
        reply: impl FnOnce(&T) -> Reply<'_>,
    ) -> impl Future<Output = wasmtime::Result<Result<T, Failure>>> {
        self.pass_noted(asked, Box::pin(work), Ok, reply, |_| None)
    }

    /// The same, with what is made of the result before the guest is told, and a note for people in the record: what was asked
    /// and, where there is a result, what came of it.
    pub(crate) async fn pass_noted<T: Send + 'static, U>(
        &mut self,
        asked: Asked,
        work: Work<T>,
        take: impl FnOnce(T) -> Result<U, Failure>,
        reply: impl FnOnce(&U) -> Reply<'_>,
        note: impl FnOnce(Option<&U>) -> Option<Box<str>>,
    ) -> wasmtime::Result<Result<U, Failure>> {
        let mut entered = self.enter(asked)?;
        let (result, verdict) = match entered.refusal.take() {
            Some(refusal) => {
                let verdict = Entered::refused(&refusal);
                (Err(refusal), verdict)
            }
            None => self.wait(entered.at, entered.asked.name, work).await,
        };
        let result = result.and_then(take);
        let now = Instant::now();
        self.move_clock(now);
        let note = note(result.as_ref().ok());
        self.leave(entered, now, told(&result, reply), result.as_ref().err(), verdict, note);
        Ok(result)
    }

    /// An answer of a model is asked for: the turn before it is over, and another begins.
    pub(crate) fn begin_turn(&mut self) {
        let now = Instant::now();
        if self.turn_until.is_none_or(|until| now < until) {
            self.turn_until = self.meter.limits().turn_wall.and_then(|wall| now.checked_add(wall));
        }
    }

    /// The longest that a command of a harness may take: `limits.command_wall`, of which rewards know nothing.
    pub(crate) fn command_wall(&self) -> Option<Duration> {
        self.meter.limits().command_wall.filter(|_| !self.frozen)
    }

    /// How long an import may wait so that it still answers before `limits.import_wall` cuts it.
    pub(crate) fn longest_wait(&self) -> Duration {
        let wall = self.meter.limits().import_wall;
        wall - (wall / 4).min(ANSWER_MARGIN)
    }

    async fn wait<T: Send + 'static>(
        &mut self,
        at: Instant,
        name: &str,
        work: Work<T>,
    ) -> (Result<T, Failure>, Verdict) {
        let import_wall = self.meter.limits().import_wall;
        let mut until = at + import_wall;
        let mut limit = Limit::Import;
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline < until) {
            (until, limit) = (deadline, Limit::Wall);
        }
        if let Some(turn) = self.turn_until.filter(|turn| *turn < until) {
            (until, limit) = (turn, Limit::Turn);
        }
        if let Some(grace) = self.grace.as_ref().filter(|grace| grace.until < until) {
            (until, limit) = (grace.until, Limit::Grace);
        }
        let cancel = self.cancel.clone();
        // Owned by this call, which aborts it when it is dropped itself; a panic in it is reported as `unavailable`.
        let task = AbortOnDrop(self.io.spawn(async move {
            tokio::select! {
                biased;
                result = work => Ok(result),
                () = cancel.cancelled() => Err(Verdict::Cancelled),
                () = tokio::time::sleep_until(until.into()) => Err(Verdict::Cut(limit)),
            }
        }));
        match task.await {
            Ok(Ok(result)) => (result, Verdict::Passed),
            Ok(Err(verdict)) => (Err(self.cut(name, verdict)), verdict),
            Err(error) => {
                let why = if error.is_panic() {
                    format!("{name}: the host's own code panicked")
                } else {
                    format!("{name}: the engine is shutting down")
                };
                (Err(Failure::Unavailable(why)), Verdict::Passed)
            }
        }
    }

    /// What the guest is told of a call that was cut.
    fn cut(&self, name: &str, verdict: Verdict) -> Failure {
        match verdict {
            Verdict::Cut(Limit::Import) => Failure::Unavailable(format!(
                "{name} did not end within limits.import_wall = {}",
                DurationText(self.meter.limits().import_wall)
            )),
            Verdict::Cut(Limit::Turn) => turn_budget(),
            Verdict::Cut(Limit::Grace) => {
                self.grace.as_ref().map_or(Failure::Cancelled, |grace| grace.cause.clone())
            }
            Verdict::Cut(Limit::Wall) => Failure::Budget(BudgetKind::Wall),
            Verdict::Cancelled | Verdict::Passed | Verdict::Refused => Failure::Cancelled,
        }
    }

    /// Admits, refuses or stops.
    #[inline]
    fn enter(&mut self, asked: Asked) -> wasmtime::Result<Entered> {
        let at = Instant::now();
        if let Some(reason) = self.closed {
            return Err(Stop::Closed { import: asked.name, reason }.into());
        }
        if let Some(grace) = &mut self.grace {
            if grace.calls_left == 0 || at > grace.until {
                return Err(Stop::BudgetIgnored { cause: grace.cause.clone() }.into());
            }
            grace.calls_left -= 1;
        }
        self.total += 1;
        self.last = asked.name;
        self.move_clock(at);
        self.logs.went_on(self.total);
        let refusal = if self.cancel.is_cancelled() {
            Some(Failure::Cancelled)
        } else if self.deadline.is_some_and(|deadline| at >= deadline) {
            Some(Failure::Budget(BudgetKind::Wall))
        } else if self.turn_until.is_some_and(|until| at >= until) {
            Some(turn_budget())
        } else {
            self.meter.take_host_call().err()
        };
        Ok(Entered { asked, at, refusal })
    }

    /// Records the result and starts the grace where it is the first budget error.
    #[inline]
    fn leave(
        &mut self,
        entered: Entered,
        now: Instant,
        reply: Reply<'_>,
        failure: Option<&Failure>,
        verdict: Verdict,
        note: Option<Box<str>>,
    ) {
        self.cpu.note_call();
        self.verdict = verdict;
        if let Some(failure) = failure {
            self.see_failure(now, failure);
        }
        if self.calls.len() >= RECORDED_MAX {
            return;
        }
        let Entered { asked, at, .. } = entered;
        let told = measure(&reply);
        let reply = self.keeps(told).then(|| reply.into_owned());
        let is_kept = asked.call.is_some() || reply.is_some();
        let payload = is_kept.then(|| Box::new(Payload { call: asked.call.map(|call| *call), reply }));
        self.calls.push(HostCall {
            number: self.calls.len() as u32,
            name: Cow::Borrowed(asked.name),
            start_us: micros(at.saturating_duration_since(self.started)),
            duration_us: micros(now.saturating_duration_since(at)),
            bytes_in: asked.measured.bytes,
            bytes_out: told.bytes,
            failure: failure.map(|failure| failure.to_string().into()),
            clock_ms: self.now_ms,
            asked: Some(asked.measured.digest),
            told: Some(told.digest),
            verdict,
            note,
            payload,
        });
    }

    fn see_failure(&mut self, now: Instant, failure: &Failure) {
        if *failure == Failure::Budget(BudgetKind::Wall)
            && self.deadline.is_some_and(|deadline| now >= deadline)
        {
            self.wall = true;
        }
        if *failure == turn_budget() && self.turn_until.is_some_and(|until| now >= until) {
            self.turn_wall = true;
        }
        self.refused |= failure.is_no_defect();
        if matches!(failure, Failure::Budget(_) | Failure::Cancelled) && self.grace.is_none() {
            self.grace = Some(Grace { cause: failure.clone(), calls_left: GRACE_CALLS, until: now + GRACE });
        }
    }

    fn move_clock(&mut self, now: Instant) {
        if let Some(recorded) = &self.recorded_ms {
            let call = self.total.saturating_sub(1) as usize;
            self.now_ms = recorded.get(call).copied().unwrap_or(self.now_ms);
        }
        if !self.frozen {
            let passed = now.saturating_duration_since(self.started);
            let passed_ms =
                passed.as_secs().saturating_mul(1_000).saturating_add(passed.subsec_millis().into());
            self.now_ms = self.start_ms.saturating_add(passed_ms);
        }
    }

    /// Called at each tick of a running guest: whether it may go on.
    pub(crate) fn tick(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        if self.kill.load(Ordering::Relaxed) {
            return Err(Stop::Killed);
        }
        let guest_cpu = self.meter.limits().guest_cpu;
        if self.cpu.since_call() > guest_cpu {
            return Err(Stop::Cpu { limit: guest_cpu });
        }
        if let Some(grace) = self.grace.as_ref().filter(|grace| now > grace.until) {
            return Err(Stop::BudgetIgnored { cause: grace.cause.clone() });
        }
        if let Some(deadline) = self.deadline.filter(|deadline| now > *deadline) {
            self.wall = true;
            if now > deadline + GRACE {
                return Err(Stop::BudgetIgnored { cause: Failure::Budget(BudgetKind::Wall) });
            }
        }
        if let Some(until) = self.turn_until.filter(|until| now > *until) {
            self.turn_wall = true;
            if now > until + GRACE {
                return Err(Stop::BudgetIgnored { cause: turn_budget() });
            }
        }
        if self.cancel.is_cancelled() {
            let seen = *self.cancel_seen.get_or_insert(now);
            if now > seen + GRACE {
                return Err(Stop::BudgetIgnored { cause: Failure::Cancelled });
            }
        }
        Ok(())
    }

    /// A switch that stops the guest at its next tick, from any thread.
    pub(crate) fn kill_switch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.kill)
    }

    /// Time of the last host call, ms since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Milliseconds on the guest's clock since its start.
    pub(crate) fn passed_ms(&self) -> u64 {
        self.now_ms - self.start_ms
    }

    /// The log of the instance.
    pub(crate) fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Whether the time of the rollout, or of the scoring, ran out.
    pub(crate) fn wall_met(&self) -> bool {
        self.wall
    }

    /// Whether the time of a turn ran out.
    pub(crate) fn turn_wall_met(&self) -> bool {
        self.turn_wall
    }

    /// Whether a limit, a cancel or something that was lost came before now.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused || self.wall || self.turn_wall || self.cancel.is_cancelled()
    }

    /// Whether the last import was let through.
    pub(crate) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Imports so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// `after host call 12 (conversation.complete)`, or `before its first host call`.
    pub(crate) fn place(&self) -> String {
        match self.total {
            0 => "before its first host call".to_owned(),
            total => format!("after host call {} ({})", total - 1, self.last),
        }
    }

    /// The record of all imports.
    pub(crate) fn take_calls(&mut self) -> Vec<HostCall> {
        std::mem::take(&mut self.calls)
    }
}

/// What the guest is told, as it is recorded.
fn told<'a, T>(result: &'a Result<T, Failure>, reply: impl FnOnce(&'a T) -> Reply<'a>) -> Reply<'a> {
    match result {
        Ok(value) => reply(value),
        Err(failure) => Reply::Failed(Cow::Borrowed(failure)),
    }
}

/// The released interface has no case of its own for it.
fn turn_budget() -> Failure {
    Failure::Budget(BudgetKind::Other("turn-wall".to_owned()))
}

/// Without the 128-bit division of `Duration::as_micros`: this runs at each host call.
fn micros(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000).saturating_add(duration.subsec_micros().into())
}

/// A task that ends with whoever waits for it.
pub(crate) struct AbortOnDrop<T>(pub(crate) tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(context)
    }
}
