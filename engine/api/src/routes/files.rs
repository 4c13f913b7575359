//! Files of a sandbox as raw bytes: read with ranges, replaced as a whole, listed, moved, patched.

pub(crate) mod patch;
#[cfg(test)]
mod tests;

use super::commands::at;
use crate::calls::{self, At};
use crate::http::{
    Api, Json, Query, Reader, Segments, Writer, body_share, header_text, late, too_large, within,
};
use crate::problem::{Code, Problem};
use crate::registry::Busy;
use crate::shares::Share;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use espalier_agent_client::Agent;
use espalier_agent_client::files::{FileReader, Source};
use espalier_agent_client::wire::{self, Chunk, FileKind, FileStat};
use espalier_sandbox::service::Sandbox;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::{Deserialize, Serialize};
use std::time::{Duration, UNIX_EPOCH};
use tokio::io::AsyncWriteExt;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Files.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(get, put, delete))
        .routes(routes!(stat))
        .routes(routes!(list, make))
        .routes(routes!(move_to))
        .routes(routes!(patch::patch))
}

/// Entries in one answer.
const ENTRIES_MAX: usize = 100_000;
/// Zeros between the chunks of a sparse file go out in pieces of this size.
const ZEROS: usize = 64 << 10;
/// Bytes of a body that are kept in memory before they go to a file of this machine.
const MEMORY_MAX: usize = 1 << 20;

/// What `path` of the query names in the sandbox.
fn named(sandbox: &Sandbox, uri: &Uri) -> Result<Vec<u8>, Problem> {
    Ok(calls::absolute(sandbox, &raw_path(uri)?))
}

/// `path` of the query as its bytes: names need not be UTF-8.
fn raw_path(uri: &Uri) -> Result<Vec<u8>, Problem> {
    let query = uri.query().unwrap_or_default();
    let text = query.split('&').find_map(|pair| pair.strip_prefix("path="));
    let bytes =
        text.map(|text| percent_encoding::percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>());
    match bytes {
        Some(path) if !path.is_empty() && !path.contains(&0) => Ok(path),
        Some(_) => Err(Problem::invalid("path", "", "a path without a NUL byte")),
        None => Err(Problem::new(Code::Invalid, "the query has no `path`")),
    }
}

/// Permission bits as an octal text.
fn mode_of(text: Option<&str>) -> Result<Option<u32>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let octal = text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| octal && *mode <= 0o7777);
    mode.map(Some).ok_or_else(|| Problem::invalid("mode", crate::http::shown(text), "octal, `0` to `7777`"))
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// Any other type.
    Other,
}

/// The attributes of a file, folder or link.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Stat)]
pub(crate) struct StatView {
    /// The path. Invalid UTF-8 is replaced.
    pub(crate) path: String,
    /// The path as base64, if it is not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    path_base64: Option<String>,
    /// The type of the entry.
    pub(crate) kind: Kind,
    /// Permission bits, in octal.
    mode: String,
    /// User id of the owner.
    user_id: u32,
    /// Group id.
    group_id: u32,
    /// Size in bytes.
    pub(crate) size: u64,
    /// When it was last modified, in milliseconds since 1970.
    pub(crate) modified_ms: i64,
    /// The target of a link.
    target: Option<String>,
    /// Why the entry or its content could not be read.
    error: Option<String>,
}

impl StatView {
    pub(crate) fn of(path: &[u8], stat: &FileStat) -> StatView {
        let kind = match stat.kind() {
            FileKind::File => Kind::File,
            FileKind::Folder => Kind::Folder,
            FileKind::Link => Kind::Link,
            FileKind::Fifo => Kind::Fifo,
            FileKind::Socket => Kind::Socket,
            FileKind::CharacterDevice | FileKind::BlockDevice => Kind::Device,
            FileKind::Other => Kind::Other,
        };
        let text = String::from_utf8_lossy(path).into_owned();
        StatView {
            path_base64: std::str::from_utf8(path).is_err().then(|| BASE64_STANDARD.encode(path)),
            path: text,
            kind,
            mode: format!("{:04o}", stat.mode),
            user_id: stat.user_id,
            group_id: stat.group_id,
            size: stat.size,
            modified_ms: stat
                .modified_s
                .saturating_mul(1000)
                .saturating_add(i64::from(stat.modified_ns / 1_000_000)),
            target: (kind == Kind::Link).then(|| String::from_utf8_lossy(&stat.target).into_owned()),
            error: None,
        }
    }
}

