//! The tabs of a session: the pages of its context, in the order in which they were opened.

use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::protocol::Raw;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;

/// What the browser process may take to tell a title.
const TITLE_BOUND: Duration = Duration::from_secs(5);

/// A tab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tab {
    /// From 0, in the order in which the tabs were opened.
    pub index: usize,
    /// Its address.
    pub url: String,
    /// Its title; empty where it has none.
    pub title: String,
    /// Whether actions act on it.
    pub is_active: bool,
}

/// The answer to `Target.getTargetInfo`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    target_info: Target,
}

#[derive(Deserialize)]
struct Target {
    #[serde(default)]
    title: String,
}

/// The address as it is told: of an error page, where the tab wanted to go.
pub(super) fn told_url(page: &Page) -> String {
    let state = page.inner.state.lock();
    let frame = state.frames.main();
    let url = frame.unreachable.as_ref().unwrap_or(&frame.url);
    if url.is_empty() { "about:blank".to_owned() } else { url.clone() }
}

/// The title, asked of the browser process, which answers while the page's scripts are busy.
pub(super) async fn title_of(page: &Page) -> Result<String> {
    let root = page.context().inner.browser.root();
    let command = Raw::new("Target.getTargetInfo", json!({ "targetId": page.id() }));
    let info: Result<Info> = root.call_as(command, Deadline::after(TITLE_BOUND)).await;
    match info {
        Ok(Info { target_info }) => {
            // A page without a title has its address there, without the scheme.
            let url = told_url(page);
            let is_address = url.trim_end_matches('/').ends_with(target_info.title.trim_end_matches('/'));
            Ok(if is_address { String::new() } else { target_info.title })
        }
        // It was closed just now.
        Err(BrowserError::Protocol { .. } | BrowserError::Timeout { .. }) => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Tabs with `active` marked.
pub(super) async fn list(context: &BrowserContext, active: &Page) -> Result<Vec<Tab>> {
    let pages = context.pages();
    let titles = futures::future::join_all(pages.iter().map(title_of)).await;
    let tabs = pages.iter().zip(titles).enumerate().map(|(index, (page, title))| {
        Ok(Tab { index, url: told_url(page), title: title?, is_active: page == active })
    });
    tabs.collect()
}
