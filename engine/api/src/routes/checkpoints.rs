//! `/v1/checkpoints`: file systems that are kept.

use super::sandboxes::{has_label, request_name};
use crate::http::{Api, OptionalJson, Query, Reader, Segments, Writer};
use crate::problem::Problem;
use crate::registry::CheckpointView;
use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Checkpoints.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(list)).routes(routes!(get, delete))
}

/// The checkpoint to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateCheckpoint {
    /// Labels to find the checkpoint by.
    labels: Option<BTreeMap<String, String>>,
}

/// Creates a checkpoint of the file system of a sandbox. Processes keep running and are not part of the checkpoint.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/checkpoints", tag = "checkpoints", operation_id = "create_checkpoint",
    params(("id" = String, Path, description = "The id of the sandbox"), ("Idempotency-Key" = Option<String>, Header, description = "A unique key of this request, so that it can be repeated", pattern = "^[A-Za-z0-9._-]{1,64}$")),
    request_body = CreateCheckpoint, responses((status = 201, body = CheckpointView)))]
pub(crate) async fn create(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<CreateCheckpoint>,
) -> Result<(StatusCode, Json<CheckpointView>), Problem> {
    api.admits()?;
    let labels = body.labels.unwrap_or_default();
    let request = request_name(&headers, || json!({ "checkpoint": id, "labels": labels }))?;
    if let Some(request) = &request
        && let Some(known) = api.registry.checkpoint_of(&key.id, request).await?
    {
        return Ok((StatusCode::CREATED, Json(known)));
    }
    let entry = api.registry.find(&key.id, &id)?;
    let kept = api.registry.checkpoint(&entry, labels, request).await?;
    Ok((StatusCode::CREATED, Json(kept)))
}

/// Filters of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// A label, as `NAME=VALUE`, or `NAME` for any value. May be repeated: all must match.
    #[serde(default)]
    label: Vec<String>,
}

/// A list of checkpoints, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckpointList {
    /// The checkpoints.
    checkpoints: Vec<CheckpointView>,
}

/// Lists the checkpoints of this key, newest first.
#[utoipa::path(get, path = "/v1/checkpoints", tag = "checkpoints", operation_id = "list_checkpoints", params(ListQuery),
    responses((status = 200, body = CheckpointList)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
    Query(query): Query<ListQuery>,
) -> Result<Json<CheckpointList>, Problem> {
    let all = api.registry.checkpoints(&key).into_iter();
    let fits = |kept: &CheckpointView| query.label.iter().all(|label| has_label(&kept.labels, label));
    Ok(Json(CheckpointList { checkpoints: all.filter(fits).collect() }))
}

/// Returns a checkpoint.
#[utoipa::path(get, path = "/v1/checkpoints/{id}", tag = "checkpoints", operation_id = "get_checkpoint",
    params(("id" = String, Path, description = "The id of the checkpoint")), responses((status = 200, body = CheckpointView)))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<Json<CheckpointView>, Problem> {
    Ok(Json(api.registry.find_checkpoint(&key.id, &id).await?.0))
}

/// Deletes a checkpoint. Sandboxes created from it are not affected.
#[utoipa::path(delete, path = "/v1/checkpoints/{id}", tag = "checkpoints", operation_id = "delete_checkpoint",
    params(("id" = String, Path, description = "The id of the checkpoint")), responses((status = 204, description = "The checkpoint was deleted")))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<StatusCode, Problem> {
    api.registry.delete_checkpoint(&key.id, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
