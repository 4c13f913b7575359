//! What happens on a page, in order, for those who listen.

use crate::console::{ConsoleMessage, ScriptError};
use crate::dialog::Dialog;
use crate::download::Download;
use crate::file_chooser::FileChooser;
use crate::frame::Frame;
use crate::network::{Request, Response};
use crate::page::Page;
use crate::web_socket::{WebSocket, WebSocketEvent};

/// One thing that happened on a page.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PageEvent {
    /// A frame shows another document.
    FrameNavigated(Frame),
    /// A frame's address changed within its document, by a hash or the history API.
    NavigatedWithinDocument(Frame),
    /// A frame was added.
    FrameAttached(Frame),
    /// A frame is gone.
    FrameDetached(Frame),
    /// The main document is parsed.
    DomContentLoaded,
    /// The main document is loaded.
    Load,
    /// A script wrote to the console, or Chromium did (failed requests, policy violations).
    Console(ConsoleMessage),
    /// A script threw, and nothing caught it.
    ScriptError(ScriptError),
    /// A dialog opened. What becomes of it is the page's [`DialogPolicy`](crate::DialogPolicy).
    Dialog(Dialog),
    /// A download began.
    Download(Download),
    /// The page asks for files: see [`Page::set_file_choosers`].
    FileChooser(FileChooser),
    /// Something happened on a WebSocket.
    WebSocket(WebSocket, WebSocketEvent),
    /// The page opened another one.
    Popup(Page),
    /// A request is sent. A redirect is a request of its own.
    Request(Request),
    /// The head of a response is here.
    Response(Response),
    /// A response is here completely.
    RequestFinished(Request),
    /// A request failed or was cancelled.
    RequestFailed(Request),
    /// The page's process died.
    Crashed,
    /// The page was closed, by us or by itself.
    Closed,
}