/// The file to read.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[serde(rename = "path")]
    #[param(rename = "path", min_length = 1)]
    _path: String,
}

fn etag(stat: &FileStat) -> String {
    format!("\"{:x}-{:x}\"", stat.version, stat.size)
}

/// The bytes that a client wants of so many: all, or one range. Several ranges get all, as is allowed.
pub(super) fn range(headers: &HeaderMap, size: u64, etag: &str) -> Result<Option<(u64, u64)>, Problem> {
    let Some(text) = header_text(headers, header::RANGE.as_str()) else { return Ok(None) };
    // A file that has changed is sent whole.
    if header_text(headers, header::IF_RANGE.as_str()).is_some_and(|known| known != etag) {
        return Ok(None);
    }
    let Some(one) = text.strip_prefix("bytes=").filter(|ranges| !ranges.contains(',')) else {
        return Ok(None);
    };
    let Some((first, last)) = one.trim().split_once('-') else { return Ok(None) };
    let (from, to) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.is_empty() => (first, size),
        (Err(_), Ok(last)) if first.is_empty() => (size.saturating_sub(last), size),
        _ => return Ok(None),
    };
    if from >= to {
        return Err(Problem::new(Code::RangeNotSatisfiable, format!("{text} of a file of {size} bytes")));
    }
    Ok(Some((from, to)))
}

/// Returns the content of a file.
///
/// A `Range` with one range is supported. The `ETag` changes whenever the file may have changed. `HEAD` works too.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", tag = "files", operation_id = "read_file",
    params(("id" = String, Path, description = "The id of the sandbox"), PathQuery, ("Range" = Option<String>, Header, description = "The range to return, as `bytes=FIRST-LAST`"),
        ("If-Match" = Option<String>, Header, description = "An `ETag`: fail if the file has changed"),
        ("If-Range" = Option<String>, Header, description = "An `ETag`: ignore `Range` if the file has changed")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = 206, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(_path): Query<PathQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let At { sandbox, busy } = at(&api, &key.id, &id)?;
    let path = named(&sandbox, request.uri())?;
    let headers = request.headers();
    let stat = sandbox.agent.stat(path.clone(), true).await?;
    if stat.kind() != FileKind::File {
        let shown = String::from_utf8_lossy(&path).into_owned();
        return Err(Problem::new(Code::Conflict, format!("{shown} is not a file"))
            .hint("list a directory with `GET /v1/sandboxes/{id}/folders`"));
    }
    let etag = etag(&stat);
    if header_text(headers, header::IF_MATCH.as_str()).is_some_and(|known| known != "*" && known != etag) {
        return Err(Problem::new(Code::PreconditionFailed, "the file has changed"));
    }
    let part = range(headers, stat.size, &etag)?;
    let (from, to) = part.unwrap_or((0, stat.size));
    let (is_head, most) = (request.method() == http::Method::HEAD, api.settings.file_bytes_max);
    // Holes are sent as zeros: a file says a size, and need not have the bytes.
    if !is_head && to - from > most {
        let detail = format!("{} bytes; one response carries at most {most}", to - from);
        return Err(Problem::new(Code::PayloadTooLarge, detail).hint("request parts of it with `Range`"));
    }
    let body = if is_head || from == to {
        Body::empty()
    } else {
        let reader = sandbox.agent.read(path, from, to - from).await?;
        if self::etag(reader.stat()) != etag {
            return Err(
                Problem::new(Code::PreconditionFailed, "the file is being changed").hint("read it again")
            );
        }
        Body::from_stream(part_of(reader, from, to, busy))
    };
    let mut response = body.into_response();
    if part.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        put_header(&mut response, header::CONTENT_RANGE, &format!("bytes {from}-{}/{}", to - 1, stat.size));
    }
    let changed = u64::try_from(stat.modified_s).unwrap_or(0);
    let changed = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(changed.min(253_402_300_799)));
    put_header(&mut response, header::CONTENT_TYPE, "application/octet-stream");
    put_header(&mut response, header::CONTENT_LENGTH, &(to - from).to_string());
    put_header(&mut response, header::ACCEPT_RANGES, "bytes");
    put_header(&mut response, header::ETAG, &etag);
    put_header(&mut response, header::LAST_MODIFIED, &changed);
    put_header(&mut response, http::HeaderName::from_static("espalier-mode"), &format!("{:04o}", stat.mode));
    Ok(response)
}

