//! Recorded replies in order, as the capabilities of a plugin.

use crate::script::Notes;
use async_trait::async_trait;
use espalier_core::chat::{CompleteOptions, Completion, Message, Tool, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::browser::{
    Action, BrowserSession, BrowserStep, Browsers, Picture, ScreenshotOptions, ScriptWorld, Snapshot,
    SnapshotOptions, Tab,
};
use espalier_core::host::sandbox::{
    ChangeSet, Channel, Command, Entry, FileStat, Outcome, PatchOptions, PatchedFile, Piece, Process,
    RunOptions, Sandbox, Sandboxes, Shell, ShellOptions, TerminalSize, WriteOptions,
};
use espalier_core::host::service::{ServiceRequest, ServiceResponse, Services};
use espalier_core::host::{
    BlobInfo, Blobs, Branch, Conversation, Environment, Environments, Models, Observation, StepResult,
};
use espalier_core::journal::{Call, Reply, Verdict};
use espalier_core::trajectory::HostCall;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// What the host answers by itself.
const OF_THE_HOST: [&str; 4] = ["settings.get", "clock.now-ms", "random.bytes", "random.below"];

/// The replies of a recording. All clones are at the same place of it.
#[derive(Clone)]
pub(crate) struct Tape(Arc<Inner>);

struct Inner {
    replies: Vec<Recorded>,
    next: Mutex<usize>,
    notes: Notes,
}

struct Recorded {
    number: u32,
    name: String,
    /// `None`: it was over the bound of what is kept.
    reply: Option<Reply<'static>>,
}

impl Tape {
    pub(crate) fn new(calls: &[HostCall], notes: Notes) -> Tape {
        let reaches_a_capability = |call: &&HostCall| {
            let asked = call.payload.as_ref().and_then(|payload| payload.call.as_ref());
            let refused = matches!(call.verdict, Verdict::Refused | Verdict::Cancelled);
            !OF_THE_HOST.contains(&call.name.as_ref())
                && !refused
                && !matches!(asked, Some(Call::Invalid { .. }))
        };
        let recorded = |call: &HostCall| Recorded {
            number: call.number,
            name: call.name.as_ref().to_owned(),
            reply: call.payload.as_ref().and_then(|payload| payload.reply.clone()),
        };
        let replies = calls.iter().filter(reaches_a_capability).map(recorded).collect();
        Tape(Arc::new(Inner { replies, next: Mutex::default(), notes }))
    }

    /// The reply to the next call, which has to be of this name.
    fn next(&self, name: &str) -> Result<Reply<'static>, Failure> {
        let mut next = self.0.next.lock();
        let Some(recorded) = self.0.replies.get(*next) else {
            let text = format!("has no further call, but the plugin called {name}");
            return Err(self.0.notes.unexpected("recorded", text));
        };
        let key = format!("recorded, call {}", recorded.number);
        if recorded.name != name {
            let text = format!("was {}, but the plugin called {name}", recorded.name);
            return Err(self.0.notes.unexpected(key, text));
        }
        *next += 1;
        match &recorded.reply {
            Some(Reply::Failed(failure)) => Err(failure.clone().into_owned()),
            Some(reply) => Ok(reply.clone()),
            None => Err(self.0.notes.unexpected(key, format!("{name}: its reply was too large to be kept"))),
        }
    }

    fn is_next(&self, name: &str) -> bool {
        self.0.replies.get(*self.0.next.lock()).is_some_and(|recorded| recorded.name == name)
    }

    fn done(&self, name: &str) -> Result<(), Failure> {
        self.next(name).map(drop)
    }

    fn of_another_form(&self, name: &str) -> Failure {
        self.0.notes.unexpected("recorded", format!("has a reply to {name} of another form"))
    }
}

/// The reply to a call, taken apart.
macro_rules! reply {
    ($tape:expr, $name:literal, $pattern:pat => $value:expr) => {
        match $tape.next($name)? {
            $pattern => Ok($value),
            _ => Err($tape.of_another_form($name)),
        }
    };
}

#[async_trait]
impl Models for Tape {
    async fn open(&self, _: &str, _: Vec<Message>, _: Vec<Tool>) -> Result<Box<dyn Conversation>, Failure> {
        self.done("conversations.open")?;
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Conversation for Tape {
    async fn append(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        self.done("conversation.append")
    }

    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        reply!(self, "conversation.complete", Reply::Completion(completion) => completion.into_owned())
    }

    async fn complete_many(&mut self, _: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        let branch = |completion: Completion| {
            let conversation: Box<dyn Conversation> = Box::new(self.clone());
            Branch { conversation, completion }
        };
        reply!(self, "conversation.complete-many", Reply::Branches(branches) => {
            branches.into_iter().map(|(_, completion)| branch(completion.into_owned())).collect()
        })
    }

    fn discard(&mut self) {
        // What is wrong is noted.
        let _ = self.done("conversation.discard");
    }

    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        self.done("conversation.fork")?;
        Ok(Box::new(self.clone()))
    }

