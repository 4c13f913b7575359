//! The network of a context, recorded once and replayed without it.

mod cookies;
mod format;
mod still;

pub use format::Archive;
pub(crate) use format::{Entry, Outcome, RequestKey};

use crate::context::{BrowserContext, ContextInner};
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::protocol::{Done, Raw};
use crate::route::{AbortReason, Fetched, Route, RouteHandler, RouteId};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use still::{Still, still};

/// How long a page may take to read an answer before the next is given.
const READ_BOUND: Duration = Duration::from_secs(2);
/// Requests without an answer that are remembered.
const MISSES_KEPT: usize = 100;

/// Bounds of a recording.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveOptions {
    /// Bytes of all bodies, where equal ones count once; requests beyond it fail. Default: 256 MiB.
    pub bytes_max: usize,
    /// Requests; those beyond it fail. Default: 10,000.
    pub entries_max: usize,
    /// How long a response may take; a longer one is recorded as a failure. Default: 20 s.
    pub response_bound: Duration,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        ArchiveOptions { bytes_max: 256 << 20, entries_max: 10_000, response_bound: Duration::from_secs(20) }
    }
}

/// What becomes of requests that a replayed archive does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misses {
    /// They fail, and are told by [`ArchiveReplay::misses`].
    #[default]
    Fail,
    /// They go to the network, and are told, too.
    Live,
}

/// A recording under way. It goes on until [`finish`](ArchiveRecorder::finish), or until its context is closed.
pub struct ArchiveRecorder {
    context: BrowserContext,
    route: RouteId,
    recording: Arc<Recording>,
}

/// An archive that answers the requests of a context, until it is closed.
pub struct ArchiveReplay {
    replay: Arc<Replay>,
}

#[derive(Default)]
struct Counters {
    seen: Mutex<HashMap<RequestKey, u32>>,
}

impl Counters {
    /// How many such requests came before this one.
    fn next(&self, key: &RequestKey) -> u32 {
        let mut seen = self.seen.lock();
        let count = seen.entry(key.clone()).or_default();
        *count += 1;
        *count - 1
    }
}

struct Recording {
    context: Weak<ContextInner>,
    options: ArchiveOptions,
    counters: Counters,
    archive: Mutex<Archive>,
    delivery: tokio::sync::Mutex<()>,
}

struct Replay {
    context: Weak<ContextInner>,
    archive: Archive,
    counters: Counters,
    misses: Misses,
    missed: Mutex<(Vec<String>, u64)>,
    delivery: tokio::sync::Mutex<()>,
}

impl BrowserContext {
    /// Records every request of its pages and workers from now on, with its answer. Answers are given to pages one after
    /// the other, in the order of their requests, as in a replay; the browser's cache is not used.
    pub async fn record_archive(&self, options: ArchiveOptions) -> Result<ArchiveRecorder> {
        let recording = Arc::new(Recording {
            context: Arc::downgrade(&self.inner),
            options,
            counters: Counters::default(),
            archive: Mutex::default(),
            delivery: tokio::sync::Mutex::default(),
        });
        let of = Arc::clone(&recording);
        let handler: RouteHandler = Arc::new(move |route| {
            let recording = Arc::clone(&of);
            Box::pin(async move { recording.take(&route).await })
        });
        self.without_cache().await?;
        let route = self.route("**", handler).await?;
        Ok(ArchiveRecorder { context: self.clone(), route, recording })
    }

    /// Answers the requests of its pages and workers from an archive, from now on.
    pub async fn replay_archive(&self, archive: &Archive, misses: Misses) -> Result<ArchiveReplay> {
        let replay = Arc::new(Replay {
            context: Arc::downgrade(&self.inner),
            archive: archive.clone(),
            counters: Counters::default(),
            misses,
            missed: Mutex::default(),
            delivery: tokio::sync::Mutex::default(),
        });
        let of = Arc::clone(&replay);
        let handler: RouteHandler = Arc::new(move |route| {
            let replay = Arc::clone(&of);
            Box::pin(async move { replay.answer(&route).await })
        });
        self.without_cache().await?;
        self.route("**", handler).await?;
        Ok(ArchiveReplay { replay })
    }

    async fn without_cache(&self) -> Result<()> {
        self.inner.emulated.lock().cache_disabled = true;
        self.inner.tell_pages(without_cache()).await
    }
}

