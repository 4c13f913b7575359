//! The routes of Orchard's environment service, so that its clients work unchanged: the same sandboxes as under `/v1`, said in
//! its words. Its requests have no ids of their own, so nothing of them is repeated here.

mod forms;
pub(crate) mod pty;

use super::commands::TIMEOUT_S;
use super::commands::{CommandView, at, look, run};
use super::files::entries;
use super::sandboxes::{LIFETIME_S, seconds};
use crate::calls::{self, At};
use crate::http::{Api, Json, Query, Reader, Segments, Writer};
use crate::problem::{Code, Problem};
use crate::registry::{Entry, SandboxState, Wanted};
use axum::extract::State;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use espalier_agent_client::files::Source;
use espalier_agent_client::wire::{self, CommandSpec};
use espalier_agent_client::{Excerpts, command};
use espalier_core::sandbox::{Network, SandboxSpec};
use forms::{
    CreateSandbox, Deleted, Exec, File, FileList, Job, Patch, Patched, PathQuery, Sandbox, Sandboxes,
    TimeoutQuery, Upload, Uploaded,
};
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;

/// Silence that ends a sandbox whose client has begun to send heartbeats.
const HEARTBEAT_S: f64 = 180.0;
/// Longest wait for a sandbox.
const SANDBOX_WAIT_S: f64 = 3600.0;
/// Of each output in a job, at its start and at its end.
const EXCERPT: Excerpts = Excerpts { head_bytes: 1 << 20, tail_bytes: 1 << 20 };
/// Largest file in an answer: it is base64 in JSON.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Makes a sandbox; answers at once.
#[utoipa::path(post, path = "/sandboxes", tag = "orchard", operation_id = "orchard_create_sandbox", request_body = CreateSandbox,
    responses((status = 201, body = Sandbox)))]
pub(crate) async fn create(
    Writer(key): Writer,
    State(api): State<Api>,
    Json(body): Json<CreateSandbox>,
) -> Result<(StatusCode, axum::Json<Sandbox>), Problem> {
    api.admits()?;
    // A client that asks for a network where the service has none to give is told so, and can still work.
    let open = &api.settings.open_network;
    let closed = !body.block_network && open.is_empty();
    let network = if body.block_network || closed { Network::Loopback } else { Network::Allow(open.clone()) };
    let lifetime_s = body.timeout.unwrap_or(LIFETIME_S);
    let wanted = Wanted {
        id: body.sandbox_id,
        name: None,
        spec: SandboxSpec {
            image: body.image,
            cpu: body.cpu.cores()?,
            memory: body.memory.bytes("memory")?,
            network,
            ..SandboxSpec::default()
        },
        from_checkpoint: false,
        image: None,
        labels: body.labels,
        lifetime: seconds("timeout", lifetime_s, 604_800.0)?,
        idle: None,
        require: Vec::new(),
        request: None,
    };
    let entry = api.registry.create(&key, wanted)?;
    let mut told = seen(&entry);
    if closed {
        told =
            told.without("it reaches nothing but itself: the service was started without `--open-network`");
    }
    Ok((StatusCode::CREATED, axum::Json(told)))
}

fn seen(entry: &Arc<Entry>) -> Sandbox {
    Sandbox::of(entry.view())
}

/// The sandboxes of this key, newest first.
#[utoipa::path(get, path = "/sandboxes", tag = "orchard", operation_id = "orchard_list_sandboxes", responses((status = 200, body = Sandboxes)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
) -> Result<axum::Json<Sandboxes>, Problem> {
    let all = api.registry.list(&key.id);
    let there = all.iter().map(seen).filter(|sandbox| sandbox.is_there());
    Ok(axum::Json(Sandboxes { sandboxes: there.collect() }))
}

/// A sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "orchard", operation_id = "orchard_get_sandbox",
    params(("id" = String, Path, description = "Of the sandbox")), responses((status = 200, body = Sandbox)))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Sandbox>, Problem> {
    Ok(axum::Json(seen(&api.registry.find(&key.id, &id)?)))
}

/// Ends a sandbox.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "orchard", operation_id = "orchard_delete_sandbox",
    params(("id" = String, Path, description = "Of the sandbox")), responses((status = 200, body = Deleted)))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Deleted>, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    api.registry.delete(&entry, "deleted").await?;
    Ok(axum::Json(Deleted { sandbox_id: id, status: "deleted" }))
}

