//! Files in JSON, and patches.

use super::super::files::{Kind, StatView, entries, part_of};
use super::at;
use super::caller::{Body, Reader, Writer};
use super::forms::{File, FileList, FolderQuery, Mode, Patch, Patched, PathQuery, Upload, Uploaded};
use super::values::{self, REQUEST_MAX};
use crate::calls;
use crate::http::{Api, Query, Segments};
use crate::problem::{Code, Problem};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use espalier_agent_client::Agent;
use espalier_agent_client::files::Source;
use espalier_agent_client::wire;
use futures::{Stream, StreamExt, TryStreamExt};
use http::header;
use std::io;

/// Largest file in an answer: it is base64 in JSON.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Key of the content in an answer about a file.
const CONTENT: &str = "\"content\":\"";
const EMPTY_CONTENT: &str = "\"content\":\"\"";
/// Links of a folder that are followed at once.
const LINKS_AT_ONCE: usize = 16;

/// Applies a patch, completely or not at all. A patch that does not apply is not an error of the request: see `success`.
#[utoipa::path(post, path = "/sandboxes/{id}/apply_patch", tag = "orchard", operation_id = "orchard_apply_patch",
    params(("id" = String, Path, description = "The id of the sandbox")), request_body = Patch, responses((status = 200, body = Patched)))]
pub(crate) async fn apply_patch(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Body(body): Body<Patch>,
) -> Result<axum::Json<Patched>, Problem> {
    let within = body.within();
    let at = at(&api, &key.id, &id, REQUEST_MAX).await?;
    let agent = &at.sandbox.agent;
    let mut patch = body.patch.into_bytes();
    // Its service writes the text into a file with a newline behind it.
    if !patch.ends_with(b"\n") {
        patch.push(b'\n');
    }
    let request = wire::ApplyPatchRequest {
        root: at.sandbox.workdir.clone().into_bytes().into(),
        patch: patch.into(),
        ..wire::ApplyPatchRequest::default()
    };
    let applied = tokio::time::timeout(within, agent.apply_patch(&agent.allot(), request)).await;
    let result = match applied {
        Err(_) => Err(format!("the patch was not applied within {within:?}")),
        Ok(Err(error)) => match Problem::from(error) {
            problem if problem.code == Code::Patch || problem.code == Code::Invalid => Err(problem.detail),
            problem => return Err(problem),
        },
        Ok(Ok(applied)) => {
            let name = |file: &wire::PatchedFile| String::from_utf8_lossy(&file.path).into_owned();
            Ok(applied.files.iter().map(|file| format!("patched {}\n", name(file))).collect::<String>())
        }
    };
    let exit_code = i32::from(result.is_err());
    Ok(axum::Json(match result {
        Ok(stdout) => Patched { success: true, stdout, stderr: String::new(), exit_code, error: None },
        Err(error) => {
            let stderr = error.clone();
            Patched { success: false, stdout: String::new(), stderr, exit_code, error: Some(error) }
        }
    }))
}

/// Writes a file.
#[utoipa::path(post, path = "/sandboxes/{id}/files", tag = "orchard", operation_id = "orchard_upload_file",
    params(("id" = String, Path, description = "The id of the sandbox")), request_body = Upload, responses((status = 200, body = Uploaded)))]
pub(crate) async fn upload(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Body(body): Body<Upload>,
) -> Result<axum::Json<Uploaded>, Problem> {
    let content = values::decode(&body.content)
        .map_err(|error| Problem::new(Code::Invalid, format!("content: {error}")).hint("it is base64"))?;
    let mode = body.mode.as_ref().map(Mode::bits).transpose()?;
    let at = at(&api, &key.id, &id, REQUEST_MAX).await?;
    let agent = &at.sandbox.agent;
    let header = wire::WriteHeader {
        path: calls::absolute(&at.sandbox, body.path.as_bytes()).into(),
        mode,
        owner: at.sandbox.user.clone().unwrap_or_default(),
        parents: true,
        ..wire::WriteHeader::default()
    };
    let size = content.len() as u64;
    agent.write(&agent.allot(), header, Source::Bytes(content.into())).await?;
    Ok(axum::Json(Uploaded { path: body.path, size, success: true }))
}

/// Reads a file; at most 64 MiB.
#[utoipa::path(get, path = "/sandboxes/{id}/files", tag = "orchard", operation_id = "orchard_download_file",
    params(("id" = String, Path, description = "The id of the sandbox"), PathQuery), responses((status = 200, body = File)))]
