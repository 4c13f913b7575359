//! The events of runs for many readers. One task a run reads what is new from the store, once for all; the newest events stay in memory.
//! A reader that is further behind reads the store itself, page by page. So a slow client costs one page, and none loses an event.

use espalier_store::{RunEvent, Store, StoreError};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Newest events of a run that stay in memory.
const TAIL: usize = 1_024;
/// Events that one reader takes at a time.
const PAGE: u32 = 256;
/// How often the store is looked at for what other processes have written.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The feeds that somebody reads.
#[derive(Default)]
pub(crate) struct Feeds(Mutex<HashMap<String, Weak<Feed>>>);

/// The newest events of one run. Ends with its last reader.
struct Feed {
    shared: Arc<Shared>,
    _reading: AbortOnDropHandle<()>,
}

struct Shared {
    tail: Mutex<VecDeque<Arc<RunEvent>>>,
    /// Number of the last event that is known.
    last: watch::Sender<u64>,
}

/// One reader. Dropping it is enough.
pub(crate) struct Reader {
    store: Store,
    run_id: String,
    feed: Arc<Feed>,
    last: watch::Receiver<u64>,
    /// The last event that it has.
    at: u64,
    page: VecDeque<Arc<RunEvent>>,
}

impl Feeds {
    /// Reads the run's events behind the one numbered `after`.
    pub(crate) async fn read(&self, store: &Store, run_id: &str, after: u64) -> Result<Reader, StoreError> {
        let known = store.last_event(run_id).await?;
        let feed = {
            let mut feeds = self.0.lock();
            feeds.retain(|_, feed| feed.strong_count() > 0);
            match feeds.get(run_id).and_then(Weak::upgrade) {
                Some(feed) => feed,
                None => {
                    let feed = Arc::new(Feed::begin(store.clone(), run_id.to_owned(), known));
                    feeds.insert(run_id.to_owned(), Arc::downgrade(&feed));
                    feed
                }
            }
        };
        let last = feed.shared.last.subscribe();
        Ok(Reader {
            store: store.clone(),
            run_id: run_id.to_owned(),
            feed,
            last,
            at: after.min(known),
            page: VecDeque::new(),
        })
    }
}

impl Feed {
    fn begin(store: Store, run_id: String, after: u64) -> Feed {
        let shared = Arc::new(Shared { tail: Mutex::default(), last: watch::Sender::new(after) });
        let of = Arc::clone(&shared);
        let reading = tokio::spawn(async move {
            let mut written = store.written(&run_id);
            loop {
                written.borrow_and_update();
                let after = *of.last.borrow();
                match store.run_events(&run_id, after, PAGE).await {
                    Ok(events) if !events.is_empty() => of.push(events),
                    Ok(_) => {
                        let _ = tokio::time::timeout(LOOK_EVERY, written.changed()).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, run = %run_id, "the events of a run could not be read");
                        tokio::time::sleep(LOOK_EVERY).await;
                    }
                }
            }
        });
        Feed { shared, _reading: AbortOnDropHandle::new(reading) }
    }
}

impl Shared {
    fn push(&self, events: Vec<RunEvent>) {
        let Some(last) = events.last().map(|event| event.seq) else { return };
        let mut tail = self.tail.lock();
        tail.extend(events.into_iter().map(Arc::new));
        let beyond = tail.len().saturating_sub(TAIL);
        tail.drain(..beyond);
        drop(tail);
        self.last.send_replace(last);
    }

    /// Events behind `at` where the next one is still in memory.
    fn behind(&self, at: u64) -> Option<VecDeque<Arc<RunEvent>>> {
        let tail = self.tail.lock();
        let first = tail.front()?.seq;
        let skipped = usize::try_from((at + 1).checked_sub(first)?).ok()?;
        Some(tail.iter().skip(skipped).take(PAGE as usize).map(Arc::clone).collect())
    }
}

impl Reader {
    /// The next event, in order. Waits until there is one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Arc<RunEvent>, StoreError> {
        loop {
            if let Some(event) = self.page.pop_front() {
                self.at = event.seq;
                return Ok(event);
            }
            self.last.borrow_and_update();
            if let Some(page) = self.feed.shared.behind(self.at).filter(|page| !page.is_empty()) {
                self.page = page;
                continue;
            }
            let known = *self.last.borrow();
            if self.at < known {
                let events = self.store.run_events(&self.run_id, self.at, PAGE).await?;
                self.page = events.into_iter().map(Arc::new).collect();
                continue;
            }
            // Not while this holds the feed.
            if self.last.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The last event that it gave.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }
}