pub(super) fn put_header(response: &mut Response, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// The bytes of a file from one place to another, holes filled. A file that cannot be read to there cuts the answer.
pub(super) fn part_of(
    reader: FileReader,
    from: u64,
    to: u64,
    busy: Busy,
) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send {
    let begin = (reader, from, None::<Chunk>, busy);
    futures::stream::try_unfold(begin, move |(mut reader, at, mut waiting, busy)| async move {
        if at >= to {
            return Ok(None);
        }
        if waiting.is_none() {
            let next = reader.next().await.map_err(std::io::Error::other)?;
            // After the last chunk there may be a hole.
            waiting = Some(next.unwrap_or(Chunk { offset: to, bytes: Bytes::new() }));
        }
        let chunk = waiting.take().unwrap_or_default();
        if chunk.offset > at {
            let zeros = usize::try_from(chunk.offset.min(to) - at).unwrap_or(ZEROS).min(ZEROS);
            return Ok(Some((Bytes::from(vec![0; zeros]), (reader, at + zeros as u64, Some(chunk), busy))));
        }
        let end = chunk.offset.saturating_add(chunk.bytes.len() as u64);
        Ok(Some((chunk.bytes, (reader, end, None, busy))))
    })
}

/// A file to write.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[serde(rename = "path")]
    #[param(rename = "path", min_length = 1)]
    _path: String,
    /// Permission bits, in octal; default those of the file that is replaced, otherwise 0644.
    #[param(pattern = "^[0-7]{1,4}$")]
    mode: Option<String>,
    /// The owner, `USER` or `USER:GROUP` of the sandbox's `/etc/passwd`; default the owner of the file that is replaced,
    /// otherwise the user of the sandbox.
    owner: Option<String>,
    /// Create missing parent folders; default true.
    parents: Option<bool>,
    /// Fail if the file exists; default false.
    create_new: Option<bool>,
}

/// Writes a file atomically: readers see either the old or the new content.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files", tag = "files", operation_id = "write_file",
    params(("id" = String, Path, description = "The id of the sandbox"), WriteQuery, ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 201, body = StatView)))]
pub(crate) async fn put(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, axum::Json<StatView>), Problem> {
    let At { sandbox, busy: _busy } = at(&api, &key.id, &id)?;
    let path = named(&sandbox, request.uri())?;
    let mode = mode_of(query.mode.as_deref())?;
    let (agent, call) = calls::begin_by_header(&sandbox, &headers)?;
    // Whole before it goes in: a call that has to be repeated sends it again.
    let (source, spooled) = spool(&api, &headers, request).await?;
    let header = wire::WriteHeader {
        path: path.clone().into(),
        mode,
        owner: query.owner.or_else(|| sandbox.user.clone()).unwrap_or_default(),
        parents: query.parents.unwrap_or(true),
        create_new: query.create_new.unwrap_or(false),
        ..wire::WriteHeader::default()
    };
    let written = agent.write(&call, header, source).await;
    drop(spooled);
    let stat = written?.stat.unwrap_or_default();
    Ok((StatusCode::CREATED, axum::Json(StatView::of(&path, &stat))))
}

/// Where a body is: a file that goes with this, or memory that counts for the key as long as this is there.
pub(crate) struct Spooled {
    _file: Option<tempfile::NamedTempFile>,
    _share: Share,
}

