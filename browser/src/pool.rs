//! Browser processes shared by many contexts: started when needed, watched, and replaced when they are ill.
//!
//! A context is opened in the fullest process that has room, so that few processes run. A process is ill when it has
//! crashed, does not answer, takes too much memory, or has grown too old; it gets no more contexts. Those in one that is
//! too large or too old go on until they are closed, then it ends; those in one that does not answer fail at once with
//! [`BrowserError::Crashed`].

use crate::browser::Browser;
use crate::context::{BrowserContext, ContextOptions};
use crate::deadline::TIMEOUT_DEFAULT;
use crate::error::{BrowserError, Result};
use crate::launch::LaunchOptions;
use crate::launcher::Launcher;
use crate::queue::{EventSource, EventStream};
use parking_lot::Mutex;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior};

/// How a pool works.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// How its browsers are started by [`BrowserPool::new`]. Chromium without its sandbox gets a process for each context.
    pub launch: LaunchOptions,
    /// Most processes. Default: 4.
    pub processes_max: usize,
    /// Most contexts in one process. Default: 16. One where Chromium's sandbox is off, unless
    /// [`share_without_sandbox`](Self::share_without_sandbox).
    pub contexts_per_process: usize,
    /// Whether contexts share a process although Chromium's sandbox is off. Default: false.
    pub share_without_sandbox: bool,
    /// How long a caller waits for a place. Default: 30 s.
    pub wait: Duration,
    /// How often processes are looked after. Default: 5 s.
    pub check_every: Duration,
    /// How long a process may take to answer. Default: 10 s.
    pub answer_within: Duration,
    /// Memory of one process with its children, above which it gets no more contexts. Default: 4 GiB. That of remote
    /// processes is their owner's matter.
    pub memory_bytes_max: u64,
    /// Age above which a process gets no more contexts. Default: 1 h.
    pub age_max: Duration,
    /// Contexts that one process opens in its life. Default: 1000.
    pub contexts_in_life: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            launch: LaunchOptions::default(),
            processes_max: 4,
            contexts_per_process: 16,
            share_without_sandbox: false,
            wait: TIMEOUT_DEFAULT,
            check_every: Duration::from_secs(5),
            answer_within: Duration::from_secs(10),
            memory_bytes_max: 4 << 30,
            age_max: Duration::from_secs(3600),
            contexts_in_life: 1000,
        }
    }
}

/// Browser processes shared by many contexts. Cheap to clone; its processes end with [`close`](BrowserPool::close), or
/// when the last clone and the last context are dropped.
#[derive(Clone)]
pub struct BrowserPool {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    options: PoolOptions,
    launcher: Box<dyn Launcher>,
    contexts_max: usize,
    /// A permit for each context that may be open.
    places: Arc<Semaphore>,
    members: Mutex<Vec<Arc<Member>>>,
    closed: watch::Sender<bool>,
    illnesses: EventSource<IllReason>,
}

/// One process of the pool.
struct Member {
    /// Set once it has started; those who wait for it share its start.
    browser: tokio::sync::OnceCell<Browser>,
    started: Instant,
    state: Mutex<MemberState>,
    contexts_max: usize,
}

#[derive(Default)]
struct MemberState {
    contexts: usize,
    opened: u64,
    /// Why it gets no more contexts.
    ill: Option<IllReason>,
}

/// Why a process gets no more contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IllReason {
    /// It died, or did not start.
    Crashed,
    /// It did not answer in time. It was killed.
    Unanswered,
    /// It takes too much memory.
    Memory,
    /// It is too old, or has opened its number of contexts.
    Age,
}

/// One process of a pool, as [`BrowserPool::members`] tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMember {
    /// The process group; `None` while it starts, and for a remote process.
    pub process_group: Option<u32>,
    /// Open contexts.
    pub contexts: usize,
    /// Contexts opened so far.
    pub opened: u64,
    /// Why it gets no more contexts; `None`: it is well.
    pub ill: Option<IllReason>,
}

/// A context of a pool. When it is dropped or closed its place is free again.
pub struct PooledContext {
    context: BrowserContext,
    _place: Place,
}

