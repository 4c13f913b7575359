//! A step that may take long: a line on standard error while it lasts, and how long it took.

use super::Context;
use super::logging::Screen;
use crate::output::styles;
use crate::output::text::{duration, one_line};
use std::time::{Duration, Instant};

/// A step that took less is not told afterwards.
const TOLD_FROM: Duration = Duration::from_secs(1);

/// A step under way; nothing is told of it with `--json`. Its line goes with it.
pub(super) struct Step {
    screen: Option<Screen>,
    began: Instant,
}

impl Step {
    /// Says what begins: `building my-agent (rust)`.
    pub(super) fn begin(context: &Context, doing: &str) -> Step {
        let screen = (!context.common.json).then(|| context.screen.clone());
        if let Some(screen) = &screen {
            screen.show(&screen.look.paint(styles::FAINT, &format!("{}...", one_line(doing))));
        }
        Step { screen, began: Instant::now() }
    }

    /// Says what is done, where that took long: `compiled my-agent.wasm in 4.2 s`.
    pub(super) fn end(self, done: &str) {
        let took = self.began.elapsed();
        if let Some(screen) = self.screen.as_ref().filter(|_| took >= TOLD_FROM) {
            screen.clear();
            let text = format!("{} in {}", one_line(done), duration(took));
            screen.say(&screen.look.paint(styles::FAINT, &text));
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(screen) = &self.screen {
            screen.clear();
        }
    }
}
