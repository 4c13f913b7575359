//! The word that stops a guest, heard by all its holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Cheap to clone; all clones are one. Asked at each host call, so that asking is one load from memory.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<Word>);

#[derive(Debug, Default)]
struct Word {
    said: AtomicBool,
    waiting: Notify,
}

impl CancelToken {
    /// Not cancelled yet.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels, for good; saying it again changes nothing.
    pub fn cancel(&self) {
        self.0.said.store(true, Ordering::Release);
        self.0.waiting.notify_waiters();
    }

    /// Whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.said.load(Ordering::Acquire)
    }

    /// Ready once it is cancelled. Cancel-safe.
    pub async fn cancelled(&self) {
        // Made before the question is asked: what is said in between wakes it.
        let told = self.0.waiting.notified();
        if !self.is_cancelled() {
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn every_holder_hears_it_early_or_late() {
        let token = CancelToken::new();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let token = token.clone();
                tokio::spawn(async move { token.cancelled().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(!token.is_cancelled() && waiting.iter().all(|task| !task.is_finished()));
        token.cancel();
        token.clone().cancel();
        for task in waiting {
            tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap();
        }
        assert!(token.is_cancelled());
        token.cancelled().await;
    }
}