impl Deref for PooledContext {
    type Target = BrowserContext;

    fn deref(&self) -> &BrowserContext {
        &self.context
    }
}

impl fmt::Debug for PooledContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}

impl Drop for PooledContext {
    fn drop(&mut self) {
        self.context.abandon();
    }
}

/// A context's place in a process.
struct Place {
    member: Arc<Member>,
    pool: Weak<PoolInner>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = {
            let mut state = self.member.state.lock();
            state.contexts -= 1;
            state.contexts == 0 && state.ill.is_some()
        };
        if let (true, Some(pool)) = (left, self.pool.upgrade()) {
            pool.remove(&self.member);
        }
    }
}

impl BrowserPool {
    /// A pool; its processes start when contexts need them. Must be called within a Tokio runtime.
    pub fn new(options: PoolOptions) -> Result<BrowserPool> {
        let launcher = options.launch.clone();
        BrowserPool::with_launcher(options, launcher)
    }

    /// Like [`new`](Self::new), with processes from `launcher`; `options.launch` is not used.
    pub fn with_launcher(options: PoolOptions, launcher: impl Launcher) -> Result<BrowserPool> {
        if options.processes_max == 0 || options.contexts_per_process == 0 || options.check_every.is_zero() {
            return Err(BrowserError::invalid(
                "pool options: expected at least one process and one context in it, and a time between checks",
            ));
        }
        let contexts_max = match launcher.is_sandboxed() || options.share_without_sandbox {
            true => options.contexts_per_process,
            false => 1,
        };
        let places = options.processes_max * contexts_max;
        let inner = Arc::new(PoolInner {
            options,
            launcher: Box::new(launcher),
            contexts_max,
            places: Arc::new(Semaphore::new(places)),
            members: Mutex::default(),
            closed: watch::Sender::new(false),
            illnesses: EventSource::default(),
        });
        // Owner: the pool. Ends when it is closed or dropped.
        tokio::spawn(look_after(Arc::downgrade(&inner), inner.closed.subscribe()));
        Ok(BrowserPool { inner })
    }

    /// A new context. Waits for a place where all are taken; a process that dies meanwhile is replaced once.
    pub async fn new_context(&self, options: ContextOptions) -> Result<PooledContext> {
        let mut retried = false;
        loop {
            match self.open(options.clone()).await {
                Err(BrowserError::Crashed { .. } | BrowserError::Closed { what: "browser" })
                    if !retried && !*self.inner.closed.borrow() =>
                {
                    retried = true;
                }
                other => return other,
            }
        }
    }

    /// Its processes.
    pub fn members(&self) -> Vec<PoolMember> {
        let members = self.inner.members.lock();
        let tell = |member: &Arc<Member>| {
            let state = member.state.lock();
            PoolMember {
                process_group: member.browser.get().and_then(Browser::process_group),
                contexts: state.contexts,
                opened: state.opened,
                ill: state.ill,
            }
        };
        members.iter().map(tell).collect()
    }

    /// Why processes get no more contexts, from now on.
    pub fn illnesses(&self) -> EventStream<IllReason> {
        self.inner.illnesses.subscribe()
    }

    /// Ends all its processes; calls on their contexts fail with [`BrowserError::Closed`]. Returns once they are gone.
    pub async fn close(&self) {
        self.inner.closed.send_replace(true);
        self.inner.places.close();
        let members = std::mem::take(&mut *self.inner.members.lock());
        let browsers = members.iter().filter_map(|member| member.browser.get().cloned());
        futures::future::join_all(browsers.map(|browser| async move { browser.close().await })).await;
    }

