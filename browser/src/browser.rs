//! One browser process and the contexts in it.

pub(crate) mod memory;

use crate::connection::{Connection, Gate, Handler, Session};
use crate::context::{BrowserContext, ContextInner, ContextOptions};
use crate::deadline::Deadline;
use crate::download::{DownloadBegin, DownloadProgress};
use crate::error::{BrowserError, Result};
use crate::launch::LaunchOptions;
use crate::launch::process::Process;
use crate::protocol::{Attached, Detached, Done, event};
use crate::remote::RemoteDownloads;
use crate::transport::{self, MessageReader, MessageWriter};
use chromiumoxide::cdp::browser_protocol::browser::{CloseParams, GetVersionParams};
use chromiumoxide::cdp::browser_protocol::target::{DetachFromTargetParams, SetAutoAttachParams};
use chromiumoxide::cdp::js_protocol::runtime::RunIfWaitingForDebuggerParams;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// How long a browser with a profile of the caller's may take to write it before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// One browser process. Cheap to clone; the process ends when the last clone and the last context, page or handle of it
/// are dropped, or on [`close`](Browser::close).
#[derive(Clone)]
pub struct Browser {
    pub(crate) inner: Arc<BrowserInner>,
}

pub(crate) struct BrowserInner {
    connection: Arc<Connection>,
    process: Arc<Process>,
    keeps_profile: bool,
    /// Of a remote process.
    pub(crate) remote_downloads: Option<RemoteDownloads>,
    version: OnceLock<Version>,
    /// The stream of the trace that has just ended.
    pub(crate) trace: watch::Sender<Option<String>>,
    contexts: Mutex<HashMap<Arc<str>, Weak<ContextInner>>>,
}

/// `Browser.getVersion`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    product: String,
    user_agent: Arc<str>,
}

/// `Tracing.tracingComplete`.
#[derive(Deserialize)]
struct TracingComplete {
    stream: Option<String>,
}

impl Browser {
    /// Starts a browser and waits until it answers.
    pub async fn launch(options: LaunchOptions) -> Result<Browser> {
        let deadline = Deadline::after(options.timeout);
        let (writer, reader, ends) = transport::open()
            .map_err(|error| BrowserError::Launch { reason: format!("no pipes: {error}") })?;
        let process = Process::start(&options, ends)?;
        let keeps_profile = options.user_data_dir.is_some();
        Browser::start(process, writer, reader, None, keeps_profile, deadline).await
    }

    /// Waits until the process answers over the streams.
    pub(crate) async fn start(
        process: Process,
        writer: MessageWriter,
        reader: MessageReader,
        remote_downloads: Option<RemoteDownloads>,
        keeps_profile: bool,
        deadline: Deadline,
    ) -> Result<Browser> {
        let process = Arc::new(process);
        let inner = Arc::new_cyclic(|inner: &Weak<BrowserInner>| BrowserInner {
            connection: Connection::new(writer, Weak::clone(inner) as Weak<dyn Handler>),
            process: Arc::clone(&process),
            keeps_profile,
            remote_downloads,
            version: OnceLock::new(),
            trace: watch::Sender::new(None),
            contexts: Mutex::default(),
        });
        let connection = Arc::clone(&inner.connection);
        let writing = Arc::clone(&process);
        // Owner: the connection. Ends when it is closed, or when the browser reads no more, which is then ended.
        tokio::spawn(async move {
            connection.write().await;
            if connection.closed().is_none() {
                writing.kill();
            }
        });
        let connection = Arc::clone(&inner.connection);
        // Owner: the process. Ends when it does, or when its stream does.
        tokio::spawn(async move {
            tokio::select! {
                () = connection.read(reader) => process.kill(),
                _ = process.how_it_ended() => {}
            }
            let detail = process.how_it_ended().await;
            connection.close(BrowserError::Crashed { what: "browser process", detail });
        });
        match inner.start(deadline).await {
            Ok(()) => Ok(Browser { inner }),
            Err(error) => {
                // Its commands end, as well, which ends a remote process.
                inner.connection.close(BrowserError::closed("browser"));
                inner.process.kill();
                let how = inner.process.how_it_ended().await;
                // An error that tells how it ended says so once.
                let text = error.to_string();
                let reason = if text.contains(&*how) { text } else { format!("{text} ({how})") };
                Err(BrowserError::Launch { reason })
            }
        }
    }

    /// A new, empty context: its own cookies, storage, cache and permissions.
    pub async fn new_context(&self, options: ContextOptions) -> Result<BrowserContext> {
        BrowserContext::create(&self.inner, options).await
    }

    /// Such as `HeadlessChrome/156.0.8078.79`.
    pub fn version(&self) -> &str {
        self.inner.version.get().map_or("", |version| version.product.as_str())
    }

    /// The id of the process group of the browser and its children; `None` where somebody else started it, as in
    /// [`over`](Self::over).
    pub fn process_group(&self) -> Option<u32> {
        self.inner.process.group()
    }

    /// Contexts that are open.
    pub fn contexts(&self) -> Vec<BrowserContext> {
        self.inner.open_contexts().into_iter().map(|inner| BrowserContext { inner }).collect()
    }

    /// Memory of all its processes in bytes: their proportional set size, in which shared pages count once.
    /// [`BrowserError::Unsupported`] where somebody else started them.
    pub async fn memory_bytes(&self) -> Result<u64> {
        let Some(group) = self.process_group() else {
            return Err(BrowserError::unsupported("memory of a remote browser process: ask its owner"));
        };
        tokio::task::spawn_blocking(move || memory::of_group(group))
            .await
            .map_err(|_| BrowserError::closed("browser"))?
            .map_err(|error| BrowserError::invalid(format!("process group {group}: {error}")))
    }

