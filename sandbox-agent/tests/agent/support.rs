//! An agent of the real binary, in one of the ways in which it is run, with a client.

use espalier_agent_client::wire::{CommandSpec, RunAnswer, outcome::Outcome};
use espalier_agent_client::{Agent, AgentError, Config, Endpoint, Excerpts, Secret, command};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Beside other processes, as the user of the test: found and killed by marks.
    Beside,
    /// As process 1 of a process namespace.
    ProcessOne,
    /// The same, with a cgroup of version 2 for each command.
    Cgroup,
    /// As an ordinary user, beside other processes.
    Ordinary,
    /// Beside other processes, its commands in a cgroup with 64 MiB of memory; not among [`ways`].
    Memory,
}

/// The ways that this machine and user allow.
pub fn ways() -> Vec<Way> {
    let root = rustix::process::geteuid().is_root();
    let mut ways = vec![Way::Beside];
    if root || Command::new("unshare").args(["-U", "true"]).status().is_ok_and(|status| status.success()) {
        ways.push(Way::ProcessOne);
    }
    if root && cgroup_root().is_some() {
        ways.push(Way::Cgroup);
    }
    if root {
        ways.push(Way::Ordinary);
    }
    ways
}

fn cgroup_root() -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
    roots.into_iter().find(|root| root.join("cgroup.controllers").exists())
}

/// A new cgroup with 64 MiB of memory, where this machine and user can have one.
pub fn memory_cgroup() -> Option<PathBuf> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("espalier-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    for (root, limit) in [("memory", "memory.limit_in_bytes"), ("", "memory.max")] {
        let made = Path::new("/sys/fs/cgroup").join(root).join(&name);
        if Path::new("/sys/fs/cgroup").join(root).join("cgroup.procs").exists()
            && std::fs::create_dir(&made).is_ok()
        {
            if std::fs::write(made.join(limit), "67108864").is_ok() {
                return Some(made);
            }
            let _ = std::fs::remove_dir(made);
        }
    }
    None
}

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A running agent; ended when dropped.
pub struct Sandbox {
    pub agent: Agent,
    pub folder: tempfile::TempDir,
    child: Child,
    cgroup: Option<PathBuf>,
}

impl Sandbox {
    pub async fn start(way: Way) -> Sandbox {
        Sandbox::with(way, &[]).await
    }

