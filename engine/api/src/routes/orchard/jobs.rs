//! Commands as jobs. A request waits for a bounded time; what it began goes on beyond that, up to its own bound.

use super::super::commands::{cut, look, run};
use super::at;
use super::caller::{Body, Reader, Writer};
use super::forms::{CommandLine, Exec, Job, TimeoutQuery};
use super::values::{self, REQUEST_MAX};
use crate::calls::{self, At};
use crate::http::{Api, Query, Segments};
use crate::problem::Problem;
use crate::registry::now_ms;
use axum::extract::State;
use espalier_agent_client::wire::CommandSpec;
use espalier_agent_client::{Excerpts, command};
use espalier_sandbox::service::Sandbox;
use std::time::Duration;
use tokio::time::Instant;

/// How much of each output a job shows, at its start and at its end.
const EXCERPT: Excerpts = Excerpts { head_bytes: 1 << 20, tail_bytes: 1 << 20 };
/// Wait for a job where the request names none.
const JOB_WAIT: Duration = Duration::from_secs(300);
/// How much longer than its bound a command is waited for: that it was killed is an answer, too.
const KILL_MAX: Duration = Duration::from_secs(30);
/// Longest look at a command.
const LOOK_MAX: Duration = Duration::from_secs(600);
/// What a login shell does first: most images set up their environment where only an interactive shell reads it. It is one for
/// that; what it says of the missing terminal, before it runs anything, is not the command's output.
const LOGIN: &str = r#"command -v bash >/dev/null || { echo "bash: not found" >&2; exit 127; }
exec bash --login -i -c "$1" bash 3>&2 2>/dev/null"#;
/// In front of the command in a login shell.
const LOGGED_IN: &str = "exec 2>&3 3>&-\nif [ -r ~/.bashrc ]; then . ~/.bashrc; fi\n";

/// Runs a command. With `wait` the response is sent when the command has ended, or after 3600 s while it keeps running.
///
/// If the sandbox is still being created, the command waits for it.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "orchard", operation_id = "orchard_exec",
    params(("id" = String, Path, description = "The id of the sandbox")), request_body = Exec, responses((status = 200, body = Job)))]
pub(crate) async fn exec(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Body(body): Body<Exec>,
) -> Result<axum::Json<Job>, Problem> {
    let (bound, text) = (body.bound(), body.text());
    let deadline = Instant::now() + REQUEST_MAX;
    let At { sandbox, busy: _busy } = at(&api, &key.id, &id, REQUEST_MAX).await?;
    let spec = body.spec(&sandbox);
    let (agent, call) = calls::begin(&sandbox, None, None)?;
    let created_ms = now_ms();
    let left = deadline.saturating_duration_since(Instant::now());
    let wait = if body.is_waited_for() { (bound + KILL_MAX).min(left) } else { Duration::ZERO };
    let view = run(&agent, &id, &call, spec, EXCERPT, wait).await?.known()?;
    Ok(axum::Json(Job::of(view, text, created_ms)))
}

/// Splits a job's id: it names its sandbox.
fn of_job(id: &str) -> Result<(&str, &str), Problem> {
    id.split_once('@').ok_or_else(|| Problem::not_found("job", &crate::http::shown(id)))
}

async fn find_job(api: &Api, owner: &str, id: &str, wait: Duration) -> Result<axum::Json<Job>, Problem> {
    let (command, sandbox_id) = of_job(id)?;
    let At { sandbox, busy } = super::super::commands::at(api, owner, sandbox_id)?;
    let call = calls::parse("the job's id", command)?;
    let view = look(&sandbox.agent, sandbox_id, &call, EXCERPT, wait).await?.known()?;
    let listed = sandbox.agent.list().await?.into_iter().find(|listed| listed.id.as_ref() == Some(&call));
    drop(busy);
    let (text, age_ms) = listed.map(|listed| (listed.label, listed.age_ms)).unwrap_or_default();
    Ok(axum::Json(Job::of(view, text, now_ms().saturating_sub(age_ms))))
}

/// Returns a job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "orchard", operation_id = "orchard_get_job",
    params(("id" = String, Path, description = "The id of the job")), responses((status = 200, body = Job)))]
pub(crate) async fn job(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Job>, Problem> {
    find_job(&api, &key.id, &id, Duration::ZERO).await
}

/// Waits until a job has ended, or until the timeout.
#[utoipa::path(get, path = "/jobs/{id}/wait", tag = "orchard", operation_id = "orchard_wait_for_job",
    params(("id" = String, Path, description = "The id of the job"), TimeoutQuery), responses((status = 200, body = Job)))]
pub(crate) async fn wait_for_job(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<Job>, Problem> {
    let deadline = Instant::now() + values::wait(query.timeout(), JOB_WAIT);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let found = find_job(&api, &key.id, &id, left.min(LOOK_MAX)).await?;
        if found.0.is_over() || deadline <= Instant::now() {
            return Ok(found);
        }
    }
}

impl Exec {
    /// As the agent takes it.
    fn spec(&self, sandbox: &Sandbox) -> CommandSpec {
        let program = match &self.command {
            CommandLine::Words(words) if self.in_login_shell() => login(&quoted(words)),
            CommandLine::Text(text) if self.in_login_shell() => login(text),
            // Nothing to do, which is done.
            CommandLine::Words(words) if words.is_empty() => command::script(""),
            CommandLine::Words(words) => command::arguments(words),
            CommandLine::Text(text) => command::script(text.clone()),
        };
        let spec = CommandSpec {
            folder: calls::folder(sandbox, self.cwd()).into(),
            environment: calls::variables(self.env.as_ref()),
            user: sandbox.user.clone().unwrap_or_default(),
            label: cut(&self.text()),
            ..program
        };
        command::within(spec, self.bound())
    }
}

/// Text for a login shell.
pub(super) fn login(text: &str) -> CommandSpec {
    command::arguments(["sh", "-c", LOGIN, "sh", &format!("{LOGGED_IN}{text}")])
}

/// The same in a terminal, where a shell has nothing to say.
pub(super) fn login_in_terminal(text: &str) -> CommandSpec {
    command::arguments([
        "bash",
        "--login",
        "-i",
        "-c",
        &format!("if [ -r ~/.bashrc ]; then . ~/.bashrc; fi\n{text}"),
    ])
}

/// Words as shell text.
pub(super) fn quoted(words: &[String]) -> String {
    let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}
