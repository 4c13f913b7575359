//! Pages that write to the console without an end are slowed down.
//!
//! All pages of a process share one stream of messages: what a page writes faster than it can be read waits in front of the answers to
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
    /// Counts a message; whether a flood begins with it.
    fn counts(&self, now: Instant) -> bool {
        let mut window = self.window.lock();
        window.1 += 1;
        let elapsed = now.duration_since(window.0);
        if elapsed < WINDOW {
            return false;
        }
        let is_flood = window.1 > FLOOD && elapsed < WINDOW * 2;
        *window = (now, 0);
        is_flood && !self.is_slowed.swap(true, Ordering::Relaxed)
    }

    /// Whether few messages came since the last call.
    fn is_calm(&self, now: Instant) -> bool {
        let mut window = self.window.lock();
        let is_calm = window.1 < CALM;
        *window = (now, 0);
        is_calm
    }
}

impl PageInner {
    /// Called for every message of the console.
    pub(super) fn slow_down_floods(&self, session: &Arc<Session>) {
        if !self.flood.counts(Instant::now()) {
            return;
        }
        let (page, session) = (Weak::clone(&self.this), Arc::clone(session));
        let slow = |rate: f64| Raw::new("Emulation.setCPUThrottlingRate", json!({ "rate": rate }));
        session.post(slow(SLOWED));
        tracing::debug!("a page floods the console and is slowed down");
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
        let burst: Vec<bool> = (0..20_000).map(|_| flood.counts(start + WINDOW / 2)).collect();
        assert!(!burst.contains(&true));
        assert!(flood.counts(start + WINDOW), "it goes on");
        assert!(!flood.counts(start + WINDOW * 3), "few came since");
        for _ in 0..=FLOOD {
            flood.counts(start + WINDOW * 3);
        }
        assert!(!flood.counts(start + WINDOW * 4), "it is slowed down already");
        assert!(flood.is_calm(start + WINDOW * 5));
    }
}
