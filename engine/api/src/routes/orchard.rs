//! The routes of Orchard's environment service, so that its clients work unchanged: the same sandboxes as under `/v1`, said in
//! its words. They take what its server takes, and wait where it waits. Its requests have no ids of their own, so nothing of them
//! is repeated here but what makes a sandbox under an id of the client's.

pub(crate) mod caller;
pub(crate) mod files;
mod forms;
pub(crate) mod jobs;
pub(crate) mod pty;
mod values;

use crate::calls::At;
use crate::http::{Api, Query, Segments};
use crate::problem::{Code, Problem};
use crate::registry::{Entry, SandboxState, Wanted};
use axum::extract::State;
use caller::{Body, Reader, Writer};
use espalier_core::sandbox::{Network, SandboxSpec};
use forms::{CreateSandbox, Deleted, Heartbeat, Sandbox, Sandboxes, TimeoutQuery};
use std::sync::Arc;
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use values::REQUEST_MAX;

/// Orchard's routes.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, delete))
        .routes(routes!(wait))
        .routes(routes!(heartbeat))
        .routes(routes!(jobs::exec))
        .routes(routes!(pty::pty))
        .routes(routes!(files::apply_patch))
        .routes(routes!(files::upload, files::download))
        .routes(routes!(files::list_files))
        .routes(routes!(jobs::job))
        .routes(routes!(jobs::wait_for_job))
}

/// Where commands start, relative paths too.
const FOLDER: &str = "/workspace";
/// Silence that ends a sandbox whose client has begun to send heartbeats.
const HEARTBEAT_S: f64 = 180.0;
/// How much longer than its client waits a sandbox may take to become ready: a client that looks again finds it.
const GRACE: Duration = Duration::from_secs(600);

/// A sandbox of this key that has not ended.
fn find(api: &Api, owner: &str, id: &str) -> Result<Arc<Entry>, Problem> {
    let entry = api.registry.find(owner, id)?;
    match entry.view().ended {
        Some(how) => Err(Problem::new(Code::NotFound, format!("sandbox {id} has ended: {how}"))),
        None => Ok(entry),
    }
}

fn not_ready(id: &str) -> Problem {
    Problem::new(Code::NotReady, format!("sandbox {id} is still being created")).hint("wait for it again")
}

/// The sandbox of a request, which waits until it is made, at most so long.
async fn at(api: &Api, owner: &str, id: &str, within: Duration) -> Result<At, Problem> {
    let entry = api.registry.find(owner, id)?;
    entry.settled(false, within).await;
    match entry.view().state {
        SandboxState::Creating => Err(not_ready(id)),
        _ => super::commands::at(api, owner, id),
    }
}

/// Creates a sandbox. The response is sent immediately.
#[utoipa::path(post, path = "/sandboxes", tag = "orchard", operation_id = "orchard_create_sandbox", request_body = CreateSandbox,
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn create(
    Writer(key): Writer,
    State(api): State<Api>,
    Body(body): Body<CreateSandbox>,
) -> Result<axum::Json<Sandbox>, Problem> {
    api.admits()?;
    // A client that asks for a network where the service has none to give is told so, and can still work.
    let open = &api.settings.open_network;
    let closed = body.is_closed() || open.is_empty();
    let network = if closed { Network::Loopback } else { Network::Allow(open.clone()) };
    let ready_within = body.ready_within();
    let wanted = Wanted {
        id: body.id(),
        labels: body.labels(),
        ready_within: Some(ready_within + GRACE),
        ..Wanted::of(SandboxSpec {
            cpu: body.cores()?,
            memory: body.memory()?,
            network,
            workdir: Some(FOLDER.to_owned()),
            image: body.image.clone(),
            ..SandboxSpec::default()
        })
    };
    let entry = match api.registry.create(&key, wanted) {
        // Its clients send the request again where the answer did not come.
        Err(problem) if problem.code == Code::Conflict => {
            body.id().and_then(|id| find(&api, &key.id, &id).ok()).ok_or(problem)?
        }
        made => made?,
    };
    let mut told = seen(&entry).asked(ready_within);
    if closed && !body.is_closed() {
        told = told.without("it has no network: the service was started without `--open-network`");
    }
    Ok(axum::Json(told))
}

fn seen(entry: &Arc<Entry>) -> Sandbox {
    Sandbox::of(entry.view())
}

/// Lists the sandboxes of this key, newest first.
#[utoipa::path(get, path = "/sandboxes", tag = "orchard", operation_id = "orchard_list_sandboxes", responses((status = 200, body = Sandboxes)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
) -> Result<axum::Json<Sandboxes>, Problem> {
    let all = api.registry.list(&key.id);
    let there = all.iter().map(seen).filter(|sandbox| sandbox.is_there());
    Ok(axum::Json(Sandboxes { sandboxes: there.collect() }))
}

/// Returns a sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "orchard", operation_id = "orchard_get_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = Sandbox)))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Sandbox>, Problem> {
    Ok(axum::Json(seen(&find(&api, &key.id, &id)?)))
}

/// Deletes a sandbox. A sandbox that does not exist counts as deleted.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "orchard", operation_id = "orchard_delete_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = Deleted)))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Deleted>, Problem> {
    match api.registry.find(&key.id, &id) {
        Ok(entry) => api.registry.delete(&entry, "deleted").await?,
        Err(problem) if problem.code == Code::NotFound => {}
        Err(problem) => return Err(problem),
    }
    Ok(axum::Json(Deleted { sandbox_id: id, status: "deleted" }))
}

/// Waits until a sandbox is ready or could not be created, at most 3600 s.
#[utoipa::path(get, path = "/sandboxes/{id}/wait", tag = "orchard", operation_id = "orchard_wait_for_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox"), TimeoutQuery), responses((status = 200, body = Sandbox)))]
pub(crate) async fn wait(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<Sandbox>, Problem> {
    let within = values::wait(query.timeout(), REQUEST_MAX);
    find(&api, &key.id, &id)?.settled(false, within).await;
    let entry = find(&api, &key.id, &id)?;
    match entry.view().state {
        SandboxState::Creating => Err(not_ready(&id)),
        _ => Ok(axum::Json(seen(&entry))),
    }
}

/// Sends a heartbeat: the sandbox is still needed. After the first heartbeat, 180 s without one end the sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/heartbeat", tag = "orchard", operation_id = "orchard_heartbeat",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = Heartbeat)))]
pub(crate) async fn heartbeat(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Heartbeat>, Problem> {
    let entry = find(&api, &key.id, &id)?;
    entry.touch();
    if entry.record().idle_s.is_none() {
        api.registry.change(&entry, |record| record.idle_s = Some(HEARTBEAT_S)).await?;
    }
    Ok(axum::Json(Heartbeat { status: "ok", sandbox_id: id }))
}
