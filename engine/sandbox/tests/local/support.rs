//! A backend in a folder of its own, and sandboxes in it.

use espalier_agent_client::{Agent, Config as AgentConfig, Excerpts, command, wire};
use espalier_images::ImageOptions;
use espalier_keeper::wire::{Bounds, Environment, Order, Reach, Root};
use espalier_sandbox::backend::Placed;
use espalier_sandbox::local::host;
use espalier_sandbox::local::machine::{Config, Machine};
use espalier_sandbox::local::{Local, Services};
use espalier_sandbox::service::Sandboxes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The agent as `cargo xtask agent` builds it, or the one named by `ESPALIER_AGENT`.
pub(crate) fn agent_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("ESPALIER_AGENT") {
        return named.into();
    }
    let test = std::env::current_exe().expect("this test is a file");
    let target = test.ancestors().nth(3).expect("target/PROFILE/deps/TEST");
    let agent = target.join("x86_64-unknown-linux-gnu/agent/espalier-agent");
    assert!(agent.is_file(), "no {}: build it with `cargo xtask agent`", agent.display());
    agent
}

/// Cargo puts it beside the folder of tests.
fn keeper_binary() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let keeper = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("espalier-keeper");
    assert!(keeper.is_file(), "no {}: `cargo build --workspace --bin espalier-keeper`", keeper.display());
    keeper
}

/// A backend whose keeper is ended with it.
pub(crate) struct Place {
    pub local: Machine,
    pub folder: PathBuf,
    _temporary: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let temporary = tempfile::Builder::new().prefix("espalier-").tempdir_in("/var/tmp").unwrap();
        let folder = temporary.path().join("sandboxes");
        let local = open(&folder);
        Place { local, folder, _temporary: temporary }
    }

    /// The same with a keeper that is an ordinary user's.
    pub(crate) fn of_user() -> Place {
        const NOBODY: u32 = 65_534;
        let temporary = tempfile::Builder::new().prefix("espalier-").tempdir_in("/var/tmp").unwrap();
        let folder = temporary.path().join("sandboxes");
        std::fs::create_dir(&folder).unwrap();
        order(&folder, "makes-the-image");
        let (agent, keeper) = (temporary.path().join("agent"), temporary.path().join("keeper"));
        std::fs::copy(agent_binary(), &agent).unwrap();
        std::fs::copy(keeper_binary(), &keeper).unwrap();
        give(temporary.path(), NOBODY);
        let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let keeper = as_nobody.iter().map(Into::into).chain([keeper.into_os_string()]).collect();
        let local = Machine::open(Config { folder: folder.clone(), keeper, agent }).unwrap();
        Place { local, folder, _temporary: temporary }
    }

    /// A service over it; `size_max` bounds its images.
    pub(crate) fn service(&self, size_max: Option<u64>) -> Sandboxes {
        Sandboxes::new(Arc::new(self.backend(size_max)))
    }

    /// The backend over its keeper.
    pub(crate) fn backend(&self, size_max: Option<u64>) -> Local {
        self.backend_with(size_max, Services::default())
    }

    /// The same with services of the engine.
    pub(crate) fn backend_with(&self, size_max: Option<u64>, services: Services) -> Local {
        let options = ImageOptions { size_max, ..ImageOptions::default() };
        Local::over(self.local.clone(), &self.folder.join("images"), options, services)
    }

    pub(crate) async fn host(&self, id: &str) -> Sandbox {
        self.make(order(&self.folder, id)).await
    }

    pub(crate) async fn make(&self, order: Order) -> Sandbox {
        let placed =
            self.local.create(&order, &[]).await.unwrap_or_else(|error| panic!("{}: {error}", order.id));
        Sandbox::of(placed, "test").await
    }
}

pub(crate) fn open(folder: &Path) -> Machine {
    let keeper = vec![keeper_binary().into_os_string()];
    Machine::open(Config { folder: folder.to_owned(), keeper, agent: agent_binary() }).unwrap()
}

