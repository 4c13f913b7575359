//! What each event of a page's sessions changes. Runs in the reading task.

use super::flood::may_flood;
use super::inner::{PageInner, PageState, world_of};
use super::state::Failure;
use crate::connection::Session;
use crate::console::{ConsoleCalled, ConsoleMessage, ExceptionThrown, LogEntryAdded, ScriptError};
use crate::contain::contain;
use crate::context::{ANSWER, BindingCall, CALLS_MAX, REFUSALS_MAX};
use crate::deadline::Deadline;
use crate::dialog::{DIALOG_HANDLER_BOUND, Dialog, DialogKind, DialogOpening, DialogPolicy};
use crate::error::{BrowserError, seconds};
use crate::event::PageEvent;
use crate::file_chooser::{FileChooser, FileChooserOpened};
use crate::network::{Failed, Finished, Received, ReceivedExtra, WillBeSent, WillBeSentExtra};
use crate::protocol::{
    ContextCreated, ContextDestroyed, Done, FrameAttached, FrameDetached, FrameNavigated,
    FrameStoppedLoading, LifecycleEvent, NavigatedWithinDocument, event,
};
use crate::storage::origin_of;
use chromiumoxide::cdp::browser_protocol::input::DragData;
use chromiumoxide::cdp::js_protocol::runtime::{CallArgument, CallFunctionOnParams, ExecutionContextId};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// `Runtime.bindingCalled`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BindingCalled {
    name: String,
    payload: String,
    execution_context_id: i64,
}

/// `Page.windowOpen`.
#[derive(Deserialize)]
struct WindowOpen {
    url: String,
}

/// `Page.frameRequestedNavigation`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameRequestedNavigation {
    frame_id: Arc<str>,
    disposition: String,
}

/// `Input.dragIntercepted`.
#[derive(Deserialize)]
struct DragIntercepted {
    data: DragData,
}

impl PageInner {
    pub(super) fn dispatch(&self, session: &Arc<Session>, method: &str, params: &RawValue) {
        if may_flood(method) {
            self.slow_down_floods(session, params.get().len());
        }
        match method {
            "Page.frameAttached" => {
                let Some(event) = event::<FrameAttached>(method, params) else { return };
                let new = self
                    .change(|state| state.frames.attach(&event.frame_id, &event.parent_frame_id, session));
                if new {
                    self.emit_frame(&event.frame_id, PageEvent::FrameAttached);
                }
            }
            "Page.frameNavigated" => {
                if let Some(event) = event::<FrameNavigated>(method, params) {
                    self.navigated(session, event);
                }
            }
            "Page.navigatedWithinDocument" => {
                let Some(event) = event::<NavigatedWithinDocument>(method, params) else { return };
                self.change(|state| state.frames.navigated_within(&event.frame_id, event.url));
                self.emit_frame(&event.frame_id, PageEvent::NavigatedWithinDocument);
            }
            "Page.frameRequestedNavigation" => {
                let Some(event) = event::<FrameRequestedNavigation>(method, params) else { return };
                if event.disposition == "currentTab" {
                    self.change(|state| {
                        if let Some(frame) = state.frames.get_mut(&event.frame_id) {
                            frame.requested = Some(Instant::now());
                        }
                    });
                }
            }
            "Page.frameDetached" => {
                if let Some(event) = event::<FrameDetached>(method, params) {
                    self.detached(session, &event);
                }
            }
            "Page.lifecycleEvent" => {
                if let Some(event) = event::<LifecycleEvent>(method, params) {
                    self.lifecycle(&event);
                }
            }
            "Page.frameStoppedLoading" => {
                if let Some(event) = event::<FrameStoppedLoading>(method, params) {
                    self.change(|state| state.frames.stopped(&event.frame_id));
                }
            }
            "Page.windowOpen" => {
                if let Some(event) = event::<WindowOpen>(method, params) {
                    self.change(|state| state.windows.push(event.url));
                }
            }
            "Page.javascriptDialogOpening" => {
                if let Some(event) = event::<DialogOpening>(method, params) {
                    self.dialog_opens(Dialog::new(session, event));
                }
            }
            "Page.javascriptDialogClosed" => self.dialog_closed(session),
            "Runtime.executionContextCreated" => {
                let Some(event) = event::<ContextCreated>(method, params) else { return };
                let Some(aux) = event.context.aux_data else { return };
                let world = world_of(&event.context.name, aux.is_default);
                if let (Some(world), Some(frame)) = (world, aux.frame_id) {
                    self.change(|state| state.frames.add_world(&frame, session, world, event.context.id));
                }
            }
            "Runtime.executionContextDestroyed" => {
                let Some(event) = event::<ContextDestroyed>(method, params) else { return };
                self.change(|state| state.frames.remove_world(session, Some(event.execution_context_id)));
            }
            "Runtime.executionContextsCleared" => {
                self.change(|state| state.frames.remove_world(session, None));
            }
            "Runtime.bindingCalled" => {
                if let Some(event) = event::<BindingCalled>(method, params) {
                    self.binding_called(session, &event);
                }
            }
            "Inspector.targetCrashed" => {
                // A frame of another process that crashes leaves the page itself alive.
                if Arc::ptr_eq(session, &self.session) {
                    self.end(&BrowserError::Crashed { what: "page", detail: Arc::from("") });
                }
            }
            "Input.dragIntercepted" => {
                let Some(event) = event::<DragIntercepted>(method, params) else { return };
                self.input.lock().intercepted = Some(event.data);
                self.change(|_| ());
            }
            "Debugger.paused" => {
                if let Some(context) = self.context.upgrade()
                    && let Some(episode) = &context.episode
                {
                    episode.begin_worker(session);
                }
            }
            "Page.fileChooserOpened" => {
                let Some(opened) = event::<FileChooserOpened>(method, params) else { return };
                self.emit(|page| PageEvent::FileChooser(FileChooser::new(page, Arc::clone(session), opened)));
            }
            "Emulation.virtualTimeBudgetExpired" => {
                self.change(|state| state.virtual_time_expired += 1);
            }
            _ => self.dispatch_output(session, method, params),
        }
    }

