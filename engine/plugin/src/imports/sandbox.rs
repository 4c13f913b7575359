//! The imports of `espalier:sandbox`. Bounds are checked in [`crate::convert::sandbox`]; waits are shortened so that they
//! answer before `limits.import_wall`; each call leaves a note of what was asked and what came of it.

mod machine;
mod process;

use super::{Answer, handle, hold, opened};
use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use crate::bindings::reward::espalier::sandbox::scoring;
use crate::bindings::task_generator::espalier::sandbox::creation;
use crate::convert::failure_out;
use crate::convert::sandbox::outcome_out;
use crate::gate::Work;
use crate::guest::{Guest, OpenProcess, OpenSandbox, OpenShell};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Outcome, Process, Sandbox, Sandboxes, Shell};
use espalier_core::journal::{Call, Reply};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use wasmtime::component::Resource;

/// Most bytes of one read, of a file or an output, and of one write to a command's input.
const SLICE_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of a file that a guest writes itself, and of a patch.
const WRITE_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a file that becomes a blob, or the other way round, and of the content of changes.
const BLOB_BYTES_MAX: u64 = 64 << 20;
/// Most entries of a listed folder.
const ENTRIES_MAX: u32 = 10_000;
/// Deepest listing.
const DEPTH_MAX: u32 = 64;
/// Sandboxes of its own that a plugin has at a time: opened fresh, or created.
const OWN_SANDBOXES_MAX: usize = 8;
/// Bytes of a command, and of an output's end, in a note.
const NOTE_BYTES_MAX: usize = 160;

/// One line of it, not longer than a note may be.
pub(super) fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.len() {
        0..=NOTE_BYTES_MAX => line,
        _ => format!("{}...", &line[..line.floor_char_boundary(NOTE_BYTES_MAX)]),
    }
}

fn path_text(path: &wit::Path) -> String {
    match path {
        wit::Path::Text(text) => short(text),
        wit::Path::Bytes(bytes) => short(&String::from_utf8_lossy(bytes)),
    }
}

fn program_text(program: &wit::Program) -> String {
    match program {
        wit::Program::Shell(text) | wit::Program::Other(text) => short(text),
        wit::Program::Argv(words) => short(&words.join(" ")),
    }
}

/// The shorter of two times, where there are two.
fn within(asked: Option<Duration>, longest: Option<Duration>) -> Option<Duration> {
    asked.into_iter().chain(longest).min()
}

/// `make test -> exit 2, 512 bytes`.
fn outcome_text(asked: &str, outcome: &Outcome) -> String {
    let bytes = outcome.stdout.total + outcome.stderr.total;
    let left = match outcome.left_running {
        0 => String::new(),
        count => format!(", {count} left running"),
    };
    format!("{asked} -> {}, {bytes} bytes{left}", outcome.ended)
}

impl Guest {
    fn sandbox(&self, this: &Resource<OpenSandbox>) -> wasmtime::Result<Arc<dyn Sandbox>> {
        let held = Arc::clone(&self.table.get(this)?.0);
        held.begin(self.gate.total());
        Ok(held)
    }

    fn process(&self, this: &Resource<OpenProcess>) -> wasmtime::Result<Arc<dyn Process>> {
        let held = Arc::clone(&self.table.get(this)?.0);
        held.begin(self.gate.total());
        Ok(held)
    }

    fn shell(&self, this: &Resource<OpenShell>) -> wasmtime::Result<Arc<dyn Shell>> {
        let held = Arc::clone(&self.table.get(this)?.0);
        held.begin(self.gate.total());
        Ok(held)
    }

    /// A place for one more sandbox of its own; free again when the last handle to that one is dropped.
    fn reserve_sandbox(&mut self) -> Result<Arc<()>, Failure> {
        self.own_sandboxes.retain(|own| own.strong_count() > 0);
        if self.own_sandboxes.len() >= OWN_SANDBOXES_MAX {
            return Err(Failure::Other {
                code: "bound".to_owned(),
                text: format!("{OWN_SANDBOXES_MAX} sandboxes of this plugin's own are alive; drop one first"),
            });
        }
        let own = Arc::new(());
        self.own_sandboxes.push(Arc::downgrade(&own));
        Ok(own)
    }

