//! The sandboxes of a keeper: starting, running, ending, gone. Everything that a sandbox has outside of its namespaces is named here
//! and removed here.

mod gone;
mod kept;
mod listed;
mod machine;
mod reclaim;

use super::cgroups::{Hierarchies, Limits};
use super::home::{self, Home};
use super::pool::Pool;
use super::spawn::{self, IDS, Means, Spawned};
use super::{Requester, promises};
use crate::wire::{
    Abilities, Answer, Bounds, Checkpoint, Environment, Order, PROXY_PORT, Reach, Refusal, RefusalKind,
    SandboxRecord,
};
use gone::Gone;
use machine::{group_name, hold, own_mounts, wait};
use reclaim::{Reclaim, exact_size, size};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{PidfdFlags, Signal};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// From the order to an agent that takes calls.
const START_MAX: Duration = Duration::from_secs(20);
/// How often the disk below the pool is looked at.
pub(super) const LOOK_BELOW_EVERY: Duration = Duration::from_millis(250);
/// First user id of the first sandbox.
const IDS_BASE: u32 = 1 << 30;
/// Sandboxes at once.
pub(super) const SANDBOXES_MAX: usize = 8192;

/// What to tell whom.
pub(super) enum Notice {
    /// To a request.
    Answer(Requester, Result<Answer, Refusal>),
    /// To everybody.
    Ended {
        /// Which.
        sandbox: String,
        /// How.
        how: String,
    },
}

/// See the module.
pub(super) struct SandboxTable {
    home: Home,
    agent: OwnedFd,
    /// Pool of disks; the root user has one.
    pool: Option<Pool>,
    pool_fault: String,
    hierarchies: Hierarchies,
    sandboxes: BTreeMap<String, Sandbox>,
    checkpoints: BTreeMap<String, Checkpoint>,
    /// Locks on what lies below checkpoints.
    checkpoint_holds: BTreeMap<String, Vec<OwnedFd>>,
    /// By token: two for each sandbox, its process and its word.
    tokens: HashMap<u64, String>,
    next_token: u64,
    /// What could not be removed yet.
    leftovers: Vec<String>,
    /// What was deleted before it was there.
    gone: Gone,
    boot: String,
    /// Where the disk below the pool is nearly full.
    reclaim: Reclaim,
}

struct Sandbox {
    record: SandboxRecord,
    state: Phase,
    process: OwnedFd,
    /// Whether it is this keeper's child, and so to be waited for.
    own: bool,
    token: u64,
    egress_listener: Option<OwnedFd>,
    /// Why it was ended without being asked for.
    kill_reason: Option<String>,
    /// Locks on what lies below it.
    _holds: Vec<OwnedFd>,
}

enum Phase {
    /// Until its agent says that it takes calls; who waits for that.
    Starting {
        requesters: Vec<Requester>,
        started_at: Instant,
        word: OwnedFd,
        line: OwnedFd,
    },
    Running,
    /// Killed; who waits for its end.
    Ending {
        requesters: Vec<Requester>,
    },
}