    /// Console, errors and network.
    fn dispatch_output(&self, session: &Arc<Session>, method: &str, params: &RawValue) {
        match method {
            "Runtime.consoleAPICalled" => {
                if let Some(event) = event::<ConsoleCalled>(method, params) {
                    self.wrote(event.into());
                }
            }
            "Log.entryAdded" => {
                if let Some(event) = event::<LogEntryAdded>(method, params) {
                    self.wrote(event.into());
                }
            }
            "Runtime.exceptionThrown" => {
                let Some(event) = event::<ExceptionThrown>(method, params) else { return };
                let error = ScriptError::from(event);
                self.state.lock().errors.push(error.clone());
                self.emit(|_| PageEvent::ScriptError(error));
            }
            "Network.requestWillBeSent" => {
                if let Some(event) = event::<WillBeSent>(method, params) {
                    self.will_be_sent(session, event);
                }
            }
            "Network.requestWillBeSentExtraInfo" => {
                if let Some(event) = event::<WillBeSentExtra>(method, params) {
                    self.network.will_be_sent_extra(event);
                }
            }
            "Network.responseReceivedExtraInfo" => {
                let Some(event) = event::<ReceivedExtra>(method, params) else { return };
                self.network.received_extra(&event);
                if event.is_redirect() {
                    self.network.redirected(event);
                    self.change(|_| ());
                }
            }
            "Network.responseReceived" => {
                let Some(event) = event::<Received>(method, params) else { return };
                if let Some(response) = self.network.received(event) {
                    self.emit(|_| PageEvent::Response(response));
                }
            }
            "Network.loadingFinished" => {
                let Some(event) = event::<Finished>(method, params) else { return };
                if let Some(request) = self.network.finished(&event) {
                    self.emit(|_| PageEvent::RequestFinished(request));
                }
            }
            "Network.loadingFailed" => {
                let Some(event) = event::<Failed>(method, params) else { return };
                self.loading_failed(&event);
                if let Some(request) = self.network.failed(&event) {
                    self.emit(|_| PageEvent::RequestFailed(request));
                }
            }
            "Fetch.requestPaused" => {
                let Some(context) = self.context.upgrade() else { return };
                let routes = [&self.routes, &context.routes];
                crate::route::paused(&routes, &self.network, session, method, params);
            }
            "Fetch.authRequired" => {
                if let Some(context) = self.context.upgrade() {
                    context.auth.required(session, method, params);
                }
            }
            _ => {
                if let Some((socket, event)) = self.web_sockets.event(method, params) {
                    self.emit(|_| PageEvent::WebSocket(socket, event));
                }
            }
        }
    }

