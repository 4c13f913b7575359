//! A page behind its public face: its sessions, and what their events do.

use super::Page;
use super::flood::Flood;
use super::startup::Startup;
use super::state::{Failure, FrameId, FrameTree, World};
use crate::browser::release;
use crate::connection::{Connection, Gate, Handler, Session};
use crate::console::{CONSOLE_KEPT, ConsoleMessage, ERRORS_KEPT, ScriptError};
use crate::context::{BrowserContext, ContextInner, HIDDEN_PAGE};
use crate::deadline::Deadline;
use crate::dialog::{DIALOGS_KEPT, Dialog, DialogPolicy};
use crate::download::Download;
use crate::error::{BrowserError, Result};
use crate::event::PageEvent;
use crate::frame::Frame;
use crate::input::InputState;
use crate::network::Network;
use crate::protocol::{Attached, Detached, FrameTreeAnswer, Raw, answer, event};
use crate::queue::{EventSource, Recent};
use crate::route::Routes;
use crate::screenshot::SWALLOW_RESIZE;
use crate::web_socket::WebSockets;
use chromiumoxide::cdp::browser_protocol::log::EnableParams as LogEnable;
use chromiumoxide::cdp::browser_protocol::network::EnableParams as NetworkEnable;
use chromiumoxide::cdp::browser_protocol::page::{
    AddScriptToEvaluateOnNewDocumentParams, EnableParams as PageEnable, GetFrameTreeParams,
    SetLifecycleEventsEnabledParams,
};
use chromiumoxide::cdp::browser_protocol::target::SetAutoAttachParams;
use chromiumoxide::cdp::js_protocol::runtime::{
    AddBindingParams, EnableParams as RuntimeEnable, RunIfWaitingForDebuggerParams,
};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use tokio::sync::watch;

/// Addresses of windows that a page opened, which it remembers.
const WINDOWS_KEPT: usize = 32;

/// The name of the library's own world in every frame.
pub(super) const WORLD_NAME: &str = "__espalier_world__";

pub(crate) struct PageInner {
    pub(super) this: Weak<PageInner>,
    pub(crate) target_id: Arc<str>,
    pub(crate) opener: Option<Arc<str>>,
    /// It does the library's own work; nobody else sees it.
    pub(crate) hidden: bool,
    pub(crate) context: Weak<ContextInner>,
    /// The page's own; frames of other processes and workers have theirs.
    pub(crate) session: Arc<Session>,
    pub(crate) state: Mutex<PageState>,
    changed: watch::Sender<u64>,
    pub(crate) events: EventSource<PageEvent>,
    pub(crate) network: Arc<Network>,
    pub(crate) web_sockets: WebSockets,
    pub(crate) routes: Routes,
    pub(crate) input: Mutex<InputState>,
    pub(crate) exposed: Mutex<crate::context::Exposed>,
    /// Calls of exposed functions under way.
    pub(super) exposed_calls: AtomicUsize,
    /// Of messages of the console.
    pub(super) flood: Flood,
}

pub(crate) struct PageState {
    pub(crate) frames: FrameTree,
    /// All sessions: the page's own first.
    pub(crate) sessions: Vec<Arc<Session>>,
    /// Those of them that are workers, in order of their start.
    pub(crate) workers: Vec<Arc<Session>>,
    pub(crate) ready: Option<Result<()>>,
    pub(crate) dialog_policy: DialogPolicy,
    /// Open now.
    pub(crate) dialog: Option<Dialog>,
    pub(crate) dialogs: Recent<Dialog>,
    pub(crate) console: Recent<ConsoleMessage>,
    pub(crate) errors: Recent<ScriptError>,
    /// Addresses that its scripts and links opened windows for.
    pub(crate) windows: Recent<String>,
    pub(crate) viewport: crate::emulation::Viewport,
    pub(crate) media: crate::emulation::MediaOptions,
    /// Whether file choosers are events.
    pub(crate) file_choosers: bool,
    pub(crate) virtual_time_expired: u64,
}

