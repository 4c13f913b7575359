//! Requests that are answered, changed or refused before they reach the network.

use crate::connection::Session;
use crate::contain::contain;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::network::{Network, Request};
use crate::protocol::{Done, Raw, event};
use crate::url_match::UrlMatch;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::fetch::{
    ContinueRequestParams, DisableParams, EnableParams, FailRequestParams, FulfillRequestParams,
    GetResponseBodyParams, HeaderEntry, RequestPattern,
};
use chromiumoxide::cdp::browser_protocol::network::ErrorReason;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a handler may take before its request goes on as it is.
pub const ROUTE_HANDLER_BOUND: Duration = Duration::from_secs(30);
/// Requests of one page that handlers decide on at once; more go on as they are.
const UNDECIDED_MAX: usize = 1000;
/// How long after a response Chromium may take to tell its cookies.
const COOKIES_BOUND: Duration = Duration::from_secs(2);
/// How long after a request is paused its process may take to tell of it.
const SENT_BOUND: Duration = Duration::from_secs(2);

/// Decides on a request: [`Route::fulfill`], [`Route::abort`], [`Route::continue_with`] or [`Route::fallback`].
pub type RouteHandler = Arc<dyn Fn(Route) -> BoxFuture<'static, ()> + Send + Sync>;

/// Names a route, to take it away again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId(u64);

/// The routes of a page or a context. The one added last is asked first.
#[derive(Default)]
pub(crate) struct Routes {
    entries: Mutex<Vec<Entry>>,
    next_id: AtomicU64,
    undecided: Arc<AtomicUsize>,
    fetching: Arc<Fetching>,
}

/// Requests whose responses handlers wait for, by the id of the request without its stage.
type Fetching = Mutex<HashMap<String, oneshot::Sender<Paused>>>;

#[derive(Clone)]
struct Entry {
    id: RouteId,
    urls: UrlMatch,
    handler: RouteHandler,
}

impl Routes {
    pub(crate) fn add(&self, urls: UrlMatch, handler: RouteHandler) -> RouteId {
        let id = RouteId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.entries.lock().push(Entry { id, urls, handler });
        id
    }

