//! A context: pages that share cookies, storage, cache and permissions, and nothing with other contexts.

pub(crate) mod exposed;
mod options;

pub(crate) use exposed::{ANSWER, BINDING, BindingCall, CALLS_MAX, Exposed, Function, REFUSALS_MAX};
pub use options::ContextOptions;

use crate::auth::Auth;
use crate::browser::{Browser, BrowserInner};
use crate::clipboard::Clipboard;
use crate::clock::ClockState;
use crate::connection::{Connection, tell_all};
use crate::deadline::{Deadline, TIMEOUT_DEFAULT};
use crate::deterministic::Episode;
use crate::dialog::DialogPolicy;
use crate::download::{Download, DownloadBegin, DownloadProgress};
use crate::emulation::{self, Emulated, Geolocation};
use crate::error::{BrowserError, Result};
use crate::event::PageEvent;
use crate::folder::OwnFolder;
use crate::page::Page;
use crate::page::inner::PageInner;
use crate::permission::Permission;
use crate::protocol::{Attached, Done, Raw};
use crate::queue::{EventSource, EventStream};
use crate::route::Routes;
use crate::storage::ORIGINS_MAX;
use crate::workers::{ServiceWorkers, Workers};
use chromiumoxide::cdp::browser_protocol::browser::{
    PermissionSetting, ResetPermissionsParams, SetDownloadBehaviorBehavior, SetDownloadBehaviorParams,
    SetPermissionParams,
};
use chromiumoxide::cdp::browser_protocol::target::{
    CloseTargetParams, CreateBrowserContextParams, CreateTargetParams, DisposeBrowserContextParams,
};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// The address of a page that does the library's own work and that nobody else sees.
pub(crate) const HIDDEN_PAGE: &str = "about:blank#espalier";
/// Downloads that a context follows; more forget the oldest.
const DOWNLOADS_MAX: usize = 1000;

/// A context: pages that share cookies, storage, cache and permissions. Cheap to clone; closed by
/// [`close`](BrowserContext::close), or when the last clone, page and handle of it are dropped.
#[derive(Clone)]
pub struct BrowserContext {
    pub(crate) inner: Arc<ContextInner>,
}

pub(crate) struct ContextInner {
    this: Weak<ContextInner>,
    pub(crate) id: Arc<str>,
    pub(crate) browser: Arc<BrowserInner>,
    pub(crate) emulated: Mutex<Emulated>,
    pub(crate) exposed: Mutex<Exposed>,
    pub(crate) routes: Routes,
    pub(crate) auth: Auth,
    pub(crate) workers: Workers,
    pub(crate) episode: Option<Episode>,
    /// The clock of its pages; `None`: Chromium's.
    pub(crate) clock: Mutex<Option<ClockState>>,
    /// Origins of documents that its frames have shown.
    origins: Mutex<BTreeSet<String>>,
    pub(crate) clipboard: Arc<Clipboard>,
    downloads: Mutex<Downloads>,
    /// Taken when it is closed.
    own_folder: Mutex<Option<OwnFolder>>,
    /// For downloads of a remote browser, on its machine.
    remote_folder: Option<PathBuf>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    new_pages: EventSource<Page>,
    timeout_ms: AtomicU64,
}

/// The last downloads, and what bounds them.
#[derive(Default)]
struct Downloads {
    kept: Vec<Download>,
    /// How many there have been.
    total: u64,
    /// How many there may be, and how many bytes each may have.
    bounds: Option<(u64, u64)>,
}

#[derive(Default)]
struct State {
    pages: HashMap<Arc<str>, Arc<PageInner>>,
    /// Ids in order of their opening.
    order: Vec<Arc<str>>,
    closed: Option<BrowserError>,
}

