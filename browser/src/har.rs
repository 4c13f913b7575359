//! Recording of a context's traffic as HAR 1.2.

use crate::context::BrowserContext;
use crate::error::{BrowserError, Result};
use crate::event::PageEvent;
use crate::network::{Request, Response};
use crate::page::Page;
use crate::queue::EventStream;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long the body of one response may take.
const BODY_BOUND: Duration = Duration::from_secs(5);
/// For the cookies of one response, which may come after its end.
const COOKIES_BOUND: Duration = Duration::from_secs(1);

/// What is recorded.
#[derive(Clone, Copy, Debug)]
pub struct HarOptions {
    /// Whether bodies of responses are kept. Default: false.
    pub bodies: bool,
    /// Longer bodies are left out. Default: 1 MiB.
    pub body_bytes_max: usize,
    /// Later requests are counted only. Default: 10,000.
    pub entries_max: usize,
}

impl Default for HarOptions {
    fn default() -> Self {
        HarOptions { bodies: false, body_bytes_max: 1 << 20, entries_max: 10_000 }
    }
}

/// Records the traffic of all pages of a context from its start to [`finish`](HarRecorder::finish).
pub struct HarRecorder {
    log: Arc<Mutex<Log>>,
    stop: watch::Sender<bool>,
    pages: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    entries: Vec<Value>,
    pages: Vec<Value>,
    /// Requests beyond the bound, and events that came too quickly.
    dropped: u64,
}

impl HarRecorder {
    /// Begins to record.
    pub fn start(context: &BrowserContext, options: HarOptions) -> HarRecorder {
        let log = Arc::new(Mutex::new(Log::default()));
        let stop = watch::Sender::new(false);
        let recording = Recording { log: Arc::clone(&log), stop: stop.subscribe(), options };
        let new_pages = context.new_pages();
        let open: Vec<(Page, EventStream<PageEvent>)> =
            context.pages().into_iter().map(|page| (page.clone(), page.events())).collect();
        // Owner: the recorder, which awaits it in `finish` and aborts it when dropped.
        let pages = tokio::spawn(follow_pages(recording, open, new_pages));
        HarRecorder { log, stop, pages }
    }

    /// Ends the recording once what has come is written, and returns the archive: `{"log": {...}}`.
    pub async fn finish(mut self, timeout: Duration) -> Result<Value> {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(timeout, &mut self.pages).await;
        ended
            .map_err(|_| BrowserError::Timeout {
                waiting_for: "the recorded responses to be read".to_owned(),
                after: timeout,
            })?
            .map_err(|_| BrowserError::closed("context"))?;
        let mut log = std::mem::take(&mut *self.log.lock());
        log.entries
            .sort_by(|left, right| left["startedDateTime"].as_str().cmp(&right["startedDateTime"].as_str()));
        Ok(json!({ "log": {
            "version": "1.2",
            "creator": { "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") },
            "pages": log.pages, "entries": log.entries, "_dropped": log.dropped,
        } }))
    }
}

impl Drop for HarRecorder {
    fn drop(&mut self) {
        self.pages.abort();
    }
}

#[derive(Clone)]
struct Recording {
    log: Arc<Mutex<Log>>,
    stop: watch::Receiver<bool>,
    options: HarOptions,
}

