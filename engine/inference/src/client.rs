//! The HTTP client under every endpoint: one server, pooled connections, deadlines, retries, a bound on requests in flight.
//!
//! A call is one or more attempts. An attempt fails with a [`Fault`] (worth another attempt) or with an
//! [`EndpointError`] (never repeated); the body is checked inside the attempt, so a malformed answer is asked for
//! again. Nothing here knows a protocol.

mod retry;
mod retry_after;

use crate::config::{ConfigError, Deadlines, IN_FLIGHT_DEFAULT, ModelConfig};
use crate::embedded::{Embedded, SLOTS};
use crate::error::{EndpointError, Fault, Transport};
use bytes::{Bytes, BytesMut};
use espalier_core::cause::{Failed, with_causes};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use retry::{Attempt, Policy};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// Largest body that is read; 32 times an answer of 100,000 tokens with logprobs.
const BODY_BYTES_MAX: usize = 512 << 20;
/// Most memory that is taken for a body before its bytes have come.
const BODY_BYTES_AT_ONCE: usize = 1 << 20;
/// Bytes of an error body that are kept for the message.
const ERROR_BODY_BYTES: usize = 400;
/// Idle connections are closed before common servers close them (5 s), so that no request meets a closing one.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// The client of one model server.
pub struct Client {
    http: reqwest::Client,
    server: Server,
    key: Option<HeaderValue>,
    deadlines: Deadlines,
    policy: Policy,
    /// Owner of the bound on requests in flight; callers wait here in order of arrival.
    gate: Semaphore,
    /// As many again for requests that sample nothing, so that they neither wait for answers nor open a connection for
    /// each rollout.
    aside: Semaphore,
    /// Jitter only: never sampling.
    rng: Mutex<ChaCha8Rng>,
    counters: Counters,
}

enum Server {
    /// Somebody else's; without a trailing slash.
    Fixed(String),
    /// Our own child: asking for its address starts it again where it has died.
    Embedded(Arc<Embedded>),
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    faults: Mutex<BTreeMap<&'static str, u64>>,
}

/// Counters of one client, since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests sent.
    pub requests: u64,
    /// Requests sent again after a fault.
    pub retries: u64,
    /// Calls given up.
    pub failures: u64,
    /// Faults by code.
    pub faults: BTreeMap<&'static str, u64>,
}

/// A place among the requests in flight. Dropping it lets the next caller in.
#[must_use]
pub struct Permit<'a> {
    _permit: SemaphorePermit<'a>,
}

/// One request, the same for each attempt.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    /// From the server's root, with a leading slash.
    pub(crate) route: &'a str,
    /// JSON body; `None`: GET.
    pub(crate) body: Option<Bytes>,
    /// Sent as `x-session-id`, for routers that keep a session on one replica.
    pub(crate) session_id: Option<&'a str>,
    /// When the caller stops waiting.
    pub(crate) deadline: Option<Instant>,
}

/// A value with the number of requests it took beyond the first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered<T> {
    pub(crate) value: T,
    pub(crate) retries: u32,
}

/// Reads status, body and route of an answer that means misuse (4xx): `None` takes the general meaning of the status.
pub(crate) type ReadRefusal<'a> = &'a (dyn Fn(u16, &[u8], &str) -> Option<EndpointError> + Sync);

