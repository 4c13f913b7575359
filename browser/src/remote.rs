//! A browser process that somebody else starts and ends, with its DevTools pipe carried by any byte streams.

use crate::browser::Browser;
use crate::deadline::{Deadline, TIMEOUT_DEFAULT};
use crate::error::Result;
use crate::launch::process::Process;
use crate::transport::{MessageReader, MessageWriter};
use futures::future::BoxFuture;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// What is known of a browser process that somebody else starts and ends.
pub struct RemoteOptions {
    /// Until when the browser must have answered. Default: 30 s.
    pub timeout: Duration,
    /// Comes to how the process ended, such as `signal 9`, once it has. Default: its end is seen by its streams.
    pub ended: Option<BoxFuture<'static, String>>,
    /// Called once when the process is to end, or has. Default: its streams are closed, on which Chromium ends.
    pub end: Option<Box<dyn FnOnce() + Send>>,
    /// A folder of the machine of the process, for downloads: each context has one of its own in it. Default: downloads fail.
    pub downloads: Option<PathBuf>,
    /// Called with the folder of a context's downloads when nobody needs it any more. Default: it stays.
    pub remove: Option<RemoveFolder>,
}

/// Removes a folder of the machine of a remote browser.
pub type RemoveFolder = Box<dyn Fn(PathBuf) + Send + Sync>;

/// Where downloads of a remote browser go.
pub(crate) struct RemoteDownloads {
    pub(crate) folder: PathBuf,
    pub(crate) remove: Option<RemoveFolder>,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions { timeout: TIMEOUT_DEFAULT, ended: None, end: None, downloads: None, remove: None }
    }
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("timeout", &self.timeout)
            .field("downloads", &self.downloads)
            .finish_non_exhaustive()
    }
}

impl Browser {
    /// A browser over byte streams: `reader` gives what Chromium writes to its DevTools pipe, `writer` takes what it
    /// reads, each message with a NUL byte behind it. The process is somebody else's, started with
    /// [`LaunchOptions::command_line`](crate::LaunchOptions::command_line): it has no process group and no memory here,
    /// and paths of uploads and downloads are those of its machine.
    ///
    /// The end of either stream is the end of the browser, as is that of `options.ended`. On
    /// [`close`](Browser::close), and when the last handle is dropped, `options.end` is called and both streams are
    /// closed; `close` then waits for `options.ended`, at most 5 s.
    pub async fn over(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        mut options: RemoteOptions,
    ) -> Result<Browser> {
        let deadline = Deadline::after(options.timeout);
        let remove = options.remove.take();
        let downloads = options.downloads.clone().map(|folder| RemoteDownloads { folder, remove });
        let process = Process::remote(options);
        let (writer, reader) = (MessageWriter::new(Box::new(writer)), MessageReader::new(Box::new(reader)));
        Browser::start(process, writer, reader, downloads, false, deadline).await
    }
}
