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

/// A number of bytes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number of bytes, or a text such as `512MiB`")]
pub(crate) enum Size {
    /// As a number.
    Bytes(u64),
    /// As `512MiB`, `2GiB`, `65536`.
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

/// What is put into a file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, or an object with `text` or `base64` and `mode`")]
pub(crate) enum FileText {
    /// Its text; mode 0644.
    Text(String),
    /// Its text with a mode.
    Full(FileWithMode),
}

/// A text with permission bits.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileWithMode {
    /// The text.
    text: String,
    /// Permission bits, octal, like `755`.
    mode: String,
}

/// One text or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, or a list of texts")]
pub(crate) enum Texts {
    /// One.
    One(String),
    /// Several, in order.
    Several(Vec<String>),
}

/// A sandbox to make. What is left out is as `espalier sandbox create` has it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSandbox {
    /// `host`, the name of an image, `oci:FOLDER`, `oci-archive:FILE`; default `host`.
    #[schema(max_length = 4096)]
    image: Option<String>,
    /// A checkpoint to start from, in place of an image: with its sandbox's bounds where these are left out.
    checkpoint: Option<String>,
    /// Cores; default 1.
    #[schema(minimum = 0.01, maximum = 1024)]
    cpu: Option<f64>,
    /// Memory of everything in it, 16MiB to 16384GiB; default 2GiB.
    memory: Option<Size>,
    /// Bytes that it may write to its file system, 1MiB to 1048576GiB; default 4GiB.
    disk: Option<Size>,
    /// Files that it may make; default 500000.
    #[schema(minimum = 64, maximum = 4_294_967_296_i64)]
    files_max: Option<u64>,
    /// Processes and threads at once; default 512.
    #[schema(minimum = 8, maximum = 4_194_304)]
    processes_max: Option<u32>,
    /// What it may reach; default nothing.
    network: Option<Reaches>,
    /// Added to the image's environment.
    env: Option<BTreeMap<String, String>>,
    /// Files to put into it, by absolute path, before `setup`.
    files: Option<BTreeMap<String, FileText>>,
    /// Shell text that is run once, as the sandbox's root in `workdir`; it has to end with 0.
    setup: Option<Texts>,
    /// Who runs commands; default the image's user.
    #[schema(max_length = 256)]
    user: Option<String>,
    /// Where commands start; default the image's folder.
    #[schema(max_length = 4096)]
    workdir: Option<String>,
    /// Whether what the image starts by itself is run in the background; default false.
    entrypoint: Option<bool>,
    /// To find it by.
    labels: Option<BTreeMap<String, String>>,
    /// For people.
    #[schema(pattern = "^[A-Za-z0-9._-]{1,64}$")]
    name: Option<String>,
    /// Its life, in seconds; default 7200.
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    lifetime_s: Option<f64>,
    /// Silence that ends it, in seconds: no call of a client is under way or comes. Default none.
    #[schema(minimum = 1, maximum = 604_800)]
    idle_s: Option<f64>,
    /// Refuse, unless these are promised (`espalier doctor` lists what can be).
    require: Option<Vec<String>>,
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateQuery {
    /// How long to wait until it runs, in seconds; default 60.
    #[param(minimum = 0, maximum = 600)]
    wait_s: Option<f64>,
}

/// Which sandboxes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// `NAME=VALUE`, or `NAME` for any value; may be repeated: all have to fit.
    #[serde(default)]
    label: Vec<String>,
    /// In this state.
    state: Option<SandboxState>,
    /// Of this name.
    name: Option<String>,
    /// How many at most; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only what comes after this one: `next` of the page before.
    after: Option<String>,
}

/// A page of sandboxes, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct SandboxList {
    /// They.
    sandboxes: Vec<SandboxView>,
    /// `after` of the next page; null: there is none.
    next: Option<String>,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Awaited {
    /// It runs, or never will.
    Running,
    /// It is over.
    Ended,
}

/// What to wait for, and how long.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// Default `running`.
    state: Option<Awaited>,
    /// In seconds; default 60.
    #[param(minimum = 0, maximum = 600)]
    timeout_s: Option<f64>,
}