async fn follow_pages(
    recording: Recording,
    open: Vec<(Page, EventStream<PageEvent>)>,
    mut new_pages: EventStream<Page>,
) {
    let mut stop = recording.stop.clone();
    let mut followed = JoinSet::new();
    for (page, events) in open {
        followed.spawn(recording.clone().follow(page, events));
    }
    loop {
        tokio::select! {
            page = new_pages.next() => match page {
                Some(page) => {
                    let events = page.events();
                    followed.spawn(recording.clone().follow(page, events));
                }
                None => break,
            },
            // An error: the recorder is dropped.
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    while followed.join_next().await.is_some() {}
}

impl Recording {
    /// Writes down what ends on a page, until told to stop; what has come by then is still written.
    async fn follow(self, page: Page, mut events: EventStream<PageEvent>) {
        let id = page.id().to_owned();
        self.log.lock().pages.push(json!({ "id": id, "title": page.url(), "pageTimings": {} }));
        let mut stop = self.stop.clone();
        loop {
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                _ = stop.wait_for(|stop| *stop) => None,
            };
            match event {
                Some(PageEvent::RequestFinished(request) | PageEvent::RequestFailed(request)) => {
                    self.write(&id, &request).await;
                }
                Some(_) => {}
                None => break,
            }
        }
        self.log.lock().dropped += events.dropped();
    }

    async fn write(&self, page: &str, request: &Request) {
        if self.log.lock().entries.len() >= self.options.entries_max {
            self.log.lock().dropped += 1;
            return;
        }
        let body = match request.response() {
            Some(response)
                if self.options.bodies && request.end().is_some_and(|end| end.failure.is_none()) =>
            {
                response.body_within(BODY_BOUND).await.ok()
            }
            _ => None,
        };
        if request.tells_cookies() {
            request.set_cookies_within(COOKIES_BOUND).await;
        }
        let entry =
            entry(page, request, body.filter(|body| body.len() <= self.options.body_bytes_max).as_deref());
        self.log.lock().entries.push(entry);
    }
}

fn entry(page: &str, request: &Request, body: Option<&[u8]>) -> Value {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let end = request.end();
    let total = end.as_ref().map_or(Duration::ZERO, |end| end.duration);
    let response = request.response();
    let wait = response.as_ref().map_or(Duration::ZERO, Response::wait).min(total);
    let version = response.as_ref().and_then(Response::protocol).unwrap_or("").to_owned();
    let mut entry = json!({
        "pageref": page,
        "startedDateTime": date_time(request.wall_time()),
        "time": ms(total),
        "request": {
            "method": request.method(), "url": request.url(), "httpVersion": version,
            "cookies": sent_cookies(request),
            "headers": headers(request.headers()), "queryString": query(request.url()),
            "headersSize": -1, "bodySize": -1,
        },
        "response": response_json(request, response.as_ref(), body),
        "cache": {},
        "timings": { "send": 0, "wait": ms(wait), "receive": ms(total.saturating_sub(wait)) },
    });
    if let Some(post) = request.inline_post_data() {
        let kind = request.headers().get("content-type").cloned().unwrap_or_default();
        entry["request"]["postData"] = json!({ "mimeType": kind, "text": post });
    }
    if let Some(ip) = response.as_ref().and_then(Response::remote_ip) {
        entry["serverIPAddress"] = json!(ip);
    }
    if let Some(failure) = end.and_then(|end| end.failure) {
        entry["response"]["_error"] = json!(failure);
    }
    entry
}

fn response_json(request: &Request, response: Option<&Response>, body: Option<&[u8]>) -> Value {
    let encoded = request.end().map_or(0, |end| end.encoded_bytes);
    let Some(response) = response else {
        return json!({
            "status": -1, "statusText": "", "httpVersion": "", "cookies": [], "headers": [],
            "content": { "size": 0, "mimeType": "x-unknown" }, "redirectURL": "", "headersSize": -1, "bodySize": -1,
        });
    };
    let mut content = json!({
        "size": body.map_or(0, <[u8]>::len), "mimeType": response.mime_type(),
    });
    match body.map(|body| (std::str::from_utf8(body), body)) {
        Some((Ok(text), _)) => content["text"] = json!(text),
        Some((Err(_), bytes)) => {
            content["text"] = json!(STANDARD.encode(bytes));
            content["encoding"] = json!("base64");
        }
        None => {}
    }
    json!({
        "status": response.status(), "statusText": response.status_text(),
        "httpVersion": response.protocol().unwrap_or(""), "cookies": received_cookies(response),
        "headers": headers(response.headers()),
        "content": content, "redirectURL": response.headers().get("location").cloned().unwrap_or_default(),
        "headersSize": -1, "bodySize": encoded,
    })
}

/// Several headers of one name, which Chromium joins by newlines, are several headers.
fn headers(headers: &BTreeMap<String, String>) -> Vec<Value> {
    let lines = headers.iter().flat_map(|(name, value)| value.split('\n').map(move |value| (name, value)));
    lines.map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

fn sent_cookies(request: &Request) -> Vec<Value> {
    let cookies = request.cookies().iter();
    cookies.map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

fn received_cookies(response: &Response) -> Vec<Value> {
    response.set_cookies().iter().filter_map(|line| set_cookie(line)).collect()
}

/// A line of `Set-Cookie` as HAR has it.
pub(crate) fn set_cookie(line: &str) -> Option<Value> {
    let mut parts = line.split(';').map(str::trim);
    let (name, value) = parts.next()?.split_once('=')?;
    let mut cookie = json!({ "name": name, "value": value, "httpOnly": false, "secure": false });
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key.to_ascii_lowercase().as_str() {
            "path" => cookie["path"] = json!(value),
            "domain" => cookie["domain"] = json!(value),
            "expires" => cookie["expires"] = json!(value),
            "samesite" => cookie["sameSite"] = json!(value),
            "httponly" => cookie["httpOnly"] = json!(true),
            "secure" => cookie["secure"] = json!(true),
            _ => {}
        }
    }
    Some(cookie)
}

fn query(url: &str) -> Vec<Value> {
    let Some((_, query)) = url.split_once('?') else { return Vec::new() };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            json!({ "name": name, "value": value })
        })
        .collect()
}

/// Seconds since 1970-01-01 as ISO 8601 in UTC, with milliseconds.
fn date_time(seconds: f64) -> String {
    let ms = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_millis();
    let (days, rest) = ((ms / 86_400_000) as i64, ms % 86_400_000);
    // Days since 0000-03-01, in eras of 400 years.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", rest % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_out() {
        assert_eq!(date_time(0.0), "1970-01-01T00:00:00.000Z");
        assert_eq!(date_time(951_827_696.5), "2000-02-29T12:34:56.500Z");
        assert_eq!(date_time(4_102_444_799.999), "2099-12-31T23:59:59.999Z");
    }

    #[test]
    fn cookies_are_taken_apart() {
        let line = "a=b=c; Path=/x; HttpOnly; SameSite=Lax; Expires=Wed, 01 Jan 2031 00:00:00 GMT";
        let expected = json!({ "name": "a", "value": "b=c", "path": "/x", "httpOnly": true, "secure": false,
            "sameSite": "Lax", "expires": "Wed, 01 Jan 2031 00:00:00 GMT" });
        assert_eq!(set_cookie(line), Some(expected));
        assert_eq!(set_cookie("nothing"), None);
    }

    #[test]
    fn queries_and_headers_are_split() {
        assert_eq!(
            query("http://a/?b=c&d"),
            [json!({"name":"b","value":"c"}), json!({"name":"d","value":""})]
        );
        let two = BTreeMap::from([("set-cookie".to_owned(), "a=1\nb=2".to_owned())]);
        assert_eq!(headers(&two).len(), 2);
    }
}
