//! The service itself: whether it lives, what it holds, what it can.

use super::orchard::caller;
use crate::http::{Api, Observer, Reader};
use crate::keys::{Key, Scope};
use crate::problem::Problem;
use crate::registry::Used;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use espalier_store::Quotas;
use http::{StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The service itself.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(root))
        .routes(routes!(health))
        .routes(routes!(ready))
        .routes(routes!(resources))
        .routes(routes!(metrics))
        .routes(routes!(openapi))
        .routes(routes!(own_key))
}

/// What answers here.
#[derive(Serialize, ToSchema)]
pub(crate) struct Service {
    /// `espalier`.
    name: &'static str,
    /// Of the program.
    version: &'static str,
}

/// The program and its version.
#[utoipa::path(get, path = "/", tag = "service", operation_id = "service", responses((status = 200, body = Service)))]
pub(crate) async fn root() -> Json<Service> {
    Json(Service { name: "espalier", version: env!("CARGO_PKG_VERSION") })
}

/// How the service is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`, `ready`, or `not-ready`.
    status: &'static str,
    /// Why it is not ready.
    reasons: Vec<String>,
}

/// Whether the process lives.
#[utoipa::path(get, path = "/health", tag = "service", operation_id = "health", responses((status = 200, body = Health)))]
pub(crate) async fn health() -> Json<Health> {
    Json(Health { status: "ok", reasons: Vec::new() })
}

/// Whether it takes work: its keeper of sandboxes answers, and it is not stopping.
#[utoipa::path(get, path = "/ready", tag = "service", operation_id = "ready", responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(crate) async fn ready(State(api): State<Api>) -> (StatusCode, Json<Health>) {
    let mut reasons = Vec::new();
    if *api.draining.borrow() {
        reasons.push("the service is stopping".to_owned());
    }
    if let Err(error) = api.registry.sandboxes().backend().promises().await {
        reasons.push(error.to_string());
    }
    if reasons.is_empty() {
        (StatusCode::OK, Json(Health { status: "ready", reasons }))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status: "not-ready", reasons }))
    }
}

/// Bounds of a key; null: none.
#[derive(Serialize, ToSchema)]
pub(crate) struct QuotasView {
    /// Sandboxes at once.
    sandboxes: Option<u64>,
    /// Cores of its sandboxes together.
    cpu: Option<f64>,
    /// Bytes of memory of its sandboxes together.
    memory: Option<u64>,
    /// Bytes of disk of its sandboxes together, and those that its checkpoints have.
    disk: Option<u64>,
    /// Requests a second.
    requests_per_s: Option<f64>,
}

impl From<Quotas> for QuotasView {
    fn from(quotas: Quotas) -> QuotasView {
        let Quotas { sandboxes, cpu, memory, disk, requests_per_s } = quotas;
        QuotasView { sandboxes, cpu, memory, disk, requests_per_s }
    }
}

/// What a key holds.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsedView {
    /// Sandboxes that are being made or run.
    sandboxes: u64,
    /// Their cores.
    cpu: f64,
    /// Their bounds of memory, in bytes.
    memory: u64,
    /// Their bounds of disk, in bytes.
    disk: u64,
    /// Bytes that its checkpoints have, which the quota of disk counts, too.
    checkpoints: u64,
}

impl UsedView {
    fn of(api: &Api, key: &Key) -> UsedView {
        let Used { sandboxes, cpu, memory, disk } = api.registry.used(&key.id);
        UsedView { sandboxes, cpu, memory, disk, checkpoints: api.registry.kept_bytes(&key.id) }
    }
}

/// What a key holds, what it may hold, and what the machine has.
#[derive(Serialize, ToSchema)]
pub(crate) struct Resources {
    /// What this key holds.
    used: UsedView,
    /// What it may hold.
    quotas: QuotasView,
    /// Cores of the machine.
    cpu_total: usize,
    /// Bytes of memory of the machine; null where it does not say.
    memory_total: Option<u64>,
}

/// What this key holds and may hold.
#[utoipa::path(get, path = "/resources", tag = "service", operation_id = "resources", responses((status = 200, body = Resources)))]
pub(crate) async fn resources(
    caller::Reader(key): caller::Reader,
    State(api): State<Api>,
) -> Json<Resources> {
    let meminfo = tokio::fs::read_to_string("/proc/meminfo").await.unwrap_or_default();
    let total = meminfo.lines().find_map(|line| {
        let kib: u64 = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    });
    Json(Resources {
        used: UsedView::of(&api, &key),
        quotas: key.quotas.into(),
        cpu_total: std::thread::available_parallelism().map_or(1, usize::from),
        memory_total: total,
    })
}

/// Counters, as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "service", operation_id = "metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(_: Observer, State(api): State<Api>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], api.metrics.text(&api.registry)).into_response()
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "service", operation_id = "openapi", responses((status = 200, body = serde_json::Value)))]
pub(crate) async fn openapi(State(api): State<Api>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], api.openapi.clone()).into_response()
}

/// A key as its owner sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// Its public part.
    id: String,
    /// For people.
    name: String,
    /// What it may do.
    scopes: Vec<&'static str>,
    /// What it may hold.
    quotas: QuotasView,
    /// What it holds.
    used: UsedView,
}

/// The key of this request.
#[utoipa::path(get, path = "/v1/key", tag = "service", operation_id = "key", responses((status = 200, body = KeyView)))]
pub(crate) async fn own_key(Reader(key): Reader, State(api): State<Api>) -> Result<Json<KeyView>, Problem> {
    Ok(Json(KeyView {
        id: key.id.to_string(),
        name: key.name.clone(),
        scopes: key.scopes.iter().copied().map(Scope::word).collect(),
        quotas: key.quotas.into(),
        used: UsedView::of(&api, &key),
    }))
}