    fn navigated(&self, session: &Arc<Session>, event: FrameNavigated) {
        let id = Arc::clone(&event.frame.id);
        if let (Some(origin), Some(context)) = (origin_of(&event.frame.url), self.context.upgrade()) {
            context.visit(&origin);
        }
        let gone = self.change(|state| {
            match &event.frame.parent_id {
                Some(parent) => drop(state.frames.attach(&id, parent, session)),
                None => self.forget_dialog(state),
            }
            state.frames.commit(event.frame)
        });
        for frame in &gone {
            self.emit_frame(frame, PageEvent::FrameDetached);
        }
        self.emit_frame(&id, PageEvent::FrameNavigated);
    }

    fn detached(&self, session: &Arc<Session>, event: &FrameDetached) {
        let gone = self.change(|state| {
            let moved = state
                .frames
                .get(&event.frame_id)
                .is_some_and(|frame| !Arc::ptr_eq(&frame.session, session) && event.reason == "swap");
            match (moved, event.reason.as_str()) {
                (true, _) => Vec::new(),
                (false, "swap") => state.frames.detach_children(&event.frame_id),
                _ => state.frames.detach(&event.frame_id),
            }
        });
        for frame in &gone {
            self.emit_frame(frame, PageEvent::FrameDetached);
        }
    }

    fn lifecycle(&self, event: &LifecycleEvent) {
        let changed = {
            let mut state = self.state.lock();
            state.frames.lifecycle(&event.frame_id, &event.loader_id, &event.name)
        };
        if !changed {
            return;
        }
        self.change(|_| ());
        let main = *self.state.lock().frames.main_id() == event.frame_id;
        match event.name.as_str() {
            "DOMContentLoaded" if main => self.emit(|_| PageEvent::DomContentLoaded),
            "load" if main => self.emit(|_| PageEvent::Load),
            _ => {}
        }
    }

    fn will_be_sent(&self, session: &Arc<Session>, event: WillBeSent) {
        if let (true, Some(frame)) = (event.is_navigation(), &event.frame_id) {
            let pending = Some((Arc::clone(&event.loader_id), event.url().to_owned()));
            self.change(|state| {
                if let Some(frame) = state.frames.get_mut(frame) {
                    frame.pending = pending;
                }
            });
        }
        let (request, before) = self.network.will_be_sent(session, event);
        if let Some(before) = before {
            if let Some(response) = before.response() {
                self.emit(|_| PageEvent::Response(response));
            }
            self.emit(|_| PageEvent::RequestFinished(before));
        }
        self.emit(|_| PageEvent::Request(request));
    }

    /// A request of a document that failed is a navigation that failed.
    fn loading_failed(&self, event: &Failed) {
        let loader: Arc<str> = Arc::from(event.request_id.as_str());
        self.change(|state| {
            let ids = state.frames.in_order();
            let of = ids.iter().find(|id| {
                let pending = state.frames.get(id).and_then(|frame| frame.pending.as_ref());
                pending.is_some_and(|(pending, _)| *pending == loader)
            });
            let Some(frame) = of.and_then(|id| state.frames.get_mut(id)) else { return };
            let url = frame.pending.as_ref().map(|(_, url)| url.clone()).unwrap_or_default();
            frame.fail(Failure {
                loader: Some(loader),
                url,
                reason: event.error_text.clone(),
                download: false,
            });
        });
    }

    fn wrote(&self, message: ConsoleMessage) {
        self.state.lock().console.push(message.clone());
        self.emit(|_| PageEvent::Console(message));
    }

