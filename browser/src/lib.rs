//! Chromium controlled from Rust, in the manner of Playwright.
//!
//! A [`Browser`] is one process. A [`BrowserContext`] is apart from all others: cookies, storage, cache, permissions. A
//! [`Page`] is a tab with its [`Frame`]s, of whichever process. A [`Locator`] says how to find an element and waits for
//! it. A [`BrowserPool`] shares processes among contexts. [`agent`] is what a model is given: tools, and what came of them.
//!
//! ```no_run
//! use espalier_browser::{Browser, ContextOptions, LaunchOptions, Result, RoleOptions};
//!
//! # async fn run() -> Result<()> {
//! let browser = Browser::launch(LaunchOptions::default()).await?;
//! let page = browser.new_context(ContextOptions::default()).await?.new_page().await?;
//! page.goto("https://example.com").await?;
//! page.get_by_role("link", RoleOptions::named("More")).click().await?;
//! println!("{}", page.title().await?);
//! browser.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Every call has a deadline: 30 s, that of its context ([`BrowserContext::set_default_timeout`]), or its own. Errors are
//! typed ([`BrowserError`]). Handles are cheap clones; the process ends with the last of them, or with
//! [`Browser::close`].
//!
//! Inside: `transport` is the byte streams, `connection` the calls and sessions over them; its reading task hands every event
//! to `page/inner.rs` and `page/dispatch.rs`, which change `page/state.rs` and wake those who wait for it. `injected/` is the
//! JavaScript that locators run in a world of their own.

#![warn(missing_docs)]

pub mod agent;
mod archive;
mod auth;
mod browser;
mod clipboard;
mod clock;
mod connection;
mod console;
mod contain;
mod context;
mod deadline;
mod deterministic;
mod dialog;
mod download;
mod emulation;
mod error;
mod event;
mod file_chooser;
mod folder;
mod frame;
mod handle;
mod har;
mod injected;
mod input;
mod keys;
mod launch;
mod launcher;
mod locator;
mod navigation;
mod network;
mod page;
mod permission;
mod pool;
mod port;
mod protocol;
mod queue;
mod remote;
mod route;
mod screenshot;
mod script;
mod selector;
mod storage;
mod trace;
mod transport;
mod url_match;
mod value;
mod wait;
mod web_socket;
mod workers;

pub use archive::{Archive, ArchiveOptions, ArchiveRecorder, ArchiveReplay, Misses};
pub use auth::Credentials;
pub use browser::Browser;
pub use clock::Clock;
pub use console::{ConsoleMessage, ScriptError};
pub use context::{BrowserContext, ContextOptions};
pub use deadline::TIMEOUT_DEFAULT;
pub use deterministic::DeterministicOptions;
pub use dialog::{DIALOG_HANDLER_BOUND, Dialog, DialogKind, DialogPolicy};
pub use download::{Download, DownloadState};
pub use emulation::{ColorScheme, Geolocation, Media, MediaOptions, Viewport};
pub use error::{BrowserError, Result};
pub use event::PageEvent;
pub use file_chooser::FileChooser;
pub use frame::Frame;
pub use handle::JsHandle;
pub use har::{HarOptions, HarRecorder};
pub use input::{Button, ClickOptions, Keyboard, Modifier, Mouse, Point, Touchscreen};
pub use launch::{CommandLine, Headless, LaunchOptions, Proxy};
pub use launcher::Launcher;
pub use locator::{ActionOptions, ElementState, Filter, FrameLocator, Locator, SelectOption};
pub use navigation::GotoOptions;
pub use network::{Request, RequestEnd, Response};
pub use page::{LoadState, Page};
pub use permission::Permission;
pub use pool::{BrowserPool, IllReason, PoolMember, PoolOptions, PooledContext};
pub use queue::{EVENTS_MAX, EventStream};
pub use remote::{RemoteOptions, RemoveFolder};
pub use route::{
    AbortReason, ContinueOptions, Fetched, Fulfill, ROUTE_HANDLER_BOUND, Route, RouteHandler, RouteId,
};
pub use screenshot::{Area, ImageFormat, PdfOptions, Rect, ScreenshotOptions};
pub use selector::{RoleOptions, TextMatch};
pub use storage::{
    Cookie, IndexedDatabase, IndexedIndex, IndexedRecord, IndexedStore, OriginStorage, SameSite,
    StateOptions, StorageItem, StorageState,
};
pub use url_match::UrlMatch;
pub use value::{JsArg, JsValue};
pub use web_socket::{FRAME_BYTES_MAX, WebSocket, WebSocketEvent, WebSocketFrame};
pub use workers::ServiceWorkers;
