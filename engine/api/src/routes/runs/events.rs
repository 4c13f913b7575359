//! `/v1/runs/{run}/events`: what happens in a run, as server-sent events. What has an id is kept: whoever was cut goes on behind it, also
//! with another service over the same store. Counters have none: each takes the place of the last.

use super::{view, visible_run};
use crate::http::{Api, Query, RunReader, Segments, header_text};
use crate::problem::Problem;
use crate::routes::stream::ALIVE_EVERY;
use crate::runs::feed::Reader;
use axum::extract::State;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use espalier_store::Store;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Events of runs.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(events))
}

/// How often counters are sent, where they have changed.
const COUNTERS_EVERY: Duration = Duration::from_secs(1);
/// The last event of a session.
const ENDED: &str = "run-ended";

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// The id of the last event that the client has, as `Last-Event-ID`. Default: 0, all events.
    after: Option<u64>,
    /// Whether counters are sent. Default: true.
    counters: Option<bool>,
}

/// One server-sent event.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "it only describes what is sent")]
pub(crate) struct RunStreamEvent {
    /// The number of the event; `counters` have none.
    id: Option<String>,
    /// The kind of the event.
    event: String,
    /// What happened, as JSON.
    data: String,
}

/// Streams the events of a run.
///
/// Events with an id happened once and are all delivered, in order: `run-started`, `run-paused`, `run-resumed`, `run-ended`, `group-opened`,
/// `group-reopened`, `group-closed`, `rollout-ended`, `rollout-scored`, `model-version`, `plugin-swapped`, `concurrency`. A client that was
/// cut sends the id of the last one as `Last-Event-ID`. `counters` have no id: they are sent at most once a second, when they have changed.
/// The stream ends when the run is not under way; a request behind its last event is then answered with 204.
#[utoipa::path(get, path = "/v1/runs/{run}/events", tag = "runs", operation_id = "run_events",
    params(("run" = String, Path, description = "The id of the run, its name, or the beginning of its id"), EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that the client has")),
    responses((status = 200, body = RunStreamEvent, content_type = "text/event-stream"), (status = 204, description = "The run is not under way, and the client has all its events")))]
pub(crate) async fn events(
    RunReader(key): RunReader,
    State(api): State<Api>,
    Segments(run): Segments<String>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let store = api.keys.store();
    let run_id = visible_run(store, &key, &run).await?;
    let after = match header_text(&headers, "last-event-id") {
        Some(text) => text.parse().map_err(|_| {
            Problem::invalid("Last-Event-ID", crate::http::shown(text), "the id of an event, a whole number")
        })?,
        None => query.after.unwrap_or(0),
    };
    let first = view(&api, &key, &run_id).await?;
    let is_at_end = after > 0 && after >= store.last_event(&run_id).await?;
    if is_at_end && !is_under_way(&first.state) && !goes_on(store, &run_id, &first.state).await {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let reader = api.feeds.read(store, &run_id, after).await?;
    let stream = Stream {
        counters: query.counters.unwrap_or(true).then(Instant::now),
        sent: Value::Null,
        draining: api.draining.subscribe(),
        over: false,
        reader,
        key,
        run_id,
        api,
    };
    let events = futures::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Ok(axum::response::sse::Sse::new(events)
        .keep_alive(KeepAlive::new().interval(ALIVE_EVERY))
        .into_response())
}

fn is_under_way(state: &str) -> bool {
    matches!(state, "running" | "paused")
}

/// Whether a run that its service has left is one that this service takes up: it may not have come to it yet.
async fn goes_on(store: &Store, run_id: &str, state: &str) -> bool {
    let is_left = matches!(state, "interrupted" | "stopped");
    is_left && store.hosted_run(run_id).await.is_ok_and(|run| run.is_some_and(|run| run.wanted))
}

struct Stream {
    api: Api,
    key: Arc<crate::keys::Key>,
    run_id: String,
    reader: Reader,
    /// When counters are looked at next; `None`: the client wants none.
    counters: Option<Instant>,
    /// The counters that were sent last.
    sent: Value,
    draining: tokio::sync::watch::Receiver<bool>,
    over: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if self.over || *self.draining.borrow() {
                return None;
            }
            let look_at = self.counters.unwrap_or_else(|| Instant::now() + COUNTERS_EVERY);
            tokio::select! {
                biased;
                event = self.reader.next() => {
                    let Ok(event) = event else { return None };
                    let body: Option<Box<RawValue>> = serde_json::from_str(&event.body).ok();
                    let data = json!({ "at_ms": event.at_ms, "event": event.kind, "data": body });
                    if event.kind == ENDED {
                        self.over = self.is_over().await;
                    }
                    return Some(Sse::default().id(event.seq.to_string()).event(&event.kind).data(data.to_string()));
                }
                () = sleep_until(look_at) => {
                    if self.counters.is_some() {
                        self.counters = Some(Instant::now() + COUNTERS_EVERY);
                        if let Some(event) = self.counters_now().await {
                            return Some(event);
                        }
                    }
                    // An engine that was killed says nothing.
                    self.over = self.is_over().await;
                }
                _ = self.draining.changed() => {}
            }
        }
    }

    /// Whether nobody works on the run and all its events were given.
    async fn is_over(&self) -> bool {
        let Ok(run) = view(&self.api, &self.key, &self.run_id).await else { return true };
        let store = self.api.keys.store();
        let last = store.last_event(&self.run_id).await;
        !is_under_way(&run.state)
            && last.is_ok_and(|last| self.reader.at() >= last)
            && !goes_on(store, &self.run_id, &run.state).await
    }

    async fn counters_now(&mut self) -> Option<Sse> {
        let run = view(&self.api, &self.key, &self.run_id).await.ok()?;
        let now = json!({ "state": run.state, "counts": run.counts, "live": run.live });
        if now == self.sent {
            return None;
        }
        let event = Sse::default().event("counters").data(now.to_string());
        self.sent = now;
        Some(event)
    }
}