impl PageInner {
    /// A page that Chromium has attached and that waits to be told to run.
    pub(crate) fn attach(
        connection: &Arc<Connection>,
        attached: &Attached,
        context: &Arc<ContextInner>,
    ) -> Arc<PageInner> {
        let info = &attached.target_info;
        let emulated = context.emulated.lock().clone();
        let page = Arc::new_cyclic(|this: &Weak<PageInner>| {
            let handler = Weak::clone(this) as Weak<dyn Handler>;
            let session = connection.open_session(&attached.session_id, handler, Arc::new(Gate::default()));
            let state = PageState {
                frames: FrameTree::new(Arc::clone(&info.target_id), Arc::clone(&session)),
                sessions: vec![Arc::clone(&session)],
                workers: Vec::new(),
                ready: None,
                // Its first script may open one.
                dialog_policy: context.dialog_policy_of(info.opener_id.as_deref()),
                dialog: None,
                dialogs: Recent::new(DIALOGS_KEPT),
                console: Recent::new(CONSOLE_KEPT),
                errors: Recent::new(ERRORS_KEPT),
                windows: Recent::new(WINDOWS_KEPT),
                viewport: emulated.viewport,
                media: emulated.media,
                file_choosers: false,
                virtual_time_expired: 0,
            };
            PageInner {
                this: Weak::clone(this),
                target_id: Arc::clone(&info.target_id),
                opener: info.opener_id.clone(),
                hidden: info.url == HIDDEN_PAGE,
                context: Arc::downgrade(context),
                session,
                state: Mutex::new(state),
                changed: watch::Sender::new(0),
                events: EventSource::default(),
                network: Arc::default(),
                web_sockets: WebSockets::default(),
                routes: Routes::default(),
                input: Mutex::default(),
                exposed: Mutex::default(),
                exposed_calls: AtomicUsize::new(0),
                flood: Flood::default(),
            }
        });
        page.start(&Arc::clone(&page.session), true);
        page
    }

    /// Tells a new session of a document what it needs, then lets it run.
    fn start(&self, session: &Arc<Session>, main: bool) {
        let Some(context) = self.context.upgrade() else { return };
        let user_agent = context.browser.user_agent();
        let this = Weak::clone(&self.this);
        let mut startup = Startup::new(session, &user_agent, move |result| {
            if let (true, Some(page)) = (main, this.upgrade()) {
                page.set_ready(result);
            }
        });
        startup.send(PageEnable::default());
        let this = Weak::clone(&self.this);
        let of = Arc::clone(session);
        startup.send_then(GetFrameTreeParams::default(), move |bytes| {
            let Some(page) = this.upgrade() else { return };
            if let Ok(tree) = answer::<FrameTreeAnswer>("Page.getFrameTree", Ok(bytes)) {
                page.change(|state| state.frames.apply(tree.frame_tree, &of));
            }
        });
        startup.send(SetLifecycleEventsEnabledParams::new(true));
        startup.send(RuntimeEnable::default());
        startup.send(LogEnable::default());
        let mut world = AddScriptToEvaluateOnNewDocumentParams::new(SWALLOW_RESIZE);
        world.world_name = Some(WORLD_NAME.to_owned());
        world.run_immediately = Some(true);
        startup.send(world);
        startup.send(NetworkEnable::default());
        startup.send(auto_attach());
        let mut emulated = context.emulated.lock().clone();
        {
            let state = self.state.lock();
            emulated.viewport = state.viewport;
            emulated.media = state.media;
        }
        emulated.apply(&mut startup, main);
        let (context_scripts, context_calls) = {
            let exposed = context.exposed.lock();
            (exposed.scripts(), exposed.has_functions())
        };
        let (page_scripts, page_calls) = {
            let exposed = self.exposed.lock();
            (exposed.scripts(), exposed.has_functions())
        };
        if context_calls || page_calls {
            startup.send(AddBindingParams::new(crate::context::BINDING));
        }
        if let (Some(script), false) = (context.clock_script(), self.hidden) {
            let of = Arc::clone(session);
            startup.send_then(script, move |bytes| {
                *of.clock_script.lock() = crate::deterministic::script_id(&bytes);
            });
        }
        if context.episode.is_some() {
            startup.send(Raw::new("Animation.enable", serde_json::json!({})));
            startup.send(crate::deterministic::hold_animations());
        }
        for script in context_scripts.into_iter().chain(page_scripts) {
            startup.send(init_script(script));
        }
        if self.state.lock().file_choosers {
            startup.send(crate::file_chooser::intercept(true));
        }
        if let Some(command) = crate::route::enable(&[&context.routes, &self.routes], context.auth.is_set()) {
            startup.send(command);
        }
        startup.send(RunIfWaitingForDebuggerParams::default());
        startup.finish();
    }