pub(crate) fn order(folder: &Path, id: &str) -> Order {
    Order {
        id: id.to_owned(),
        root: Root {
            overlays: host::overlays(&folder.join("images")).unwrap(),
            checkpoint: None,
            holds: Vec::new(),
        },
        bounds: Bounds { cpu: 2.0, memory: 256 << 20, disk: 64 << 20, files_max: 10_000, processes_max: 64 },
        network: Reach::None,
        user_namespaces: false,
        lease_ms: 60_000,
        secret: String::new(),
        environment: Some(Environment::of(&[("LANG".to_owned(), "C.UTF-8".to_owned())])),
        labels: BTreeMap::new(),
    }
}

/// The same with another disk.
pub(crate) fn of_disk(folder: &Path, id: &str, disk: u64) -> Order {
    let order = order(folder, id);
    Order { bounds: Bounds { disk, ..order.bounds }, ..order }
}

pub(crate) struct Sandbox {
    pub placed: Placed,
    pub agent: Agent,
}

impl Sandbox {
    pub(crate) async fn of(placed: Placed, client: &str) -> Sandbox {
        let config = AgentConfig::new(placed.address.endpoint.clone(), placed.address.secret.clone(), client);
        let agent = Agent::connect(config).await.unwrap();
        Sandbox { placed, agent }
    }

    /// Runs a script as the sandbox's root.
    pub(crate) async fn answer(&self, script: &str) -> wire::RunAnswer {
        self.spec(command::script(script.to_owned())).await
    }

    pub(crate) async fn spec(&self, spec: wire::CommandSpec) -> wire::RunAnswer {
        self.spec_as_it_is(wire::CommandSpec { timeout_ms: 60_000, ..spec }).await
    }

    pub(crate) async fn spec_as_it_is(&self, spec: wire::CommandSpec) -> wire::RunAnswer {
        self.agent.run(&self.agent.allot(), spec, Excerpts::default()).await.unwrap()
    }

    /// Its output and exit code, standard error within it.
    pub(crate) async fn run(&self, script: &str) -> (String, i32) {
        let answer =
            self.spec(wire::CommandSpec { merge_stderr: true, ..command::script(script.to_owned()) }).await;
        let out = answer.stdout.unwrap_or_default();
        let text = String::from_utf8_lossy(&[out.head, out.tail].concat()).into_owned();
        match answer.ended.as_ref().and_then(|ended| ended.outcome.as_ref()?.outcome.as_ref()) {
            Some(wire::outcome::Outcome::ExitCode(code)) => (text, *code),
            other => panic!("{script}: {other:?} {text}"),
        }
    }
}

/// What sandboxes of a place have on this machine outside of their namespaces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftovers {
    groups: Vec<PathBuf>,
    files: Vec<PathBuf>,
    agents: usize,
    mounts: usize,
    disks: Vec<PathBuf>,
}

impl Leftovers {
    pub(crate) fn of(place: &Place) -> Leftovers {
        let list = |folder: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let mut groups = Vec::new();
        for hierarchy in list(Path::new("/sys/fs/cgroup")) {
            collect_groups(&hierarchy, 3, &mut groups);
        }
        // Groups of this place's keeper alone: other tests run beside.
        let name = place.group_name();
        groups.retain(|path| {
            path.components().any(|part| part.as_os_str() == &*name) && !path.ends_with(&*name)
        });
        let processes = list(Path::new("/proc"));
        let socket = place.folder.display().to_string();
        let agents = processes
            .iter()
            .filter_map(|process| std::fs::read_to_string(process.join("cgroup")).ok())
            .filter(|text| text.contains(&*name))
            .count();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter(|line| line.contains(&socket)).count();
        let keeper = keepers(&place.folder).first().map(|pid| Path::new("/proc").join(pid.to_string()));
        let pool = keeper
            .map(|keeper| keeper.join("root").join(place.folder.strip_prefix("/").unwrap()).join("pool"));
        let mut disks: Vec<PathBuf> = pool.map(|pool| list(&pool)).unwrap_or_default();
        disks = disks.into_iter().filter_map(|path| path.file_name().map(PathBuf::from)).collect();
        Leftovers { groups, files: list(&place.folder.join("sandboxes")), agents, mounts, disks }
    }

