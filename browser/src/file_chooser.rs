//! File choosers: pages that ask for files, and what they get.

use crate::connection::Session;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::event::PageEvent;
use crate::locator::input_paths;
use crate::page::Page;
use crate::protocol::{Done, Raw};
use serde::Deserialize;
use serde_json::json;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A page has asked for files. Without an answer it gets none.
#[derive(Clone)]
pub struct FileChooser {
    page: Page,
    session: Arc<Session>,
    opened: FileChooserOpened,
}

/// `Page.fileChooserOpened`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileChooserOpened {
    mode: String,
    backend_node_id: Option<i64>,
}

impl FileChooser {
    pub(crate) fn new(page: Page, session: Arc<Session>, opened: FileChooserOpened) -> FileChooser {
        FileChooser { page, session, opened }
    }

    /// The page that asks.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Whether it takes several files.
    pub fn is_multiple(&self) -> bool {
        self.opened.mode == "selectMultiple"
    }

    /// Gives it files: one, unless it [takes several](Self::is_multiple). Paths are those of the browser's machine.
    pub async fn set_files(&self, files: &[impl AsRef<Path>]) -> Result<()> {
        if files.len() > 1 && !self.is_multiple() {
            return Err(BrowserError::invalid(format!("{} files: this chooser takes one", files.len())));
        }
        let Some(node) = self.opened.backend_node_id else {
            return Err(BrowserError::unsupported("files for a chooser without an input element"));
        };
        let paths = input_paths(&self.page, files).await?;
        let command = Raw::new("DOM.setFileInputFiles", json!({ "files": paths, "backendNodeId": node }));
        self.session.call_as::<Done>(command, self.page.deadline()).await.map(drop)
    }
}

impl fmt::Debug for FileChooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileChooser").field("is_multiple", &self.is_multiple()).finish_non_exhaustive()
    }
}

impl Page {
    /// Whether choosers that pages open from now on are events ([`PageEvent::FileChooser`]) in place of being cancelled
    /// at once. Default: false.
    pub async fn set_file_choosers(&self, intercepted: bool) -> Result<()> {
        self.inner.state.lock().file_choosers = intercepted;
        self.tell(intercept(intercepted)).await
    }

    /// Waits for the file chooser that `action` opens.
    ///
    /// ```ignore
    /// let chooser = page.expect_file_chooser(async { page.locator("#upload").click().await }).await?;
    /// chooser.set_files(&["report.pdf"]).await?;
    /// ```
    pub async fn expect_file_chooser(&self, action: impl Future<Output = Result<()>>) -> Result<FileChooser> {
        let deadline: Deadline = self.deadline();
        let before = self.inner.state.lock().file_choosers;
        self.set_file_choosers(true).await?;
        let mut events = self.events();
        let chosen = async {
            action.await?;
            deadline
                .bound(|| "a file chooser".to_owned(), async {
                    loop {
                        match events.next().await {
                            Some(PageEvent::FileChooser(chooser)) => return Ok(chooser),
                            Some(_) => {}
                            None => return Err(BrowserError::closed("page")),
                        }
                    }
                })
                .await
        };
        let chosen = chosen.await;
        if !before {
            self.set_file_choosers(false).await?;
        }
        chosen
    }
}

/// What makes choosers events.
pub(crate) fn intercept(enabled: bool) -> Raw {
    Raw::new("Page.setInterceptFileChooserDialog", json!({ "enabled": enabled }))
}
