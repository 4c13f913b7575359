//! Starts a sandbox: the keeper clones itself into new namespaces, sets up user ids and mounts, and the child executes the agent.

use super::kernel::{self, Side};
use super::root::{self, Disk, Fault, Layers, Lower, Materials};
use super::seccomp;
use crate::wire::{Order, PROXY_PORT, Reach};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::OpenTreeFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions};
use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// User ids of each sandbox.
pub(super) const IDS: u32 = 65_536;
/// Descriptors in one message; the kernel's own bound is 253.
const PASSED_MAX: usize = 200;
/// Capabilities of commands: those that containers usually have, without raw sockets and device nodes.
const CAPABILITIES: u64 = bit(0) // chown
    | bit(1) // dac_override
    | bit(3) // fowner
    | bit(4) // fsetid
    | bit(5) // kill
    | bit(6) // setgid
    | bit(7) // setuid
    | bit(8) // setpcap
    | bit(10) // net_bind_service
    | bit(18) // sys_chroot
    | bit(29) // audit_write
    | bit(31); // setfcap

const fn bit(number: u32) -> u64 {
    1 << number
}

/// Inputs of a start besides its order.
#[derive(Debug)]
pub(super) struct Means<'a> {
    /// The static binary.
    pub agent: BorrowedFd<'a>,
    /// Root's disk; `None`: memory.
    pub disk: Option<OwnedFd>,
    /// First user id outside; `None`: an ordinary user, whose own id is the sandbox's root.
    pub ids_from: Option<u32>,
    /// What the agent listens on.
    pub listener: UnixListener,
    /// Its control groups.
    pub cgroup_fds: super::cgroups::CgroupFds,
    /// Whether rlimits stand in for control groups that are not there.
    pub rlimits: bool,
    /// Environment of every command.
    pub environment: &'a [(String, String)],
}

/// A sandbox that is starting.
#[derive(Debug)]
pub(super) struct Spawned {
    /// Process 1, as seen from outside.
    pub pid: u32,
    /// The same, for waiting.
    pub descriptor: OwnedFd,
    /// One byte `1` when its agent takes calls; any other text says what went wrong.
    pub word: OwnedFd,
    /// Where the proxy's socket comes from.
    pub line: OwnedFd,
}

/// Divides; returns in the keeper alone. What fails in the copy is told on [`Spawned::word`].
pub(super) fn spawn(order: &Order, means: Means<'_>) -> Result<Spawned, String> {
    let failed = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    let pipe = rustix::pipe::PipeFlags::CLOEXEC;
    let (word, say) = rustix::pipe::pipe_with(pipe).map_err(failed("a pipe"))?;
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (line, inner) = pair.map_err(failed("a socket pair"))?;
    let divided = kernel::divide(means.cgroup_fds.agent.as_ref().map(AsFd::as_fd), means.ids_from);
    match divided.map_err(failed("new namespaces"))? {
        Side::Child => {
            drop((word, line));
            let (what, errno) = run_child(order, means, &inner, &say);
            let text = format!("{what}: {errno}");
            let _ = rustix::io::write(&say, text.as_bytes());
            kernel::leave(1);
        }
        Side::Parent(pid, descriptor) => {
            let spawned = Spawned { pid, descriptor, word, line };
            if let Err(text) = provide(order, &means, &spawned) {
                let _ =
                    rustix::process::pidfd_send_signal(&spawned.descriptor, rustix::process::Signal::KILL);
                // It has only been waiting: it is gone at once.
                let _ =
                    rustix::process::waitid(WaitId::PidFd(spawned.descriptor.as_fd()), WaitIdOptions::EXITED);
                return Err(text);
            }
            Ok(spawned)
        }
    }
}

