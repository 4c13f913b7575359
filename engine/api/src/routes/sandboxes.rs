//! `/v1/sandboxes`: make, find, change and end them.

use crate::http::{Api, Json, OptionalJson, Query, Reader, Segments, Writer, shown};
use crate::problem::{Code, Problem};
use crate::registry::{
    CHECKPOINT, Entry, LIFETIME, Meaning, Place, Reaches, Request, SandboxState, SandboxView, Wanted,
    check_labels, check_life, check_name,
};
use axum::extract::State;
use espalier_core::limits::SizeText;
use espalier_core::sandbox::{FileContent, Network, Rule, SandboxSpec};
use espalier_images::Source;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Sandboxes.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, change, delete))
        .routes(routes!(wait))
        .routes(routes!(heartbeat))
        .routes(routes!(fork))
}

/// Longest wait of one request.
pub(crate) const WAIT_MAX_S: f64 = 600.0;

/// A size in bytes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number of bytes, or a string such as `512MiB`")]
pub(crate) enum Size {
    /// A size in bytes.
    Bytes(u64),
    /// A size such as `512MiB`, `2GiB` or `65536`.
    Text(String),
}

impl Size {
    pub(crate) fn bytes(&self, what: &str) -> Result<u64, Problem> {
        match self {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => text
                .parse()
                .map(|size: SizeText| size.0)
                .map_err(|error| Problem::new(Code::Invalid, format!("{what}: {error}"))),
        }
    }
}

/// The content of a file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, or an object with `text` or `base64` and `mode`")]
pub(crate) enum FileText {
    /// Text, with mode 0644.
    Text(String),
    /// Text with a mode.
    Full(FileWithMode),
}

/// Text with permission bits.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileWithMode {
    /// The text.
    text: String,
    /// Permission bits in octal, such as `755`.
    mode: String,
}

/// One string or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, or a list of strings")]
pub(crate) enum Texts {
    /// One string.
    One(String),
    /// Several strings, in order.
    Several(Vec<String>),
}

/// The sandbox to create. The defaults are those of `espalier sandbox create`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSandbox {
    /// The image: `host`, the name of an image, `oci:FOLDER` or `oci-archive:FILE`; default `host`.
    #[schema(max_length = 4096)]
    image: Option<String>,
    /// The id of a checkpoint to start from instead of an image. Limits that are left out are those of the sandbox it was taken
    /// of.
    checkpoint: Option<String>,
    /// CPU cores; default 1.
    #[schema(minimum = 0.01, maximum = 1024)]
    cpu: Option<f64>,
    /// Memory of the whole sandbox, 16MiB to 16384GiB; default 2GiB.
    memory: Option<Size>,
    /// Size of the disk, 1MiB to 1048576GiB; default 4GiB.
    disk: Option<Size>,
    /// Maximum number of files it may create; default 500000.
    #[schema(minimum = 64, maximum = 4_294_967_296_i64)]
    files_max: Option<u64>,
    /// Maximum number of processes and threads; default 512.
    #[schema(minimum = 8, maximum = 4_194_304)]
    processes_max: Option<u32>,
    /// What it may connect to; default nothing.
    network: Option<Reaches>,
    /// Whether programs inside may make user namespaces, as Chromium's own sandbox needs; default false. It exposes more of the
    /// machine's kernel, and is `unsupported` unless the service was started with `--user-namespaces`.
    user_namespaces: Option<bool>,
    /// Variables added to the environment of the image.
    env: Option<BTreeMap<String, String>>,
    /// Files to write before `setup`, by absolute path.
    files: Option<BTreeMap<String, FileText>>,
    /// Shell text to run once in `workdir`, as root of the sandbox; its exit code must be 0.
    setup: Option<Texts>,
    /// The user that runs commands; default the user of the image.
    #[schema(max_length = 256)]
    user: Option<String>,
    /// The folder in which commands start; default the working directory of the image.
    #[schema(max_length = 4096)]
    workdir: Option<String>,
    /// Whether to run the entrypoint of the image in the background; default false.
    entrypoint: Option<bool>,
    /// Labels to find the sandbox by.
    labels: Option<BTreeMap<String, String>>,
    /// A name for display.
    #[schema(pattern = "^[A-Za-z0-9._-]{1,64}$")]
    name: Option<String>,
    /// Lifetime in seconds; default 7200.
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    lifetime_s: Option<f64>,
    /// Seconds without a call of a client after which the sandbox is deleted; default no limit.
    #[schema(minimum = 1, maximum = 604_800)]
    idle_s: Option<f64>,
    /// Promises that must hold, otherwise the request fails; `espalier doctor` lists the promises of the machine.
    require: Option<Vec<String>>,
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateQuery {
    /// How long to wait until the sandbox is running, in seconds; default 60.
    #[param(minimum = 0, maximum = 600)]
    wait_s: Option<f64>,
}