impl BrowserContext {
    pub(crate) async fn create(
        browser: &Arc<BrowserInner>,
        options: ContextOptions,
    ) -> Result<BrowserContext> {
        let deadline = Deadline::after(TIMEOUT_DEFAULT);
        let emulated = options.emulated();
        emulated.check()?;
        let own_folder = match options.accept_downloads && !browser.is_remote() {
            false => None,
            true => Some(
                OwnFolder::new("downloads")
                    .map_err(|error| BrowserError::invalid(format!("folder for temporary files: {error}")))?,
            ),
        };
        let command = CreateBrowserContextParams {
            dispose_on_detach: Some(true),
            proxy_server: options.proxy.as_ref().map(|proxy| proxy.server.clone()),
            proxy_bypass_list: options.proxy.as_ref().and_then(|proxy| proxy.bypass.clone()),
            ..CreateBrowserContextParams::default()
        };
        let created = browser.root().call(command, deadline).await?;
        let episode = options.deterministic.clone().map(Episode::new).transpose()?;
        let mut exposed = Exposed::default();
        let clipboard = Arc::new(Clipboard::default());
        let calls = Arc::clone(&clipboard);
        let function: Function =
            Arc::new(move |arguments| Box::pin(std::future::ready(calls.call(&arguments))));
        exposed.add_function(crate::clipboard::NAME, function)?;
        exposed.add_script(crate::clipboard::init_script());
        if options.service_workers == ServiceWorkers::Block {
            exposed.add_script(crate::workers::BLOCK.to_owned());
        }
        let inner = Arc::new_cyclic(|this| ContextInner {
            this: Weak::clone(this),
            id: Arc::from(String::from(created.browser_context_id.clone())),
            browser: Arc::clone(browser),
            emulated: Mutex::new(emulated),
            exposed: Mutex::new(exposed),
            routes: Routes::default(),
            auth: Auth::default(),
            workers: Workers::default(),
            episode,
            clock: Mutex::default(),
            origins: Mutex::default(),
            clipboard,
            downloads: Mutex::default(),
            remote_folder: browser
                .remote_downloads
                .as_ref()
                .filter(|_| options.accept_downloads)
                .map(|downloads| downloads.folder.join(String::from(created.browser_context_id.clone()))),
            own_folder: Mutex::new(own_folder),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            new_pages: EventSource::default(),
            timeout_ms: AtomicU64::new(TIMEOUT_DEFAULT.as_millis() as u64),
        });
        browser.add_context(&inner);
        inner.auth.set(options.http_credentials);
        let context = BrowserContext { inner };
        let folder = context.inner.download_folder();
        let behavior = match folder {
            Some(_) => SetDownloadBehaviorBehavior::AllowAndName,
            None => SetDownloadBehaviorBehavior::Deny,
        };
        let mut downloads = SetDownloadBehaviorParams::new(behavior);
        downloads.browser_context_id = Some(context.cdp_id());
        downloads.download_path = folder.map(|folder| folder.display().to_string());
        downloads.events_enabled = Some(true);
        let downloads = browser.root().begin_as::<Done>(downloads)?;
        context.grant_permissions(&options.permissions, None).await?;
        if let Some(state) = &options.storage_state {
            context.set_storage_state(state).await?;
        }
        downloads.within(deadline).await?;
        Ok(context)
    }

    /// A new page, showing `about:blank`.
    pub async fn new_page(&self) -> Result<Page> {
        self.open_page("about:blank").await
    }

    pub(crate) async fn open_page(&self, url: &str) -> Result<Page> {
        let deadline = self.deadline();
        self.inner.check_open()?;
        let mut command = CreateTargetParams::new(url);
        command.browser_context_id = Some(self.cdp_id());
        let viewport = self.inner.emulated.lock().viewport;
        command.width = Some(i64::from(viewport.width));
        command.height = Some(i64::from(viewport.height));
        let created = self.inner.browser.root().call(command, deadline).await?;
        let id: Arc<str> = Arc::from(String::from(created.target_id));
        let mut changed = self.inner.changed.subscribe();
        deadline
            .bound(|| "a new page".to_owned(), async {
                loop {
                    changed.borrow_and_update();
                    self.inner.check_open()?;
                    let page = self.inner.state.lock().pages.get(&id).cloned();
                    match page.as_ref().and_then(|page| page.ready()) {
                        Some(Ok(())) => return Ok(()),
                        Some(Err(error)) => {
                            self.inner.browser.root().post(CloseTargetParams::new(id.to_string()));
                            return Err(error);
                        }
                        None => {}
                    }
                    changed.changed().await.map_err(|_| BrowserError::closed("context"))?;
                }
            })
            .await?;
        self.page(&id).ok_or_else(|| BrowserError::closed("page"))
    }