impl Client {
    /// A client for the server of `config`, or for `embedded`. `seed` seeds the jitter.
    pub fn new(
        config: &ModelConfig,
        embedded: Option<Arc<Embedded>>,
        seed: u64,
    ) -> Result<Client, ConfigError> {
        let in_flight = match (config.in_flight, &embedded) {
            (Some(named), _) => named,
            (None, Some(_)) => SLOTS,
            (None, None) => IN_FLIGHT_DEFAULT,
        };
        let mut builder = reqwest::Client::builder()
            .connect_timeout(config.deadlines.connect.0)
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(2 * in_flight as usize)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .http1_only();
        if config.url.as_deref().is_none_or(is_loopback) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|e| ConfigError {
            key: "url",
            problem: format!("cannot be used by the HTTP client: {e}"),
            hint: "check the system's certificates".to_owned(),
        })?;
        let server = match embedded {
            Some(embedded) => Server::Embedded(embedded),
            None => {
                let url = config.url.as_deref().unwrap_or_default().trim_end_matches('/');
                // Routes begin with their own `/v1` where they have one.
                Server::Fixed(url.strip_suffix("/v1").unwrap_or(url).to_owned())
            }
        };
        Ok(Client {
            http,
            server,
            key: read_key(config)?,
            deadlines: config.deadlines,
            policy: Policy::from(config.retries),
            gate: Semaphore::new(in_flight as usize),
            aside: Semaphore::new(in_flight as usize),
            rng: Mutex::new(ChaCha8Rng::seed_from_u64(seed)),
            counters: Counters::default(),
        })
    }

    /// Waits for a place among the requests in flight, at most until `deadline`.
    pub async fn admit(&self, deadline: Option<Instant>) -> Result<Permit<'_>, EndpointError> {
        let admitted = match deadline {
            Some(deadline) => timeout_at(deadline, self.gate.acquire()).await,
            None => Ok(self.gate.acquire().await),
        };
        match admitted {
            Ok(permit) => Ok(Permit { _permit: permit.expect("the gate is never closed") }),
            Err(_) => Err(EndpointError::Deadline {
                endpoint: "the queue of the model".to_owned(),
                attempts: 0,
                last: None,
            }),
        }
    }

    /// Waits for a place among the requests that sample nothing; they end by their deadlines.
    pub(crate) async fn admit_aside(&self) -> Permit<'_> {
        Permit { _permit: self.aside.acquire().await.expect("the gate is never closed") }
    }

    /// Sends `request` until `read` accepts an answer, the attempts are used up, or the deadline passes.
    pub(crate) async fn call<T>(
        &self,
        request: &Request<'_>,
        refusal: ReadRefusal<'_>,
        read: impl Fn(&[u8]) -> Result<T, Fault> + Sync,
    ) -> Result<Answered<T>, EndpointError> {
        let jitter = |bound: Duration| {
            let mut rng = self.rng.lock();
            bound.mul_f64(rng.random::<f64>())
        };
        let (this, read) = (self, &read);
        let attempt = |number: u32| async move {
            this.counters.requests.fetch_add(1, Ordering::Relaxed);
            if number > 1 {
                this.counters.retries.fetch_add(1, Ordering::Relaxed);
            }
            let outcome = this.attempt(request, refusal, read).await;
            if let Err(Attempt::Again(fault)) = &outcome {
                this.note(request.route, number, fault);
            }
            outcome
        };
        let result = retry::run(&self.policy, jitter, request.deadline, request.route, attempt).await;
        if result.is_err() {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// The embedded server behind this client, where there is one.
    pub fn embedded(&self) -> Option<&Arc<Embedded>> {
        match &self.server {
            Server::Embedded(embedded) => Some(embedded),
            Server::Fixed(_) => None,
        }
    }

    /// Counters as they stand.
    pub fn stats(&self) -> ClientStats {
        ClientStats {
            requests: self.counters.requests.load(Ordering::Relaxed),
            retries: self.counters.retries.load(Ordering::Relaxed),
            failures: self.counters.failures.load(Ordering::Relaxed),
            faults: self.counters.faults.lock().clone(),
        }
    }

    fn note(&self, route: &str, number: u32, fault: &Fault) {
        *self.counters.faults.lock().entry(fault.code()).or_default() += 1;
        tracing::debug!(route, attempt = number, fault = %with_causes(fault), "attempt failed");
    }

    async fn attempt<T>(
        &self,
        request: &Request<'_>,
        refusal: ReadRefusal<'_>,
        read: &(impl Fn(&[u8]) -> Result<T, Fault> + Sync),
    ) -> Result<T, Attempt> {
        let base = match &self.server {
            Server::Fixed(url) => url.clone(),
            Server::Embedded(embedded) => embedded.url().await.map_err(EndpointError::from)?,
        };
        let total = self.deadlines.total.0;
        let whole = timeout(total, self.exchange(&base, request));
        let (status, retry_after, body) =
            whole.await.map_err(|_| Fault::Timeout { what: "whole answer", after: total })??;
        if (200..300).contains(&status) {
            return Ok(read(&body)?);
        }
        Err(refused(status, retry_after, &body, &format!("{base}{}", request.route), refusal))
    }

    /// One request and its whole answer: status, `Retry-After`, body.
    async fn exchange(
        &self,
        base: &str,
        request: &Request<'_>,
    ) -> Result<(u16, Option<Duration>, Bytes), Fault> {
        let url = format!("{base}{}", request.route);
        let mut builder = match &request.body {
            Some(body) => self
                .http
                .post(&url)
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(body.clone()),
            None => self.http.get(&url),
        };
        if let Some(key) = &self.key {
            builder = builder.header(AUTHORIZATION, key.clone());
        }
        if let Some(session) = request.session_id {
            builder = builder.header("x-session-id", session);
        }
        let first_byte = self.deadlines.first_byte.0;
        let mut response = match timeout(first_byte, builder.send()).await {
            Err(_) => return Err(Fault::Timeout { what: "first byte", after: first_byte }),
            Ok(Err(error)) if error.is_connect() && error.is_timeout() => {
                return Err(Fault::Timeout { what: "connection", after: self.deadlines.connect.0 });
            }
            Ok(Err(error)) if error.is_connect() => {
                return Err(Fault::Connect { url: base.to_owned(), source: Transport::new(error) });
            }
            Ok(Err(error)) => return Err(cut(error)),
            Ok(Ok(response)) => response,
        };
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| {
            let server_now = response.headers().get("date").and_then(|date| date.to_str().ok());
            let now = server_now.and_then(|date| httpdate::parse_http_date(date).ok());
            retry_after::parse(value.to_str().ok()?, now.unwrap_or_else(SystemTime::now))
        });
        let length = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let mut body = BytesMut::with_capacity(length.min(BODY_BYTES_AT_ONCE));
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > BODY_BYTES_MAX => {
                    return Err(Fault::TooLarge { limit: BODY_BYTES_MAX });
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok((status, retry_after, body.freeze())),
                Err(error) => return Err(cut(error)),
            }
        }
    }
}

