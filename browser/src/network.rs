//! Requests of a page and their responses.

mod proxy_status;
mod tracker;

pub(crate) use tracker::{Failed, Finished, Network, Received, ReceivedExtra, WillBeSent, WillBeSentExtra};

use crate::connection::Session;
use crate::deadline::{Deadline, TIMEOUT_DEFAULT};
use crate::error::{BrowserError, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::network::{GetRequestPostDataParams, GetResponseBodyParams};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// One request of a page. A redirect makes another request, which knows the one before.
#[derive(Clone)]
pub struct Request {
    inner: Arc<RequestInner>,
}

struct RequestInner {
    id: String,
    url: String,
    method: String,
    headers: BTreeMap<String, String>,
    post_data: Option<String>,
    has_post_data: bool,
    kind: String,
    frame_id: Option<Arc<str>>,
    is_navigation: bool,
    redirected_from: Option<Request>,
    started: f64,
    wall_time: f64,
    session: Arc<Session>,
    /// What was sent in `Cookie`.
    cookies: OnceLock<Vec<(String, String)>>,
    /// The values of `Set-Cookie`.
    set_cookies: OnceLock<Vec<String>>,
    /// Wakes those who wait for `set_cookies`.
    cookies_told: Notify,
    response: OnceLock<ResponseHead>,
    /// How it ended.
    end: watch::Sender<Option<RequestEnd>>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestEnd {
    /// Chromium's reason, such as `net::ERR_FAILED`; `None`: it succeeded.
    pub failure: Option<String>,
    /// Bytes received, as they were encoded on the wire.
    pub encoded_bytes: u64,
    /// Time from the start of the request to this end.
    pub duration: Duration,
}

/// `Network.Response`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResponseHead {
    pub(crate) url: String,
    pub(crate) status: i64,
    #[serde(default)]
    pub(crate) status_text: String,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) mime_type: String,
    #[serde(default)]
    pub(crate) from_disk_cache: bool,
    #[serde(default)]
    pub(crate) from_service_worker: bool,
    #[serde(default)]
    pub(crate) protocol: Option<String>,
    #[serde(default, rename = "remoteIPAddress")]
    pub(crate) remote_ip: Option<String>,
    /// Whether its headers are told as they came, cookies with them, in an event of their own; set where it arrives.
    #[serde(skip)]
    pub(crate) has_extra_info: bool,
    /// Seconds from the start of the request to this head; set where it arrives.
    #[serde(skip)]
    pub(crate) wait: f64,
}

impl Request {
    /// Where to, with the fragment left out.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// `GET`, `POST`, ...
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// Headers that the page set, by name in lower case. Cookies are not among them.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.inner.headers
    }

    /// Names and values of the cookies that were sent with it, as far as Chromium has told: it does so a moment after the
    /// request's event.
    pub fn cookies(&self) -> &[(String, String)] {
        self.inner.cookies.get().map_or(&[], Vec::as_slice)
    }

    /// Such as `document`, `script`, `image`, `fetch`, `xhr`.
    pub fn resource_type(&self) -> &str {
        &self.inner.kind
    }

    /// Whether it loads the document of a frame.
    pub fn is_navigation(&self) -> bool {
        self.inner.is_navigation
    }

    /// The id of the frame that sent it; workers have none.
    pub fn frame_id(&self) -> Option<&str> {
        self.inner.frame_id.as_deref()
    }

    /// The request whose response sent the page here.
    pub fn redirected_from(&self) -> Option<&Request> {
        self.inner.redirected_from.as_ref()
    }

    /// The body that is sent, `None` where there is none.
    pub async fn post_data(&self) -> Result<Option<String>> {
        if self.inner.post_data.is_some() || !self.inner.has_post_data {
            return Ok(self.inner.post_data.clone());
        }
        let command = GetRequestPostDataParams::new(self.inner.id.clone());
        let answer = self.inner.session.call(command, Deadline::after(TIMEOUT_DEFAULT)).await?;
        Ok(Some(answer.post_data))
    }

    /// Whether it is this request, not only one to the same address.
    pub(crate) fn is_same(&self, other: &Request) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The body where it came with the event: text of moderate size.
    pub(crate) fn inline_post_data(&self) -> Option<&str> {
        self.inner.post_data.as_deref()
    }

    /// The head of its response, where it is here.
    pub fn response(&self) -> Option<Response> {
        self.inner.response.get().map(|_| Response { request: self.clone() })
    }

    /// How it ended; `None` while it is under way.
    pub fn end(&self) -> Option<RequestEnd> {
        self.inner.end.borrow().clone()
    }

    /// Waits until it has succeeded or failed.
    pub async fn finished(&self, timeout: Duration) -> Result<RequestEnd> {
        let deadline = Deadline::after(timeout);
        let waiting_for = || format!("the end of the request to {}", self.inner.url);
        deadline
            .bound(waiting_for, async {
                let mut end = self.inner.end.subscribe();
                let end = end.wait_for(Option::is_some).await.map_err(|_| BrowserError::closed("page"))?;
                end.clone().ok_or_else(|| BrowserError::closed("page"))
            })
            .await
    }

    /// Whether the cookies of its response are told apart from it.
    pub(crate) fn tells_cookies(&self) -> bool {
        self.inner.response.get().is_some_and(|head| head.has_extra_info)
    }

    /// This one where it has none of what is looked at, or the first of those that were redirected to it: what belongs to them is told in
    /// their order, under the same id.
    fn first_without(&self, has: impl Fn(&RequestInner) -> bool) -> Option<&Request> {
        let chain = std::iter::successors(Some(self), |request| request.inner.redirected_from.as_ref());
        chain.filter(|request| !has(&request.inner)).last()
    }

    /// The values of `Set-Cookie` in its response, once Chromium has told them; none where it does not within `bound`.
    pub(crate) async fn set_cookies_within(&self, bound: Duration) -> Vec<String> {
        let told = async {
            loop {
                let told = self.inner.cookies_told.notified();
                if let Some(lines) = self.inner.set_cookies.get() {
                    return lines.clone();
                }
                told.await;
            }
        };
        tokio::time::timeout(bound, told).await.unwrap_or_default()
    }

    /// When it was sent: seconds since 1970-01-01, by the browser's clock.
    pub fn wall_time(&self) -> f64 {
        self.inner.wall_time
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} {})", self.inner.method, self.inner.url)
    }
}