/// The keeper's part: users, then mounts with those users' eyes.
fn provide(order: &Order, means: &Means<'_>, spawned: &Spawned) -> Result<(), String> {
    let pid = spawned.pid;
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/{pid}/{file}"), text)
            .map_err(|error| format!("{file} of the sandbox: {error}"))
    };
    let mut mounts = Vec::new();
    match means.ids_from {
        Some(from) => {
            write("uid_map", format!("0 {from} {IDS}"))?;
            write("gid_map", format!("0 {from} {IDS}"))?;
            let path = format!("/proc/{pid}/ns/user");
            let namespace = rustix::fs::openat(CWD, &*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            let namespace = namespace.map_err(|error| format!("{path}: {error}"))?;
            // A detached copy of the mount there, with owners as the sandbox sees them.
            let seen_by = |from: BorrowedFd<'_>, path: &Path, empty: OpenTreeFlags| {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | empty;
                let mount = rustix::mount::open_tree(from, path, flags)?;
                kernel::map_owners(mount.as_fd(), namespace.as_fd()).map(|()| mount)
            };
            for lower in order.root.overlays.iter().flat_map(|overlay| &overlay.lowers) {
                let mount = seen_by(CWD, lower, OpenTreeFlags::empty());
                mounts.push(mount.map_err(|error| format!("{}: {error}", lower.display()))?);
            }
            if let Some(disk) = &means.disk {
                let mount = seen_by(disk.as_fd(), Path::new(""), OpenTreeFlags::AT_EMPTY_PATH);
                mounts.push(mount.map_err(|error| format!("the disk: {error}"))?);
            }
        }
        None => {
            write("setgroups", "deny".to_owned())?;
            write("uid_map", format!("0 {} 1", rustix::process::getuid().as_raw()))?;
            write("gid_map", format!("0 {} 1", rustix::process::getgid().as_raw()))?;
        }
    }
    // The first message may be one without descriptors: it says go.
    let mut rest = &mounts[..];
    loop {
        let (now, later) = rest.split_at(rest.len().min(PASSED_MAX));
        let last = later.is_empty();
        send(&spawned.line, &[u8::from(last)], now)
            .map_err(|error| format!("mounts for the sandbox: {error}"))?;
        rest = later;
        if last {
            return Ok(());
        }
    }
}

/// One message with descriptors.
fn send(line: &OwnedFd, text: &[u8], passed: &[OwnedFd]) -> Result<(), Errno> {
    let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(&passed).size().max(1)];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&passed)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(line, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// One message with descriptors; an empty text is the end.
pub(super) fn receive(line: BorrowedFd<'_>, flags: RecvFlags) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 64];
    let message = rustix::net::recvmsg(
        line,
        &mut [IoSliceMut::new(&mut text)],
        &mut control,
        flags | RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            passed.extend(descriptors);
        }
    }
    Ok((text[..message.bytes].to_vec(), passed))
}

/// The copy's part; returns only where something failed.
fn run_child(order: &Order, means: Means<'_>, line: &OwnedFd, say: &OwnedFd) -> Fault {
    match prepare(order, means, line, say) {
        Ok((program, arguments, environment)) => {
            ("the agent".to_owned(), kernel::exec(program.as_fd(), &arguments, &environment))
        }
        Err(fault) => fault,
    }
}

type Program = (OwnedFd, Vec<CString>, Vec<CString>);