    /// False: there is no such route.
    pub(crate) fn remove(&self, id: RouteId) -> bool {
        let mut entries = self.entries.lock();
        let before = entries.len();
        entries.retain(|entry| entry.id != id);
        entries.len() < before
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    fn matching(&self, url: &str) -> Vec<RouteHandler> {
        let entries = self.entries.lock();
        let matching = entries.iter().rev().filter(|entry| entry.urls.matches(url));
        matching.map(|entry| Arc::clone(&entry.handler)).collect()
    }
}

/// What makes Chromium ask; `None` where no route is set, nor credentials.
pub(crate) fn enable(routes: &[&Routes], auth: bool) -> Option<EnableParams> {
    if routes.iter().all(|routes| routes.is_empty()) && !auth {
        return None;
    }
    let all = RequestPattern { url_pattern: Some("*".to_owned()), ..RequestPattern::default() };
    Some(EnableParams { patterns: Some(vec![all]), handle_auth_requests: auth.then_some(true) })
}

/// Tells the sessions whether to ask.
pub(crate) async fn apply(
    sessions: &[Arc<Session>],
    routes: &[&Routes],
    auth: bool,
    deadline: Deadline,
) -> Result<()> {
    let enable = enable(routes, auth);
    let mut calls = Vec::new();
    for session in sessions {
        calls.push(match &enable {
            Some(command) => session.begin_as::<Done>(command.clone())?,
            None => session.begin_as::<Done>(DisableParams::default())?,
        });
    }
    for call in calls {
        match call.within(deadline).await {
            // Requests of dedicated workers are paused in their page.
            Err(BrowserError::Detached | BrowserError::Protocol { code: -32601, .. }) | Ok(_) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `Fetch.requestPaused`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Paused {
    request_id: String,
    request: PausedRequest,
    #[serde(default)]
    resource_type: String,
    frame_id: Option<Arc<str>>,
    network_id: Option<String>,
    // Of a request whose response waits for a decision.
    response_error_reason: Option<String>,
    response_status_code: Option<u16>,
    #[serde(default)]
    response_headers: Vec<NameValue>,
}

#[derive(Deserialize)]
struct NameValue {
    name: String,
    value: String,
}

/// The answer to `Fetch.getResponseBody`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponseBody {
    body: String,
    base64_encoded: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PausedRequest {
    url: String,
    method: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    post_data: Option<String>,
    #[serde(default)]
    post_data_entries: Vec<PostDataEntry>,
}

#[derive(Deserialize)]
struct PostDataEntry {
    bytes: Option<String>,
}

impl Paused {
    /// The same for a request and its response.
    fn key(&self) -> &str {
        self.request_id.rsplit_once('.').map_or(&*self.request_id, |(key, _)| key)
    }
}

/// A request waits for a decision. The first routes are asked first, and count those that wait.
pub(crate) fn paused(
    routes: &[&Routes],
    network: &Arc<Network>,
    session: &Arc<Session>,
    method: &str,
    params: &RawValue,
) {
    let Some(paused) = event::<Paused>(method, params) else { return };
    if paused.response_status_code.is_some() || paused.response_error_reason.is_some() {
        let waiting = routes.iter().find_map(|routes| routes.fetching.lock().remove(paused.key()));
        let id = paused.request_id.clone();
        // The handler may have given up.
        if waiting.is_none_or(|waiting| waiting.send(paused).is_err()) {
            session.post(ContinueRequestParams::new(id));
        }
        return;
    }
    let matching = routes.iter().flat_map(|routes| routes.matching(&paused.request.url));
    let handlers: Vec<RouteHandler> = matching.collect();
    let Some(undecided) = routes.first().map(|routes| Arc::clone(&routes.undecided)) else { return };
    if handlers.is_empty() || undecided.load(Ordering::Relaxed) >= UNDECIDED_MAX {
        session.post(ContinueRequestParams::new(paused.request_id));
        return;
    }
    let route = Route {
        inner: Arc::new(RouteInner {
            session: Arc::clone(session),
            paused,
            network: Arc::clone(network),
            request: OnceLock::new(),
            decided: AtomicBool::new(false),
            fetching: Arc::clone(&routes[0].fetching),
            response: Mutex::default(),
        }),
    };
    undecided.fetch_add(1, Ordering::Relaxed);
    // Owner: the request. Ends within the bound of each handler; the request is then decided on.
    tokio::spawn(async move {
        for handler in handlers {
            contain(ROUTE_HANDLER_BOUND, handler(route.clone())).await;
            if route.is_decided() {
                break;
            }
        }
        // Fails where a handler has decided.
        let _ = route.continue_with(ContinueOptions::default());
        undecided.fetch_sub(1, Ordering::Relaxed);
    });
}

/// A request that waits for a decision. A handler that returns without one leaves it to the route added before, and in
/// the end it goes on as it is.
#[derive(Clone)]
pub struct Route {
    inner: Arc<RouteInner>,
}

struct RouteInner {
    session: Arc<Session>,
    paused: Paused,
    network: Arc<Network>,
    /// As the page's events have it: other processes tell of it than those that pause it, so sometimes later.
    request: OnceLock<Request>,
    decided: AtomicBool,
    fetching: Arc<Fetching>,
    /// The id under which its response waits.
    response: Mutex<Option<String>>,
}

/// A response that a handler has fetched: see [`Route::fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Such as 200.
    pub status: u16,
    /// In their order, with repeated names.
    pub headers: Vec<(String, String)>,
    /// Decoded.
    pub body: Bytes,
}

/// A made-up response.
#[derive(Clone, Debug)]
pub struct Fulfill {
    /// Default: 200.
    pub status: u16,
    /// By name.
    pub headers: BTreeMap<String, String>,
    /// `Content-Type`, where `headers` has none.
    pub content_type: Option<String>,
    /// Default: empty.
    pub body: Bytes,
}

impl Default for Fulfill {
    fn default() -> Self {
        Fulfill { status: 200, headers: BTreeMap::new(), content_type: None, body: Bytes::new() }
    }
}

/// What is changed in a request before it goes on. `None` leaves a part as it is.
#[derive(Clone, Debug, Default)]
pub struct ContinueOptions {
    /// Where to; the page does not see the change.
    pub url: Option<String>,
    /// `GET`, `POST`, ...
    pub method: Option<String>,
    /// All headers, in place of those it has.
    pub headers: Option<BTreeMap<String, String>>,
    /// The body.
    pub post_data: Option<Bytes>,
}

/// Why a request is refused, as the page sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AbortReason {
    /// `net::ERR_FAILED`.
    #[default]
    Failed,
    /// `net::ERR_ABORTED`.
    Aborted,
    /// `net::ERR_TIMED_OUT`.
    TimedOut,
    /// `net::ERR_ACCESS_DENIED`.
    AccessDenied,
    /// `net::ERR_BLOCKED_BY_CLIENT`.
    Blocked,
    /// `net::ERR_CONNECTION_REFUSED`.
    ConnectionRefused,
    /// `net::ERR_CONNECTION_RESET`.
    ConnectionReset,
    /// `net::ERR_NAME_NOT_RESOLVED`.
    NameNotResolved,
    /// `net::ERR_INTERNET_DISCONNECTED`.
    Offline,
}

impl Route {
    /// Where to.
    pub fn url(&self) -> &str {
        &self.inner.paused.request.url
    }

    /// `GET`, `POST`, ...
    pub fn method(&self) -> &str {
        &self.inner.paused.request.method
    }

    /// Headers by name.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.inner.paused.request.headers
    }

    /// The body, where it is text of moderate size.
    pub fn post_data(&self) -> Option<&str> {
        self.inner.paused.request.post_data.as_deref()
    }

    /// The body as bytes, where it came with the request.
    pub(crate) fn post_bytes(&self) -> Vec<u8> {
        let request = &self.inner.paused.request;
        let entries = request.post_data_entries.iter().filter_map(|entry| entry.bytes.as_ref());
        let bytes: Vec<u8> = entries.filter_map(|bytes| STANDARD.decode(bytes).ok()).flatten().collect();
        match (bytes.is_empty(), &request.post_data) {
            (true, Some(text)) => text.clone().into_bytes(),
            _ => bytes,
        }
    }

    /// Such as `document`, `script`, `image`, `fetch`, `xhr`.
    pub fn resource_type(&self) -> String {
        self.inner.paused.resource_type.to_ascii_lowercase()
    }

    /// The id of the frame that sent it.
    pub fn frame_id(&self) -> Option<&str> {
        self.inner.paused.frame_id.as_deref()
    }

    /// The request as the page's events have it; `None` for those that they do not report.
    pub fn request(&self) -> Option<&Request> {
        let inner = &self.inner;
        if inner.request.get().is_none()
            && let Some(request) = inner.paused.network_id.as_deref().and_then(|id| inner.network.get(id))
        {
            let _ = inner.request.set(request);
        }
        inner.request.get()
    }

    /// The same, once the process that sent it has told what it had to tell until now.
    pub(crate) async fn sent_request(&self) -> Option<&Request> {
        let id = self.inner.paused.network_id.as_deref()?;
        if self.request().is_none() {
            let asked = Raw::new("Runtime.getIsolateId", json!({}));
            let answered = self.inner.session.call_as::<Done>(asked, Deadline::after(SENT_BOUND));
            tokio::select! {
                _ = self.inner.network.get_sent(id) => {}
                // What it answers comes after all that it told before.
                _ = answered => {}
            }
        }
        self.request()
    }

    /// Answers the request.
    pub fn fulfill(&self, response: Fulfill) -> Result<()> {
        let has_type = response.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
        let mut headers = entries(response.headers);
        if let (false, Some(content_type)) = (has_type, response.content_type) {
            headers.push(HeaderEntry::new("content-type", content_type));
        }
        self.answer(response.status, headers, &response.body)
    }

    /// Answers the request with a response that was fetched, now or before.
    pub fn fulfill_fetched(&self, response: &Fetched) -> Result<()> {
        // The body is decoded, and may be shorter or longer than it was on the wire.
        const OF_THE_WIRE: [&str; 3] = ["content-encoding", "content-length", "transfer-encoding"];
        let kept = |name: &str| !OF_THE_WIRE.iter().any(|other| name.eq_ignore_ascii_case(other));
        let headers = response.headers.iter().filter(|(name, _)| kept(name));
        let headers = headers.map(|(name, value)| HeaderEntry::new(name, value)).collect();
        self.answer(response.status, headers, &response.body)
    }

    fn answer(&self, status: u16, mut headers: Vec<HeaderEntry>, body: &[u8]) -> Result<()> {
        headers.push(HeaderEntry::new("content-length", body.len().to_string()));
        self.decide()?;
        let mut command = FulfillRequestParams::new(self.stage(), i64::from(status));
        command.response_headers = Some(headers);
        command.body = Some(STANDARD.encode(body).into());
        self.inner.session.post(command);
        Ok(())
    }

    /// Sends the request as it is and reads the response; the page waits for the decision as before. The error of a
    /// request that fails is [`BrowserError::Navigation`].
    pub async fn fetch(&self, timeout: Duration) -> Result<Fetched> {
        let deadline = Deadline::after(timeout);
        let inner = &self.inner;
        if self.is_decided() || inner.response.lock().is_some() {
            return Err(BrowserError::invalid(format!("route of {}: it is fetched or decided", self.url())));
        }
        let (sender, receiver) = oneshot::channel();
        let key = inner.paused.key().to_owned();
        inner.fetching.lock().insert(key.clone(), sender);
        let mut command = ContinueRequestParams::new(inner.paused.request_id.clone());
        command.intercept_response = Some(true);
        inner.session.post(command);
        let waiting_for = || format!("the response of {}", self.url());
        let response = async { receiver.await.map_err(|_| BrowserError::closed("page")) };
        let response = deadline.bound(waiting_for, response).await;
        inner.fetching.lock().remove(&key);
        let response = response?;
        *inner.response.lock() = Some(response.request_id.clone());
        if let Some(reason) = response.response_error_reason {
            return Err(BrowserError::Navigation { url: self.url().to_owned(), reason });
        }
        let status = response.response_status_code.unwrap_or(200);
        let headers = response.response_headers.into_iter().map(|header| (header.name, header.value));
        let mut headers: Vec<(String, String)> = headers.collect();
        // Chromium tells cookies apart from the other headers.
        if let Some(request) = self.sent_request().await {
            let lines = request.set_cookies_within(COOKIES_BOUND).await;
            headers.extend(lines.into_iter().map(|line| ("set-cookie".to_owned(), line)));
        }
        // Redirects have no body that could be read.
        if matches!(status, 301 | 302 | 303 | 307 | 308) {
            return Ok(Fetched { status, headers, body: Bytes::new() });
        }
        let command = GetResponseBodyParams::new(response.request_id);
        let body: ResponseBody = inner.session.call_as(command, deadline).await?;
        let body = match body.base64_encoded {
            false => Bytes::from(body.body),
            true => STANDARD
                .decode(&body.body)
                .map(Bytes::from)
                .map_err(|error| BrowserError::invalid(format!("body of {}: {error}", self.url())))?,
        };
        Ok(Fetched { status, headers, body })
    }

    /// The id under which the request, or its response, waits.
    fn stage(&self) -> String {
        self.inner.response.lock().clone().unwrap_or_else(|| self.inner.paused.request_id.clone())
    }

    /// Refuses the request.
    pub fn abort(&self, reason: AbortReason) -> Result<()> {
        self.decide()?;
        let reason = match reason {
            AbortReason::Failed => ErrorReason::Failed,
            AbortReason::Aborted => ErrorReason::Aborted,
            AbortReason::TimedOut => ErrorReason::TimedOut,
            AbortReason::AccessDenied => ErrorReason::AccessDenied,
            AbortReason::Blocked => ErrorReason::BlockedByClient,
            AbortReason::ConnectionRefused => ErrorReason::ConnectionRefused,
            AbortReason::ConnectionReset => ErrorReason::ConnectionReset,
            AbortReason::NameNotResolved => ErrorReason::NameNotResolved,
            AbortReason::Offline => ErrorReason::InternetDisconnected,
        };
        self.inner.session.post(FailRequestParams::new(self.stage(), reason));
        Ok(())
    }

    /// Lets the request go on, changed or not.
    pub fn continue_with(&self, changes: ContinueOptions) -> Result<()> {
        self.decide()?;
        let mut command = ContinueRequestParams::new(self.stage());
        command.url = changes.url;
        command.method = changes.method;
        command.headers = changes.headers.map(entries);
        command.post_data = changes.post_data.map(|body| STANDARD.encode(body).into());
        self.inner.session.post(command);
        Ok(())
    }

    /// Leaves the decision to the route that was added before this one: what returning without a decision does, too.
    pub fn fallback(&self) {}

    fn is_decided(&self) -> bool {
        self.inner.decided.load(Ordering::Acquire)
    }

    fn decide(&self) -> Result<()> {
        if self.inner.decided.swap(true, Ordering::AcqRel) {
            return Err(BrowserError::invalid(format!("route of {}: it is already decided", self.url())));
        }
        Ok(())
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({} {})", self.method(), self.url())
    }
}

fn entries(headers: BTreeMap<String, String>) -> Vec<HeaderEntry> {
    headers.into_iter().map(|(name, value)| HeaderEntry::new(name, value)).collect()
}
