//! Requests under way on one page, from events of the Network domain.

use super::{Request, RequestEnd, RequestInner, Response, ResponseHead};
use crate::connection::Session;
use crate::page::state::LoaderId;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Requests under way that are tracked; more forget the oldest.
const UNDER_WAY_MAX: usize = 10_000;
/// Responses of documents that are remembered for those who navigated.
const DOCUMENTS_KEPT: usize = 16;
/// Requests that are remembered when they have ended.
const ENDED_KEPT: usize = 256;
/// Requests whose cookies are told before themselves, at most.
const EARLY_MAX: usize = 1000;

#[derive(Default)]
pub(crate) struct Network {
    state: Mutex<State>,
    /// Wakes those who wait for the event of a request.
    sent: Notify,
}

#[derive(Default)]
struct State {
    under_way: HashMap<String, Request>,
    /// Ids in order of their start, with those that have ended since.
    order: VecDeque<String>,
    /// The last that have ended: headers as they came may be told after that.
    ended: VecDeque<Request>,
    documents: VecDeque<(LoaderId, Request)>,
    /// Where the last responses of documents redirect to, by request.
    redirects: VecDeque<(String, String)>,
    /// Cookies of requests whose event has not come yet, by the request's id.
    early: HashMap<String, Vec<(String, String)>>,
    /// `Set-Cookie` of responses to requests whose event has not come yet, by the request's id: another process tells them.
    early_lines: HashMap<String, Vec<String>>,
}

/// `Network.requestWillBeSent`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WillBeSent {
    request_id: String,
    pub(crate) loader_id: LoaderId,
    request: RequestInfo,
    redirect_response: Option<ResponseHead>,
    #[serde(default)]
    redirect_has_extra_info: bool,
    #[serde(default, rename = "type")]
    kind: String,
    pub(crate) frame_id: Option<Arc<str>>,
    timestamp: f64,
    #[serde(default)]
    wall_time: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestInfo {
    url: String,
    method: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    post_data: Option<String>,
    #[serde(default)]
    has_post_data: bool,
}

/// `Network.responseReceived`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Received {
    request_id: String,
    timestamp: f64,
    #[serde(default)]
    has_extra_info: bool,
    response: ResponseHead,
}

/// `Network.requestWillBeSentExtraInfo`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WillBeSentExtra {
    request_id: String,
    #[serde(default)]
    associated_cookies: Vec<AssociatedCookie>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AssociatedCookie {
    cookie: NameValue,
    /// Why it is not sent.
    #[serde(default)]
    blocked_reasons: Vec<String>,
}

#[derive(Deserialize)]
struct NameValue {
    name: String,
    value: String,
}

/// `Network.responseReceivedExtraInfo`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReceivedExtra {
    request_id: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    status_code: i64,
}

/// `Network.loadingFinished`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finished {
    request_id: String,
    timestamp: f64,
    #[serde(default)]
    encoded_data_length: f64,
}

/// `Network.loadingFailed`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failed {
    pub(crate) request_id: String,
    timestamp: f64,
    pub(crate) error_text: String,
}

impl ReceivedExtra {
    pub(crate) fn is_redirect(&self) -> bool {
        (300..400).contains(&self.status_code)
    }
}

impl WillBeSent {
    /// Requests of documents carry the id of their document.
    pub(crate) fn is_navigation(&self) -> bool {
        *self.loader_id == *self.request_id && self.kind == "Document"
    }

    pub(crate) fn url(&self) -> &str {
        &self.request.url
    }
}

impl Network {
    /// The request, and the one that redirected to it with its response.
    pub(crate) fn will_be_sent(
        &self,
        session: &Arc<Session>,
        event: WillBeSent,
    ) -> (Request, Option<Request>) {
        let is_navigation = event.is_navigation();
        let mut state = self.state.lock();
        let before = state.under_way.remove(&event.request_id);
        if let (Some(before), Some(mut head)) = (&before, event.redirect_response) {
            head.has_extra_info = event.redirect_has_extra_info;
            receive(before, head, event.timestamp);
            finish(before, None, 0.0, event.timestamp);
        }
        let request = Request {
            inner: Arc::new(RequestInner {
                id: event.request_id.clone(),
                url: event.request.url,
                method: event.request.method,
                headers: lower_case(event.request.headers),
                post_data: event.request.post_data,
                has_post_data: event.request.has_post_data,
                kind: event.kind.to_ascii_lowercase(),
                frame_id: event.frame_id,
                is_navigation,
                redirected_from: before.clone(),
                started: event.timestamp,
                wall_time: event.wall_time,
                session: Arc::clone(session),
                cookies: OnceLock::new(),
                set_cookies: OnceLock::new(),
                cookies_told: Notify::new(),
                response: OnceLock::new(),
                end: watch::Sender::new(None),
            }),
        };
        if let Some(cookies) = state.early.remove(&request.inner.id) {
            let _ = request.inner.cookies.set(cookies);
        }
        if let Some(lines) = state.early_lines.remove(&request.inner.id) {
            let _ = request.inner.set_cookies.set(lines);
        }
        if is_navigation {
            if state.documents.len() == DOCUMENTS_KEPT {
                state.documents.pop_front();
            }
            state.documents.retain(|(loader, _)| *loader != event.loader_id);
            state.documents.push_back((event.loader_id, request.clone()));
        }
        state.under_way.insert(event.request_id.clone(), request.clone());
        state.order.push_back(event.request_id);
        state.trim();
        self.sent.notify_waiters();
        (request, before)
    }

