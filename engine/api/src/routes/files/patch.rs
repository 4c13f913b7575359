//! Patches: all of one or nothing.

use super::super::commands::at;
use crate::calls;
use crate::http::{Api, Json, Segments, Writer};
use crate::problem::Problem;
use axum::extract::State;
use bytes::Bytes;
use espalier_agent_client::wire;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The patch to apply.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyPatch {
    /// The patch, a unified or git diff.
    patch: String,
    /// The folder that the paths of the patch are relative to; default the folder in which commands start.
    #[serde(default)]
    root: Option<String>,
    /// How many leading components of each path to strip; default 1 for `a/` and `b/`, otherwise 0.
    #[serde(default)]
    strip: Option<u32>,
    /// How many context lines may differ at each end of a hunk; default 2.
    #[serde(default)]
    fuzz: Option<u32>,
    /// Apply the patch in reverse; default false.
    #[serde(default)]
    reverse: Option<bool>,
    /// Report what would change without changing anything; default false.
    #[serde(default)]
    dry_run: Option<bool>,
}

/// What the patch did to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PatchAction {
    /// The file was modified.
    Modified,
    /// The file was created.
    Created,
    /// The file was deleted.
    Deleted,
    /// The file was renamed.
    Renamed,
    /// The file was copied.
    Copied,
}

/// A file changed by the patch.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Patched {
    /// The path of the file.
    path: String,
    /// The old path of a renamed or copied file.
    from: Option<String>,
    /// What the patch did to the file.
    action: PatchAction,
    /// Number of hunks.
    hunks: u32,
    /// Number of hunks that were applied at a different line.
    shifted: u32,
    /// Number of hunks that were applied with less context.
    fuzzy: u32,
}

/// The result of applying a patch.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PatchApplied {
    /// The files changed by the patch.
    files: Vec<Patched>,
}

/// Applies a patch, completely or not at all.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/patch", tag = "files", operation_id = "apply_patch",
    params(("id" = String, Path, description = "The id of the sandbox"), ("Espalier-Call" = Option<String>, Header, description = "The id of the call, as `SESSION.EPOCH.COUNTER; floor=N`")),
    request_body = ApplyPatch, responses((status = 200, body = PatchApplied)))]
pub(crate) async fn patch(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    Json(body): Json<ApplyPatch>,
) -> Result<axum::Json<PatchApplied>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let (agent, call) = calls::begin_by_header(&at.sandbox, &headers)?;
    let root = body.root.map_or_else(
        || at.sandbox.workdir.clone().into_bytes(),
        |root| calls::absolute(&at.sandbox, root.as_bytes()),
    );
    let request = wire::ApplyPatchRequest {
        root: root.into(),
        patch: body.patch.into_bytes().into(),
        strip: body.strip,
        fuzz: body.fuzz,
        reverse: body.reverse.unwrap_or(false),
        dry_run: body.dry_run.unwrap_or(false),
        ..wire::ApplyPatchRequest::default()
    };
    let applied = agent.apply_patch(&call, request).await?;
    let files = applied.files.iter().map(|file| {
        use wire::patched_file::Action;
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        Patched {
            path: text(&file.path),
            from: (!file.from.is_empty()).then(|| text(&file.from)),
            action: match file.action() {
                Action::Modified => PatchAction::Modified,
                Action::Created => PatchAction::Created,
                Action::Deleted => PatchAction::Deleted,
                Action::Renamed => PatchAction::Renamed,
                Action::Copied => PatchAction::Copied,
            },
            hunks: file.hunks,
            shifted: file.shifted,
            fuzzy: file.fuzzy,
        }
    });
    Ok(axum::Json(PatchApplied { files: files.collect() }))
}