    fn the_sandboxes(&self, name: &str) -> Result<Arc<dyn Sandboxes>, Failure> {
        self.capabilities.sandboxes.clone().ok_or_else(|| {
            Failure::Invalid(format!(
                "no sandbox `{name}`: this rollout has no sandboxes; a task declares them in `sandbox` or `sandboxes`, the \
                 experiment in [sandbox]"
            ))
        })
    }

    /// One import of a sandbox: refused where what it was asked makes no sense, noted by what was asked.
    fn in_sandbox<A, T, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        call: impl FnOnce(&A) -> Call<'_>,
        note: String,
        work: impl FnOnce(A) -> F,
        reply: impl FnOnce(&T) -> Reply<'_>,
    ) -> impl Future<Output = wasmtime::Result<Result<T, Failure>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.in_sandbox_noted(name, asked, call, work, reply, move |_| Some(note.into()))
    }

    fn in_sandbox_noted<A, T, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        call: impl FnOnce(&A) -> Call<'_>,
        work: impl FnOnce(A) -> F,
        reply: impl FnOnce(&T) -> Reply<'_>,
        note: impl FnOnce(Option<&T>) -> Option<Box<str>>,
    ) -> impl Future<Output = wasmtime::Result<Result<T, Failure>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let call = self.gate.checked(name, &asked, call);
        self.gate.pass_noted(call, started(asked, work), Ok, reply, note)
    }

    /// An import that gives the guest something to hold.
    async fn opened_in_sandbox<A, T, H, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        call: impl FnOnce(&A) -> Call<'_>,
        note: String,
        work: impl FnOnce(A) -> F,
        held: impl FnOnce(T) -> H,
    ) -> Answer<Resource<H>>
    where
        T: Send + 'static,
        H: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let call = self.gate.checked(name, &asked, call);
        let work = started(asked, work);
        let table = &mut self.table;
        let take = |value| hold(table, held(value));
        Ok(self.gate.pass_noted(call, work, take, opened, |_| Some(note.into())).await?.map_err(failure_out))
    }

    /// An import that ends with a command's outcome.
    async fn outcome_of<A, F>(
        &mut self,
        name: &'static str,
        asked: Result<A, Failure>,
        call: impl FnOnce(&A) -> Call<'_>,
        note: String,
        work: impl FnOnce(A) -> F,
    ) -> Answer<wit::Outcome>
    where
        F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
    {
        let noted = move |outcome: Option<&Outcome>| match outcome {
            Some(outcome) => Some(outcome_text(&note, outcome).into()),
            None => Some(note.into()),
        };
        let outcome = self.in_sandbox_noted(
            name,
            asked,
            call,
            |asked| {
                let work = work(asked);
                async move { work.await?.known() }
            },
            |outcome| Reply::Outcome(Some(Cow::Borrowed(outcome))),
            noted,
        );
        Ok(outcome.await?.map(outcome_out).map_err(failure_out))
    }

    /// An import that may find a command still running.
    async fn outcome_if_ended<F>(&mut self, call: Call<'_>, work: F) -> Answer<Option<wit::Outcome>>
    where
        F: Future<Output = Result<Option<Outcome>, Failure>> + Send + 'static,
    {
        let asked = self.gate.asked(call);
        let noted = |outcome: Option<&Option<Outcome>>| {
            Some(match outcome? {
                Some(outcome) => outcome_text("", outcome).trim_start().into(),
                None => "still runs".into(),
            })
        };
        let outcome = self.gate.pass_noted(
            asked,
            Box::pin(work),
            |outcome: Option<Outcome>| outcome.map(Outcome::known).transpose(),
            |outcome: &Option<Outcome>| Reply::Outcome(outcome.as_ref().map(Cow::Borrowed)),
            noted,
        );
        Ok(outcome.await?.map(|outcome| outcome.map(outcome_out)).map_err(failure_out))
    }

    /// What a guest asks to wait, bounded so that the import still answers.
    fn wait_within(&self, wait_ms: u64) -> Duration {
        Duration::from_millis(wait_ms).min(self.gate.longest_wait())
    }

    /// The longest time of a command that an import waits for.
    fn longest_command(&self) -> Duration {
        let longest = self.gate.longest_wait();
        self.gate.command_wall().map_or(longest, |wall| wall.min(longest))
    }
}