/// Filters of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// A label, as `NAME=VALUE`, or `NAME` for any value. May be repeated: all must match.
    #[serde(default)]
    label: Vec<String>,
    /// Only sandboxes in this state.
    state: Option<SandboxState>,
    /// Only sandboxes with this name.
    name: Option<String>,
    /// Maximum number of sandboxes on a page; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Start after this place: `next` of the previous page.
    after: Option<String>,
}

/// A page of sandboxes, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct SandboxList {
    /// Sandboxes on this page.
    sandboxes: Vec<SandboxView>,
    /// The value of `after` for the next page; null: this is the last page.
    next: Option<String>,
}

/// The state to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Awaited {
    /// The sandbox is running, or could not be created.
    Running,
    /// The sandbox has ended.
    Ended,
}

/// What to wait for, and how long.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// The state to wait for; default `running`.
    state: Option<Awaited>,
    /// How long to wait, in seconds; default 60.
    #[param(minimum = 0, maximum = 600)]
    timeout_s: Option<f64>,
}

/// The fields to change; fields that are left out stay as they are.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeSandbox {
    /// The new labels, which replace all current ones.
    labels: Option<BTreeMap<String, String>>,
    /// The new lifetime from now on, in seconds.
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    lifetime_s: Option<f64>,
    /// Seconds without a call of a client after which the sandbox is deleted.
    #[schema(minimum = 1, maximum = 604_800)]
    idle_s: Option<f64>,
}

/// The forks to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkSandbox {
    /// Number of forks; default 1.
    #[schema(minimum = 1, maximum = 64)]
    count: Option<usize>,
    /// Labels of each fork; default those of the sandbox.
    labels: Option<BTreeMap<String, String>>,
    /// Lifetime of each fork in seconds; default 7200.
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    lifetime_s: Option<f64>,
    /// Seconds without a call of a client after which a fork is deleted; default as for the sandbox.
    #[schema(minimum = 1, maximum = 604_800)]
    idle_s: Option<f64>,
}

/// The forks of a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct Forks {
    /// The new sandboxes.
    sandboxes: Vec<SandboxView>,
}

/// Seconds of a client as a duration.
pub(crate) fn seconds(what: &str, value: f64, most: f64) -> Result<Duration, Problem> {
    if !(0.0..=most).contains(&value) {
        return Err(Problem::invalid(what, value, &format!("0 to {most} seconds")));
    }
    Ok(Duration::from_secs_f64(value))
}

fn lifetime(given: Option<f64>) -> Result<Duration, Problem> {
    given.map_or(Ok(LIFETIME), |life_s| seconds("lifetime_s", life_s, 604_800.0))
}

/// A request by the name that its client gave it, with what it means.
pub(crate) fn request_name(
    headers: &HeaderMap,
    meaning: impl FnOnce() -> Meaning,
) -> Result<Option<Request>, Problem> {
    let Some(name) = headers.get("idempotency-key") else { return Ok(None) };
    let name = name.to_str().map_err(|_| Problem::invalid("Idempotency-Key", "no text", "a name"))?;
    check_name("Idempotency-Key", name)?;
    Ok(Some(Request::new(name, &meaning())))
}

/// What a network means: entries of a list in any order, however they are written.
fn meant_network(network: &Network) -> Meaning {
    let Network::Allow(rules) = network else { return json!(network) };
    let rule = |text: &String| Rule::parse(text).map_or_else(|_| text.clone(), |rule| format!("{rule:?}"));
    let rules: std::collections::BTreeSet<String> = rules.iter().map(rule).collect();
    json!({ "allow": rules })
}