fn prepare(order: &Order, means: Means<'_>, line: &OwnedFd, say: &OwnedFd) -> Result<Program, Fault> {
    let at = |what: &str| {
        let what = what.to_owned();
        move |error: Errno| (what, error)
    };
    let mut mounts = Vec::new();
    loop {
        let (text, passed) = receive(line.as_fd(), RecvFlags::empty()).map_err(at("mounts"))?;
        mounts.extend(passed);
        match text[..] {
            [0] => {}
            [_, ..] => break,
            [] => return Err(("the keeper has gone".to_owned(), Errno::PIPE)),
        }
    }
    kernel::set_root_ids(means.ids_from.is_some()).map_err(at("becoming root"))?;
    rustix::process::setsid().map_err(at("a session"))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut mounts = mounts.into_iter();
    let given = means.ids_from.is_some();
    let mut lower = |path: &std::path::PathBuf| match given.then(|| mounts.next()).flatten() {
        Some(mount) => Lower::Mount(mount),
        None => Lower::Path(path.clone()),
    };
    let overlays = order.root.overlays.iter();
    let overlays: Vec<Layers> = overlays
        .map(|overlay| Layers {
            at: overlay.at.clone(),
            lowers: overlay.lowers.iter().map(&mut lower).collect(),
        })
        .collect();
    let disk = match mounts.next() {
        Some(mount) => Disk::Mount(mount),
        None => Disk::Memory { bytes_max: order.bounds.disk, files_max: order.bounds.files_max },
    };
    let shared_memory = (order.bounds.memory / 2).max(1 << 20);
    let namespaces = order.user_namespaces;
    let spill = root::make(Materials { overlays, disk, has_users: given, shared_memory, namespaces })?;
    name(order).map_err(at("its name"))?;
    if order.network != Reach::None {
        kernel::raise_loopback().map_err(at("127.0.0.1"))?;
    }
    if order.network == Reach::Proxy {
        let listener = std::net::TcpListener::bind(("127.0.0.1", PROXY_PORT));
        let listener = listener.map_err(|error| {
            ("the proxy's port".to_owned(), Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        send(line, b"door", &[listener.into()]).map_err(at("the proxy's port"))?;
    }
    kernel::forget_keys();
    bound(order, means.rlimits).map_err(at("rlimits"))?;
    let program = prepare_descriptors(order, means, spill, say).map_err(at("descriptors"))?;
    rustix::thread::set_no_new_privs(true).map_err(at("no new privileges"))?;
    kernel::confine(&seccomp::filter(!given, namespaces)).map_err(at("the filter of system calls"))?;
    Ok(program)
}

/// Host name, and the name of 127.0.0.1 where the image has no file for it.
fn name(order: &Order) -> Result<(), Errno> {
    let name = format!("sandbox-{}", order.id);
    rustix::system::sethostname(&name.as_bytes()[..name.len().min(60)])?;
    if !root::is_there("/etc") {
        rustix::fs::mkdirat(CWD, "/etc", Mode::from_raw_mode(0o755))?;
    }
    if std::fs::symlink_metadata("/etc/hosts").map_or(true, |found| found.is_file() && found.len() == 0) {
        // An image may forbid it; then its programs know addresses alone.
        let _ = std::fs::write("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n");
    }
    Ok(())
}

fn bound(order: &Order, in_place_of_groups: bool) -> Result<(), Errno> {
    let set = |resource: Resource, value: u64| {
        let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(value);
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
    };
    set(Resource::Core, 0)?;
    set(Resource::Nofile, 65_536)?;
    set(Resource::Memlock, 8 << 20)?;
    if in_place_of_groups {
        set(Resource::Nproc, u64::from(order.bounds.processes_max))?;
        set(Resource::Data, order.bounds.memory)?;
    }
    Ok(())
}

/// Descriptors for the agent, and its arguments, which name them.
fn prepare_descriptors(
    order: &Order,
    means: Means<'_>,
    spill: OwnedFd,
    say: &OwnedFd,
) -> Result<Program, Errno> {
    // A secret in a pipe is read once and nowhere else.
    let (secret, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::write(&writer, order.secret.as_bytes())?;
    drop(writer);
    let mut arguments = vec!["espalier-agent".to_owned()];
    let mut lend = |name: &str, descriptor: OwnedFd| -> Result<(), Errno> {
        rustix::io::fcntl_setfd(&descriptor, FdFlags::empty())?;
        arguments.extend([name.to_owned(), descriptor.as_raw_fd().to_string()]);
        // It is the agent's from here on.
        std::mem::forget(descriptor);
        Ok(())
    };
    lend("--listen-fd", means.listener.into())?;
    lend("--secret-fd", secret)?;
    lend("--spill-fd", spill)?;
    lend("--ready-fd", rustix::io::fcntl_dupfd_cloexec(say, 10)?)?;
    if let Some(folder) = means.cgroup_fds.commands {
        lend("--command-cgroup-fd", folder)?;
    }
    if let Some(folder) = means.cgroup_fds.memory {
        lend("--memory-cgroup-fd", folder)?;
    }
    for file in means.cgroup_fds.enter {
        lend("--enter-cgroup-fd", file)?;
    }
    let lease = order.lease_ms.to_string();
    let spill_max = (order.bounds.disk / 2).to_string();
    let capabilities = format!("{CAPABILITIES:x}");
    let rest = [
        "--lease-ms",
        &lease,
        "--spill-max-bytes",
        &spill_max,
        "--keep-capabilities",
        &capabilities,
        "--no-new-privileges",
    ];
    arguments.extend(rest.map(str::to_owned));
    let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    // What the agent says before it is ready tells why it is not.
    rustix::stdio::dup2_stderr(say)?;
    let program = rustix::io::fcntl_dupfd_cloexec(means.agent, 10)?;
    let text = |text: String| CString::new(text).map_err(|_| Errno::INVAL);
    let arguments: Result<Vec<CString>, Errno> = arguments.into_iter().map(text).collect();
    let environment = means.environment.iter().map(|(name, value)| text(format!("{name}={value}")));
    let environment: Result<Vec<CString>, Errno> = environment.collect();
    Ok((program, arguments?, environment?))
}
