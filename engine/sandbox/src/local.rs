//! Sandboxes on this machine: Linux namespaces made by a [`keeper`], a process of its own that outlives the engine. This is the
//! engine's side: it finds or starts the keeper, asks it, and hears from it which sandboxes have ended.

mod door;
pub mod keeper;
mod wire;

use crate::backend::{Address, Backend, Checkpoint, Door, Ended, Order, Placed, Reach, Root};
use crate::error::SandboxError;
use crate::image::Upper;
use async_trait::async_trait;
use espalier_agent_client::Secret;
use rustix::fs::{CWD, Mode, OFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{broadcast, oneshot};
use wire::{Answer, Refusal, RefusalKind, Request, Said, VERSION, What};

/// From starting a keeper to its first answer. The first makes the pool of disks.
const START_MAX: Duration = Duration::from_secs(30);
/// For every request; longer than anything the keeper waits for.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Writing out before a checkpoint.
const FLUSH_MAX: Duration = Duration::from_secs(20);
/// Sandboxes that ended and that nobody has heard of yet.
const ENDED_MAX: usize = 4096;

/// Where and with what.
#[derive(Clone, Debug)]
pub struct Config {
    /// The store's own folder for sandboxes; several engines may share it.
    pub folder: PathBuf,
    /// Program and first arguments of a keeper; folder and agent follow.
    pub keeper: Vec<OsString>,
    /// The static binary that runs in every sandbox.
    pub agent: PathBuf,
}

/// The backend of this machine. Clones share it.
#[derive(Clone, Debug)]
pub struct Local {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    /// The folder, open: paths through it are short enough for sockets.
    folder: OwnedFd,
    line: tokio::sync::Mutex<Option<Greeted>>,
    ended: broadcast::Sender<Ended>,
}

/// A connection to a keeper that has said who it is and what it can: that does not change while it lives.
#[derive(Debug)]
struct Greeted {
    line: Line,
    hello: wire::Hello,
}

/// A connection to the keeper.
#[derive(Debug)]
struct Line {
    write: OwnedWriteHalf,
    waiting: Waiting,
    next: u64,
    reader: tokio::task::AbortHandle,
}

type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Result<Answer, Refusal>>>>>>;

impl Drop for Line {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Local {
    /// Opens the folder. The keeper is found or started with the first request.
    pub fn open(config: Config) -> Result<Local, SandboxError> {
        use std::os::unix::fs::DirBuilderExt;
        let failed = |error: &dyn std::fmt::Display| {
            SandboxError::Unavailable(format!("the folder of sandboxes {}: {error}", config.folder.display()))
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&config.folder)
            .map_err(|error| failed(&error))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::openat(CWD, &config.folder, flags, Mode::empty()).map_err(|error| failed(&error))?;
        let (ended, _) = broadcast::channel(ENDED_MAX);
        let line = tokio::sync::Mutex::new(None);
        Ok(Local { shared: Arc::new(Shared { config, folder, line, ended }) })
    }

    /// A path below the folder that fits into a socket's address.
    fn short(&self, path: &str) -> PathBuf {
        let number = self.shared.folder.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{number}/{path}"))
    }

    async fn ask(&self, what: What) -> Result<Answer, SandboxError> {
        let receiver = {
            let mut open = self.shared.line.lock().await;
            match self.greeted(&mut open).await?.line.send(what).await {
                Ok(receiver) => receiver,
                Err(error) => {
                    *open = None;
                    return Err(SandboxError::Unavailable(format!("the keeper of sandboxes: {error}")));
                }
            }
        };
        match tokio::time::timeout(ANSWER_MAX, receiver).await {
            Err(_) => Err(SandboxError::Unavailable(format!(
                "the keeper of sandboxes did not answer in {} s",
                ANSWER_MAX.as_secs()
            ))),
            Ok(Err(_)) => Err(SandboxError::Unavailable("the keeper of sandboxes was killed".to_owned())),
            Ok(Ok(answer)) => answer.map_err(refused),
        }
    }

    /// The connection there is, or a new one where it is cut.
    async fn greeted<'a>(&self, open: &'a mut Option<Greeted>) -> Result<&'a mut Greeted, SandboxError> {
        if open.as_ref().is_none_or(|open| open.line.is_cut()) {
            *open = Some(self.connect().await?);
        }
        Ok(open.as_mut().expect("was just made"))
    }

    /// Finds a keeper or starts one.
    async fn connect(&self) -> Result<Greeted, SandboxError> {
        let socket = self.short("keeper.sock");
        let deadline = tokio::time::Instant::now() + START_MAX;
        let mut child: Option<tokio::process::Child> = None;
        loop {
            if let Ok(stream) = UnixStream::connect(&socket).await {
                return self.greet(stream).await;
            }
            match &mut child {
                None => child = Some(self.start()?),
                // Another engine's keeper may have been quicker; then ours left with 0.
                Some(started) => {
                    if let Ok(Some(status)) = started.try_wait()
                        && !status.success()
                    {
                        return Err(SandboxError::Unavailable(format!(
                            "the keeper of sandboxes ended at once: {}",
                            self.last_words()
                        )));
                    }
                }
            }
            if tokio::time::Instant::now() >= deadline {
                let waited = START_MAX.as_secs();
                let text =
                    format!("the keeper of sandboxes was not there in {waited} s: {}", self.last_words());
                return Err(SandboxError::Unavailable(text));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn start(&self) -> Result<tokio::process::Child, SandboxError> {
        let Config { folder, keeper, agent } = &self.shared.config;
        let failed = |what: &Path, error: std::io::Error| {
            SandboxError::Unavailable(format!(
                "the keeper of sandboxes cannot be started: {}: {error}",
                what.display()
            ))
        };
        let log_path = folder.join("keeper.log");
        let log = std::fs::File::create(&log_path).map_err(|error| failed(&log_path, error))?;
        let absolute = |path: &Path| std::fs::canonicalize(path).map_err(|error| failed(path, error));
        let [program, first @ ..] = &keeper[..] else {
            return Err(SandboxError::Unavailable("no keeper of sandboxes is configured".to_owned()));
        };
        let mut command = tokio::process::Command::new(program);
        command.args(first).arg(absolute(folder)?).arg(absolute(agent)?);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let errors = log.try_clone().map_err(|error| failed(&log_path, error))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        // Not to be ended by a ctrl-c at the engine's terminal.
        command.process_group(0);
        command.spawn().map_err(|error| failed(Path::new(program), error))
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.shared.config.folder.join("keeper.log")).unwrap_or_default();
        let words = log.lines().last().unwrap_or("it said nothing");
        words.to_owned()
    }

    async fn greet(&self, stream: UnixStream) -> Result<Greeted, SandboxError> {
        let mut line = Line::new(stream, self.shared.ended.clone());
        let unheard = |error: &dyn std::fmt::Display| {
            SandboxError::Unavailable(format!("the keeper of sandboxes: {error}"))
        };
        let receiver = line.send(What::Hello).await.map_err(|error| unheard(&error))?;
        match tokio::time::timeout(ANSWER_MAX, receiver).await {
            Ok(Ok(Ok(Answer::Hello(hello)))) if hello.version == VERSION => Ok(Greeted { line, hello }),
            Ok(Ok(Ok(Answer::Hello(hello)))) => Err(SandboxError::Refused {
                requirement: format!(
                    "use the keeper that runs (process {}): it is of version {}, this engine of {VERSION}; it ends with its sandboxes",
                    hello.pid, hello.version
                ),
            }),
            Ok(Ok(Err(refusal))) => Err(refused(refusal)),
            Ok(Ok(Ok(_))) => Err(unheard(&"an answer to another question")),
            Ok(Err(_)) => Err(unheard(&"it hung up")),
            Err(_) => Err(unheard(&format!("no answer in {} s", ANSWER_MAX.as_secs()))),
        }
    }

    fn placed(&self, record: wire::Record) -> Placed {
        let wire::Record { order, created_s, pid, .. } = record;
        Placed {
            address: Address {
                socket: self.short(&format!("sandboxes/{}.sock", order.id)),
                secret: Secret::new(order.secret.into_bytes()),
            },
            id: order.id,
            labels: order.labels,
            created_s,
            root: root_of(order.root.overlays, order.root.checkpoint, order.root.holds),
            environment: order.environment,
            pid: Some(pid),
        }
    }

    /// Writes out what a sandbox has written, so that it is stopped, and the keeper busy, for less long. Where that fails the
    /// checkpoint does it.
    async fn flush(&self, keeper: u32, id: &str) {
        let Ok(folder) = std::fs::canonicalize(&self.shared.config.folder) else { return };
        let seen = folder.strip_prefix("/").unwrap_or(&folder);
        let disk = Path::new("/proc").join(keeper.to_string()).join("root").join(seen).join("pool").join(id);
        let flushed = tokio::task::spawn_blocking(move || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let disk = rustix::fs::openat(CWD, &disk, flags, Mode::empty())?;
            rustix::fs::syncfs(&disk)
        });
        // The disk may be slow; the checkpoint has its own bound.
        let _ = tokio::time::timeout(FLUSH_MAX, flushed).await;
    }

    async fn hello(&self) -> Result<wire::Hello, SandboxError> {
        let mut open = self.shared.line.lock().await;
        Ok(self.greeted(&mut open).await?.hello.clone())
    }
}

fn root_of(overlays: Vec<wire::Overlay>, checkpoint: Option<String>, holds: Vec<PathBuf>) -> Root {
    let overlays = overlays.into_iter().map(|overlay| (overlay.at, overlay.lowers)).collect();
    Root { overlays, checkpoint, holds }
}

/// What a caller can do after a refusal.
fn refused(refusal: Refusal) -> SandboxError {
    let Refusal { kind, text } = refusal;
    match kind {
        RefusalKind::Invalid | RefusalKind::Unknown => SandboxError::Rejected(text),
        RefusalKind::Unable => SandboxError::Refused { requirement: text },
        RefusalKind::DiskFull => SandboxError::Unavailable(format!("disk full: {text}")),
        RefusalKind::Failed => SandboxError::Unavailable(text),
    }
}

fn strange(answer: &Answer) -> SandboxError {
    SandboxError::Unavailable(format!("the keeper of sandboxes answered another question: {answer:?}"))
}

impl Line {
    fn new(stream: UnixStream, ended: broadcast::Sender<Ended>) -> Line {
        let (read, write) = stream.into_split();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        // Owned by the line, and ended with it; when the keeper goes, all who wait are told by their sender's end.
        let reader = tokio::spawn(hear(BufReader::new(read), Arc::clone(&waiting), ended)).abort_handle();
        Line { write, waiting, next: 0, reader }
    }

    fn is_cut(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    async fn send(&mut self, what: What) -> std::io::Result<oneshot::Receiver<Result<Answer, Refusal>>> {
        self.next += 1;
        let number = self.next;
        let (sender, receiver) = oneshot::channel();
        match self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(waiting) => waiting.insert(number, sender),
            None => return Err(std::io::Error::other("it has gone")),
        };
        let mut text = serde_json::to_vec(&Request { number, what })?;
        text.push(b'\n');
        self.write.write_all(&text).await?;
        Ok(receiver)
    }
}

async fn hear(
    mut read: BufReader<tokio::net::unix::OwnedReadHalf>,
    waiting: Waiting,
    ended: broadcast::Sender<Ended>,
) {
    let mut line = String::new();
    loop {
        line.clear();
        if !matches!(read.read_line(&mut line).await, Ok(count) if count > 0) {
            break;
        }
        match serde_json::from_str(&line) {
            Ok(Said::Answer { number, answer }) => {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(sender) = waiting.as_mut().and_then(|waiting| waiting.remove(&number)) {
                    // Whoever asked may have gone.
                    let _ = sender.send(answer);
                }
            }
            Ok(Said::Ended { sandbox, how }) => {
                let _ = ended.send(Ended { sandbox, how });
            }
            Err(error) => {
                tracing::warn!(%error, "the keeper of sandboxes said something strange");
                break;
            }
        }
    }
    // Every waiting sender is dropped here.
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
}

#[async_trait]
impl Backend for Local {
    async fn promises(&self) -> Result<BTreeMap<String, Result<(), String>>, SandboxError> {
        Ok(self.hello().await?.abilities.promises)
    }

    async fn create(&self, order: &Order) -> Result<Placed, SandboxError> {
        if !order.require.is_empty() {
            let abilities = self.hello().await?.abilities;
            if let Some((name, remedy)) = abilities.lacking(&order.require) {
                return Err(SandboxError::Refused { requirement: format!("promise `{name}`: {remedy}") });
            }
        }
        let overlays = order.root.overlays.iter();
        let order = wire::Order {
            id: order.id.clone(),
            root: wire::Root {
                overlays: overlays
                    .map(|(at, lowers)| wire::Overlay { at: at.clone(), lowers: lowers.clone() })
                    .collect(),
                checkpoint: order.root.checkpoint.clone(),
                holds: order.root.holds.clone(),
            },
            bounds: wire::Bounds {
                cpu: order.cpu,
                memory: order.memory,
                disk: order.disk,
                files_max: order.files_max,
                processes_max: order.processes_max,
            },
            network: match order.network {
                Reach::None => wire::Reach::None,
                Reach::Loopback => wire::Reach::Loopback,
                Reach::Proxy => wire::Reach::Proxy,
            },
            lease_ms: u64::try_from(order.lease.as_millis()).unwrap_or(u64::MAX),
            secret: secret(),
            environment: order.environment.clone(),
            labels: order.labels.clone(),
        };
        match self.ask(What::Create(Box::new(order))).await? {
            Answer::Sandbox(record) => Ok(self.placed(*record)),
            other => Err(strange(&other)),
        }
    }

    async fn delete(&self, id: &str) -> Result<(), SandboxError> {
        self.ask(What::Delete(id.to_owned())).await.map(drop)
    }

    async fn list(&self) -> Result<Vec<Placed>, SandboxError> {
        match self.ask(What::List).await? {
            Answer::Sandboxes(records) => Ok(records.into_iter().map(|record| self.placed(record)).collect()),
            other => Err(strange(&other)),
        }
    }

    async fn label(&self, id: &str, labels: BTreeMap<String, String>) -> Result<(), SandboxError> {
        self.ask(What::Label { sandbox: id.to_owned(), labels }).await.map(drop)
    }

    async fn checkpoint(&self, id: &str, checkpoint: &str) -> Result<Checkpoint, SandboxError> {
        let what = What::Checkpoint { sandbox: id.to_owned(), checkpoint: checkpoint.to_owned() };
        let keeper = self.hello().await?.pid;
        self.flush(keeper, id).await;
        match self.ask(what).await? {
            Answer::Checkpoint(made) => Ok(checkpoint_of(made, keeper)),
            other => Err(strange(&other)),
        }
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>, SandboxError> {
        let keeper = self.hello().await?.pid;
        match self.ask(What::Checkpoints).await? {
            Answer::Checkpoints(made) => {
                Ok(made.into_iter().map(|made| checkpoint_of(made, keeper)).collect())
            }
            other => Err(strange(&other)),
        }
    }

    async fn delete_checkpoint(&self, id: &str) -> Result<(), SandboxError> {
        self.ask(What::DeleteCheckpoint(id.to_owned())).await.map(drop)
    }

    async fn proxy_door(&self, id: &str) -> Result<Door, SandboxError> {
        // A keeper has to be there.
        self.hello().await?;
        door::ask(self.short("keeper.sock"), id).await
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.shared.ended.subscribe()
    }
}

fn checkpoint_of(made: wire::Checkpoint, keeper: u32) -> Checkpoint {
    // The pool is mounted where the keeper alone sees it.
    let below = made.folder.strip_prefix("/").unwrap_or(&made.folder);
    let folder = Path::new("/proc").join(keeper.to_string()).join("root").join(below);
    let uppers = made.overlays.iter().enumerate();
    Checkpoint {
        uppers: uppers
            .map(|(number, overlay)| Upper {
                at: overlay.at.clone(),
                folder: folder.join(format!("u{number}")),
            })
            .collect(),
        root: root_of(made.overlays, Some(made.id.clone()), made.holds),
        id: made.id,
        sandbox: made.sandbox,
        environment: made.environment,
        labels: made.labels,
        created_s: made.created_s,
        frozen: Duration::from_millis(made.frozen_ms),
    }
}

/// 256 random bits, as a text.
fn secret() -> String {
    hex::encode(crate::random::bytes::<32>())
}