    /// Waits for an answer of the browser process: whether it is well.
    pub async fn ping(&self, timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(timeout);
        self.inner.root().call_as::<Done>(GetVersionParams::default(), deadline).await?;
        Ok(())
    }

    /// Why the browser cannot be used any more: closed, or crashed. `None`: it runs.
    pub fn failure(&self) -> Option<BrowserError> {
        self.inner.connection.closed().cloned()
    }

    /// Waits until the browser is closed or has crashed, and says which. Waits without a bound.
    pub async fn ended(&self) -> BrowserError {
        self.inner.connection.until_closed().await
    }

    /// Kills the process at once: calls under way fail with [`BrowserError::Crashed`].
    pub(crate) fn kill(&self, why: &str) {
        self.inner
            .connection
            .close(BrowserError::Crashed { what: "browser process", detail: Arc::from(why) });
        self.inner.process.kill();
    }

    /// Closes all contexts and ends the process. Returns once all its processes and its profile folder are gone; a
    /// profile folder of the caller's stays.
    pub async fn close(&self) {
        let inner = &self.inner;
        if inner.keeps_profile && inner.connection.closed().is_none() {
            inner.root().post(CloseParams::default());
            let _ = tokio::time::timeout(GRACE, inner.process.how_it_ended()).await;
        }
        inner.connection.close(BrowserError::closed("browser"));
        inner.process.kill();
        inner.process.gone().await;
    }
}

impl fmt::Debug for Browser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Browser")
            .field("version", &self.version())
            .field("process_group", &self.process_group())
            .finish_non_exhaustive()
    }
}

impl BrowserInner {
    async fn start(&self, deadline: Deadline) -> Result<()> {
        let version = self.root().begin_as::<Version>(GetVersionParams::default())?;
        let mut attach = SetAutoAttachParams::new(true, true);
        attach.flatten = Some(true);
        let attach = self.root().begin_as::<Done>(attach)?;
        let version = version.within(deadline).await?;
        attach.within(deadline).await?;
        let _ = self.version.set(version);
        Ok(())
    }

    /// What its pages send as `User-Agent`.
    pub(crate) fn user_agent(&self) -> Arc<str> {
        self.version.get().map(|version| Arc::clone(&version.user_agent)).unwrap_or_default()
    }

    pub(crate) fn root(&self) -> &Arc<Session> {
        self.connection.root()
    }

    /// Whether its process is of somebody else, maybe on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.process.group().is_none()
    }

    pub(crate) fn add_context(&self, context: &Arc<ContextInner>) {
        self.contexts.lock().insert(Arc::clone(&context.id), Arc::downgrade(context));
    }

    pub(crate) fn remove_context(&self, id: &Arc<str>) {
        self.contexts.lock().remove(id);
    }

    fn open_contexts(&self) -> Vec<Arc<ContextInner>> {
        self.contexts.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn attached(&self, attached: &Attached) {
        let info = &attached.target_info;
        let context = info
            .browser_context_id
            .as_ref()
            .and_then(|id| self.contexts.lock().get(id).and_then(Weak::upgrade));
        match context {
            Some(context) if info.kind == "page" => context.attach_page(&self.connection, attached),
            Some(context) if BrowserInner::is_worker(&info.kind) => {
                context.attach_worker(&self.connection, attached);
            }
            // Targets of contexts that are not ours, and of contexts that are just being dropped: they run on by themselves.
            _ => release(&self.connection, self.root(), &attached.session_id),
        }
    }
}

/// Lets a target run without us.
pub(crate) fn release(connection: &Arc<Connection>, parent: &Arc<Session>, session_id: &str) {
    let session = connection.open_session(session_id, Weak::<BrowserInner>::new(), Arc::new(Gate::default()));
    let detach = DetachFromTargetParams { session_id: Some(session_id.to_owned().into()) };
    let parent = Arc::clone(parent);
    // Detached too early, a target keeps waiting.
    session.call_then(RunIfWaitingForDebuggerParams::default(), move |_| parent.post(detach));
}

impl Handler for BrowserInner {
    fn event(&self, _session: &Arc<Session>, method: &str, params: &RawValue) {
        match method {
            "Target.attachedToTarget" => {
                if let Some(attached) = event::<Attached>(method, params) {
                    self.attached(&attached);
                }
            }
            "Target.detachedFromTarget" => {
                if let Some(detached) = event::<Detached>(method, params) {
                    self.connection.end_session(&detached.session_id, &BrowserError::closed("page"));
                }
            }
            "Tracing.tracingComplete" => {
                if let Some(complete) = event::<TracingComplete>(method, params) {
                    self.trace.send_replace(complete.stream);
                }
            }
            "Browser.downloadWillBegin" => {
                let Some(begin) = event::<DownloadBegin>(method, params) else { return };
                for context in self.open_contexts() {
                    if context.download_begins(&begin) {
                        return;
                    }
                }
            }
            "Browser.downloadProgress" => {
                let Some(progress) = event::<DownloadProgress>(method, params) else { return };
                for context in self.open_contexts() {
                    if context.download_progresses(&progress) {
                        return;
                    }
                }
            }
            _ => {}
        }
    }

    fn ended(&self, _session: &Arc<Session>, reason: &BrowserError) {
        for context in self.open_contexts() {
            context.browser_ended(reason);
        }
    }
}

impl Drop for BrowserInner {
    fn drop(&mut self) {
        self.connection.close(BrowserError::closed("browser"));
        self.process.kill();
    }
}