    async fn rewrite(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        self.done("conversation.rewrite")
    }

    async fn elide_images(&mut self, _: u32) -> Result<u32, Failure> {
        reply!(self, "conversation.elide-images", Reply::Number(number) => number as u32)
    }

    fn set_trainable(&mut self, _: u32, _: bool) -> Result<(), Failure> {
        self.done("conversation.set-trainable")
    }

    fn usage(&self) -> Usage {
        match self.next("conversation.usage") {
            Ok(Reply::Usage(usage)) => usage.into_owned(),
            _ => Usage::default(),
        }
    }
}

#[async_trait]
impl Environments for Tape {
    async fn open(&self) -> Result<Box<dyn Environment>, Failure> {
        self.done("environments.open")?;
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Environment for Tape {
    async fn reset(&mut self) -> Result<Observation, Failure> {
        reply!(self, "environment.reset", Reply::Observation(seen) => seen.into_owned())
    }

    async fn step(&mut self, _: String) -> Result<StepResult, Failure> {
        reply!(self, "environment.step", Reply::Step(step) => step.into_owned())
    }

    async fn actions(&mut self) -> Result<Vec<String>, Failure> {
        reply!(self, "environment.actions", Reply::Texts(texts) => texts.into_owned())
    }
}

#[async_trait]
impl Blobs for Tape {
    async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
        reply!(self, "blobs.put", Reply::Text(text) => text.into_owned())
    }

    async fn stat(&self, _: &str) -> Result<BlobInfo, Failure> {
        reply!(self, "blobs.stat", Reply::Blob(info) => info.into_owned())
    }

    async fn read(&self, _: &str, _: u64, _: u32) -> Result<Vec<u8>, Failure> {
        // The host makes text of what it reads.
        if self.is_next("blobs.read-text") {
            return reply!(self, "blobs.read-text", Reply::Text(text) => text.into_owned().into_bytes());
        }
        reply!(self, "blobs.read", Reply::Bytes(bytes) => bytes.0.into_owned())
    }
}

#[async_trait]
impl Browsers for Tape {
    async fn open(&self, _: &str) -> Result<Arc<dyn BrowserSession>, Failure> {
        self.done("browsers.open")?;
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl BrowserSession for Tape {
    fn tools(&self) -> Vec<Tool> {
        match self.next("session.tools") {
            Ok(Reply::Tools(tools)) => tools.into_owned(),
            _ => Vec::new(),
        }
    }

    async fn act(&self, _: Vec<Action>) -> Result<Vec<BrowserStep>, Failure> {
        reply!(self, "session.act", Reply::BrowserSteps(steps) => steps.into_owned())
    }

    async fn tabs(&self) -> Result<Vec<Tab>, Failure> {
        reply!(self, "session.tabs", Reply::Tabs(tabs) => tabs.into_owned())
    }

    async fn snapshot(&self, _: SnapshotOptions) -> Result<Snapshot, Failure> {
        reply!(self, "session.snapshot", Reply::Snapshot(snapshot) => snapshot.into_owned())
    }

    async fn screenshot(&self, _: ScreenshotOptions) -> Result<Picture, Failure> {
        reply!(self, "session.screenshot", Reply::Picture(picture) => picture.into_owned())
    }

    async fn evaluate(&self, _: String, _: ScriptWorld) -> Result<String, Failure> {
        reply!(self, "session.evaluate", Reply::Text(json) => json.into_owned())
    }

    async fn storage_state(&self) -> Result<String, Failure> {
        reply!(self, "session.storage-state", Reply::Text(json) => json.into_owned())
    }
}

#[async_trait]
impl Services for Tape {
    async fn request(&self, _: ServiceRequest) -> Result<ServiceResponse, Failure> {
        reply!(self, "services.request", Reply::Response { status, content_type, body } => {
            ServiceResponse { status, content_type: content_type.into_owned(), body: body.0.into_owned() }
        })
    }
}

#[async_trait]
impl Sandboxes for Tape {
    async fn open(&self, _: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        self.done("sandboxes.open")?;
        Ok(Arc::new(self.clone()))
    }

    async fn open_fresh(&self, _: &str) -> Result<Arc<dyn Sandbox>, Failure> {
        self.done("scoring.open-fresh")?;
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Sandbox for Tape {
    fn begin(&self, _: u64) {}

    async fn exec(&self, _: Command) -> Result<Outcome, Failure> {
        reply!(self, "sandbox.exec", Reply::Outcome(Some(outcome)) => outcome.into_owned())
    }

    async fn start(&self, _: Command) -> Result<Arc<dyn Process>, Failure> {
        self.done("sandbox.start")?;
        Ok(Arc::new(PlayedProcess { tape: self.clone(), outcome: Mutex::default() }))
    }

    async fn open_shell(&self, _: ShellOptions) -> Result<Arc<dyn Shell>, Failure> {
        self.done("sandbox.open-shell")?;
        Ok(Arc::new(self.clone()))
    }

    async fn read_file(&self, _: &[u8], _: u64, _: u32) -> Result<Vec<u8>, Failure> {
        reply!(self, "sandbox.read-file", Reply::Bytes(bytes) => bytes.0.into_owned())
    }

    async fn file_to_blob(&self, _: &[u8], _: u64) -> Result<String, Failure> {
        reply!(self, "sandbox.file-to-blob", Reply::Text(text) => text.into_owned())
    }

    async fn write_file(&self, _: &[u8], _: Vec<u8>, _: WriteOptions) -> Result<(), Failure> {
        self.done("sandbox.write-file")
    }

    async fn blob_to_file(&self, _: &str, _: &[u8], _: WriteOptions, _: u64) -> Result<(), Failure> {
        self.done("sandbox.blob-to-file")
    }

    async fn list_folder(&self, _: &[u8], _: u32, _: u32) -> Result<Vec<Entry>, Failure> {
        reply!(self, "sandbox.list-folder", Reply::Entries(entries) => entries.into_owned())
    }

    async fn stat(&self, _: &[u8], _: bool) -> Result<FileStat, Failure> {
        reply!(self, "sandbox.stat", Reply::Stat(stat) => stat.into_owned())
    }

    async fn make_folder(&self, _: &[u8], _: WriteOptions) -> Result<(), Failure> {
        self.done("sandbox.make-folder")
    }

    async fn remove(&self, _: &[u8], _: bool, _: bool) -> Result<u64, Failure> {
        reply!(self, "sandbox.remove", Reply::Number(number) => number)
    }

    async fn move_to(&self, _: &[u8], _: &[u8], _: bool) -> Result<(), Failure> {
        self.done("sandbox.move-to")
    }

    async fn apply_patch(&self, _: String, _: PatchOptions) -> Result<Vec<PatchedFile>, Failure> {
        reply!(self, "sandbox.apply-patch", Reply::Patched(files) => files.into_owned())
    }

    async fn changes(&self, _: Option<&[u8]>, _: u64) -> Result<ChangeSet, Failure> {
        reply!(self, "sandbox.changes", Reply::Changes(changes) => changes.into_owned())
    }

    async fn apply_changes(&self, _: &str) -> Result<(), Failure> {
        self.done("sandbox.apply-changes")
    }

    async fn checkpoint(&self) -> Result<String, Failure> {
        reply!(self, "sandbox.checkpoint", Reply::Text(text) => text.into_owned())
    }

    async fn port(&self, _: u16) -> Result<String, Failure> {
        reply!(self, "sandbox.port", Reply::Text(text) => text.into_owned())
    }
}

#[async_trait]
impl Shell for Tape {
    fn begin(&self, _: u64) {}

    async fn run(&self, _: String, _: RunOptions) -> Result<Outcome, Failure> {
        reply!(self, "shell.run", Reply::Outcome(Some(outcome)) => outcome.into_owned())
    }

    async fn close(&self) -> Result<(), Failure> {
        self.done("shell.close")
    }
}

/// A command that was started.
struct PlayedProcess {
    tape: Tape,
    /// What a wait has brought: the host asks for it behind the wait.
    outcome: Mutex<Option<Outcome>>,
}

#[async_trait]
impl Process for PlayedProcess {
    fn begin(&self, _: u64) {}

    fn pid(&self) -> u32 {
        match self.tape.next("process.pid") {
            Ok(Reply::Number(number)) => number as u32,
            _ => 0,
        }
    }

    async fn poll(&self) -> Result<Option<Outcome>, Failure> {
        if let Some(outcome) = self.outcome.lock().take() {
            return Ok(Some(outcome));
        }
        reply!(self.tape, "process.poll", Reply::Outcome(outcome) => outcome.map(|one| one.into_owned()))
    }

    async fn read(&self, _: Channel, _: u64, _: u32, _: Duration) -> Result<Piece, Failure> {
        reply!(self.tape, "process.read", Reply::Piece(piece) => piece.into_owned())
    }

    async fn write_stdin(&self, _: Vec<u8>) -> Result<u64, Failure> {
        reply!(self.tape, "process.write-stdin", Reply::Number(number) => number)
    }

    async fn close_stdin(&self) -> Result<(), Failure> {
        self.tape.done("process.close-stdin")
    }

    async fn resize(&self, _: TerminalSize) -> Result<(), Failure> {
        self.tape.done("process.resize")
    }

    async fn signal(&self, _: u8, _: bool) -> Result<u32, Failure> {
        reply!(self.tape, "process.signal", Reply::Number(number) => number as u32)
    }

    async fn ended(&self, _: Duration) -> Result<bool, Failure> {
        let ended: Result<Option<Outcome>, Failure> =
            reply!(self.tape, "process.wait", Reply::Outcome(outcome) => outcome.map(|one| one.into_owned()));
        let ended = ended?;
        let is_over = ended.is_some();
        *self.outcome.lock() = ended;
        Ok(is_over)
    }
}