/// What of a wanted sandbox its request means. From a checkpoint, what `given` does not name is as its sandbox had it.
fn meaning(given: &CreateSandbox, wanted: &Wanted) -> Meaning {
    let Wanted { spec, labels, lifetime, idle, require, name, .. } = wanted;
    let image = Source::parse(&spec.image).map_or_else(|_| spec.image.clone(), |source| source.to_string());
    let files =
        spec.files.iter().map(|(path, content)| (path, (content.text(), content.mode().unwrap_or_default())));
    let require: std::collections::BTreeSet<&String> = require.iter().collect();
    let own = |named: bool, value: Meaning| {
        if given.checkpoint.is_some() && !named { Meaning::Null } else { value }
    };
    let mut meaning = json!({
        "create": image,
        "cpu": own(given.cpu.is_some(), json!(spec.cpu)),
        "memory": own(given.memory.is_some(), json!(spec.memory)),
        "disk": own(given.disk.is_some(), json!(spec.disk)),
        "files_max": own(given.files_max.is_some(), json!(spec.files_max)),
        "processes_max": own(given.processes_max.is_some(), json!(spec.processes_max)),
        "network": own(given.network.is_some(), meant_network(&spec.network)),
        "env": spec.env,
        "user": spec.user,
        "workdir": spec.workdir,
        "entrypoint": spec.entrypoint,
        "files": files.collect::<BTreeMap<_, _>>(),
        "setup": spec.setup,
        "labels": labels,
        "lifetime": lifetime,
        "idle": idle,
        "name": name,
        "require": require,
    });
    // Left out where it is the default: what was asked before there was this field still means the same.
    if let Some(asked) = given.user_namespaces.filter(|asked| *asked || given.checkpoint.is_some()) {
        meaning["user_namespaces"] = json!(asked);
    }
    meaning
}

impl CreateSandbox {
    /// As the registry wants it. `base`: what a checkpoint's sandbox had.
    fn wanted(self, base: SandboxSpec) -> Result<Wanted, Problem> {
        let size = |given: &Option<Size>, what, default| {
            given.as_ref().map_or(Ok(default), |given: &Size| given.bytes(what))
        };
        let files = self.files.unwrap_or_default().into_iter().map(|(path, content)| {
            let content = match content {
                FileText::Text(text) => FileContent::Text(text),
                FileText::Full(FileWithMode { text, mode }) => FileContent::Full { text, mode },
            };
            (path, content)
        });
        let spec = SandboxSpec {
            memory: size(&self.memory, "memory", base.memory)?,
            disk: size(&self.disk, "disk", base.disk)?,
            image: self.image.unwrap_or(base.image),
            cpu: self.cpu.unwrap_or(base.cpu),
            files_max: self.files_max.unwrap_or(base.files_max),
            processes_max: self.processes_max.unwrap_or(base.processes_max),
            network: self.network.map_or(base.network, Into::into),
            user_namespaces: self.user_namespaces.unwrap_or(base.user_namespaces),
            env: self.env.unwrap_or_default(),
            user: self.user.or(base.user),
            workdir: self.workdir.or(base.workdir),
            entrypoint: self.entrypoint.unwrap_or(false),
            files: files.collect(),
            setup: match self.setup {
                Some(Texts::One(text)) => vec![text],
                Some(Texts::Several(texts)) => texts,
                None => Vec::new(),
            },
        };
        Ok(Wanted {
            name: self.name,
            from_checkpoint: self.checkpoint.is_some(),
            labels: self.labels.unwrap_or_default(),
            lifetime: lifetime(self.lifetime_s)?,
            idle: self.idle_s.map(|idle_s| seconds("idle_s", idle_s, 604_800.0)).transpose()?,
            require: self.require.unwrap_or_default(),
            ..Wanted::of(spec)
        })
    }
}

/// Creates a sandbox.
///
/// With the header `Idempotency-Key`, a repeated request returns the same sandbox, even after a restart of the service. The
/// sandbox is created even if the connection breaks.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", operation_id = "create_sandbox",
    params(CreateQuery, ("Idempotency-Key" = Option<String>, Header, description = "A unique key of this request, so that it can be repeated", pattern = "^[A-Za-z0-9._-]{1,64}$")),
    request_body = CreateSandbox,
    responses((status = 201, description = "The sandbox, running or failed: see `state`", body = SandboxView), (status = 202, description = "The sandbox, which is still being created", body = SandboxView)))]
