//! What every test starts with.

use espalier_browser::{Browser, BrowserContext, ContextOptions, LaunchOptions, Page};

pub(crate) fn options() -> LaunchOptions {
    // Chromium does not start as root with its sandbox on.
    let root = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")));
    LaunchOptions { no_sandbox: root, ..LaunchOptions::default() }
}

pub(crate) async fn browser() -> Browser {
    Browser::launch(options()).await.expect("the browser starts")
}

pub(crate) async fn context(options: ContextOptions) -> BrowserContext {
    browser().await.new_context(options).await.expect("a context")
}

/// A page of a browser of its own, which ends with the page.
pub(crate) async fn page() -> Page {
    context(ContextOptions::default()).await.new_page().await.expect("a page")
}