impl Phase {
    /// Tells whoever waits for it to run that it will not.
    fn refuse(self, text: &str) -> Vec<Notice> {
        let Phase::Starting { requesters, .. } = self else { return Vec::new() };
        let refusal = || Err(Refusal::new(RefusalKind::Failed, text));
        requesters.into_iter().map(|requester| Notice::Answer(requester, refusal())).collect()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl SandboxTable {
    /// Finds what there is, and removes what is left of what was.
    pub(super) fn open(home: Home, agent: OwnedFd) -> Result<SandboxTable, String> {
        let (mut pool, mut pool_fault) = (None, "disks of an ordinary user are in memory".to_owned());
        let mut hierarchies = Hierarchies::default();
        if is_root() {
            own_mounts(&home.folder).map_err(|error| format!("a mount namespace: {error}"))?;
            match Pool::open(&home.folder.join("pool.btrfs"), &home.folder.join("pool")) {
                Ok(opened) => pool = Some(opened),
                Err(fault) => {
                    eprintln!("{fault}");
                    pool_fault = fault;
                }
            }
            hierarchies = Hierarchies::find(&group_name(&home));
        }
        let checkpoints: BTreeMap<String, Checkpoint> =
            home.checkpoints().into_iter().map(|made| (made.id.clone(), made)).collect();
        let checkpoint_holds = checkpoints.iter().map(|(id, made)| (id.clone(), hold(&made.holds))).collect();
        let mut table = SandboxTable {
            home,
            agent,
            pool,
            pool_fault,
            hierarchies,
            sandboxes: BTreeMap::new(),
            checkpoints,
            checkpoint_holds,
            tokens: HashMap::new(),
            next_token: 0,
            leftovers: Vec::new(),
            gone: Gone::default(),
            boot: home::boot(),
            reclaim: Reclaim::default(),
        };
        for record in table.home.records() {
            table.adopt(record);
        }
        table.sweep();
        Ok(table)
    }

    /// Takes over a sandbox that another keeper made, if its process is alive.
    fn adopt(&mut self, record: SandboxRecord) {
        let id = record.order.id.clone();
        let alive = || {
            let pid = rustix::process::Pid::from_raw(record.pid.cast_signed())?;
            if record.boot != self.boot {
                return None;
            }
            let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // Looked at while the descriptor holds the process: the number cannot have gone to another.
            (home::started(record.pid) == Some(record.started)).then_some(process)
        };
        match alive() {
            Some(process) => {
                // The keeper before may have been killed while a checkpoint was made.
                let _ = self.hierarchies.groups(&id).freeze(record.suspended);
                let token = self.token(&id);
                let (holds, state) = (hold(&record.order.root.holds), Phase::Running);
                let sandbox = Sandbox {
                    record,
                    state,
                    process,
                    own: false,
                    token,
                    egress_listener: None,
                    kill_reason: None,
                    _holds: holds,
                };
                self.sandboxes.insert(id, sandbox);
            }
            None => self.leftovers.push(id),
        }
    }

    /// What no record speaks of.
    fn sweep(&mut self) {
        let strays = self.hierarchies.ids().into_iter().chain(self.pool.iter().flat_map(Pool::names));
        for id in strays.collect::<Vec<_>>() {
            let kept = id.strip_prefix(home::CHECKPOINT).is_some_and(|id| self.checkpoints.contains_key(id));
            if !kept && !self.sandboxes.contains_key(&id) && !self.leftovers.contains(&id) {
                self.leftovers.push(id);
            }
        }
        self.tidy();
        let SandboxTable { home, sandboxes, leftovers, checkpoints, .. } = self;
        let is_sandbox = |id: &str| sandboxes.contains_key(id) || leftovers.iter().any(|left| left == id);
        home.sweep(is_sandbox, |id| checkpoints.contains_key(id));
    }

    fn token(&mut self, id: &str) -> u64 {
        let token = self.next_token;
        self.next_token += 2;
        self.tokens.insert(token, id.to_owned());
        self.tokens.insert(token + 1, id.to_owned());
        token
    }

    /// What can be promised here.
    pub(super) fn abilities(&self) -> Abilities {
        promises::of(&self.hierarchies, self.pool.is_some(), &self.pool_fault)
    }

    /// Whether there is nothing to keep.
    pub(super) fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.leftovers.is_empty()
    }

    /// Whether something has to be looked at again soon.
    pub(super) fn has_unfinished(&self) -> bool {
        let unfinished = |sandbox: &Sandbox| !matches!(sandbox.state, Phase::Running);
        let reclaiming = self.reclaim.is_under_way();
        reclaiming || !self.leftovers.is_empty() || self.sandboxes.values().any(unfinished)
    }

    /// Processes to watch.
    pub(super) fn watched(&self) -> Vec<(u64, BorrowedFd<'_>)> {
        self.sandboxes.values().map(|sandbox| (sandbox.token, sandbox.process.as_fd())).collect()
    }

    /// The socket of a sandbox's proxy. That of a sandbox which another keeper made went with it: there is a new one then, unless
    /// whoever had the old one still has it.
    pub(super) fn egress_listener(&mut self, id: &str) -> Option<&OwnedFd> {
        let sandbox = self.sandboxes.get_mut(id)?;
        if sandbox.egress_listener.is_none() && sandbox.record.order.network == Reach::Proxy {
            sandbox.egress_listener = machine::listen_within(sandbox.record.pid, PROXY_PORT).ok();
        }
        sandbox.egress_listener.as_ref()
    }

    /// What there is of a sandbox that was ordered before by the same id: the answer, or `None` where it comes when its agent takes calls.
    /// Another order by that id is refused, and so is one whose sandbox is ending.
    pub(super) fn ordered_before(&mut self, order: &Order, requester: Requester) -> Option<Vec<Notice>> {
        let sandbox = self.sandboxes.get_mut(&order.id)?;
        let is_same = sandbox.record.order.means_the_same(order);
        let listed = sandbox.listed(false);
        let text = match (&mut sandbox.state, listed) {
            (Phase::Starting { requesters, .. }, _) if is_same => {
                requesters.push(requester);
                return Some(Vec::new());
            }
            (_, Some(listed)) if is_same => {
                return Some(vec![Notice::Answer(requester, Ok(Answer::Sandbox(Box::new(listed))))]);
            }
            (Phase::Ending { .. }, _) => {
                format!("sandbox id {:?} is in use by a sandbox that is ending", order.id)
            }
            _ => format!("sandbox id {:?} is in use by another request", order.id),
        };
        Some(vec![Notice::Answer(requester, Err(Refusal::new(RefusalKind::Invalid, text)))])
    }

    /// Begins a sandbox; what is to be watched for it.
    pub(super) fn create(
        &mut self,
        mut order: Order,
        requester: Requester,
    ) -> Result<Vec<(u64, BorrowedFd<'_>)>, Refusal> {
        let id = order.id.clone();
        let environment = order.environment.take().unwrap_or_default();
        self.check(&order, &environment)?;
        let ids_from = if is_root() { Some(self.free_ids()?) } else { None };
        let mut record = SandboxRecord {
            order,
            created_s: home::now_s(),
            ids_from: ids_from.unwrap_or(0),
            pid: 0,
            started: 0,
            boot: self.boot.clone(),
            suspended: false,
        };
        // Before anything is made: what is made and not written down would be nobody's.
        let written = self.home.write_environment(&id, &environment);
        if let Err(error) = written.and_then(|()| self.home.write_record(&record)) {
            self.home.forget(&id);
            return Err(self.refuse("its record", &error));
        }
        match self.begin(&mut record, &environment) {
            Ok(spawned) => {
                let token = self.token(&id);
                let Spawned { descriptor: process, word, line, .. } = spawned;
                let state =
                    Phase::Starting { requesters: vec![requester], started_at: Instant::now(), word, line };
                let holds = hold(&record.order.root.holds);
                let sandbox = Sandbox {
                    record,
                    state,
                    process,
                    own: true,
                    token,
                    egress_listener: None,
                    kill_reason: None,
                    _holds: holds,
                };
                let sandbox = self.sandboxes.entry(id).or_insert(sandbox);
                let Phase::Starting { word, .. } = &sandbox.state else { return Ok(Vec::new()) };
                Ok(vec![(token, sandbox.process.as_fd()), (token + 1, word.as_fd())])
            }
            Err(refusal) => {
                self.leftovers.push(id);
                Err(refusal)
            }
        }
    }

    fn check(&self, order: &Order, environment: &Environment) -> Result<(), Refusal> {
        let invalid = |text: String| Err(Refusal::new(RefusalKind::Invalid, text));
        let id = &order.id;
        if !home::is_id(id) {
            return invalid(format!(
                "invalid sandbox id {id:?}: expected 1 to {} letters, digits and dashes",
                home::ID_BYTES_MAX
            ));
        }
        if self.leftovers.contains(id) {
            return invalid(format!("sandbox id {id:?} is in use"));
        }
        if self.gone.contains(id) {
            return Err(Refusal::new(
                RefusalKind::Failed,
                format!("sandbox {id} was deleted before it was created"),
            ));
        }
        environment.check().or_else(invalid)?;
        if self.sandboxes.len() >= SANDBOXES_MAX {
            return Err(Refusal::new(
                RefusalKind::Unable,
                format!("run more than {SANDBOXES_MAX} sandboxes"),
            ));
        }
        if order.root.overlays.first().is_none_or(|overlay| overlay.at != std::path::Path::new("/")) {
            return invalid("the first overlay of a sandbox is at /".to_owned());
        }
        let lowers = order.root.overlays.iter().flat_map(|overlay| &overlay.lowers);
        if let Some(path) = lowers.chain(&order.root.holds).find(|path| !path.is_absolute()) {
            return invalid(format!("{} below a sandbox: the path must be absolute", path.display()));
        }
        if let Some(checkpoint) = &order.root.checkpoint
            && !self.checkpoints.contains_key(checkpoint)
        {
            return Err(Refusal::new(RefusalKind::Unknown, format!("there is no checkpoint {checkpoint:?}")));
        }
        if is_root() && self.pool.is_none() {
            return Err(Refusal::new(
                RefusalKind::Unable,
                format!("give a sandbox a disk: {}", self.pool_fault),
            ));
        }
        self.check_disk(order.bounds.disk)
    }

    /// What several may write together can be more than there is; what one alone may write cannot.
    fn check_disk(&self, disk: u64) -> Result<(), Refusal> {
        let Some(Ok(whole)) = self.pool.as_ref().map(Pool::whole_below) else { return Ok(()) };
        if disk <= whole {
            return Ok(());
        }
        let (disk, folder) = (exact_size(disk), self.home.folder.display());
        let text = format!(
            "give a sandbox a `disk` of {disk}: the whole file system of {folder} has {}; use a smaller disk or a larger file system",
            size(whole)
        );
        Err(Refusal::new(RefusalKind::Unable, text))
    }

    /// User ids that no other sandbox has.
    fn free_ids(&self) -> Result<u32, Refusal> {
        let taken: std::collections::HashSet<u32> =
            self.sandboxes.values().map(|sandbox| sandbox.record.ids_from).collect();
        let free =
            (0..=SANDBOXES_MAX as u32).map(|slot| IDS_BASE + slot * IDS).find(|from| !taken.contains(from));
        free.ok_or_else(|| Refusal::new(RefusalKind::Unable, "give it user ids: all ranges are in use"))
    }

    fn begin(&self, record: &mut SandboxRecord, environment: &Environment) -> Result<Spawned, Refusal> {
        let order = &record.order;
        let Bounds { cpu, memory, processes_max, disk, .. } = order.bounds;
        let ids_from = (record.ids_from != 0).then_some(record.ids_from);
        let (mut made_disk, mut cgroup_fds) = (None, super::cgroups::CgroupFds::default());
        if let (Some(pool), Some(_)) = (&self.pool, ids_from) {
            let made = match &order.root.checkpoint {
                Some(checkpoint) => pool.copy(&home::checkpoint_name(checkpoint), &order.id, disk),
                None => pool.make(&order.id, disk),
            };
            made_disk = Some(made.map_err(|error| self.refuse_errno("its disk", error))?);
        }
        if let Some(owner) = ids_from {
            let limits = Limits { cpu, memory, processes_max };
            let groups = self.hierarchies.make(&order.id, owner, limits);
            let groups = groups.map_err(|error| self.refuse("its control groups", &error))?;
            cgroup_fds = groups.lend().map_err(|error| self.refuse("its control groups", &error))?;
        }
        let listener = super::listen(&self.home.socket(&order.id));
        let listener = listener.map_err(|error| Refusal::new(RefusalKind::Failed, error))?;
        let means = Means {
            agent: self.agent.as_fd(),
            disk: made_disk,
            ids_from,
            listener,
            cgroup_fds,
            rlimits: !self.hierarchies.can("memory"),
            environment: &environment.variables(),
        };
        let spawned = spawn::spawn(order, means).map_err(|text| Refusal::new(RefusalKind::Failed, text))?;
        record.pid = spawned.pid;
        record.started = home::started(spawned.pid).unwrap_or(0);
        self.home.write_record(record).map_err(|error| self.refuse("its record", &error))?;
        Ok(spawned)
    }

    fn refuse(&self, what: &str, error: &std::io::Error) -> Refusal {
        if error.kind() == std::io::ErrorKind::FileTooLarge {
            return Refusal::new(RefusalKind::Invalid, format!("{what}: {error}"));
        }
        match Errno::from_io_error(error) {
            Some(errno) => self.refuse_errno(what, errno),
            None => Refusal::failed(what, error),
        }
    }

    fn refuse_errno(&self, what: &str, error: Errno) -> Refusal {
        let full = matches!(error, Errno::NOSPC | Errno::DQUOT);
        let kind = if full { RefusalKind::DiskFull } else { RefusalKind::Failed };
        let place = if full { format!(" in {}", self.home.folder.display()) } else { String::new() };
        Refusal::new(kind, format!("{what}: {error}{place}"))
    }

    /// A descriptor is ready.
    pub(super) fn happened(&mut self, token: u64) -> Vec<Notice> {
        let Some(id) = self.tokens.get(&token).cloned() else { return Vec::new() };
        if token.is_multiple_of(2) { self.ended(&id) } else { self.spoke(&id) }
    }

    /// The agent takes calls, or says why not.
    fn spoke(&mut self, id: &str) -> Vec<Notice> {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return Vec::new() };
        let Phase::Starting { requesters, word, line, .. } = &sandbox.state else { return Vec::new() };
        let requesters = requesters.clone();
        let mut text = [0; 512];
        let count = rustix::io::read(word, &mut text).unwrap_or(0);
        if text[..count] != *b"1" {
            let said = String::from_utf8_lossy(&text[..count]).trim().to_owned();
            let said = if said.is_empty() { "it ended before its agent was ready".to_owned() } else { said };
            return self.fail(id, &format!("sandbox {id} could not be created: {said}"));
        }
        if sandbox.record.order.network == Reach::Proxy {
            let passed = spawn::receive(line.as_fd(), RecvFlags::DONTWAIT);
            sandbox.egress_listener = passed.ok().and_then(|(_, mut passed)| passed.pop());
        }
        sandbox.state = Phase::Running;
        let Some(listed) = sandbox.listed(false) else { return Vec::new() };
        let answer = |requester| Notice::Answer(requester, Ok(Answer::Sandbox(Box::new(listed.clone()))));
        requesters.into_iter().map(answer).collect()
    }