    fn dialog_opens(&self, dialog: Dialog) {
        let policy = {
            let mut state = self.state.lock();
            state.dialogs.push(dialog.clone());
            state.dialog = Some(dialog.clone());
            state.dialog_policy.clone()
        };
        let leaving = dialog.kind() == DialogKind::BeforeUnload;
        match policy {
            DialogPolicy::Handler(handler) => {
                let of = dialog.clone();
                // Owner: the page's dialog. Ends within its bound; the dialog is then answered.
                tokio::spawn(async move {
                    contain(DIALOG_HANDLER_BOUND, handler(of.clone())).await;
                    // Fails where the handler has answered.
                    let _ = of.dismiss();
                });
            }
            DialogPolicy::Hold if !leaving => {
                let error = dialog.as_error();
                self.session.gate().set_dialog(Some(error.clone()));
                self.session.fail_page_calls(&error, true);
            }
            // A fresh dialog has no answer yet, so these cannot fail.
            DialogPolicy::Dismiss if !leaving => drop(dialog.dismiss()),
            _ => drop(dialog.accept(None)),
        }
        self.change(|_| ());
        self.emit(|_| PageEvent::Dialog(dialog));
    }

    fn dialog_closed(&self, session: &Arc<Session>) {
        self.change(|state| {
            if state.dialog.as_ref().is_some_and(|dialog| dialog.is_of(session)) {
                self.forget_dialog(state);
            }
        });
    }

    /// The dialog went away, with or without an answer of ours.
    fn forget_dialog(&self, state: &mut PageState) {
        if let Some(dialog) = state.dialog.take() {
            dialog.set_answered();
        }
        self.session.gate().set_dialog(None);
    }

    /// A page called an exposed function: it runs in a task of its own, and the answer goes back to the caller's world.
    fn binding_called(&self, session: &Arc<Session>, event: &BindingCalled) {
        if event.name != crate::context::BINDING {
            return;
        }
        let Ok(mut call) = serde_json::from_str::<BindingCall>(&event.payload) else { return };
        if call.name == crate::clipboard::NAME {
            // Who calls is known here; a page could name another.
            let state = self.state.lock();
            let url = state.frames.url_in(session, event.execution_context_id);
            let origin = url.and_then(crate::storage::origin_of).unwrap_or_default();
            call.args.insert(0, origin.into());
        }
        let own = self.exposed.lock().function(&call.name);
        let of_context =
            || self.context.upgrade().and_then(|context| context.exposed.lock().function(&call.name));
        let Some(function) = own.or_else(of_context) else { return };
        let reply =
            Answer { session: Arc::clone(session), context: event.execution_context_id, call: call.call };
        let Some(page) = self.public() else { return };
        let before = self.exposed_calls.fetch_add(1, Ordering::Relaxed);
        // A page that goes on calling while even refusals wait to be taken has no answer: those would be in the way of everyone else.
        if before >= CALLS_MAX + REFUSALS_MAX {
            self.exposed_calls.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let bound = page.context().timeout();
        // Owner: the page. Ends within its bound; its answer to a document that is gone is dropped by Chromium.
        tokio::spawn(async move {
            let result = match before < CALLS_MAX {
                true => contain(bound, function(call.args)).await.unwrap_or_else(|| {
                    Err(format!("{} panicked, or did not return within {}", call.name, seconds(bound)))
                }),
                false => Err(format!("more than {CALLS_MAX} calls of exposed functions under way")),
            };
            reply.send(result, bound).await;
            page.inner.exposed_calls.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

struct Answer {
    session: Arc<Session>,
    context: i64,
    call: u64,
}

impl Answer {
    /// Waits until Chromium has taken it, so that answers do not pile up in front of it.
    async fn send(&self, result: std::result::Result<serde_json::Value, String>, bound: Duration) {
        let (value, error) = match result {
            Ok(value) => (value, serde_json::Value::Null),
            Err(message) => (serde_json::Value::Null, message.into()),
        };
        let argument = |value| CallArgument { value: Some(value), ..CallArgument::default() };
        let mut command = CallFunctionOnParams::new(ANSWER);
        command.execution_context_id = Some(ExecutionContextId::new(self.context));
        command.arguments = Some(vec![argument(self.call.into()), argument(value), argument(error)]);
        // Fails where the document is gone.
        let _ = self.session.call_as::<Done>(command, Deadline::after(bound)).await;
    }
}

impl PageState {
    /// What the page waits for, for messages.
    pub(crate) fn main_progress(&self) -> String {
        let frame = self.frames.main();
        match &frame.pending {
            Some((_, url)) => format!("no answer of {url} yet"),
            None => format!("the page is at {}", frame.url),
        }
    }
}
