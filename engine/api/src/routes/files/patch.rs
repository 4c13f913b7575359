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

/// A patch to apply.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyPatch {
    /// Unified or git diff.
    patch: String,
    /// Folder that its paths start from; default where commands start.
    #[serde(default)]
    root: Option<String>,
    /// Leading parts of each path to drop; default 1 for `a/` and `b/`, else 0.
    #[serde(default)]
    strip: Option<u32>,
    /// Lines of context that may differ at each end of a hunk; default 2.
    #[serde(default)]
    fuzz: Option<u32>,
    /// Backwards; default false.
    #[serde(default)]
    reverse: Option<bool>,
    /// Say what would happen, change nothing; default false.
    #[serde(default)]
    dry_run: Option<bool>,
}

/// What a patch did to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PatchAction {
    /// It was changed.
    Modified,
    /// It is new.
    Created,
    /// It is gone.
    Deleted,
    /// It came from another.
    Renamed,
    /// It is a copy of another.
    Copied,
}

/// A file that a patch touched.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Patched {
    /// Which.
    path: String,
    /// Where it came from.
    from: Option<String>,
    /// What was done.
    action: PatchAction,
    /// Hunks.
    hunks: u32,
    /// Hunks that applied at another line.
    shifted: u32,
    /// Hunks that applied with less context.
    fuzzy: u32,
}

/// What a patch did.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PatchApplied {
    /// The files it touched.
    files: Vec<Patched>,
}

/// Applies a patch: all of it or nothing.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/patch", tag = "files", operation_id = "apply_patch",
    params(("id" = String, Path, description = "Of the sandbox"), ("Espalier-Call" = Option<String>, Header, description = "`SESSION.EPOCH.COUNTER; floor=N`")),
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