    /// Waits for 20 s until nothing more is left than this.
    pub(crate) async fn are_back(&self, place: &Place) {
        for _ in 0..400 {
            if Leftovers::of(place) == *self {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(Leftovers::of(place), *self, "something is left");
    }
}

fn collect_groups(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        found.push(entry.path());
        if depth > 0 {
            collect_groups(&entry.path(), depth - 1, found);
        }
    }
}

impl Place {
    /// Folders of control groups that are its keeper's own.
    pub(crate) fn store_groups(&self) -> Vec<PathBuf> {
        let (mut groups, name) = (Vec::new(), self.group_name());
        collect_groups(Path::new("/sys/fs/cgroup"), 3, &mut groups);
        groups.retain(|path| path.ends_with(&*name));
        groups
    }

    /// The keeper's own way to name groups.
    fn group_name(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in std::fs::canonicalize(&self.folder).unwrap().as_os_str().as_encoded_bytes() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        format!("espalier-{hash:016x}")
    }
}

/// Keepers of folders below this one.
pub(crate) fn keepers(folder: &Path) -> Vec<u32> {
    let folder = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let found = processes.filter_map(|process| {
        let line = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
        let is = line.contains("keeper") && line.contains(&folder);
        is.then(|| process.file_name().to_str()?.parse().ok())?
    });
    found.collect()
}

/// The process of a place's keeper.
pub(crate) fn keeper_pid(place: &Place) -> u32 {
    keepers(&place.folder).into_iter().min().expect("a keeper runs")
}

/// What the next keeper finds, when it finds so many.
pub(crate) async fn found_by_the_next(place: &Place, count: usize) -> Vec<Placed> {
    let mut listed = Vec::new();
    for _ in 0..100 {
        // The line to the first may be cut under the question; and a dead one may be seen dying.
        listed = place.local.list().await.unwrap_or_default();
        if listed.len() == count {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    listed
}

/// A future that is dropped after so many polls: `None` then.
pub(crate) struct Polls<F> {
    left: usize,
    inner: std::pin::Pin<Box<F>>,
}

impl<F: Future> Polls<F> {
    pub(crate) fn at_most(left: usize, inner: F) -> Polls<F> {
        Polls { left, inner: Box::pin(inner) }
    }
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        if self.left == 0 {
            return std::task::Poll::Ready(None);
        }
        self.left -= 1;
        match self.inner.as_mut().poll(context) {
            // The last poll has been: nothing wakes this any more but itself.
            std::task::Poll::Pending if self.left == 0 => std::task::Poll::Ready(None),
            other => other.map(Some),
        }
    }
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Looks again and again, for 20 s.
pub(crate) async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

impl Drop for Place {
    fn drop(&mut self) {
        // Sandboxes that a failed test left, then the keeper: it removes what they leave.
        let files = std::fs::read_dir(self.folder.join("sandboxes")).into_iter().flatten().flatten();
        // Tests put other things there as well.
        for id in files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
            let record = std::fs::read_to_string(id.path()).unwrap_or_default();
            if let Some(pid) = serde_json::from_str::<serde_json::Value>(&record)
                .ok()
                .and_then(|record| record["pid"].as_u64())
                .and_then(|pid| i32::try_from(pid).ok())
                .and_then(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// A folder and all in it.
fn give(path: &Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).unwrap();
    if std::fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap().flatten() {
            give(&entry.path(), owner);
        }
    }
}