    /// Which cookies a request carries; told before or after the request itself.
    pub(crate) fn will_be_sent_extra(&self, event: WillBeSentExtra) {
        let sent = event.associated_cookies.into_iter().filter(|cookie| cookie.blocked_reasons.is_empty());
        let cookies: Vec<(String, String)> =
            sent.map(|cookie| (cookie.cookie.name, cookie.cookie.value)).collect();
        let mut state = self.state.lock();
        let last = state.under_way.get(&event.request_id);
        // Where all have theirs, the last is about to be redirected: these are of the request that follows.
        if let Some(request) =
            last.and_then(|last| last.first_without(|request| request.cookies.get().is_some()))
        {
            let _ = request.inner.cookies.set(cookies);
        } else if state.early.len() < EARLY_MAX {
            state.early.insert(event.request_id, cookies);
        }
    }

    pub(crate) fn received_extra(&self, event: &ReceivedExtra) {
        let lines = event.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        // Chromium joins several by newlines.
        let lines: Vec<String> = lines.flat_map(|(_, lines)| lines.split('\n').map(str::to_owned)).collect();
        let mut state = self.state.lock();
        let ended = || state.ended.iter().rev().find(|request| request.inner.id == event.request_id);
        let Some(last) = state.under_way.get(&event.request_id).or_else(ended) else {
            // Of requests that are never told, none are kept for long.
            if state.early_lines.len() == EARLY_MAX {
                state.early_lines.clear();
            }
            state.early_lines.entry(event.request_id.clone()).or_insert(lines);
            return;
        };
        let request = match event.is_redirect() {
            true => last.first_without(|request| request.set_cookies.get().is_some()).unwrap_or(last),
            false => last,
        };
        let _ = request.inner.set_cookies.set(lines);
        request.inner.cookies_told.notify_waiters();
    }

    pub(crate) fn received(&self, mut event: Received) -> Option<Response> {
        event.response.has_extra_info = event.has_extra_info;
        let request = self.state.lock().under_way.get(&event.request_id).cloned()?;
        receive(&request, event.response, event.timestamp);
        request.response()
    }

    /// A redirect as its headers say it; those of documents are kept.
    pub(crate) fn redirected(&self, event: ReceivedExtra) {
        let mut state = self.state.lock();
        // It may come after the end of its request.
        let is_document = state.documents.iter().any(|(loader, _)| **loader == *event.request_id);
        if !is_document {
            return;
        }
        let location = event.headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
        let Some((_, location)) = location else { return };
        if state.redirects.len() == DOCUMENTS_KEPT {
            state.redirects.pop_front();
        }
        state.redirects.push_back((event.request_id, location));
    }

    /// Where the last response of a request redirects to, as its header says.
    pub(crate) fn redirect_of(&self, request_id: &str) -> Option<String> {
        let state = self.state.lock();
        let found = state.redirects.iter().rev().find(|(id, _)| id == request_id);
        found.map(|(_, location)| location.clone())
    }

    pub(crate) fn finished(&self, event: &Finished) -> Option<Request> {
        let request = self.state.lock().end(&event.request_id)?;
        finish(&request, None, event.encoded_data_length, event.timestamp);
        Some(request)
    }

    pub(crate) fn failed(&self, event: &Failed) -> Option<Request> {
        let request = self.state.lock().end(&event.request_id)?;
        finish(&request, Some(event.error_text.clone()), 0.0, event.timestamp);
        Some(request)
    }

    /// The request of this id, once its event has come. Waits without a bound.
    pub(crate) async fn get_sent(&self, id: &str) -> Request {
        loop {
            let sent = self.sent.notified();
            if let Some(request) = self.get(id) {
                return request;
            }
            sent.await;
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Request> {
        self.state.lock().under_way.get(id).cloned()
    }

    /// Requests that have neither succeeded nor failed.
    pub(crate) fn under_way(&self) -> Vec<Request> {
        self.state.lock().under_way.values().cloned().collect()
    }

    /// The response that made a document.
    pub(crate) fn response_of(&self, loader: &LoaderId) -> Option<Response> {
        let state = self.state.lock();
        let (_, request) = state.documents.iter().find(|(of, _)| of == loader)?;
        request.response()
    }

    /// A session is gone: nothing more is heard of its requests.
    pub(crate) fn session_ended(&self, session: &Arc<Session>) {
        self.state.lock().under_way.retain(|_, request| {
            let ended = Arc::ptr_eq(&request.inner.session, session);
            if ended {
                finish(request, Some("the page is gone".to_owned()), 0.0, request.inner.started);
            }
            !ended
        });
    }
}

impl State {
    fn end(&mut self, id: &str) -> Option<Request> {
        let request = self.under_way.remove(id)?;
        if self.ended.len() == ENDED_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(request.clone());
        Some(request)
    }

    fn trim(&mut self) {
        while self.under_way.len() > UNDER_WAY_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.under_way.remove(&oldest);
        }
        if self.order.len() > 2 * UNDER_WAY_MAX {
            let under_way = &self.under_way;
            self.order.retain(|id| under_way.contains_key(id));
        }
    }
}

fn receive(request: &Request, mut head: ResponseHead, timestamp: f64) {
    head.headers = lower_case(head.headers);
    head.wait = (timestamp - request.inner.started).max(0.0);
    let _ = request.inner.response.set(head);
}

fn finish(request: &Request, failure: Option<String>, encoded_bytes: f64, timestamp: f64) {
    let duration = Duration::try_from_secs_f64(timestamp - request.inner.started).unwrap_or_default();
    // Chromium counts in floating point; a body of 2^53 bytes does not occur.
    let encoded_bytes = encoded_bytes.max(0.0) as u64;
    request.inner.end.send_replace(Some(RequestEnd { failure, encoded_bytes, duration }));
}

fn lower_case(headers: BTreeMap<String, String>) -> BTreeMap<String, String> {
    headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect()
}