    async fn open(&self, options: ContextOptions) -> Result<PooledContext> {
        let inner = &self.inner;
        let permit =
            tokio::time::timeout(inner.options.wait, Arc::clone(&inner.places).acquire_owned()).await;
        let permit = match permit {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(BrowserError::closed("browser")),
            Err(_) => {
                let places = inner.options.processes_max * inner.contexts_max;
                let waiting_for = format!("a place in the pool; all {places} are taken");
                return Err(BrowserError::Timeout { waiting_for, after: inner.options.wait });
            }
        };
        let place = Place { member: inner.take_place(), pool: Arc::downgrade(inner), _permit: permit };
        let launch = || inner.launcher.launch();
        let browser = match place.member.browser.get_or_try_init(launch).await {
            Ok(browser) if *inner.closed.borrow() => {
                browser.close().await;
                return Err(BrowserError::closed("browser"));
            }
            Ok(browser) => browser.clone(),
            Err(error) => {
                inner.fall_ill(&place.member, IllReason::Crashed);
                return Err(error);
            }
        };
        match browser.new_context(options).await {
            Ok(context) => Ok(PooledContext { context, _place: place }),
            Err(error) => {
                if browser.failure().is_some() {
                    inner.fall_ill(&place.member, IllReason::Crashed);
                }
                Err(error)
            }
        }
    }
}

impl fmt::Debug for BrowserPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrowserPool").field("members", &self.members()).finish_non_exhaustive()
    }
}

impl PoolInner {
    /// A place in the fullest process that has room, or in a new one. More processes than the limit run only while ill
    /// ones still have contexts.
    fn take_place(&self) -> Arc<Member> {
        let mut members = self.members.lock();
        let with_room = |member: &&Arc<Member>| {
            let state = member.state.lock();
            state.ill.is_none() && state.contexts < member.contexts_max
        };
        let fullest = members.iter().filter(with_room).max_by_key(|member| member.state.lock().contexts);
        let member = fullest.cloned().unwrap_or_else(|| {
            let member = Arc::new(Member {
                browser: tokio::sync::OnceCell::new(),
                started: Instant::now(),
                state: Mutex::default(),
                contexts_max: self.contexts_max,
            });
            members.push(Arc::clone(&member));
            member
        });
        let mut state = member.state.lock();
        state.contexts += 1;
        state.opened += 1;
        if state.opened >= self.options.contexts_in_life {
            state.ill = Some(IllReason::Age);
        }
        drop(state);
        member
    }

    fn fall_ill(&self, member: &Arc<Member>, reason: IllReason) {
        let empty = {
            let mut state = member.state.lock();
            state.ill.get_or_insert(reason);
            state.contexts == 0
        };
        self.illnesses.send(&reason);
        tracing::info!(?reason, "a browser process of the pool gets no more contexts");
        if empty || matches!(reason, IllReason::Crashed | IllReason::Unanswered) {
            self.remove(member);
        }
    }

    /// The process is no longer one of the pool; it ends with its last context.
    fn remove(&self, member: &Arc<Member>) {
        self.members.lock().retain(|other| !Arc::ptr_eq(other, member));
    }
}

/// Looks at every process from time to time.
async fn look_after(pool: Weak<PoolInner>, mut closed: watch::Receiver<bool>) {
    let Some(every) = pool.upgrade().map(|pool| pool.options.check_every) else { return };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            // An error: the pool is dropped.
            _ = closed.changed() => return,
        }
        let Some(pool) = pool.upgrade() else { return };
        let members = pool.members.lock().clone();
        let looks = members.iter().map(|member| look_at(&pool, member));
        futures::future::join_all(looks).await;
    }
}

async fn look_at(pool: &PoolInner, member: &Arc<Member>) {
    let Some(browser) = member.browser.get() else { return };
    if browser.failure().is_some() {
        pool.fall_ill(member, IllReason::Crashed);
        return;
    }
    if let Err(error) = browser.ping(pool.options.answer_within).await {
        let reason = if error.is_gone() { IllReason::Crashed } else { IllReason::Unanswered };
        pool.fall_ill(member, reason);
        browser.kill("it did not answer");
        return;
    }
    if member.state.lock().ill.is_some() {
        return;
    }
    let memory = browser.memory_bytes().await.unwrap_or(0);
    if memory > pool.options.memory_bytes_max {
        pool.fall_ill(member, IllReason::Memory);
    } else if member.started.elapsed() > pool.options.age_max {
        pool.fall_ill(member, IllReason::Age);
    }
}