/// Makes every request go to its source.
pub(crate) fn without_cache() -> Raw {
    Raw::new("Network.setCacheDisabled", json!({ "cacheDisabled": true }))
}

impl ArchiveRecorder {
    /// Ends the recording and returns it. Later requests go to the network.
    pub async fn finish(self) -> Result<Archive> {
        match self.context.unroute(self.route).await {
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
        Ok(self.recording.archive.lock().clone())
    }

    /// What is recorded so far.
    pub fn archive(&self) -> Archive {
        self.recording.archive.lock().clone()
    }
}

impl ArchiveReplay {
    /// Requests that the archive does not have, such as `GET http://example.com/a (occurrence 1)`: the first 100, and how
    /// many there were.
    pub fn misses(&self) -> (Vec<String>, u64) {
        self.replay.missed.lock().clone()
    }

    /// [`BrowserError::Unsupported`] with the first of the [`misses`](Self::misses), where there are any.
    pub fn check(&self) -> Result<()> {
        let (first, count) = {
            let missed = self.replay.missed.lock();
            (missed.0.first().cloned(), missed.1)
        };
        first.map_or(Ok(()), |first| {
            let what = format!("{count} requests that the archive does not have, the first: {first}");
            Err(BrowserError::unsupported(what))
        })
    }
}

impl Recording {
    async fn take(&self, route: &Route) {
        // Fetched at once, given in order.
        let (fetched, _turn) = tokio::join!(route.fetch(self.options.response_bound), self.delivery.lock());
        let outcome = match fetched {
            Ok(fetched) => Outcome::Response(fetched),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        let key = RequestKey::of(route);
        let occurrence = self.counters.next(&key);
        let fits =
            self.archive.lock().add(Entry { key, occurrence, outcome: outcome.clone() }, &self.options);
        if !fits {
            tracing::warn!(url = route.url(), "the archive is full: the request fails");
        }
        let outcome = if fits { outcome } else { Outcome::Failed("the archive is full".to_owned()) };
        deliver(route, outcome, &self.context).await;
    }
}

impl Replay {
    async fn answer(&self, route: &Route) {
        let turn = self.delivery.lock().await;
        let key = RequestKey::of(route);
        let occurrence = self.counters.next(&key);
        if let Some(outcome) = self.archive.get(&key, occurrence) {
            deliver(route, outcome.clone(), &self.context).await;
            return;
        }
        drop(turn);
        {
            let mut missed = self.missed.lock();
            missed.1 += 1;
            if missed.0.len() < MISSES_KEPT {
                missed.0.push(format!("{key} (occurrence {})", occurrence + 1));
            }
        }
        if self.misses == Misses::Fail {
            // Fails where the page is gone.
            let _ = route.abort(AbortReason::Failed);
        }
    }
}

/// Gives an answer and waits, within a bound, until the page has read it.
async fn deliver(route: &Route, outcome: Outcome, context: &Weak<ContextInner>) {
    let outcome = held(outcome, context);
    if let (Outcome::Response(response), Some(context)) = (&outcome, context.upgrade()) {
        let lines = response.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        let lines = lines.flat_map(|(_, lines)| lines.split('\n'));
        if let Some(command) = cookies::store(&context.id, route.url(), lines) {
            // Where the browser is gone, so is the page.
            let _ = context.browser.root().call_as::<Done>(command, Deadline::after(READ_BOUND)).await;
        }
    }
    // Both fail where the page is gone.
    match outcome {
        Outcome::Response(fetched) => drop(route.fulfill_fetched(&fetched)),
        Outcome::Failed(_) => drop(route.abort(AbortReason::Failed)),
    }
    if let Some(request) = route.sent_request().await {
        // Redirects end with the request that follows.
        let _ = request.finished(READ_BOUND).await;
    }
}

/// What a page of a deterministic episode gets: images that move show their first picture.
fn held(outcome: Outcome, context: &Weak<ContextInner>) -> Outcome {
    let context = context.upgrade();
    let Some(episode) = context.as_ref().and_then(|context| context.episode.as_ref()) else { return outcome };
    let Outcome::Response(fetched) = outcome else { return outcome };
    match still(&fetched.body) {
        Still::Same => Outcome::Response(fetched),
        Still::First(body) => Outcome::Response(Fetched { body, ..fetched }),
        Still::Refused(name) => {
            episode.refuse(name);
            Outcome::Failed(name.to_owned())
        }
    }
}