/// The response to a request.
#[derive(Clone)]
pub struct Response {
    request: Request,
}

impl Response {
    fn head(&self) -> &ResponseHead {
        self.request.inner.response.get().expect("a response is made where its head is set")
    }

    /// What it answers.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Where it came from.
    pub fn url(&self) -> &str {
        &self.head().url
    }

    /// Such as 200.
    pub fn status(&self) -> i64 {
        self.head().status
    }

    /// Such as `OK`; empty with HTTP/2.
    pub fn status_text(&self) -> &str {
        &self.head().status_text
    }

    /// Whether the status is 200 to 299.
    pub fn ok(&self) -> bool {
        (200..300).contains(&self.status())
    }

    /// Headers by name in lower case; several of one name are joined with newlines.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.head().headers
    }

    /// Why a proxy answered in place of the server, where it says so by `Proxy-Status` (RFC 9209): its `details`, or else its `error`.
    pub fn proxy_error(&self) -> Option<String> {
        self.headers().get("proxy-status").and_then(|value| proxy_status::error(value))
    }

    /// The values of its `Set-Cookie` headers, which are not among [`headers`](Self::headers), as far as Chromium has told
    /// by now.
    pub fn set_cookies(&self) -> &[String] {
        self.request.inner.set_cookies.get().map_or(&[], Vec::as_slice)
    }

    /// Its media type.
    pub fn mime_type(&self) -> &str {
        &self.head().mime_type
    }

    /// Whether it came from the disk cache.
    pub fn from_cache(&self) -> bool {
        self.head().from_disk_cache
    }

    /// Whether a service worker made it.
    pub fn from_service_worker(&self) -> bool {
        self.head().from_service_worker
    }

    /// Such as `http/1.1` or `h2`.
    pub fn protocol(&self) -> Option<&str> {
        self.head().protocol.as_deref()
    }

    /// The address of the server.
    pub fn remote_ip(&self) -> Option<&str> {
        self.head().remote_ip.as_deref()
    }

    /// Time from the start of the request to the head of the response.
    pub fn wait(&self) -> Duration {
        Duration::try_from_secs_f64(self.head().wait).unwrap_or_default()
    }

    /// The body, decoded. Waits for its end, at most 30 s. Chromium keeps bodies until the page navigates; later this
    /// is an error.
    pub async fn body(&self) -> Result<Bytes> {
        self.body_within(TIMEOUT_DEFAULT).await
    }

    /// Like [`body`](Self::body), with a bound of the caller's.
    pub async fn body_within(&self, timeout: Duration) -> Result<Bytes> {
        let deadline = Deadline::after(timeout);
        let end = self.request.finished(timeout).await?;
        if let Some(reason) = end.failure {
            return Err(BrowserError::Navigation { url: self.url().to_owned(), reason });
        }
        let command = GetResponseBodyParams::new(self.request.inner.id.clone());
        let answer = self.request.inner.session.call(command, deadline).await?;
        if !answer.base64_encoded {
            return Ok(Bytes::from(answer.body));
        }
        let bytes = STANDARD.decode(answer.body);
        bytes
            .map(Bytes::from)
            .map_err(|error| BrowserError::invalid(format!("body of {}: {error}", self.url())))
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    pub async fn text(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.body().await?).into_owned())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({} {})", self.status(), self.url())
    }
}