pub(crate) async fn download(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<PathQuery>,
) -> Result<Response, Problem> {
    let at = at(&api, &key.id, &id, REQUEST_MAX).await?;
    let path = calls::absolute(&at.sandbox, query.path.as_bytes());
    let reader = at.sandbox.agent.read(path, 0, 0).await?;
    let size = reader.stat().size;
    if size > FILE_BYTES_MAX {
        let detail = format!("{size} bytes; one response carries at most {FILE_BYTES_MAX}");
        return Err(Problem::new(Code::PayloadTooLarge, detail)
            .hint("`GET /v1/sandboxes/{id}/files` has no such limit"));
    }
    // Written as it is read: many answers whose clients are slow would hold many files.
    let whole = File { path: query.path, content: String::new(), encoding: "base64", size };
    let whole = serde_json::to_string(&whole).unwrap_or_default();
    let Some((before, after)) = whole.split_once(EMPTY_CONTENT) else {
        return Err(Problem::new(Code::Internal, "the answer cannot be written"));
    };
    let text = |text: String| futures::stream::once(async move { Ok(Bytes::from(text)) });
    let content = as_base64(part_of(reader, 0, size, at.busy));
    let (before, after) = (format!("{before}{CONTENT}"), format!("\"{after}"));
    let length = before.len() as u64 + size.div_ceil(3) * 4 + after.len() as u64;
    let body = axum::body::Body::from_stream(text(before).chain(content).chain(text(after)));
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    Ok((headers, body).into_response())
}

/// Bytes as one text of base64, piece by piece.
fn as_base64(
    bytes: impl Stream<Item = io::Result<Bytes>> + Send,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let begin = (Box::pin(bytes), Vec::new(), false);
    futures::stream::try_unfold(begin, |(mut bytes, mut waiting, ended)| async move {
        if ended {
            return Ok(None);
        }
        let ended = match bytes.try_next().await? {
            Some(piece) => {
                waiting.extend_from_slice(&piece);
                false
            }
            None => true,
        };
        // Three bytes are four letters; what is left over waits for the next piece.
        let rest = if ended { Vec::new() } else { waiting.split_off(waiting.len() / 3 * 3) };
        Ok(Some((BASE64_STANDARD.encode(waiting).into(), (bytes, rest, ended))))
    })
}

/// Lists a folder.
#[utoipa::path(get, path = "/sandboxes/{id}/files/list", tag = "orchard", operation_id = "orchard_list_files",
    params(("id" = String, Path, description = "The id of the sandbox"), FolderQuery), responses((status = 200, body = FileList)))]
pub(crate) async fn list_files(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<FolderQuery>,
) -> Result<axum::Json<FileList>, Problem> {
    let at = at(&api, &key.id, &id, REQUEST_MAX).await?;
    let named = query.path.filter(|path| !path.is_empty());
    let path = named.unwrap_or_else(|| at.sandbox.workdir.clone());
    let folder = calls::absolute(&at.sandbox, path.as_bytes());
    let agent = &at.sandbox.agent;
    let found = futures::stream::iter(entries(agent, folder.clone(), 1).await?);
    let found = found.map(|entry| followed(agent, &folder, entry)).buffered(LINKS_AT_ONCE);
    Ok(axum::Json(FileList::of(path, found.collect().await)))
}

/// What a link points to, under the link's name; a link to nothing, and all else, as it is.
async fn followed(agent: &Agent, folder: &[u8], entry: StatView) -> StatView {
    if entry.kind != Kind::Link {
        return entry;
    }
    let path = [folder, b"/", entry.path.as_bytes()].concat();
    match agent.stat(path, true).await {
        Ok(stat) => StatView::of(entry.path.as_bytes(), &stat),
        Err(_) => entry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn base64_in_pieces_is_base64_of_the_whole() {
        let whole: Vec<u8> = (0..=255).collect();
        for sizes in [&[256][..], &[1; 256], &[2, 5, 0, 7, 100, 142], &[0]] {
            let mut rest = &whole[..sizes.iter().sum()];
            let expect = BASE64_STANDARD.encode(rest);
            let mut pieces = Vec::new();
            for size in sizes {
                pieces.push(Ok(Bytes::copy_from_slice(&rest[..*size])));
                rest = &rest[*size..];
            }
            let made: Vec<Bytes> = as_base64(futures::stream::iter(pieces)).try_collect().await.unwrap();
            assert_eq!(made.concat(), expect.as_bytes(), "{sizes:?}");
        }
    }
}