/// What is to be done with arguments that make sense; their failure, where they do not.
fn started<A, T, F>(asked: Result<A, Failure>, work: impl FnOnce(A) -> F) -> Work<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    match asked.map(work) {
        Ok(work) => Box::pin(work),
        Err(failure) => Box::pin(std::future::ready(Err(failure))),
    }
}

impl wit::Host for Guest {
    async fn open(&mut self, name: String) -> Answer<Resource<OpenSandbox>> {
        let asked = self.the_sandboxes(&name).map(|sandboxes| (sandboxes, name.clone()));
        self.opened_in_sandbox(
            "sandboxes.open",
            asked,
            |(_, name)| Call::OpenSandbox { name: Cow::Borrowed(name) },
            name,
            |(sandboxes, name)| async move { sandboxes.open(&name).await },
            |sandbox| OpenSandbox(sandbox, None),
        )
        .await
    }

    async fn wait_any(
        &mut self,
        processes: Vec<Resource<OpenProcess>>,
        timeout_ms: u64,
    ) -> Answer<Option<u32>> {
        let within = self.wait_within(timeout_ms);
        let waited: Vec<Arc<dyn Process>> =
            processes.iter().map(|process| self.process(process)).collect::<wasmtime::Result<_>>()?;
        let asked = match waited.len() {
            0 => Err(Failure::Invalid("no process to wait for".to_owned())),
            _ => Ok(waited),
        };
        let handles = processes.iter().map(handle).collect();
        let first = self
            .in_sandbox(
                "sandboxes.wait-any",
                asked,
                |_| Call::WaitAny { processes: handles, timeout_ms },
                format!("{} processes, up to {} ms", processes.len(), within.as_millis()),
                |waited| wait_any(waited, within),
                |place| Reply::Which(*place),
            )
            .await?;
        Ok(first.map_err(failure_out))
    }
}

/// The first that has ended, by its place.
async fn wait_any(processes: Vec<Arc<dyn Process>>, within: Duration) -> Result<Option<u32>, Failure> {
    // What has ended already is found in order; the others are waited for together. The set aborts what is left when dropped.
    let mut waits = JoinSet::new();
    for (place, process) in (0u32..).zip(&processes) {
        if process.ended(Duration::ZERO).await? {
            return Ok(Some(place));
        }
    }
    for (place, process) in (0u32..).zip(processes) {
        waits.spawn(async move { process.ended(within).await.map(|ended| ended.then_some(place)) });
    }
    while let Some(waited) = waits.join_next().await {
        let waited =
            waited.map_err(|error| Failure::Unavailable(format!("waiting for a process: {error}")))?;
        if let Some(place) = waited? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

impl scoring::Host for Guest {
    async fn open_fresh(&mut self, name: String) -> Answer<Resource<OpenSandbox>> {
        let own = self.reserve_sandbox();
        let sandboxes = own.clone().and_then(|_| self.the_sandboxes(&name));
        let asked = sandboxes.map(|sandboxes| (sandboxes, name.clone()));
        self.opened_in_sandbox(
            "scoring.open-fresh",
            asked,
            |(_, name)| Call::OpenFresh { name: Cow::Borrowed(name) },
            name,
            |(sandboxes, name)| async move { sandboxes.open_fresh(&name).await },
            |sandbox| OpenSandbox(sandbox, own.ok()),
        )
        .await
    }
}

impl creation::Host for Guest {
    async fn create(&mut self, spec: String) -> Answer<Resource<OpenSandbox>> {
        let own = self.reserve_sandbox();
        let sandboxes = own.clone().and_then(|_| {
            let sandboxes = self.capabilities.sandboxes.clone();
            sandboxes.ok_or_else(|| Failure::Denied("espalier:sandbox/creation".to_owned()))
        });
        let asked = sandboxes.map(|sandboxes| (sandboxes, spec.clone()));
        self.opened_in_sandbox(
            "creation.create",
            asked,
            |(_, spec)| Call::CreateSandbox { spec: Cow::Borrowed(spec) },
            short(&spec),
            |(sandboxes, spec)| async move { sandboxes.create(&spec).await },
            |sandbox| OpenSandbox(sandbox, own.ok()),
        )
        .await
    }
}

/// Refuses a read of more than one slice.
fn slice(length: u32) -> Result<(), Failure> {
    if length > SLICE_BYTES_MAX {
        return Err(Failure::Invalid(format!("length {length} is over {SLICE_BYTES_MAX}")));
    }
    Ok(())
}