/// A body in memory, or in a file; it stays as long as what is returned beside it.
pub(crate) async fn spool(
    api: &Api,
    headers: &HeaderMap,
    request: Request,
) -> Result<(Source, Spooled), Problem> {
    let most = api.settings.file_bytes_max;
    within(headers, most)?;
    let failed = |error: std::io::Error| {
        tracing::error!(%error, "a body could not be kept");
        Problem::new(Code::Unavailable, "the service has no space for the body").retry_after(5)
    };
    // Where this key has no more memory for bodies, it goes to a file at once.
    let mut share = body_share(api, request.extensions());
    let mut stream = request.into_body().into_data_stream();
    let (mut kept, mut length) = (Vec::new(), 0u64);
    let mut file: Option<(tokio::fs::File, tempfile::NamedTempFile)> = None;
    let within = api.settings.body_max;
    while let Some(chunk) = tokio::time::timeout(within, stream.next()).await.map_err(|_| late(api))? {
        let chunk = chunk.map_err(|_| Problem::new(Code::Malformed, "the body was cut off"))?;
        length = length.saturating_add(chunk.len() as u64);
        if length > most {
            return Err(too_large(most));
        }
        if file.is_none() && (length > MEMORY_MAX as u64 || !share.grow(chunk.len() as u64)) {
            let place = tempfile::NamedTempFile::new_in(&api.settings.spool).map_err(failed)?;
            let mut open = tokio::fs::File::from_std(place.reopen().map_err(failed)?);
            open.write_all(&kept).await.map_err(failed)?;
            kept = Vec::new();
            share.give_back();
            file = Some((open, place));
        }
        match &mut file {
            Some((open, _)) => open.write_all(&chunk).await.map_err(failed)?,
            None => kept.extend_from_slice(&chunk),
        }
    }
    match file {
        Some((mut open, place)) => {
            open.flush().await.map_err(failed)?;
            let source = Source::File(place.path().to_owned());
            Ok((source, Spooled { _file: Some(place), _share: share }))
        }
        None => Ok((Source::Bytes(kept.into()), Spooled { _file: None, _share: share })),
    }
}

/// What to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoveQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[serde(rename = "path")]
    #[param(rename = "path", min_length = 1)]
    _path: String,
    /// Remove a folder with everything in it; default false.
    recursive: Option<bool>,
    /// Do not fail if the path does not exist; default false.
    missing_ok: Option<bool>,
}

/// The result of removing.
#[derive(Serialize, ToSchema)]
pub(crate) struct Removed {
    /// Number of removed entries.
    removed: u64,
}

/// Removes a file or a folder.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", tag = "files", operation_id = "remove_file",
    params(("id" = String, Path, description = "The id of the sandbox"), RemoveQuery, ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    responses((status = 200, body = Removed)))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<RemoveQuery>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<axum::Json<Removed>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let path = named(&at.sandbox, &uri)?;
    let (agent, call) = calls::begin_by_header(&at.sandbox, &headers)?;
    let (recursive, missing_ok) = (query.recursive.unwrap_or(false), query.missing_ok.unwrap_or(false));
    let removed = agent.remove(&call, path, recursive, missing_ok).await?;
    Ok(axum::Json(Removed { removed }))
}

/// The entry to look at.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[serde(rename = "path")]
    #[param(rename = "path", min_length = 1)]
    _path: String,
    /// Follow a symbolic link; default true.
    follow: Option<bool>,
}

/// Returns the attributes of a file, folder or link.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/stat", tag = "files", operation_id = "stat",
    params(("id" = String, Path, description = "The id of the sandbox"), StatQuery), responses((status = 200, body = StatView)))]
pub(crate) async fn stat(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<StatQuery>,
    uri: Uri,
) -> Result<axum::Json<StatView>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let path = named(&at.sandbox, &uri)?;
    let stat = at.sandbox.agent.stat(path.clone(), query.follow.unwrap_or(true)).await?;
    Ok(axum::Json(StatView::of(&path, &stat)))
}

/// The folder to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct FolderQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[serde(rename = "path")]
    #[param(rename = "path", min_length = 1)]
    _path: String,
    /// How many levels to list; default 1.
    #[param(minimum = 1, maximum = 64)]
    depth: Option<u32>,
}

/// The content of a folder.
#[derive(Serialize, ToSchema)]
pub(crate) struct Folder {
    /// The entries, with paths relative to the folder.
    pub(crate) entries: Vec<StatView>,
}