    fn set_ready(self: &Arc<Self>, result: Result<()>) {
        self.change(|state| state.ready = Some(result));
        if let Some(context) = self.context.upgrade() {
            context.page_is_ready(self);
        }
    }

    /// Whether it may be used: `None` while it starts.
    pub(crate) fn ready(&self) -> Option<Result<()>> {
        self.state.lock().ready.clone()
    }

    pub(crate) fn has_frame(&self, id: &str) -> bool {
        self.state.lock().frames.get(id).is_some()
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.state.lock().sessions.clone()
    }

    /// Tells of every change of the state.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Changes the state and wakes those who wait for it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut PageState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.send_modify(|version| *version += 1);
        result
    }

    /// Waits until `check` has an answer. Fails where the page is gone or blocked by a dialog that is held.
    pub(crate) async fn wait<T>(
        &self,
        deadline: Deadline,
        waiting_for: impl FnOnce() -> String,
        mut check: impl FnMut(&PageState) -> Option<Result<T>>,
    ) -> Result<T> {
        let or_blocked = |state: &PageState| check(state).or_else(|| self.session.gate().blocked().map(Err));
        self.wait_in_spite_of_dialogs(deadline, waiting_for, or_blocked).await
    }

    /// Like `wait`, while a dialog may be open.
    pub(crate) async fn wait_in_spite_of_dialogs<T>(
        &self,
        deadline: Deadline,
        waiting_for: impl FnOnce() -> String,
        mut check: impl FnMut(&PageState) -> Option<Result<T>>,
    ) -> Result<T> {
        let mut changed = self.changed.subscribe();
        deadline
            .bound(waiting_for, async {
                loop {
                    changed.borrow_and_update();
                    if let Some(result) = check(&self.state.lock()) {
                        return result;
                    }
                    if let Some(reason) = self.session.gate().failed() {
                        return Err(reason);
                    }
                    changed.changed().await.map_err(|_| BrowserError::closed("page"))?;
                }
            })
            .await
    }

    /// The page is gone: calls fail with `reason` from now on, those under way too.
    pub(crate) fn end(&self, reason: &BrowserError) {
        if !self.session.gate().fail(reason.clone()) {
            return;
        }
        self.session.fail_page_calls(reason, false);
        self.change(|state| {
            if let Some(dialog) = state.dialog.take() {
                dialog.set_answered();
            }
            state.ready.get_or_insert(Err(reason.clone()));
        });
        let crashed = matches!(reason, BrowserError::Crashed { .. });
        self.events.send(&if crashed { PageEvent::Crashed } else { PageEvent::Closed });
        if !crashed {
            self.events.close();
        }
    }

    /// The public face; `None` where nobody holds the context any more.
    pub(crate) fn public(&self) -> Option<Page> {
        let context = BrowserContext { inner: self.context.upgrade()? };
        Some(Page::new(self.this.upgrade()?, context))
    }

    /// Sends an event where anybody listens.
    pub(super) fn emit(&self, event: impl FnOnce(Page) -> PageEvent) {
        if self.events.heard()
            && let Some(page) = self.public()
        {
            self.events.send(&event(page));
        }
    }

    pub(super) fn emit_frame(&self, id: &FrameId, event: fn(Frame) -> PageEvent) {
        self.emit(|page| event(Frame::new(page, Arc::clone(id))));
    }

    pub(crate) fn download_begins(&self, frame_id: &str, download: Download) {
        self.change(|state| {
            let Some(frame) = state.frames.get_mut(frame_id) else { return };
            let loader = match &frame.pending {
                Some((loader, url)) if *url == download.url() => Some(Arc::clone(loader)),
                // Another navigation is under way: this download came from a link, or from the one before.
                Some(_) => return,
                None => None,
            };
            frame.fail(Failure {
                loader,
                url: download.url().to_owned(),
                reason: crate::navigation::ABORTED.to_owned(),
                download: true,
            });
        });
        self.emit(|_| PageEvent::Download(download));
    }

    fn attached(&self, parent: &Arc<Session>, attached: &Attached) {
        let info = &attached.target_info;
        let connection = parent.connection();
        let handler = Weak::clone(&self.this) as Weak<dyn Handler>;
        match info.kind.as_str() {
            "iframe" => {
                let gate = Arc::clone(parent.gate());
                let session = connection.open_session(&attached.session_id, handler, gate);
                self.change(|state| {
                    state.frames.move_to(&info.target_id, &session);
                    state.sessions.push(Arc::clone(&session));
                });
                self.start(&session, false);
            }
            // Workers run in their page; their requests are the page's.
            "worker" => {
                let gate = Arc::clone(parent.gate());
                let session = connection.open_session(&attached.session_id, handler, gate);
                self.change(|state| {
                    state.sessions.push(Arc::clone(&session));
                    state.workers.push(Arc::clone(&session));
                });
                session.post(NetworkEnable::default());
                if let Some(context) = self.context.upgrade()
                    && context.episode.is_some()
                {
                    crate::deterministic::stop_before_first_script(&session);
                    session.post(auto_attach());
                }
                if let Some(context) = self.context.upgrade()
                    && let Some(command) =
                        crate::route::enable(&[&context.routes, &self.routes], context.auth.is_set())
                {
                    session.post(command);
                }
                session.post(RunIfWaitingForDebuggerParams::default());
            }
            _ => release(connection, parent, &attached.session_id),
        }
    }

    /// A frame of another process has ended: it is gone, or has come back into its parent's process, which Chromium
    /// tells just before or just after. An answer of the parent comes after both.
    fn frame_session_ended(&self, session: &Arc<Session>) {
        let (frame, parent) = {
            let state = self.state.lock();
            let Some(id) = state.frames.frame_of_session(session) else { return };
            let parent = state.frames.get(&id).and_then(|frame| frame.parent.as_ref());
            let parent =
                parent.and_then(|parent| state.frames.get(parent)).map(|frame| Arc::clone(&frame.session));
            (id, parent.unwrap_or_else(|| Arc::clone(&self.session)))
        };
        let this = Weak::clone(&self.this);
        let session = Arc::clone(session);
        parent.call_then(PageEnable::default(), move |_| {
            let Some(page) = this.upgrade() else { return };
            let gone = page.change(|state| match state.frames.get(&frame) {
                Some(still) if Arc::ptr_eq(&still.session, &session) => state.frames.detach(&frame),
                _ => Vec::new(),
            });
            for id in &gone {
                page.emit_frame(id, PageEvent::FrameDetached);
            }
        });
    }
}

