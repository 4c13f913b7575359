//! `/v1/sandboxes/{id}/shells`: they keep folder, variables and functions from one command to the next.

use super::commands::at;
use crate::calls;
use crate::http::{Api, OptionalJson, Reader, Segments, Writer};
use crate::problem::Problem;
use axum::Json;
use axum::extract::State;
use espalier_agent_client::wire;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Shells.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(delete))
}

/// The program of a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShellProgram {
    /// bash
    Bash,
    /// sh
    Sh,
}

/// The shell to open.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenShell {
    /// The id of the call, `SESSION.EPOCH.COUNTER`, as for a command.
    #[schema(pattern = r"^[A-Za-z0-9_-]{1,48}\.[1-9][0-9]{0,15}\.[1-9][0-9]{0,15}$")]
    id: Option<String>,
    /// A counter: the client will send no new id of this session at or below it.
    floor: Option<u64>,
    /// The program of the shell; default bash, or sh if the sandbox has no bash.
    shell: Option<ShellProgram>,
    /// The folder to start in; default the folder of the sandbox.
    cwd: Option<String>,
    /// Variables added to the environment of the sandbox.
    env: Option<BTreeMap<String, String>>,
    /// The user that runs the shell; default the user of the sandbox.
    user: Option<String>,
    /// A label shown in lists.
    #[schema(max_length = 256)]
    label: Option<String>,
}

/// A shell.
#[derive(Serialize, ToSchema)]
pub(crate) struct Shell {
    /// The id of the shell, for `shell` of a command.
    id: String,
    /// The process id of the shell in the sandbox.
    pid: u32,
    /// The label of the request.
    label: String,
    /// Whether the shell has ended.
    ended: bool,
}

/// Opens a shell.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/shells", tag = "shells", operation_id = "open_shell",
    params(("id" = String, Path, description = "The id of the sandbox")), request_body = OpenShell,
    responses((status = 201, body = Shell)))]
pub(crate) async fn create(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    OptionalJson(body): OptionalJson<OpenShell>,
) -> Result<(StatusCode, Json<Shell>), Problem> {
    let at = at(&api, &key.id, &id)?;
    let (agent, call) = calls::begin(&at.sandbox, body.id.as_deref(), body.floor)?;
    let folder = calls::folder(&at.sandbox, body.cwd.as_deref());
    let label = body.label.unwrap_or_default();
    let request = wire::OpenShellRequest {
        shell: match body.shell {
            Some(ShellProgram::Bash) => "bash".to_owned(),
            Some(ShellProgram::Sh) => "sh".to_owned(),
            None => String::new(),
        },
        folder: folder.into(),
        environment: calls::variables(body.env.as_ref()),
        user: body.user.or_else(|| at.sandbox.user.clone()).unwrap_or_default(),
        label: label.clone(),
        ..wire::OpenShellRequest::default()
    };
    let opened = agent.open_shell(&call, request).await?;
    let id = calls::text(&call).unwrap_or_default();
    Ok((StatusCode::CREATED, Json(Shell { id, pid: opened.pid, label, ended: false })))
}

/// The shells of a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct ShellList {
    /// The shells.
    shells: Vec<Shell>,
}

/// Lists the shells that are open or still recorded.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/shells", tag = "shells", operation_id = "list_shells",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = ShellList)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<Json<ShellList>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let listed = at.sandbox.agent.list().await?;
    let shells = listed.into_iter().filter(|listed| listed.shell).filter_map(|listed| {
        let id = calls::text(&listed.id?)?;
        Some(Shell { id, pid: listed.pid, label: listed.label, ended: listed.ended.is_some() })
    });
    Ok(Json(ShellList { shells: shells.collect() }))
}

/// Closes a shell and kills everything it started.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/shells/{shell}", tag = "shells", operation_id = "close_shell",
    params(("id" = String, Path, description = "The id of the sandbox"), ("shell" = String, Path, description = "The id of the shell")),
    responses((status = 204, description = "The shell was deleted")))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments((id, shell)): Segments<(String, String)>,
) -> Result<StatusCode, Problem> {
    let at = at(&api, &key.id, &id)?;
    let shell = calls::parse("the shell's id", &shell)?;
    at.sandbox.agent.close_shell(&at.sandbox.agent.allot(), &shell).await?;
    Ok(StatusCode::NO_CONTENT)
}
