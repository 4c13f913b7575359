//! `/v1/files`: files that runs name. A file belongs to the key that sent it, and is there as long as the store.

use crate::http::{Api, RunWriter};
use crate::keys::Key;
use crate::problem::{Code, Problem};
use crate::registry::now_ms;
use crate::routes::files::spool;
use axum::extract::{Request, State};
use espalier_agent_client::files::Source;
use espalier_store::Upload;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Files.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(upload))
}

/// Files of one key, and their bytes where the quota of its disk is silent.
const FILES_MAX: u64 = 100_000;
const BYTES_MAX: u64 = 64 << 30;

/// A file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileView {
    /// The id of the file, which is the BLAKE3 hash of its bytes.
    pub(crate) id: String,
    /// Number of bytes.
    pub(crate) length: u64,
}

/// Uploads a file for runs. The same bytes have the same id.
#[utoipa::path(post, path = "/v1/files", tag = "runs", operation_id = "upload_file",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 201, body = FileView)))]
pub(crate) async fn upload(
    RunWriter(key): RunWriter,
    State(api): State<Api>,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, axum::Json<FileView>), Problem> {
    api.admits()?;
    let kept = keep(&api, &key, &headers, request).await?;
    Ok((StatusCode::CREATED, axum::Json(FileView { id: kept.hash, length: kept.length })))
}

/// Keeps a body as a file of the key.
pub(crate) async fn keep(
    api: &Api,
    key: &Key,
    headers: &HeaderMap,
    request: Request,
) -> Result<Upload, Problem> {
    let (source, _spooled) = spool(api, headers, request).await?;
    match source {
        Source::Bytes(bytes) => keep_bytes(api, key, bytes.into()).await,
        Source::File(path) => {
            let length = tokio::fs::metadata(&path).await.map_or(0, |metadata| metadata.len());
            room(api, key, length).await?;
            let (hash, length) = api.keys.store().blobs().put_file(path).await?;
            note(api, key, hash, length).await
        }
    }
}

/// Keeps bytes as a file of the key.
pub(crate) async fn keep_bytes(api: &Api, key: &Key, bytes: Vec<u8>) -> Result<Upload, Problem> {
    let length = bytes.len() as u64;
    room(api, key, length).await?;
    let hash = api.keys.store().blobs().put(bytes).await?;
    note(api, key, hash, length).await
}

async fn note(api: &Api, key: &Key, hash: String, length: u64) -> Result<Upload, Problem> {
    let upload = Upload { hash, length, created_ms: now_ms() };
    api.keys.store().add_upload(&key.id, &upload).await?;
    Ok(upload)
}

/// Refuses what the key has no room for.
async fn room(api: &Api, key: &Key, more: u64) -> Result<(), Problem> {
    let (files, bytes) = api.keys.store().uploads_size(&key.id).await?;
    let most = key.quotas.disk.unwrap_or(BYTES_MAX).min(BYTES_MAX);
    if files >= FILES_MAX || bytes.saturating_add(more) > most {
        let detail =
            format!("this key has {files} files of {bytes} bytes; at most {FILES_MAX} of {most} bytes");
        return Err(Problem::new(Code::QuotaExceeded, detail)
            .hint("files are kept with the store; ask the operator for a larger `--disk`"));
    }
    Ok(())
}