pub(crate) async fn create(
    Writer(key): Writer,
    State(api): State<Api>,
    Query(query): Query<CreateQuery>,
    headers: HeaderMap,
    Json(body): Json<CreateSandbox>,
) -> Result<(StatusCode, axum::Json<SandboxView>), Problem> {
    api.admits()?;
    let wait = seconds("wait_s", query.wait_s.unwrap_or(60.0), WAIT_MAX_S)?;
    let base = match (&body.checkpoint, &body.image) {
        (Some(_), Some(image)) => {
            return Err(Problem::invalid("image", shown(image), "no value, because `checkpoint` is set"));
        }
        (Some(id), None) => {
            check_name("checkpoint", id)?;
            SandboxSpec { image: format!("{CHECKPOINT}{id}"), ..SandboxSpec::default() }
        }
        (None, _) => SandboxSpec::default(),
    };
    let meant = body.clone().wanted(base)?;
    let request = request_name(&headers, || meaning(&body, &meant))?;
    let mut wanted = meant;
    if let Some(id) = &body.checkpoint {
        // Where the request has been made before, its checkpoint may be gone.
        if let Some(request) = &request
            && let Some(entry) = api.registry.sandboxes_of(&key.id, request).await?.remove(&0)
        {
            entry.settled(false, wait).await;
            return Ok(made(&entry));
        }
        let (_, record) = api.registry.find_checkpoint(&key.id, id).await?;
        wanted = body.wanted(SandboxSpec { image: wanted.spec.image, ..record.spec })?;
    }
    if wanted.spec.user_namespaces && !api.settings.user_namespaces {
        return Err(Problem::no_user_namespaces());
    }
    let wanted = Wanted { request, ..wanted };
    let entry = api.registry.create_once(&key, vec![wanted], None).await?.remove(0);
    entry.settled(false, wait).await;
    Ok(made(&entry))
}

fn made(entry: &Arc<Entry>) -> (StatusCode, axum::Json<SandboxView>) {
    let view = entry.view();
    let status =
        if view.state == SandboxState::Creating { StatusCode::ACCEPTED } else { StatusCode::CREATED };
    (status, axum::Json(view))
}

/// Lists the sandboxes of this key, newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", operation_id = "list_sandboxes", params(ListQuery),
    responses((status = 200, body = SandboxList)))]
pub(crate) async fn list(
    Reader(key): Reader,
    State(api): State<Api>,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<SandboxList>, Problem> {
    let limit = query.limit.unwrap_or(100);
    if !(1..=1000).contains(&limit) {
        return Err(Problem::invalid("limit", limit, "1 to 1000"));
    }
    let after = query.after.as_deref().map(place).transpose()?;
    let all = api.registry.list(&key.id).into_iter();
    let rest = all.filter(|entry| after.as_ref().is_none_or(|after| entry.place() > *after));
    let fits = |view: &SandboxView| {
        query.state.is_none_or(|state| view.state == state)
            && query.name.as_ref().is_none_or(|name| view.name.as_ref() == Some(name))
            && query.label.iter().all(|label| has_label(&view.labels, label))
    };
    let mut sandboxes: Vec<SandboxView> =
        rest.map(|entry| entry.view()).filter(fits).take(limit.saturating_add(1)).collect();
    let more = sandboxes.len() > limit;
    sandboxes.truncate(limit);
    let next = sandboxes.last().filter(|_| more).map(|view| format!("{}-{}", view.created_ms, view.id));
    Ok(axum::Json(SandboxList { sandboxes, next }))
}

/// The place in the list that a cursor names, whether or not a sandbox stands there now.
fn place(cursor: &str) -> Result<Place, Problem> {
    let parts = cursor.split_once('-').and_then(|(created_ms, id)| Some((created_ms.parse().ok()?, id)));
    let (created_ms, id): (u64, &str) = parts
        .filter(|(_, id)| check_name("after", id).is_ok())
        .ok_or_else(|| Problem::invalid("after", shown(cursor), "`next` of the previous page"))?;
    Ok((Reverse(created_ms), id.to_owned()))
}

/// Whether labels fit `NAME=VALUE` or `NAME`.
pub(crate) fn has_label(labels: &BTreeMap<String, String>, wanted: &str) -> bool {
    match wanted.split_once('=') {
        Some((name, value)) => labels.get(name).is_some_and(|found| found == value),
        None => labels.contains_key(wanted),
    }
}

/// Returns a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "get_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = SandboxView)))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<SandboxView>, Problem> {
    Ok(axum::Json(api.registry.find(&key.id, &id)?.view()))
}

/// Changes the labels and the lifetime of a sandbox.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "change_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox")), request_body = ChangeSandbox,
    responses((status = 200, body = SandboxView)))]
pub(crate) async fn change(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Json(body): Json<ChangeSandbox>,
) -> Result<axum::Json<SandboxView>, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    let lifetime = body.lifetime_s.map(|life_s| seconds("lifetime_s", life_s, 604_800.0)).transpose()?;
    let idle = body.idle_s.map(|idle_s| seconds("idle_s", idle_s, 604_800.0)).transpose()?;
    check_life(lifetime.unwrap_or(Duration::from_secs(1)), idle)?;
    if let Some(labels) = &body.labels {
        check_labels(labels)?;
    }
    let change = move |record: &mut crate::registry::LabelRecord| {
        if let Some(labels) = body.labels {
            record.labels = labels;
        }
        if let Some(lifetime) = lifetime {
            let now_ms = crate::registry::now_ms();
            record.expires_ms = now_ms.saturating_add(crate::registry::millis(lifetime));
        }
        record.idle_s = body.idle_s.or(record.idle_s);
    };
    api.registry.change(&entry, change).await?;
    Ok(axum::Json(entry.view()))
}

