//! The calls into the kernel that have no safe wrapper.
#![expect(
    unsafe_code,
    reason = "clone3, mount_setattr, seccomp, execveat and interface flags have no safe form in rustix"
)]

use libc::sock_filter;
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Namespaces of a sandbox.
pub(super) const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Flag of `clone3` alone.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(result)
    }
}

/// Which of the two copies goes on.
pub(super) enum Side {
    /// The keeper, with the child's process id and a descriptor of it.
    Parent(u32, OwnedFd),
    /// Process 1 of new namespaces.
    Child,
}

/// A copy of this process in namespaces of its own, in a cgroup of version 2 from its first instruction where one is given.
/// What the kernel counts by user (queued signals, watches of files, messages) is counted for `owner`, where that is given: a
/// user that no other sandbox has, so that none takes from another or from the machine's root.
///
/// The keeper has one thread, so that the copy may go on in Rust.
pub(super) fn divide(cgroup: Option<BorrowedFd<'_>>, owner: Option<u32>) -> Result<Side, Errno> {
    let Some(owner) = owner else { return divide_as_it_is(cgroup) };
    own_namespaces_as(owner)?;
    let divided = divide_as_it_is(cgroup);
    if !matches!(divided, Ok(Side::Child)) {
        own_namespaces_as(0)?;
    }
    divided
}

/// The effective user, who owns namespaces that are made; capabilities stay.
fn own_namespaces_as(user: u32) -> Result<(), Errno> {
    const KEEP: libc::c_ulong = 1 << 2; // SECBIT_NO_SETUID_FIXUP
    let unchanged = u32::MAX;
    // SAFETY: credentials of the one thread there is; no memory is read.
    unsafe {
        check(libc::c_long::from(libc::prctl(libc::PR_SET_SECUREBITS, KEEP, 0, 0, 0)))?;
        check(libc::syscall(libc::SYS_setresuid, unchanged, user, unchanged))?;
        let bits = if user == 0 { 0 } else { KEEP };
        check(libc::c_long::from(libc::prctl(libc::PR_SET_SECUREBITS, bits, 0, 0, 0))).map(drop)
    }
}

fn divide_as_it_is(cgroup: Option<BorrowedFd<'_>>) -> Result<Side, Errno> {
    let mut descriptor: RawFd = -1;
    // SAFETY: zeros are valid for every field; without CLONE_VM the child has a copy of all memory, and as there is one thread,
    // no lock is held in it by another. The kernel writes the descriptor before it returns.
    unsafe {
        let mut arguments: libc::clone_args = std::mem::zeroed();
        arguments.flags = NAMESPACES as u64 | libc::CLONE_PIDFD as u64;
        arguments.pidfd = &raw mut descriptor as u64;
        arguments.exit_signal = libc::SIGCHLD as u64;
        if let Some(cgroup) = cgroup {
            arguments.flags |= CLONE_INTO_CGROUP;
            arguments.cgroup = cgroup.as_raw_fd() as u64;
        }
        let pid = check(libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()))?;
        if pid == 0 {
            return Ok(Side::Child);
        }
        Ok(Side::Parent(u32::try_from(pid).unwrap_or(0), OwnedFd::from_raw_fd(descriptor)))
    }
}

/// Files of a detached mount are seen with the owners that a user namespace gives them.
pub(super) fn map_owners(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.as_raw_fd() as u64,
    };
    set_attributes(mount, &attributes, libc::AT_EMPTY_PATH)
}

/// A detached mount that nobody writes to.
pub(super) fn read_only(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    set_attributes(mount, &attributes, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)
}

fn set_attributes(mount: BorrowedFd<'_>, attributes: &libc::mount_attr, flags: i32) -> Result<(), Errno> {
    // SAFETY: the path is empty and ends in zero; the structure has the size that is named.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    check(done).map(drop)
}

/// Brings 127.0.0.1 up in this network namespace.
pub(super) fn raise_loopback() -> Result<(), Errno> {
    // SAFETY: the request is as large as the kernel reads, its name ends in zero; the socket is closed by its owner.
    unsafe {
        let socket =
            check(libc::c_long::from(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)))?;
        let socket = OwnedFd::from_raw_fd(i32::try_from(socket).unwrap_or(-1));
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(libc::c_long::from(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request)))
            .map(drop)
    }
}

/// A session keyring of its own: what was inherited is out of reach.
pub(super) fn forget_keys() {
    // SAFETY: joining an anonymous session keyring reads no memory. Kernels without keys have none to forget.
    unsafe {
        libc::syscall(libc::SYS_keyctl, 1, std::ptr::null::<libc::c_char>());
    }
}

/// All further system calls of this process and of what it starts pass this filter.
pub(super) fn confine(filter: &[sock_filter]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which lives until then.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    check(done).map(drop)
}

/// Becomes a program that is open; returns only if it cannot.
pub(super) fn exec(program: BorrowedFd<'_>, arguments: &[CString], environment: &[CString]) -> Errno {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists end in null and point to texts that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Leaves without running anything of the keeper's.
pub(super) fn leave(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// User and group ids of the namespace's root, no other groups. `false`: this process may not drop groups, and has none to drop.
pub(super) fn set_root_ids(drop_groups: bool) -> Result<(), Errno> {
    // SAFETY: credentials of the one thread there is; no memory is read for no groups.
    unsafe {
        if drop_groups {
            check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        }
        check(libc::syscall(libc::SYS_setresgid, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_setresuid, 0, 0, 0)).map(drop)
    }
}

/// One `ioctl` of the pool's file system with its argument.
pub(super) fn control<T>(
    file: BorrowedFd<'_>,
    request: libc::c_ulong,
    argument: &mut T,
) -> Result<i64, Errno> {
    // SAFETY: callers pair the request with the structure that the kernel's headers name for it; its size is part of the number.
    check(libc::c_long::from(unsafe {
        libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument))
    }))
}

/// As [`control`], with a number in place of a structure.
pub(super) fn control_number(
    file: BorrowedFd<'_>,
    request: libc::c_ulong,
    argument: u64,
) -> Result<i64, Errno> {
    // SAFETY: these requests read no memory.
    check(libc::c_long::from(unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) }))
}

/// Mounts of this process are seen by itself alone from here on.
pub(super) fn own_mounts() -> Result<(), Errno> {
    // SAFETY: unshare reads no memory; there is one thread.
    check(libc::c_long::from(unsafe { libc::unshare(libc::CLONE_NEWNS) })).map(drop)
}