/// What changes; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeSandbox {
    /// In place of all that it has.
    labels: Option<BTreeMap<String, String>>,
    /// Its life from now on, in seconds.
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    lifetime_s: Option<f64>,
    /// Silence that ends it, in seconds.
    #[schema(minimum = 1, maximum = 604_800)]
    idle_s: Option<f64>,
}

/// Forks to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkSandbox {
    /// How many; default 1.
    #[schema(minimum = 1, maximum = 64)]
    count: Option<usize>,
    /// Of each; default those of the sandbox.
    labels: Option<BTreeMap<String, String>>,
    /// Life of each, in seconds; default 7200.
    #[schema(exclusive_minimum = 0, maximum = 604_800)]
    lifetime_s: Option<f64>,
    /// Silence that ends each, in seconds; default that of the sandbox.
    #[schema(minimum = 1, maximum = 604_800)]
    idle_s: Option<f64>,
}

/// Sandboxes that go on from the file system of another.
#[derive(Serialize, ToSchema)]
pub(crate) struct Forks {
    /// They.
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
    json!({
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
    })
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

/// Makes a sandbox.
///
/// With the header `Idempotency-Key` the same request again gives the same sandbox, also after a restart of the service.
/// The sandbox is made whatever becomes of the connection.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", operation_id = "create_sandbox",
    params(CreateQuery, ("Idempotency-Key" = Option<String>, Header, description = "A name for this request", pattern = "^[A-Za-z0-9._-]{1,64}$")),
    request_body = CreateSandbox,
    responses((status = 201, description = "It runs, or could not be made: see `state`", body = SandboxView), (status = 202, description = "It is still being made", body = SandboxView)))]
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
            return Err(Problem::invalid("image", shown(image), "nothing, where a `checkpoint` is named"));
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

/// The sandboxes of this key, newest first.
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
        .ok_or_else(|| Problem::invalid("after", shown(cursor), "`next` of the page before"))?;
    Ok((Reverse(created_ms), id.to_owned()))
}

/// Whether labels fit `NAME=VALUE` or `NAME`.
pub(crate) fn has_label(labels: &BTreeMap<String, String>, wanted: &str) -> bool {
    match wanted.split_once('=') {
        Some((name, value)) => labels.get(name).is_some_and(|found| found == value),
        None => labels.contains_key(wanted),
    }
}

/// A sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "get_sandbox",
    params(("id" = String, Path, description = "Of the sandbox")), responses((status = 200, body = SandboxView)))]
pub(crate) async fn get(
    Reader(key): Reader,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<SandboxView>, Problem> {
    Ok(axum::Json(api.registry.find(&key.id, &id)?.view()))
}

/// Changes labels and life of a sandbox.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "change_sandbox",
    params(("id" = String, Path, description = "Of the sandbox")), request_body = ChangeSandbox,
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

/// Ends a sandbox; nothing of it is left. It is shown as ended for some minutes.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "delete_sandbox",
    params(("id" = String, Path, description = "Of the sandbox")), responses((status = 204, description = "It is gone")))]
pub(crate) async fn delete(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<StatusCode, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    api.registry.delete(&entry, "deleted").await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Waits until a sandbox runs or is over; look at its `state`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/wait", tag = "sandboxes", operation_id = "wait_for_sandbox",
    params(("id" = String, Path, description = "Of the sandbox"), WaitQuery), responses((status = 200, body = SandboxView)))]
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

/// Says that a sandbox is still needed: its silence begins anew.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/heartbeat", tag = "sandboxes", operation_id = "heartbeat",
    params(("id" = String, Path, description = "Of the sandbox")), responses((status = 200, body = SandboxView)))]
pub(crate) async fn heartbeat(
    Writer(key): Writer,
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<SandboxView>, Problem> {
    let entry = api.registry.find(&key.id, &id)?;
    entry.touch();
    Ok(axum::Json(entry.view()))
}

/// Makes sandboxes that go on from the file system of this one, as it is now. What runs in it goes on, and is not in them.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes", operation_id = "fork_sandbox",
    params(("id" = String, Path, description = "Of the sandbox"), ("Idempotency-Key" = Option<String>, Header, description = "A name for this request", pattern = "^[A-Za-z0-9._-]{1,64}$")),
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
