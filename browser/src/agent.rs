//! What an agent needs of a browser: tools that a model calls, what came of each call, and what the page looks like.
//!
//! A [`Session`] is a context with tabs, driven by calls of tools ([`tools()`] gives their JSON Schemas). Every call becomes a
//! [`Step`]: the element it acted on as it was before, what happened ([`Effect`]), what ended the wait for the page
//! ([`Settled`]), and one line for the model. Nothing sleeps: after an action the page is waited for until it is at rest,
//! within a bound.
//!
//! ```no_run
//! use espalier_browser::agent::{Session, SessionOptions, SnapshotOptions, ToolCall};
//! use espalier_browser::{Browser, ContextOptions, LaunchOptions, Result};
//!
//! # async fn run() -> Result<()> {
//! let browser = Browser::launch(LaunchOptions::default()).await?;
//! let context = browser.new_context(ContextOptions::default()).await?;
//! let session = Session::open(context, SessionOptions::default()).await?;
//! session.goto("https://example.com").await?;
//! println!("{}", session.snapshot(SnapshotOptions::default()).await?.text);
//! let click = ToolCall::new("click", serde_json::json!({ "point_2d": [501, 213] }));
//! for step in session.act(&[click]).await? {
//!     println!("{}", step.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A failed action is an outcome of its step, with a code. An error ([`BrowserError`](crate::BrowserError)) says that the
//! browser, the context or the tab was lost: it says nothing of the model.
//!
//! Inside: `tools` is the table of tools, `arguments` checks calls by it, `session` runs them one after the other, `perform`
//! does each, `spot` finds the element, `settle` waits, `effects` compares before and after, `urls` says what may be opened,
//! `snapshot` describes the page over all its frames.

mod action;
mod arguments;
mod effects;
mod key_names;
mod options;
mod perform;
mod picture;
mod session;
mod settle;
mod snapshot;
mod spot;
mod step;
mod tabs;
mod tools;
mod urls;

pub use options::{
    DialogAnswer, PictureFormat, PictureOptions, SessionOptions, SettleOptions, SnapshotOptions, ToolOptions,
};
pub use picture::Picture;
pub use session::{ScriptWorld, Session};
pub use snapshot::Snapshot;
pub use step::{
    Effect, ElementNote, FailureCode, PixelArea, PixelPoint, SettleCause, Settled, Step, StepOutcome,
};
pub use tabs::Tab;
pub use tools::{ToolCall, ToolSchema, tools};