    /// Ends one that cannot be made.
    fn fail(&mut self, id: &str, text: &str) -> Vec<Notice> {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return Vec::new() };
        let _ = rustix::process::pidfd_send_signal(&sandbox.process, Signal::KILL);
        let state = std::mem::replace(&mut sandbox.state, Phase::Ending { requesters: Vec::new() });
        state.refuse(text)
    }

    /// Its process 1 is gone, and with it the kernel has killed all in it.
    fn ended(&mut self, id: &str) -> Vec<Notice> {
        let Some(sandbox) = self.sandboxes.remove(id) else { return Vec::new() };
        self.tokens.remove(&sandbox.token);
        self.tokens.remove(&(sandbox.token + 1));
        let how = if sandbox.own { wait(&sandbox.process) } else { "its agent has ended".to_owned() };
        let how = sandbox.kill_reason.unwrap_or(how);
        self.leftovers.push(id.to_owned());
        self.tidy();
        match sandbox.state {
            Phase::Ending { requesters } => {
                requesters.into_iter().map(|requester| Notice::Answer(requester, Ok(Answer::Done))).collect()
            }
            Phase::Running => vec![Notice::Ended { sandbox: id.to_owned(), how }],
            Phase::Starting { ref word, .. } => {
                let mut text = [0; 512];
                let count = rustix::io::read(word, &mut text).unwrap_or(0);
                let said = String::from_utf8_lossy(&text[..count]).trim().to_owned();
                let said = if said.is_empty() { how } else { said };
                sandbox.state.refuse(&format!("sandbox {id} could not be created: {said}"))
            }
        }
    }

    /// Ends a sandbox; the answer comes when nothing is left.
    pub(super) fn delete(&mut self, id: &str, requester: Requester) -> Vec<Notice> {
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            if !self.leftovers.iter().any(|left| left == id) {
                self.gone.add(id);
            }
            return vec![Notice::Answer(requester, Ok(Answer::Done))];
        };
        let mut notices = Vec::new();
        match &mut sandbox.state {
            Phase::Ending { requesters } => requesters.push(requester),
            state => {
                let before = std::mem::replace(state, Phase::Ending { requesters: vec![requester] });
                notices.extend(before.refuse(&format!("sandbox {id} was deleted before it ran")));
                let _ = rustix::process::pidfd_send_signal(&sandbox.process, Signal::KILL);
            }
        }
        notices
    }

    /// Ends what was begun for a connection that is closed, and for no other: nobody will hear that it is there.
    pub(super) fn abandon(&mut self, line: u64) {
        for sandbox in self.sandboxes.values_mut() {
            let Phase::Starting { requesters, .. } = &mut sandbox.state else { continue };
            requesters.retain(|requester| requester.line != line);
            if requesters.is_empty() {
                sandbox.state = Phase::Ending { requesters: Vec::new() };
                let _ = rustix::process::pidfd_send_signal(&sandbox.process, Signal::KILL);
            }
        }
    }

    /// What has waited too long, and what could not be removed.
    pub(super) fn tick(&mut self) -> Vec<Notice> {
        let is_late = |state: &Phase| match state {
            Phase::Starting { started_at, .. } => started_at.elapsed() > START_MAX,
            Phase::Running | Phase::Ending { .. } => false,
        };
        let late = self.sandboxes.iter().filter(|(_, sandbox)| is_late(&sandbox.state));
        let mut notices = Vec::new();
        for id in late.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            notices
                .extend(self.fail(&id, &format!("sandbox {id} was not ready in {} s", START_MAX.as_secs())));
        }
        self.tidy();
        self.reclaim_disk();
        notices
    }

    /// Removes what is left of sandboxes that have ended. Groups may need a moment until their last process is gone.
    fn tidy(&mut self) {
        let SandboxTable { home, pool, hierarchies, leftovers, reclaim, .. } = self;
        leftovers.retain(|id| {
            let groups = hierarchies.groups(id);
            let ungrouped = groups.remove() || {
                groups.kill();
                groups.remove()
            };
            let gone = ungrouped && pool.as_ref().is_none_or(|pool| pool.remove(id));
            if gone {
                home.forget(id);
                reclaim.note_removed();
            }
            !gone
        });
    }

    /// Nothing is left to keep.
    pub(super) fn retire(&self) {
        self.hierarchies.retire();
    }
}

fn unknown(id: &str) -> Refusal {
    Refusal::new(RefusalKind::Unknown, format!("no sandbox {id:?}"))
}
