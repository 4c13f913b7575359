//! Pages that write to the console, throw errors, send frames of WebSockets or call exposed functions without an end are slowed down.
//!
//! All pages of a process share one stream of messages: what a page tells faster than it can be read waits in front of the answers to
//! everyone else's calls. Losing the oldest messages does not help them; having fewer does.

use super::inner::PageInner;
use crate::connection::Session;
use crate::protocol::Raw;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long messages are counted.
const WINDOW: Duration = Duration::from_millis(500);
/// Messages in a window, when more follow, that are a flood. Short bursts are read behind.
const FLOOD: u64 = 2_000;
/// So many bytes of one message count as another.
const BYTES_PER_MESSAGE: usize = 16 << 10;
/// A flood has ended where fewer come in a window.
const CALM: u64 = FLOOD / 10;
/// The share of the processor that such a page keeps is one in so many.
const SLOWED: f64 = 20.0;

/// Messages since a moment.
pub(super) struct Flood {
    window: Mutex<(Instant, u64)>,
    is_slowed: AtomicBool,
}

impl Default for Flood {
    fn default() -> Self {
        Flood { window: Mutex::new((Instant::now(), 0)), is_slowed: AtomicBool::new(false) }
    }
}

impl Flood {
    /// Counts a message; whether there is a flood by then.
    fn counts(&self, bytes: usize, now: Instant) -> bool {
        let mut window = self.window.lock();
        window.1 += 1 + (bytes / BYTES_PER_MESSAGE) as u64;
        let elapsed = now.duration_since(window.0);
        if elapsed < WINDOW {
            return false;
        }
        let is_flood = window.1 > FLOOD && elapsed < WINDOW * 2;
        *window = (now, 0);
        is_flood
    }

    /// Whether it is to be slowed down now, and was not yet.
    fn begins(&self) -> bool {
        !self.is_slowed.swap(true, Ordering::Relaxed)
    }

    /// Whether few messages came since the last call.
    fn is_calm(&self, now: Instant) -> bool {
        let mut window = self.window.lock();
        let is_calm = window.1 < CALM;
        *window = (now, 0);
        is_calm
    }
}

/// Whether scripts can cause events of this kind as many as they like, at once and at no cost.
pub(super) fn may_flood(method: &str) -> bool {
    matches!(
        method,
        "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Runtime.bindingCalled" | "Log.entryAdded"
    ) || method.starts_with("Network.webSocketFrame")
}

impl PageInner {
    /// Called for every event that [may flood](may_flood), with its size.
    pub(super) fn slow_down_floods(&self, session: &Arc<Session>, bytes: usize) {
        // Chromium slows down documents only: to slow down theirs does not help against workers.
        let is_worker = || self.state.lock().workers.iter().any(|worker| Arc::ptr_eq(worker, session));
        if !self.flood.counts(bytes, Instant::now()) || is_worker() || !self.flood.begins() {
            return;
        }
        let (page, session) = (Weak::clone(&self.this), Arc::clone(session));
        let slow = |rate: f64| Raw::new("Emulation.setCPUThrottlingRate", json!({ "rate": rate }));
        session.post(slow(SLOWED));
        tracing::debug!("a page floods its stream of events and is slowed down");
        // Owner: the page. Ends with it, or with the flood.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(WINDOW).await;
                let Some(page) = page.upgrade() else { return };
                if session.ended().is_some() {
                    page.flood.is_slowed.store(false, Ordering::Relaxed);
                    return;
                }
                if page.flood.is_calm(Instant::now()) {
                    session.post(slow(1.0));
                    page.flood.is_slowed.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_messages_over_a_window_are_a_flood_and_a_burst_is_not() {
        let flood = Flood::default();
        let start = flood.window.lock().0;
        let burst: Vec<bool> = (0..20_000).map(|_| flood.counts(10, start + WINDOW / 2)).collect();
        assert!(!burst.contains(&true));
        assert!(flood.counts(10, start + WINDOW), "it goes on");
        assert!(!flood.counts(10, start + WINDOW * 3), "few came since");
        assert!(flood.begins() && !flood.begins(), "it is slowed down once");
        for _ in 0..3 {
            flood.counts(BYTES_PER_MESSAGE * 1_000, start + WINDOW * 3);
        }
        assert!(flood.counts(10, start + WINDOW * 4), "few that are large are as many");
        assert!(flood.is_calm(start + WINDOW * 5));
    }
}
