//! Where the processes of a pool come from.

use crate::browser::Browser;
use crate::error::Result;
use crate::launch::LaunchOptions;
use futures::future::BoxFuture;

/// Where the processes of a [`BrowserPool`](crate::BrowserPool) come from. [`LaunchOptions`] starts them on this machine;
/// others start them where they like and hand them over with [`Browser::over`] or [`Browser::connect`].
pub trait Launcher: Send + Sync + 'static {
    /// Starts one process. Must end within a bound of its own; an error is told to the callers who wait for the process.
    fn launch(&self) -> BoxFuture<'_, Result<Browser>>;

    /// Whether Chromium's own sandbox is on in its processes. Without it contexts share no process, unless
    /// [`PoolOptions::share_without_sandbox`](crate::PoolOptions::share_without_sandbox).
    fn is_sandboxed(&self) -> bool;
}

impl Launcher for LaunchOptions {
    fn launch(&self) -> BoxFuture<'_, Result<Browser>> {
        Box::pin(Browser::launch(self.clone()))
    }

    fn is_sandboxed(&self) -> bool {
        !self.no_sandbox
    }
}