/// What a status other than 2xx means: come again, the key, or misuse.
fn refused(
    status: u16,
    retry_after: Option<Duration>,
    body: &[u8],
    endpoint: &str,
    refusal: ReadRefusal<'_>,
) -> Attempt {
    let start = String::from_utf8_lossy(&body[..body.len().min(ERROR_BODY_BYTES)]).trim().to_owned();
    if matches!(status, 408 | 429 | 500..=599) {
        return Attempt::Again(Fault::Status { status, retry_after, body: start });
    }
    let endpoint = endpoint.to_owned();
    Attempt::Stop(match refusal(status, body, &endpoint) {
        Some(error) => error,
        None if matches!(status, 401 | 403) => EndpointError::Denied { endpoint, status },
        None => EndpointError::Refused { endpoint, status, body: start },
    })
}

/// The default: the status decides, without a protocol's reading of the body.
pub(crate) fn general_refusal(_: u16, _: &[u8], _: &str) -> Option<EndpointError> {
    None
}

fn read_key(config: &ModelConfig) -> Result<Option<HeaderValue>, ConfigError> {
    let Some(name) = &config.api_key_env else { return Ok(None) };
    let unusable = |problem: String| ConfigError {
        key: "api_key_env",
        problem,
        hint: "export it before the run; the key itself does not belong in the file".to_owned(),
    };
    let key = std::env::var(name).map_err(|e| unusable(format!("names `{name}`: {e}")))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.trim()))
        .map_err(|_| unusable(format!("names `{name}`, whose value is not valid in a header")))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn is_loopback(url: &str) -> bool {
    let host = reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

/// The last cause in the chain: what the operating system or the protocol says, without the layers above.
fn cut(error: reqwest::Error) -> Fault {
    let error = Transport::new(error);
    Fault::Cut { source: Failed::by(error.to_string(), error) }
}