    /// With more arguments.
    pub async fn with(way: Way, arguments: &[&str]) -> Sandbox {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (child, cgroup) = spawn(way, folder.path(), arguments);
        let agent = connect(folder.path(), "test").await.unwrap();
        Sandbox { agent, folder, child, cgroup }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The agent's process id, seen from outside.
    pub fn pid(&self) -> u32 {
        let spawned = self.child.id();
        let children =
            std::fs::read_to_string(format!("/proc/{spawned}/task/{spawned}/children")).unwrap_or_default();
        let name = std::fs::read_to_string(format!("/proc/{spawned}/comm")).unwrap_or_default();
        // unshare waits outside for the one that it forked.
        if name.trim() == "unshare" { children.trim().parse().unwrap_or(spawned) } else { spawned }
    }

    /// Sends a signal to the agent, from outside.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Kills the agent itself and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > deadline {
                return None;
            }
            pause(Duration::from_millis(5));
        }
    }

    /// Runs shell text and waits.
    pub async fn sh(&self, text: &str) -> Ran {
        self.run(command::script(text.to_owned())).await
    }

    pub async fn run(&self, spec: CommandSpec) -> Ran {
        self.try_run(spec).await.unwrap()
    }

    pub async fn try_run(&self, spec: CommandSpec) -> Result<Ran, AgentError> {
        let id = self.agent.allot();
        Ok(Ran::of(self.agent.run(&id, spec, Excerpts::default()).await?))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        if self.exit_code(Duration::from_secs(8)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(cgroup) = &self.cgroup {
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
            for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(entry.path());
            }
            let _ = std::fs::remove_dir(cgroup);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a short wait of a test for another process")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Starts an agent that listens in this folder.
pub fn spawn(way: Way, folder: &Path, arguments: &[&str]) -> (Child, Option<PathBuf>) {
    let binary = env!("CARGO_BIN_EXE_espalier-agent");
    let secret = folder.join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let _ = std::fs::remove_file(folder.join("socket"));
    let mut cgroup = None;
    let mut command = match way {
        Way::Memory => {
            let made = memory_cgroup().unwrap();
            // The shell opens folder and file, which the agent inherits.
            let line = format!(
                "exec 8<{0} 7>{0}/cgroup.procs; exec \"$0\" \"$@\" --memory-cgroup-fd 8 --enter-cgroup-fd 7",
                made.display()
            );
            cgroup = Some(made);
            let mut command = Command::new("bash");
            command.args(["-c", &line]).arg(binary);
            command
        }
        Way::Beside => Command::new(binary),
        Way::ProcessOne | Way::Cgroup => {
            let mut command = Command::new("unshare");
            if !rustix::process::geteuid().is_root() {
                command.arg("-r");
            }
            command.args(["--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]);
            if way == Way::Cgroup {
                let made = cgroup_root().unwrap().join(format!("espalier-test-{}", std::process::id()));
                let made = made.with_extension(format!("{:?}", folder.file_name().unwrap()).replace('"', ""));
                std::fs::create_dir(&made).unwrap();
                // The shell opens the folder as descriptor 9, which the agent inherits.
                let line = format!("exec 9<{}; exec \"$0\" \"$@\" --command-cgroup-fd 9", made.display());
                command.args(["bash", "-c", &line]);
                cgroup = Some(made);
            }
            command.arg(binary);
            command
        }
        Way::Ordinary => {
            std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid=1234", "--regid=1234", "--clear-groups"]).arg(usable_by_all(binary));
            command
        }
    };
    command.arg("--listen-unix").arg(folder.join("socket")).arg("--secret-file").arg(&secret);
    command.arg("--spill-dir").arg(folder).args(arguments);
    command.stdin(Stdio::null()).current_dir("/");
    (command.spawn().unwrap(), cgroup)
}

/// A copy of the binary that an ordinary user can reach.
fn usable_by_all(binary: &str) -> PathBuf {
    use std::sync::OnceLock;
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let copy = PathBuf::from(format!("/tmp/espalier-agent-{}", std::process::id()));
        std::fs::copy(binary, &copy).unwrap();
        copy
    })
    .clone()
}

/// A client of the agent in this folder.
pub async fn connect(folder: &Path, client: &str) -> Result<Agent, AgentError> {
    Agent::connect(config(folder.join("socket"), client)).await
}

pub fn config(socket: PathBuf, client: &str) -> Config {
    Config::new(Endpoint::Unix(socket), Secret::new(SECRET), client)
}

/// How a command ended, for assertions.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub out: String,
    pub err: String,
    pub answer: RunAnswer,
}

impl Ran {
    pub fn of(answer: RunAnswer) -> Ran {
        let text = |excerpt: &Option<espalier_agent_client::wire::Excerpt>| {
            let excerpt = excerpt.clone().unwrap_or_default();
            let middle = match excerpt.omitted_bytes {
                0 => String::new(),
                omitted => format!("[{omitted}]"),
            };
            String::from_utf8_lossy(&[&excerpt.head[..], middle.as_bytes(), &excerpt.tail[..]].concat())
                .into_owned()
        };
        let outcome = answer.ended.clone().unwrap().outcome.unwrap().outcome.unwrap();
        Ran { outcome, out: text(&answer.stdout), err: text(&answer.stderr), answer }
    }

    pub fn ended(&self) -> espalier_agent_client::wire::Ended {
        self.answer.ended.clone().unwrap()
    }
}

/// Whether a process lives; zombies do not.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('Z' | 'X'))
    })
}

/// Waits for something to become true.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 10 s: {what}");
}