/// Deletes a sandbox and everything in it. It stays listed as ended for some minutes.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "delete_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 204, description = "The sandbox was deleted")))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<StatusCode, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    api.registry.delete(&entry, "deleted").await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Waits until a sandbox is running or has ended: see its `state`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/wait", tag = "sandboxes", operation_id = "wait_for_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox"), WaitQuery), responses((status = 200, body = SandboxView)))]
pub(crate) async fn wait(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    Query(query): Query<WaitQuery>,
) -> Result<axum::Json<SandboxView>, Problem> {
    let within = seconds("timeout_s", query.timeout_s.unwrap_or(60.0), WAIT_MAX_S)?;
    let entry = api.registry.find(&key.id, &id)?;
    entry.settled(query.state == Some(Awaited::Ended), within).await;
    Ok(axum::Json(entry.view()))
}

/// Sends a heartbeat: resets the idle time of a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/heartbeat", tag = "sandboxes", operation_id = "heartbeat",
    params(("id" = String, Path, description = "The id of the sandbox")), responses((status = 200, body = SandboxView)))]
pub(crate) async fn heartbeat(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<SandboxView>, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    entry.touch();
    Ok(axum::Json(entry.view()))
}

/// Creates sandboxes with a copy of the current file system of this one. Processes keep running and are not part of the copies.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes", operation_id = "fork_sandbox",
    params(("id" = String, Path, description = "The id of the sandbox"), ("Idempotency-Key" = Option<String>, Header, description = "A unique key of this request, so that it can be repeated", pattern = "^[A-Za-z0-9._-]{1,64}$")),
    request_body = ForkSandbox, responses((status = 201, body = Forks)))]
pub(crate) async fn fork(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<ForkSandbox>,
) -> Result<(StatusCode, axum::Json<Forks>), Problem> {
    api.admits()?;
    let count = body.count.unwrap_or(1);
    if !(1..=64).contains(&count) {
        return Err(Problem::invalid("count", count, "1 to 64"));
    }
    let lifetime = lifetime(body.lifetime_s)?;
    let idle = body.idle_s.map(|idle_s| seconds("idle_s", idle_s, 604_800.0)).transpose()?;
    let request = request_name(
        &headers,
        || json!({ "fork": id, "count": count, "labels": body.labels, "lifetime": lifetime, "idle": idle }),
    )?;
    let known = match &request {
        Some(request) => api.registry.sandboxes_of(&key.id, request).await?,
        None => BTreeMap::new(),
    };
    let entries: Vec<Arc<Entry>> = if known.len() == count {
        known.into_values().collect()
    } else {
        let entry = api.registry.find(&key.id, &id)?;
        let (sandbox, _busy) = api.registry.running(&key.id, &id)?;
        let record = entry.record();
        let checkpoint = api.registry.passing(&entry).await?;
        // The checkpoint passes; what the forks are said to be made of is what lies below it.
        let spec = SandboxSpec {
            image: format!("{CHECKPOINT}{}", checkpoint.id),
            user: sandbox.user.clone(),
            workdir: Some(sandbox.workdir.clone()),
            ..record.spec.clone()
        };
        let idle = idle.or_else(|| Duration::try_from_secs_f64(record.idle_s?).ok());
        let wanted = (0u32..).take(count).map(|part| Wanted {
            from_checkpoint: true,
            image: Some(record.spec.image.clone()),
            labels: body.labels.clone().unwrap_or_else(|| record.labels.clone()),
            lifetime,
            idle,
            request: request.as_ref().map(|request| request.part(part)),
            ..Wanted::of(spec.clone())
        });
        api.registry.create_once(&key, wanted.collect(), Some(&checkpoint)).await?
    };
    let all = futures::future::join_all(
        entries.iter().map(|fork| fork.settled(false, Duration::from_secs_f64(WAIT_MAX_S))),
    );
    all.await;
    let sandboxes = entries.iter().map(|fork| fork.view()).collect();
    Ok((StatusCode::CREATED, axum::Json(Forks { sandboxes })))
}