/// Waits until it runs.
#[utoipa::path(get, path = "/sandboxes/{id}/wait", tag = "orchard", operation_id = "orchard_wait_for_sandbox",
    params(("id" = String, Path, description = "Of the sandbox"), TimeoutQuery), responses((status = 200, body = Sandbox)))]
pub(crate) async fn wait(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<Sandbox>, Problem> {
    let within = seconds("timeout", query.timeout.unwrap_or(SANDBOX_WAIT_S), SANDBOX_WAIT_S)?;
    let entry = api.registry.find(&key.id, &id)?;
    entry.settled(false, within).await;
    let view = entry.view();
    match view.state {
        SandboxState::Creating => {
            Err(Problem::new(Code::NotReady, format!("sandbox {id} is not ready after {within:?}")))
        }
        _ => Ok(axum::Json(seen(&entry))),
    }
}

/// Says that a sandbox is still needed. From the first one on, 180 s of silence end it.
#[utoipa::path(post, path = "/sandboxes/{id}/heartbeat", tag = "orchard", operation_id = "orchard_heartbeat",
    params(("id" = String, Path, description = "Of the sandbox")), responses((status = 200, body = Sandbox)))]
pub(crate) async fn heartbeat(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Sandbox>, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    entry.touch();
    if entry.record().idle_s.is_none() {
        api.registry.change(&entry, |record| record.idle_s = Some(HEARTBEAT_S)).await?;
    }
    Ok(axum::Json(seen(&entry)))
}

/// Runs a command; with `wait` answers when it has ended.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "orchard", operation_id = "orchard_exec",
    params(("id" = String, Path, description = "Of the sandbox")), request_body = Exec, responses((status = 200, body = Job)))]
pub(crate) async fn exec(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Json(body): Json<Exec>,
) -> Result<axum::Json<Job>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let spec = body.spec(&at.sandbox)?;
    let text = body.text();
    let (agent, call) = calls::begin(&at.sandbox, None, None)?;
    let created_ms = crate::registry::now_ms();
    // Its own bound ends it; the wait is a little longer.
    let bound = seconds("timeout_seconds", body.timeout_seconds.unwrap_or(TIMEOUT_S), SANDBOX_WAIT_S)?;
    let wait = if body.wait { bound + Duration::from_secs(30) } else { Duration::ZERO };
    let view = run(&agent, &id, &call, spec, EXCERPT, wait).await?;
    Ok(axum::Json(Job::of(view, text, created_ms)))
}

/// Splits a job's id: it names its sandbox.
fn of_job(id: &str) -> Result<(&str, &str), Problem> {
    id.split_once('@').ok_or_else(|| Problem::not_found("job", &crate::http::shown(id)))
}

async fn find_job(api: &Api, owner: &str, id: &str, wait: Duration) -> Result<axum::Json<Job>, Problem> {
    let (command, sandbox_id) = of_job(id)?;
    let At { sandbox, busy } = at(api, owner, sandbox_id)?;
    let call = calls::parse("the job's id", command)?;
    let view: CommandView = look(&sandbox.agent, sandbox_id, &call, EXCERPT, wait).await?;
    let listed = sandbox.agent.list().await?.into_iter().find(|listed| listed.id.as_ref() == Some(&call));
    drop(busy);
    let (text, age_ms) = listed.map(|listed| (listed.label, listed.age_ms)).unwrap_or_default();
    Ok(axum::Json(Job::of(view, text, crate::registry::now_ms().saturating_sub(age_ms))))
}

/// A job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "orchard", operation_id = "orchard_get_job",
    params(("id" = String, Path, description = "Of the job")), responses((status = 200, body = Job)))]
pub(crate) async fn job(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Job>, Problem> {
    find_job(&api, &key.id, &id, Duration::ZERO).await
}

/// Waits until a job has ended, or the time is over.
#[utoipa::path(get, path = "/jobs/{id}/wait", tag = "orchard", operation_id = "orchard_wait_for_job",
    params(("id" = String, Path, description = "Of the job"), TimeoutQuery), responses((status = 200, body = Job)))]
pub(crate) async fn wait_for_job(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<Job>, Problem> {
    let within = seconds("timeout", query.timeout.unwrap_or(300.0), SANDBOX_WAIT_S)?;
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        // One look waits ten minutes at most.
        let found = find_job(&api, &key.id, &id, left.min(Duration::from_secs(600))).await?;
        if found.0.is_over() || deadline <= tokio::time::Instant::now() {
            return Ok(found);
        }
    }
}