/// Lists a folder; more than 100,000 entries are an error.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/folders", tag = "files", operation_id = "list_folder",
    params(("id" = String, Path, description = "The id of the sandbox"), FolderQuery), responses((status = 200, body = Folder)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<FolderQuery>,
    uri: Uri,
) -> Result<axum::Json<Folder>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let path = named(&at.sandbox, &uri)?;
    let depth = query.depth.unwrap_or(1);
    if !(1..=64).contains(&depth) {
        return Err(Problem::invalid("depth", depth, "1 to 64"));
    }
    Ok(axum::Json(Folder { entries: entries(&at.sandbox.agent, path, depth).await? }))
}

/// What stands in a folder.
pub(crate) async fn entries(agent: &Agent, path: Vec<u8>, depth: u32) -> Result<Vec<StatView>, Problem> {
    let listed = agent.list_folder_up_to(path, depth, ENTRIES_MAX).await?;
    let entries = listed.into_iter().map(|entry| {
        let mut view = StatView::of(&entry.path, &entry.stat.unwrap_or_default());
        view.error = (!entry.error.is_empty()).then_some(entry.error);
        view
    });
    Ok(entries.collect())
}

/// The folder to create.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct MakeQuery {
    /// A path, absolute or relative to the folder in which commands start.
    #[serde(rename = "path")]
    #[param(rename = "path", min_length = 1)]
    _path: String,
    /// Permission bits, in octal; default 0755.
    #[param(pattern = "^[0-7]{1,4}$")]
    mode: Option<String>,
    /// The owner, `USER` or `USER:GROUP`; default the user of the sandbox.
    owner: Option<String>,
    /// Create missing parent folders, and do not fail if the folder exists; default true.
    parents: Option<bool>,
}

/// Creates a folder.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/folders", tag = "files", operation_id = "make_folder",
    params(("id" = String, Path, description = "The id of the sandbox"), MakeQuery, ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    responses((status = 201, body = StatView)))]
pub(crate) async fn make(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<MakeQuery>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<(StatusCode, axum::Json<StatView>), Problem> {
    let at = at(&api, &key.id, &id)?;
    let path = named(&at.sandbox, &uri)?;
    let (agent, call) = calls::begin_by_header(&at.sandbox, &headers)?;
    let request = wire::MakeFolderRequest {
        path: path.clone().into(),
        mode: mode_of(query.mode.as_deref())?,
        owner: query.owner.or_else(|| at.sandbox.user.clone()).unwrap_or_default(),
        parents: query.parents.unwrap_or(true),
        ..wire::MakeFolderRequest::default()
    };
    agent.make_folder(&call, request).await?;
    let stat = agent.stat(path.clone(), false).await?;
    Ok((StatusCode::CREATED, axum::Json(StatView::of(&path, &stat))))
}

/// The entry to move and its new path.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Move {
    /// A path, absolute or relative to the folder in which commands start.
    #[schema(min_length = 1)]
    from: String,
    /// The new path, absolute or relative to the folder in which commands start.
    #[schema(min_length = 1)]
    to: String,
    /// Replace an existing entry; default false.
    #[serde(default)]
    replace: Option<bool>,
}

/// Moves a file or folder.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/move", tag = "files", operation_id = "move_file",
    params(("id" = String, Path, description = "The id of the sandbox"), ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    request_body = Move, responses((status = 204, description = "The entry was moved")))]
pub(crate) async fn move_to(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    Json(body): Json<Move>,
) -> Result<StatusCode, Problem> {
    let at = at(&api, &key.id, &id)?;
    for (what, path) in [("from", &body.from), ("to", &body.to)] {
        if path.is_empty() || path.contains('\0') {
            return Err(Problem::invalid(what, "", "a path without a NUL byte"));
        }
    }
    let (agent, call) = calls::begin_by_header(&at.sandbox, &headers)?;
    let from = calls::absolute(&at.sandbox, body.from.as_bytes());
    let to = calls::absolute(&at.sandbox, body.to.as_bytes());
    agent.move_to(&call, from, to, body.replace.unwrap_or(false)).await?;
    Ok(StatusCode::NO_CONTENT)
}
