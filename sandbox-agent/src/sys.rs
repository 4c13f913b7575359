//! The few calls into the kernel that have no safe wrapper, but launching a process, which is in `launch`.
#![expect(
    unsafe_code,
    reason = "signal masks, signalfd, wait4, prctl and inherited descriptors have no safe form in rustix"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// Signals that the agent reads from its signalfd. They are blocked in every thread of it, and in no command.
pub const SIGNALS: [i32; 6] =
    [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1];

/// How often a descriptor is looked at whose other end was closed once.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A signal as read from the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Process id of the sender as seen from here; 0: from outside the sandbox, or the kernel.
    pub sender: u32,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The status word of `wait`.
    pub status: i32,
    /// Time it and its waited-for children used in user mode, in microseconds.
    pub user_us: u64,
    /// The same in the kernel.
    pub system_us: u64,
    /// The largest resident size of it or a waited-for child, in bytes.
    pub memory_max_bytes: u64,
}

impl Exit {
    /// The code it exited with.
    pub fn code(&self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        libc::WIFSIGNALED(self.status).then(|| libc::WTERMSIG(self.status))
    }
}

/// Blocks [`SIGNALS`] and makes a descriptor to read them from. Before any other thread is started.
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; the descriptor is new and owned by nobody else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// What one record of a signalfd says.
pub fn parse_signal(record: &[u8; 128]) -> Signal {
    let word = |at: usize| u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    Signal { number: word(0).cast_signed(), sender: word(12) }
}

/// Reaps one child that has ended, if there is one.
pub fn reap() -> Option<(u32, Exit)> {
    let mut status = 0;
    // SAFETY: both pointers are to locals of the right type, zeroed usage is valid.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    let exit = Exit {
        status,
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        memory_max_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    };
    u32::try_from(pid).ok().filter(|pid| *pid > 0).map(|pid| (pid, exit))
}

/// The user that the agent hides as: one that no image has.
pub const HIDDEN_USER: u32 = 64_998;

/// Whether the agent was started as root, and so may give files and processes to others. Holds also after [`hide`].
pub fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| rustix::process::geteuid().is_root())
}

/// As root: becomes a user that nobody else is, with root's capabilities and root's files. What runs as root in the sandbox then
/// has no right over the agent by being the same user: not to signal, limit, slow or look into it. False where the user
/// namespace does not know that user. Before any other thread is started.
pub fn hide() -> bool {
    if !is_root() {
        return false;
    }
    // SAFETY: these calls change credentials of the only thread; the structures have the layout of version 3 of capset, which is
    // two of each for 64 capabilities.
    unsafe {
        let header = [0x2008_0522_u32, 0];
        let mut data = [0u32; 6];
        if libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) != 0 {
            return false;
        }
        libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
        let hidden = libc::setresuid(HIDDEN_USER, HIDDEN_USER, HIDDEN_USER) == 0;
        if hidden {
            // Words are effective, permitted, inheritable, for the low and the high half.
            (data[0], data[3]) = (data[1], data[4]);
            libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr());
            libc::setfsuid(0);
        }
        libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0);
        hidden
    }
}

/// From here on neither this process nor what it starts becomes the user that the agent hides as: that would be a right over its
/// threads. Needs that no new privileges are gained; where that is not so, nothing is done: the backend did not ask for it.
pub fn nobody_becomes_the_agent() -> io::Result<()> {
    // SAFETY: asks for one bit.
    if unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } != 1 {
        return Ok(());
    }
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let equal = |k: u32, jt: u8, jf: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
    let answer = |k: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut filter = vec![load(0)];
    for (call, ids) in
        [(libc::SYS_setresuid, 3), (libc::SYS_setreuid, 2), (libc::SYS_setuid, 1), (libc::SYS_setfsuid, 1)]
    {
        filter.push(equal(u32::try_from(call).unwrap_or(u32::MAX), 0, ids * 2 + 2));
        for index in 0..ids {
            // The low half of an argument, on machines that store it first.
            filter
                .extend([load(16 + 8 * u32::from(index)), equal(HIDDEN_USER, (ids - 1 - index) * 2 + 1, 0)]);
        }
        filter
            .extend([answer(libc::SECCOMP_RET_ALLOW), answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32)]);
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    let program =
        libc::sock_fprog { len: u16::try_from(filter.len()).unwrap_or(0), filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until then.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Kills the process that a number of a descriptor stands for; nothing where it is none of a process.
pub fn kill_by_descriptor(descriptor: i32) {
    // SAFETY: the call reads no memory.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, descriptor, libc::SIGKILL, 0, 0);
    }
}

/// Whether a signal has stopped a child; it stays as it is, and is not waited for.
pub fn is_stopped(descriptor: i32) -> bool {
    let Ok(descriptor) = libc::id_t::try_from(descriptor) else { return false };
    let options = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: zeros are a `siginfo_t` that says nothing, and the call writes no more than one.
    unsafe {
        let mut told: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PIDFD, descriptor, &raw mut told, options) == 0 && told.si_pid() != 0
    }
}

/// Ends this process and all its threads at once.
pub fn leave(code: u8) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(code)) }
}

/// No signal is ignored that whoever started the agent ignored: commands would inherit it. The agent itself wants errors and
/// not SIGPIPE; `launch` gives commands that one back.
pub fn default_signals() {
    // The kernel's own form of a signal's action: handler, flags, restorer, mask. Zeros stand for the default.
    let default = [0u64; 4];
    for signal in (1..=64).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: the action is as large as the kernel reads; the C library refuses the two signals that it uses itself, and
        // those are to be reset too.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null_mut::<u64>(), 8);
        }
    }
}

/// SIGKILL to every process but process 1. For process 1 of a namespace alone: elsewhere it would reach too far.
pub fn kill_all() {
    if std::process::id() == 1 {
        // SAFETY: kill has no memory to get wrong.
        unsafe {
            libc::kill(-1, libc::SIGKILL);
        }
    }
}

/// A descriptor that the agent was started with, named by its number.
pub fn adopt(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the number is checked to be open; it was inherited for this use and is adopted once, by `arguments`.
    unsafe {
        if number < 3 || libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(OwnedFd::from_raw_fd(number))
    }
}

/// Keeps descriptors that somebody left open from every command, and sees to it that 0, 1 and 2 are open.
pub fn close_on_exec() -> io::Result<()> {
    while std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null")?) < 3 {
        std::mem::forget(std::fs::File::open("/dev/null")?);
    }
    // SAFETY: only flags of descriptors are changed.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Orphans of commands become children of the agent, also where it is not process 1.
pub fn adopt_orphans() {
    // SAFETY: prctl with these arguments only sets a flag of the process.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
}

/// Nobody inside may look into the agent: no core, no trace, no `/proc/PID/mem`.
pub fn undumpable() -> io::Result<()> {
    // SAFETY: as above.
    let done = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// No command gains privileges by what it executes.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: as above.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor whose readiness the runtime tells.
pub fn readiness(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names one open file for all of its life, and is closed by the AsyncFd that now owns it.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// Waits anew for a descriptor that was told ready and had nothing to read or no room. The runtime takes one whose other end was
/// closed for ready ever after, also where that end is opened again, or where nothing can be done with it (a terminal full of
/// input that its program has not read): such a one is looked at now and then.
pub async fn not_ready(mut ready: AsyncFdReadyGuard<'_, OwnedFd>) {
    let told = ready.ready();
    ready.clear_ready();
    if told.is_read_closed() || told.is_write_closed() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// One arena and early return of free memory to the kernel: the agent is small and stays so.
pub fn frugal_allocator() {
    // SAFETY: mallopt only sets numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
