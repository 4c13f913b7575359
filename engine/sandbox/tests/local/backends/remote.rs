//! A backend as a cluster is one: sandboxes in another network and with a root file system of their own, agents reached by TCP, and a
//! control plane that knows which there are. What an engine has of a sandbox here is its address alone.

use super::tls::Gate;
use crate::support::{agent_binary, kill};
use async_trait::async_trait;
use espalier_agent_client::{Endpoint, Secret};
use espalier_images::{Stop, Written};
use espalier_sandbox::backend::{Address, Backend, Checkpoint, Ended, Order, Placed};
use espalier_sandbox::error::SandboxError;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, watch};

/// Secret of every agent.
const SECRET: &str = "a secret of the cluster's own";
/// For what a cluster does by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the root file system of a sandbox, which nobody outside of it sees, and becomes its agent.
const START: &str = r#"set -e
root=$1 agent=$2 secret=$3 kept=$4; shift 4
mount -t tmpfs -o size=64m,mode=755 tmpfs "$root"
cd "$root"
mkdir -p usr etc root tmp proc dev run
mount --bind /usr usr && mount -o remount,bind,ro usr
for link in bin sbin lib lib64; do ln -s usr/$link $link; done
echo 'root:x:0:0:root:/root:/bin/sh' > etc/passwd; echo 'root:x:0:' > etc/group
for device in null zero urandom; do : > dev/$device; mount --bind /dev/$device dev/$device; done
mount -t proc proc proc
cp "$agent" run/agent; printf %s "$secret" > run/secret
[ -z "$kept" ] || cp -a "$kept/." root/
exec env -i "$@"
"#;

/// Where sandboxes are made. Engines come and go; what there is stays here.
pub(super) struct Cluster(Arc<Control>);

/// One engine's way to it.
pub(super) struct Remote(Arc<Control>);

struct Control {
    /// Folder of the control plane: kept file systems, and the places that roots are mounted at in sandboxes' own namespaces.
    folder: tempfile::TempDir,
    /// The network of all sandboxes, as long as it lives.
    network: Mutex<Child>,
    link: String,
    address: Ipv4Addr,
    /// What its agents stand behind, where they do.
    gate: Option<Gate>,
    state: tokio::sync::Mutex<State>,
    ended: broadcast::Sender<Ended>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Node>,
    checkpoints: BTreeMap<String, Checkpoint>,
    gone: HashSet<String>,
    ports: u16,
}

struct Node {
    order: Order,
    placed: Placed,
    /// Process id of its agent, as the cluster sees it.
    agent: u32,
    /// Says when its agent has ended.
    over: watch::Receiver<bool>,
}

fn did(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::yield_now();
    }
}

impl Cluster {
    pub(super) fn new() -> Cluster {
        Cluster::behind(None)
    }

    /// One whose agents are reached by TLS alone.
    pub(super) fn over_tls() -> Cluster {
        Cluster::behind(Some(Gate::new()))
    }

    fn behind(gate: Option<Gate>) -> Cluster {
        let folder = tempfile::Builder::new().prefix("espalier-").tempdir_in("/var/tmp").unwrap();
        let network =
            Command::new("unshare").args(["--net", "sleep", "1000000"]).stdin(Stdio::null()).spawn().unwrap();
        let pid = network.id().to_string();
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        wait_for("a network of its own", || of(&pid).is_some_and(|network| Some(network) != of("self")));
        let [one, other, third] = [0, 1, 2].map(|_| rand::random::<u8>());
        let link = format!("esp{one:02x}{other:02x}{third:02x}");
        let [here, there] = [1, 2].map(|host| Ipv4Addr::new(10, 213, one, (other & 0xfc) | host));
        did("ip", &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        did("ip", &["address", "add", &format!("{here}/30"), "dev", &link]);
        did("ip", &["link", "set", &link, "up"]);
        let within = ["--net", "--target", &pid, "ip"];
        did("nsenter", &[&within[..], &["address", "add", &format!("{there}/30"), "dev", "eth0"]].concat());
        for device in ["eth0", "lo"] {
            did("nsenter", &[&within[..], &["link", "set", device, "up"]].concat());
        }
        let (ended, _) = broadcast::channel(64);
        let (network, state) = (Mutex::new(network), tokio::sync::Mutex::default());
        Cluster(Arc::new(Control { folder, network, link, address: there, gate, state, ended }))
    }

    pub(super) fn backend(&self) -> Remote {
        Remote(Arc::clone(&self.0))
    }

    /// Ends an agent from outside.
    pub(super) fn kill(&self, id: &str) {
        kill(self.0.state.try_lock().unwrap().nodes[id].agent);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.state.try_lock() {
            std::mem::take(&mut state.nodes).values().for_each(|node| signal(node.agent, Signal::KILL));
        }
        let mut network = self.0.network.lock().unwrap();
        let _ = Command::new("ip").args(["link", "delete", &self.0.link]).output();
        let _ = network.kill();
        let _ = network.wait();
    }
}

fn signal(pid: u32, signal: Signal) {
    // It may have ended.
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

fn rejected(text: String) -> SandboxError {
    SandboxError::Rejected(text.into())
}

fn failed(text: &str) -> SandboxError {
    SandboxError::Unavailable(text.into())
}

/// All processes of a sandbox but its agent, which is the first of its namespace.
fn commands(agent: u32) -> Vec<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(agent);
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != agent && own.is_some() && namespace(*pid) == own).collect()
}

fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // One that has ended does nothing either.
    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
}

/// Until none of them goes on: what one has started meanwhile is stopped, too.
fn stop(agent: u32) {
    wait_for("every command is stopped", || {
        let running: Vec<u32> = commands(agent).into_iter().filter(|pid| !is_stopped(*pid)).collect();
        running.iter().for_each(|pid| signal(*pid, Signal::STOP));
        running.is_empty()
    });
}

impl Control {
    /// Starts an agent; returns its process and what says that it has ended.
    async fn start(
        self: &Arc<Control>,
        order: &Order,
        port: u16,
    ) -> Result<(u32, watch::Receiver<bool>), SandboxError> {
        let root = self.folder.path().join(&order.id);
        std::fs::create_dir(&root).unwrap();
        let kept = order.spec.image.strip_prefix("checkpoint:").map(|id| self.kept(id)).unwrap_or_default();
        let network = format!("--net=/proc/{}/ns/net", self.network.lock().unwrap().id());
        let mut command = tokio::process::Command::new("nsenter");
        command.args([
            &network,
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            START,
            "start",
        ]);
        command.arg(&root).arg(agent_binary()).arg(SECRET).arg(kept);
        command
            .arg("PATH=/usr/sbin:/usr/bin")
            .args(order.spec.env.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg("chroot").arg(&root).args([
            "/run/agent",
            "--secret-file",
            "/run/secret",
            "--spill-memory",
        ]);
        command.arg("--listen-tcp").arg(format!("0.0.0.0:{port}"));
        command.arg("--lease-ms").arg(order.purpose.lease.as_millis().to_string());
        let mut child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let outer = child.id().unwrap();
        let address = SocketAddr::new(self.address.into(), port);
        let ready = async {
            while tokio::net::TcpStream::connect(address).await.is_err() {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(failed(&format!("the agent ended at once: {status}")));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, ready).await.map_err(|_| failed("no agent in time"))??;
        let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
        let agent = children.split_whitespace().next().expect("the agent").parse().unwrap();
        let (over, is_over) = watch::channel(false);
        let (control, id) = (Arc::downgrade(self), order.id.clone());
        tokio::spawn(async move {
            let _ = child.wait().await;
            if let Some(control) = control.upgrade() {
                let mut state = control.state.lock().await;
                // One that was deleted is not there any more.
                if state.nodes.get(&id).is_some_and(|node| node.agent == agent) {
                    state.nodes.remove(&id);
                    let _ = control.ended.send(Ended { sandbox: id, how: "its agent has ended".to_owned() });
                }
            }
            over.send_replace(true);
        });
        Ok((agent, is_over))
    }

    fn kept(&self, checkpoint: &str) -> PathBuf {
        self.folder.path().join(format!("kept-{checkpoint}"))
    }
}

impl Remote {
    /// Changes one sandbox.
    async fn with<T>(&self, id: &str, change: impl FnOnce(&mut Node) -> T) -> Result<T, SandboxError> {
        let mut state = self.0.state.lock().await;
        let node = state.nodes.get_mut(id).ok_or_else(|| rejected(format!("there is no sandbox {id}")))?;
        Ok(change(node))
    }
}

#[async_trait]
impl Backend for Remote {
    async fn promises(&self) -> Result<BTreeMap<String, Result<(), String>>, SandboxError> {
        let limited = Err("this cluster bounds nothing".to_owned());
        let promises =
            [("own-root", Ok(())), ("suspend", Ok(())), ("checkpoint", Ok(())), ("memory-limit", limited)];
        Ok(promises.into_iter().map(|(name, kept)| (name.to_owned(), kept)).collect())
    }

    async fn create(&self, order: &Order) -> Result<Placed, SandboxError> {
        let promises = self.promises().await?;
        if let Some(name) = order.purpose.require.iter().find(|name| promises.get(*name) != Some(&Ok(()))) {
            return Err(SandboxError::Refused { requirement: format!("promise `{name}`") });
        }
        let mut state = self.0.state.lock().await;
        if let Some(node) = state.nodes.get(&order.id) {
            let is_same = (&node.order.spec, node.order.purpose.lease) == (&order.spec, order.purpose.lease);
            let other = || rejected(format!("sandbox id {} is in use by another request", order.id));
            return is_same.then(|| node.placed.clone()).ok_or_else(other);
        }
        if state.gone.contains(&order.id) {
            return Err(failed("it was deleted before it was created"));
        }
        match order.spec.image.strip_prefix("checkpoint:") {
            Some(id) if !state.checkpoints.contains_key(id) => {
                return Err(rejected(format!("there is no checkpoint {id}")));
            }
            None if order.spec.image != "host" => {
                return Err(rejected(format!("there is no image {}", order.spec.image)));
            }
            _ => {}
        }
        state.ports += 1;
        let port = 7000 + state.ports;
        let (agent, over) = self.0.start(order, port).await?;
        let address = SocketAddr::new(self.0.address.into(), port);
        let endpoint = match &self.0.gate {
            Some(gate) => Endpoint::Tls(gate.open(address).await),
            None => Endpoint::Tcp(address),
        };
        let placed = Placed {
            id: order.id.clone(),
            address: Address { endpoint, secret: Secret::new(SECRET) },
            labels: order.purpose.labels.clone(),
            created_s: 1,
            user: order.spec.user.clone(),
            workdir: order.spec.workdir.clone().unwrap_or_else(|| "/root".to_owned()),
            entrypoint: Vec::new(),
            suspended: false,
            pid: None,
        };
        let node = Node { order: order.clone(), placed: placed.clone(), agent, over };
        state.nodes.insert(order.id.clone(), node);
        Ok(placed)
    }

    async fn attach(&self, _: &Placed) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SandboxError> {
        let node = {
            let mut state = self.0.state.lock().await;
            state.gone.insert(id.to_owned());
            state.nodes.remove(id)
        };
        if let Some(mut node) = node {
            signal(node.agent, Signal::KILL);
            let over = tokio::time::timeout(PATIENCE, node.over.wait_for(|over| *over)).await;
            over.map_err(|_| failed("its agent does not end"))?.map_err(|_| failed("the cluster is gone"))?;
        }
        Ok(())
    }

    async fn suspend(&self, id: &str) -> Result<(), SandboxError> {
        self.with(id, |node| {
            stop(node.agent);
            node.placed.suspended = true;
        })
        .await
    }

    async fn resume(&self, id: &str) -> Result<(), SandboxError> {
        self.with(id, |node| {
            commands(node.agent).into_iter().for_each(|pid| signal(pid, Signal::CONT));
            node.placed.suspended = false;
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Placed>, SandboxError> {
        Ok(self.0.state.lock().await.nodes.values().map(|node| node.placed.clone()).collect())
    }

    async fn ids(&self) -> Result<Vec<String>, SandboxError> {
        Ok(self.0.state.lock().await.nodes.keys().cloned().collect())
    }

    async fn find(&self, id: &str) -> Result<Option<Placed>, SandboxError> {
        Ok(self.0.state.lock().await.nodes.get(id).map(|node| node.placed.clone()))
    }

    async fn relabel(&self, id: &str, labels: BTreeMap<String, Option<String>>) -> Result<(), SandboxError> {
        self.with(id, |node| {
            for (name, value) in labels {
                match value {
                    Some(value) => node.placed.labels.insert(name, value),
                    None => node.placed.labels.remove(&name),
                };
            }
        })
        .await
    }

    async fn checkpoint(&self, id: &str, checkpoint: &str) -> Result<Checkpoint, SandboxError> {
        let mut state = self.0.state.lock().await;
        let node = state.nodes.get(id).ok_or_else(|| rejected(format!("there is no sandbox {id}")))?;
        stop(node.agent);
        let (from, to) = (format!("/proc/{}/root/root/.", node.agent), self.0.kept(checkpoint));
        std::fs::create_dir(&to).unwrap();
        did("cp", &["-a", &from, to.to_str().unwrap()]);
        if !node.placed.suspended {
            commands(node.agent).into_iter().for_each(|pid| signal(pid, Signal::CONT));
        }
        let made = Checkpoint {
            id: checkpoint.to_owned(),
            sandbox: id.to_owned(),
            labels: node.placed.labels.clone(),
            created_s: 1,
            frozen: Duration::ZERO,
            bytes: None,
        };
        state.checkpoints.insert(checkpoint.to_owned(), made.clone());
        Ok(made)
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>, SandboxError> {
        Ok(self.0.state.lock().await.checkpoints.values().cloned().collect())
    }

    async fn checkpoint_ids(&self) -> Result<Vec<String>, SandboxError> {
        Ok(self.0.state.lock().await.checkpoints.keys().cloned().collect())
    }

    async fn find_checkpoint(&self, id: &str) -> Result<Option<Checkpoint>, SandboxError> {
        Ok(self.0.state.lock().await.checkpoints.get(id).cloned())
    }

    async fn delete_checkpoint(&self, id: &str) -> Result<(), SandboxError> {
        let known = self.0.state.lock().await.checkpoints.remove(id);
        known.map(drop).ok_or_else(|| rejected(format!("there is no checkpoint {id}")))
    }

    async fn export(&self, _: &str, _: &Path, _: &Stop) -> Result<Written, SandboxError> {
        Err(SandboxError::Refused { requirement: "write checkpoints as images".to_owned() })
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.0.ended.subscribe()
    }
}