impl Handler for PageInner {
    fn event(&self, session: &Arc<Session>, method: &str, params: &RawValue) {
        match method {
            "Target.attachedToTarget" => {
                if let Some(attached) = event::<Attached>(method, params) {
                    self.attached(session, &attached);
                }
            }
            "Target.detachedFromTarget" => {
                if let Some(detached) = event::<Detached>(method, params) {
                    session.connection().end_session(&detached.session_id, &BrowserError::Detached);
                }
            }
            _ => self.dispatch(session, method, params),
        }
    }

    fn ended(&self, session: &Arc<Session>, reason: &BrowserError) {
        self.network.session_ended(session);
        if Arc::ptr_eq(session, &self.session) {
            self.end(reason);
            self.events.close();
            if let Some(context) = self.context.upgrade() {
                context.page_closed(&self.target_id);
            }
            return;
        }
        self.change(|state| {
            state.sessions.retain(|other| !Arc::ptr_eq(other, session));
            state.workers.retain(|other| !Arc::ptr_eq(other, session));
        });
        self.frame_session_ended(session);
    }
}

/// The world of the frame that an execution context is.
pub(super) fn world_of(name: &str, is_default: bool) -> Option<World> {
    match (is_default, name) {
        (true, _) => Some(World::Main),
        (false, WORLD_NAME) => Some(World::Isolated),
        _ => None,
    }
}

pub(crate) fn init_script(source: String) -> AddScriptToEvaluateOnNewDocumentParams {
    AddScriptToEvaluateOnNewDocumentParams::new(source)
}

fn auto_attach() -> SetAutoAttachParams {
    let mut command = SetAutoAttachParams::new(true, true);
    command.flatten = Some(true);
    command
}