/// Applies a patch: all of it or nothing. One that does not apply is an answer, too.
#[utoipa::path(post, path = "/sandboxes/{id}/apply_patch", tag = "orchard", operation_id = "orchard_apply_patch",
    params(("id" = String, Path, description = "Of the sandbox")), request_body = Patch, responses((status = 200, body = Patched)))]
pub(crate) async fn apply_patch(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Json(body): Json<Patch>,
) -> Result<axum::Json<Patched>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let agent = &at.sandbox.agent;
    let request = wire::ApplyPatchRequest {
        root: at.sandbox.workdir.clone().into_bytes().into(),
        patch: body.patch.into_bytes().into(),
        ..wire::ApplyPatchRequest::default()
    };
    let within = seconds("timeout_seconds", body.timeout_seconds.unwrap_or(30.0), SANDBOX_WAIT_S)?;
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
    let success = result.is_ok();
    let (stdout, stderr) = result.map_or_else(|error| (String::new(), error), |text| (text, String::new()));
    Ok(axum::Json(Patched { success, stdout, stderr, exit_code }))
}

/// Writes a file.
#[utoipa::path(post, path = "/sandboxes/{id}/files", tag = "orchard", operation_id = "orchard_upload_file",
    params(("id" = String, Path, description = "Of the sandbox")), request_body = Upload, responses((status = 200, body = Uploaded)))]
pub(crate) async fn upload(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Json(body): Json<Upload>,
) -> Result<axum::Json<Uploaded>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let content = BASE64_STANDARD
        .decode(&body.content)
        .map_err(|error| Problem::new(Code::Invalid, format!("content: {error}")).hint("it is base64"))?;
    let agent = &at.sandbox.agent;
    let header = wire::WriteHeader {
        path: calls::absolute(&at.sandbox, body.path.as_bytes()).into(),
        mode: body.mode.as_ref().map(forms::Mode::bits).transpose()?,
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
    params(("id" = String, Path, description = "Of the sandbox"), PathQuery), responses((status = 200, body = File)))]
pub(crate) async fn download(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<PathQuery>,
) -> Result<axum::Json<File>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let path = calls::absolute(&at.sandbox, query.path.as_bytes());
    let content = at.sandbox.agent.read(path, 0, 0).await?.collect(FILE_BYTES_MAX).await?;
    let size = content.len() as u64;
    let content = BASE64_STANDARD.encode(content);
    Ok(axum::Json(File { path: query.path, content, encoding: "base64", size }))
}

/// What stands in a folder.
#[utoipa::path(get, path = "/sandboxes/{id}/files/list", tag = "orchard", operation_id = "orchard_list_files",
    params(("id" = String, Path, description = "Of the sandbox"), PathQuery), responses((status = 200, body = FileList)))]
pub(crate) async fn list_files(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<PathQuery>,
) -> Result<axum::Json<FileList>, Problem> {
    let at = at(&api, &key.id, &id)?;
    let path = calls::absolute(&at.sandbox, query.path.as_bytes());
    let found = entries(&at.sandbox.agent, path, 1).await?;
    Ok(axum::Json(FileList::of(query.path, &found)))
}

impl Exec {
    /// As the agent takes it.
    fn spec(&self, sandbox: &espalier_sandbox::service::Sandbox) -> Result<CommandSpec, Problem> {
        let base = match (&self.command, self.login_shell) {
            (forms::CommandLine::Text(text), false) => command::script(text.clone()),
            (forms::CommandLine::Text(text), true) => command::arguments(["bash", "-lc", text]),
            (forms::CommandLine::Words(words), _) if words.is_empty() => {
                return Err(Problem::invalid("command", "[]", "a program with its arguments"));
            }
            (forms::CommandLine::Words(words), _) => command::arguments(words),
        };
        let bound = seconds("timeout_seconds", self.timeout_seconds.unwrap_or(TIMEOUT_S), SANDBOX_WAIT_S)?;
        let folder = calls::folder(sandbox, self.cwd.as_deref());
        let spec = CommandSpec {
            folder: folder.into(),
            environment: calls::variables(self.env.as_ref()),
            user: sandbox.user.clone().unwrap_or_default(),
            label: super::commands::cut(&self.text()),
            ..base
        };
        Ok(command::within(spec, bound.max(Duration::from_millis(1))))
    }
}