    /// Its open pages, in the order in which they were opened.
    pub fn pages(&self) -> Vec<Page> {
        let inners: Vec<Arc<PageInner>> = {
            let state = self.inner.state.lock();
            state.order.iter().filter_map(|id| state.pages.get(id).cloned()).collect()
        };
        let ready = inners.into_iter().filter(|page| !page.hidden && matches!(page.ready(), Some(Ok(()))));
        ready.map(|inner| Page::new(inner, self.clone())).collect()
    }

    /// Pages that are opened from now on, by [`new_page`](Self::new_page) or by pages.
    pub fn new_pages(&self) -> EventStream<Page> {
        self.inner.new_pages.subscribe()
    }

    /// Waits for a page that `action` opens.
    ///
    /// ```ignore
    /// let popup = context.wait_for_page(async { page.locator("a").click().await }).await?;
    /// ```
    pub async fn wait_for_page(&self, action: impl Future<Output = Result<()>>) -> Result<Page> {
        let deadline = self.deadline();
        let mut pages = self.new_pages();
        action.await?;
        let page = async { pages.next().await.ok_or_else(|| BrowserError::closed("context")) };
        deadline.bound(|| "a new page".to_owned(), page).await
    }

    /// The browser it belongs to.
    pub fn browser(&self) -> Browser {
        Browser { inner: Arc::clone(&self.inner.browser) }
    }

