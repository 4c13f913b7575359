//! What every test starts with.

use espalier_browser::{Browser, BrowserContext, ContextOptions, LaunchOptions, Page};
use std::path::PathBuf;

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

/// Processes of the group that are alive.
pub(crate) fn members(group: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_ascii_whitespace().collect())
            .unwrap_or_default();
        fields.first() != Some(&"Z") && fields.get(2) == Some(&group.to_string().as_str())
    })
    .collect()
}

/// The profile folder of a browser's process group.
pub(crate) fn profile(group: u32) -> PathBuf {
    let lines =
        members(group).into_iter().filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
    let args: Vec<u8> = lines.flatten().collect();
    let mut args = args.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    args.find_map(|arg| arg.strip_prefix("--user-data-dir=").map(PathBuf::from)).expect("a profile folder")
}
