//! Queues of events: bounded, the oldest is dropped and counted when full, so that nobody ever waits to send.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Events that a stream keeps until they are read; more drop the oldest.
pub const EVENTS_MAX: usize = 4096;

/// Events in order of their arrival. Where they are read too slowly the oldest are lost, and counted.
pub struct EventStream<T> {
    queue: Arc<Queue<T>>,
}

struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Notify,
    room: usize,
}

struct State<T> {
    waiting: VecDeque<T>,
    dropped: u64,
    closed: bool,
}

impl<T> EventStream<T> {
    /// The next event; `None` once the source is closed and all its events are read. Waits without a bound: see
    /// [`next_within`](Self::next_within).
    pub async fn next(&mut self) -> Option<T> {
        loop {
            let arrived = self.queue.arrived.notified();
            {
                let mut state = self.queue.state.lock();
                if let Some(event) = state.waiting.pop_front() {
                    return Some(event);
                }
                if state.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// The next event, or `None` where none comes within `timeout` or the source is closed.
    pub async fn next_within(&mut self, timeout: Duration) -> Option<T> {
        tokio::time::timeout(timeout, self.next()).await.ok().flatten()
    }

    /// The next event where one has already come.
    pub fn try_next(&mut self) -> Option<T> {
        self.queue.state.lock().waiting.pop_front()
    }

    /// How many events were lost since this stream was opened.
    pub fn dropped(&self) -> u64 {
        self.queue.state.lock().dropped
    }
}

/// Where events come from: any number of streams, each with its own queue.
pub(crate) struct EventSource<T> {
    streams: Mutex<Vec<Weak<Queue<T>>>>,
}

impl<T> Default for EventSource<T> {
    fn default() -> Self {
        EventSource { streams: Mutex::default() }
    }
}

impl<T: Clone> EventSource<T> {
    pub(crate) fn subscribe(&self) -> EventStream<T> {
        let queue = Arc::new(Queue {
            state: Mutex::new(State { waiting: VecDeque::new(), dropped: 0, closed: false }),
            arrived: Notify::new(),
            room: EVENTS_MAX,
        });
        self.streams.lock().push(Arc::downgrade(&queue));
        EventStream { queue }
    }

    /// Whether anybody listens; events that cost something to make are not made for nobody.
    pub(crate) fn heard(&self) -> bool {
        let mut streams = self.streams.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        !streams.is_empty()
    }

    pub(crate) fn send(&self, event: &T) {
        self.each(|state, room| {
            if state.waiting.len() == room {
                state.waiting.pop_front();
                state.dropped += 1;
            }
            state.waiting.push_back(event.clone());
        });
    }

    /// Streams end once they are read.
    pub(crate) fn close(&self) {
        self.each(|state, _| state.closed = true);
    }

    fn each(&self, mut change: impl FnMut(&mut State<T>, usize)) {
        let mut streams = self.streams.lock();
        streams.retain(|stream| {
            let Some(queue) = stream.upgrade() else { return false };
            change(&mut queue.state.lock(), queue.room);
            queue.arrived.notify_waiters();
            true
        });
    }
}

/// The last events of a kind, kept without anybody listening.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    kept: VecDeque<T>,
    dropped: u64,
    room: usize,
}

impl<T: Clone> Recent<T> {
    pub(crate) fn new(room: usize) -> Self {
        Recent { kept: VecDeque::new(), dropped: 0, room }
    }

    pub(crate) fn push(&mut self, event: T) {
        if self.kept.len() == self.room {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(event);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.kept.iter().cloned().collect()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many there have been.
    pub(crate) fn total(&self) -> u64 {
        self.dropped + self.kept.len() as u64
    }

    /// Those after the first `total` that are still kept.
    pub(crate) fn after(&self, total: u64) -> Vec<T> {
        let skipped = usize::try_from(total.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        self.kept.iter().skip(skipped).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_stream_loses_the_oldest_and_counts() {
        let source = EventSource::default();
        assert!(!source.heard());
        let mut stream = source.subscribe();
        for event in 0..EVENTS_MAX + 3 {
            source.send(&event);
        }
        source.close();
        assert_eq!(stream.dropped(), 3);
        assert_eq!(stream.next().await, Some(3));
        let mut read = 1;
        while stream.next().await.is_some() {
            read += 1;
        }
        assert_eq!(read, EVENTS_MAX);
        drop(stream);
        assert!(!source.heard());
    }
}