    /// What calls without a timeout of their own may take. Default: 30 s.
    pub fn set_default_timeout(&self, timeout: Duration) {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.inner.timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// Allows pages of `origin` (such as `https://example.com`), or of every origin, to do these things.
    pub async fn grant_permissions(&self, permissions: &[Permission], origin: Option<&str>) -> Result<()> {
        let deadline = self.deadline();
        let mut calls = Vec::new();
        if permissions.contains(&Permission::ClipboardRead) {
            self.inner.clipboard.grant(origin);
        }
        // Chromium's own clipboard is that of all contexts.
        let native = permissions.iter().filter(|permission| **permission != Permission::ClipboardRead);
        for descriptor in native.flat_map(|permission| permission.descriptors()) {
            let mut command = SetPermissionParams::new(descriptor, PermissionSetting::Granted);
            command.origin = origin.map(str::to_owned);
            command.browser_context_id = Some(self.cdp_id());
            calls.push(self.inner.browser.root().begin(command)?);
        }
        for call in calls {
            call.within(deadline).await?;
        }
        Ok(())
    }

    /// Takes all permissions back.
    pub async fn clear_permissions(&self) -> Result<()> {
        self.inner.clipboard.clear_grants();
        let command = ResetPermissionsParams { browser_context_id: Some(self.cdp_id()) };
        self.inner.browser.root().call(command, self.deadline()).await?;
        Ok(())
    }

    /// Where the device is said to be from now on; `None`: unknown.
    pub async fn set_geolocation(&self, place: Option<Geolocation>) -> Result<()> {
        if let Some(place) = &place {
            emulation::check_geolocation(place)?;
        }
        self.inner.emulated.lock().geolocation = place;
        self.inner.tell_pages(emulation::geolocation(place)).await
    }

    /// Cuts the network off, or gives it back.
    pub async fn set_offline(&self, offline: bool) -> Result<()> {
        self.inner.emulated.lock().offline = offline;
        let (requests, state) = emulation::offline(offline);
        self.inner.tell_pages(requests).await?;
        self.inner.tell_pages(state).await
    }

    /// Sent with every request from now on, in place of those before.
    pub async fn set_extra_headers(&self, headers: BTreeMap<String, String>) -> Result<()> {
        let command = emulation::headers(&headers);
        self.inner.emulated.lock().extra_headers = headers;
        self.inner.tell_pages(command).await
    }

    /// Closes all its pages and forgets all it stored. Calls under way on them fail with
    /// [`BrowserError::Closed`]. Closing twice does nothing.
    pub async fn close(&self) -> Result<()> {
        if !self.inner.end(&BrowserError::closed("context")) {
            return Ok(());
        }
        let command = DisposeBrowserContextParams::new(self.cdp_id());
        let disposed = self.inner.browser.root().call(command, Deadline::after(TIMEOUT_DEFAULT)).await;
        let folder = self.inner.own_folder.lock().take();
        if let Some(folder) = folder {
            // Its downloads go with it, though pages of it are held on to.
            let _ = tokio::task::spawn_blocking(|| drop(folder)).await;
        }
        match disposed {
            Ok(_) => Ok(()),
            // A browser that is gone has closed it.
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes it without waiting until Chromium has done so.
    pub(crate) fn abandon(&self) {
        if self.inner.end(&BrowserError::closed("context")) {
            self.inner.browser.root().post(DisposeBrowserContextParams::new(self.cdp_id()));
        }
    }

    /// Whether it was closed, or its browser is gone; and why.
    pub fn failure(&self) -> Option<BrowserError> {
        self.inner.state.lock().closed.clone()
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout())
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.inner.timeout_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn cdp_id(&self) -> chromiumoxide::cdp::browser_protocol::browser::BrowserContextId {
        self.inner.id.to_string().into()
    }

    fn page(&self, id: &str) -> Option<Page> {
        let inner = self.inner.state.lock().pages.get(id).cloned()?;
        Some(Page::new(inner, self.clone()))
    }
}

impl fmt::Debug for BrowserContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrowserContext").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl ContextInner {
    /// A page of this context has been attached, and waits to be told to run.
    pub(crate) fn attach_page(&self, connection: &Arc<Connection>, attached: &Attached) {
        let Some(this) = self.this.upgrade() else { return };
        let page = PageInner::attach(connection, attached, &this);
        let mut state = self.state.lock();
        state.order.push(Arc::clone(&page.target_id));
        state.pages.insert(Arc::clone(&page.target_id), page);
    }

    /// The page has answered all it was told, or failed to.
    pub(crate) fn page_is_ready(&self, page: &Arc<PageInner>) {
        let opener = page.opener.as_ref().and_then(|opener| self.state.lock().pages.get(opener).cloned());
        if let (false, Some(Ok(())), Some(inner)) = (page.hidden, page.ready(), self.this.upgrade()) {
            let public = Page::new(Arc::clone(page), BrowserContext { inner });
            self.new_pages.send(&public);
            if let Some(opener) = opener {
                opener.events.send(&PageEvent::Popup(public));
            }
        }
        self.changed.send_modify(|version| *version += 1);
    }

    pub(crate) fn page_closed(&self, target_id: &Arc<str>) {
        let mut state = self.state.lock();
        state.pages.remove(target_id);
        state.order.retain(|id| id != target_id);
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    pub(crate) fn all_pages(&self) -> Vec<Arc<PageInner>> {
        self.state.lock().pages.values().cloned().collect()
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.state.lock().closed.clone().map_or(Ok(()), Err)
    }

    /// Sends a command to every session of every page; a page that is just going away does not matter.
    pub(crate) async fn tell_pages(&self, command: impl chromiumoxide::Command + Clone) -> Result<()> {
        self.check_open()?;
        let deadline = Deadline::after(Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed)));
        let sessions = self.all_pages().into_iter().flat_map(|page| page.sessions());
        // Workers know fewer commands, and frames go away.
        let pass = |error: &BrowserError| {
            let unknown =
                matches!(error, BrowserError::Detached | BrowserError::Protocol { code: -32601, .. });
            unknown || error.is_gone()
        };
        tell_all(sessions, command, deadline, pass).await
    }

    /// Where downloads go; `None`: they fail.
    fn download_folder(&self) -> Option<PathBuf> {
        let own = self.own_folder.lock().as_ref().map(|folder| folder.path().to_owned());
        own.or_else(|| self.remote_folder.clone())
    }

    /// False: the frame is not of this context.
    pub(crate) fn download_begins(&self, begin: &DownloadBegin) -> bool {
        let Some(page) = self.all_pages().into_iter().find(|page| page.has_frame(&begin.frame_id)) else {
            return false;
        };
        let download = Download::new(begin, self.download_folder().as_deref(), self.browser.is_remote());
        let is_too_many = {
            let mut downloads = self.downloads.lock();
            if downloads.kept.len() == DOWNLOADS_MAX {
                downloads.kept.remove(0);
            }
            downloads.kept.push(download.clone());
            downloads.total += 1;
            let count_max = downloads.bounds.map_or(u64::MAX, |(count_max, _)| count_max);
            if downloads.total > count_max {
                download.refuse(format!("more than {count_max} downloads"));
            }
            downloads.total > count_max
        };
        if is_too_many {
            self.cancel_download(begin.guid());
            let mut deny = SetDownloadBehaviorParams::new(SetDownloadBehaviorBehavior::Deny);
            deny.browser_context_id = Some(self.id.to_string().into());
            deny.events_enabled = Some(true);
            self.browser.root().post(deny);
        }
        page.download_begins(&begin.frame_id, download);
        true
    }

    /// False: the download is not of this context.
    pub(crate) fn download_progresses(&self, progress: &DownloadProgress) -> bool {
        let downloads = self.downloads.lock();
        let Some(download) = downloads.kept.iter().find(|download| download.is(&progress.guid)) else {
            return false;
        };
        if let Some((_, bytes_max)) = downloads.bounds
            && progress.bytes() > bytes_max
        {
            download.refuse(format!("larger than {bytes_max} bytes"));
            self.cancel_download(&progress.guid);
        }
        download.progresses(progress);
        true
    }

    fn cancel_download(&self, guid: &str) {
        let params = json!({ "guid": guid, "browserContextId": &*self.id });
        self.browser.root().post(Raw::new("Browser.cancelDownload", params));
    }

    /// Bounds the downloads from now on: how many in all, and how many bytes each.
    pub(crate) fn bound_downloads(&self, count_max: u64, bytes_max: u64) {
        self.downloads.lock().bounds = Some((count_max, bytes_max));
    }

    /// How many downloads there have been.
    pub(crate) fn downloads_total(&self) -> u64 {
        self.downloads.lock().total
    }

    /// Downloads after the first `total` that are still known.
    pub(crate) fn downloads_after(&self, total: u64) -> Vec<Download> {
        let downloads = self.downloads.lock();
        let new = usize::try_from(downloads.total.saturating_sub(total)).unwrap_or(usize::MAX);
        downloads.kept[downloads.kept.len().saturating_sub(new)..].to_vec()
    }

    /// The policy of the page that opens another one, which takes it over.
    pub(crate) fn dialog_policy_of(&self, opener: Option<&str>) -> DialogPolicy {
        let opener = opener.and_then(|opener| self.state.lock().pages.get(opener).cloned());
        opener.map(|opener| opener.state.lock().dialog_policy.clone()).unwrap_or_default()
    }

    /// The browser is gone, and this context with it.
    pub(crate) fn browser_ended(&self, reason: &BrowserError) {
        self.end(reason);
    }

    /// Fails all calls on its pages from now on. False: it had ended already.
    fn end(&self, reason: &BrowserError) -> bool {
        let pages: Vec<Arc<PageInner>> = {
            let mut state = self.state.lock();
            if state.closed.is_some() {
                return false;
            }
            state.closed = Some(reason.clone());
            state.order.clear();
            state.pages.drain().map(|(_, page)| page).collect()
        };
        for page in pages {
            page.end(reason);
        }
        for download in &self.downloads.lock().kept {
            download.abandon();
        }
        if let (Some(folder), Some(downloads)) = (&self.remote_folder, &self.browser.remote_downloads)
            && let Some(remove) = &downloads.remove
            && self.downloads.lock().total > 0
        {
            remove(folder.clone());
        }
        self.new_pages.close();
        self.browser.remove_context(&self.id);
        self.changed.send_modify(|version| *version += 1);
        true
    }

    /// A frame shows a document of this origin.
    pub(crate) fn visit(&self, origin: &str) {
        let mut origins = self.origins.lock();
        if origins.len() < ORIGINS_MAX && !origins.contains(origin) {
            origins.insert(origin.to_owned());
        }
    }

    pub(crate) fn visited_origins(&self) -> BTreeSet<String> {
        self.origins.lock().clone()
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if self.end(&BrowserError::closed("context")) {
            self.browser.root().post(DisposeBrowserContextParams::new(self.id.to_string()));
        }
    }
}
