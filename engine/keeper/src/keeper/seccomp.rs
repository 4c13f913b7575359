//! The system calls of a sandbox: a filter for the kernel. Calls it knows pass, but for those that reach the kernel's own
//! workings, other namespaces, or the agent; calls newer than this list do not exist.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, sock_filter,
};

/// The newest call that is known (`file_setattr`); numbers above it answer ENOSYS.
const NEWEST: u32 = 469;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Newer than the C library's list of numbers.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// Where the fields of `seccomp_data` lie.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const fn argument_at(index: u32) -> u32 {
    // The low half, on machines that store it first.
    16 + 8 * index
}

/// Answered with EPERM whatever they are called with.
const DENIED: &[libc::c_long] = &[
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_setns,
    // The machine's own.
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    // Keys are not kept apart by namespaces.
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Files by handle reach round every mount.
    libc::SYS_open_by_handle_at,
    // Parts of the kernel that have broken too often.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// Answered as if the kernel did not have them, so that programs take their other way.
const MISSING: &[libc::c_long] =
    &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Answered with EPERM where their first argument is process 1: the agent.
const NOT_TO_THE_AGENT: &[libc::c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_ptrace,
];

/// Kinds of socket that exist: local, IPv4, IPv6, and the kernel's own lists of interfaces.
const FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Flags of `clone` and `unshare` that make a new namespace of those that are allowed where any are.
const SOME_NAMESPACES: u32 = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET) as u32;
/// Flags that make any other. That of time is a part of the exit signal to `clone`, where it asks for no namespace.
const OTHER_NAMESPACES: u32 =
    (libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP) as u32;
const NEW_TIME: u32 = 0x80;

/// What may be asked of `AF_NETLINK` by who may configure a network of its own: addresses and devices, not packet filters.
const NETLINK: &[i32] = &[libc::NETLINK_ROUTE, libc::NETLINK_KOBJECT_UEVENT];
/// Options of sockets that configure packet filters: tables of IPv4 and IPv6, of ARP and of bridges.
const FILTER_OPTIONS: [(i32, &[u32]); 2] =
    [(libc::SOL_IP, &[64, 65, 96, 97, 128, 129]), (libc::SOL_IPV6, &[64, 65])];
/// The kind in the second argument of `socket`, without its flags.
const KIND: u32 = 0xf;
/// An old name for sockets of packets, in the families of the internet too.
const SOCK_PACKET: u32 = 10;

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(test: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt, jf, k }
}

fn load(at: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, at)
}

fn allow() -> sock_filter {
    statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
}

fn answer(errno: i32) -> sock_filter {
    statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | errno as u32)
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).expect("system calls have small positive numbers")
}

/// The filter, ready for the kernel. `one_user`: the agent is the same user as the commands, and its threads are kept from limits
/// by refusing to limit any other process; elsewhere its own user does that. `namespaces`: those of users, processes and networks may be
/// made; then what is outside of them is kept from the rights in them as if there were one user, and of what one may do to a network of
/// one's own, the parts are left out that nobody needs for being without one.
pub(super) fn filter(one_user: bool, namespaces: bool) -> Vec<sock_filter> {
    let equal = |k, jt, jf| jump(BPF_JEQ, k, jt, jf);
    let mut program = vec![
        load(ARCHITECTURE_AT),
        equal(ARCHITECTURE, 1, 0),
        answer(libc::ENOSYS),
        load(NUMBER_AT),
        // x32 calls have a bit that lies above every number.
        jump(BPF_JGE, NEWEST + 1, 0, 1),
        answer(libc::ENOSYS),
    ];
    for call in DENIED {
        program.extend([equal(number(*call), 0, 1), answer(libc::EPERM)]);
    }
    for call in MISSING {
        program.extend([equal(number(*call), 0, 1), answer(libc::ENOSYS)]);
    }
    // Each block below ends in an answer, so that the number needs no second load. `clone3` passes: the bounds on namespaces hold for it.
    let refused = |call, flags: u32| {
        [
            equal(number(call), 0, 5),
            load(argument_at(0)),
            statement(BPF_ALU | BPF_AND | BPF_K, flags),
            equal(0, 0, 1),
            allow(),
            answer(libc::EPERM),
        ]
    };
    if namespaces {
        program.extend(refused(libc::SYS_clone, OTHER_NAMESPACES));
        program.extend(refused(libc::SYS_unshare, OTHER_NAMESPACES | NEW_TIME));
    } else {
        program.extend(refused(libc::SYS_clone, OTHER_NAMESPACES | SOME_NAMESPACES));
        program.extend([equal(number(libc::SYS_unshare), 0, 1), answer(libc::EPERM)]);
    }
    if namespaces {
        program.extend(network_of_its_own());
    }
    let families = u8::try_from(FAMILIES.len()).expect("a handful");
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        program.extend([equal(number(call), 0, families + 3), load(argument_at(0))]);
        for (index, family) in FAMILIES.iter().enumerate() {
            program.push(equal(*family as u32, families - index as u8, 0));
        }
        program.extend([answer(libc::EAFNOSUPPORT), allow()]);
    }
    // Pushing characters into a terminal that others read.
    program.extend([
        equal(number(libc::SYS_ioctl), 0, 5),
        load(argument_at(1)),
        equal(libc::TIOCSTI as u32, 1, 0),
        equal(libc::TIOCLINUX as u32, 0, 1),
        answer(libc::EPERM),
        allow(),
    ]);
    // A lease on a file makes whoever opens it wait: the agent too.
    program.extend([
        equal(number(libc::SYS_fcntl), 0, 4),
        load(argument_at(1)),
        equal(libc::F_SETLEASE as u32, 0, 1),
        answer(libc::EPERM),
        allow(),
    ]);
    if one_user || namespaces {
        program.extend([
            equal(number(libc::SYS_prlimit64), 0, 9),
            load(argument_at(0)),
            equal(0, 6, 0),
            equal(1, 4, 0),
            load(argument_at(2)),
            equal(0, 0, 2),
            load(argument_at(2) + 4),
            equal(0, 1, 0),
            answer(libc::EPERM),
            allow(),
        ]);
    }
    for call in NOT_TO_THE_AGENT {
        let at = if *call == libc::SYS_ptrace { 1 } else { 0 };
        program.extend([
            equal(number(*call), 0, 4),
            load(argument_at(at)),
            equal(1, 0, 1),
            answer(libc::EPERM),
            allow(),
        ]);
    }
    // Priorities: a process's own, by name of the process; a user's would be the agent's too.
    for call in [libc::SYS_setpriority, libc::SYS_ioprio_set] {
        let process = if call == libc::SYS_setpriority { 0 } else { 1 };
        program.extend([
            equal(number(call), 0, 6),
            load(argument_at(0)),
            equal(process, 0, 2),
            load(argument_at(1)),
            equal(1, 0, 1),
            answer(libc::EPERM),
            allow(),
        ]);
    }
    program.push(allow());
    program
}

/// What root of a network of its own may not do. Each block ends in an answer, or with the number again.
fn network_of_its_own() -> Vec<sock_filter> {
    let equal = |k, jt, jf| jump(BPF_JEQ, k, jt, jf);
    let length = |list: usize| u8::try_from(list).expect("a handful");
    let netlink = length(NETLINK.len());
    let mut program = vec![
        equal(number(libc::SYS_socket), 0, netlink + 10),
        load(argument_at(0)),
        equal(libc::AF_NETLINK as u32, 0, netlink + 2),
        load(argument_at(2)),
    ];
    for (index, protocol) in NETLINK.iter().enumerate() {
        program.push(equal(*protocol as u32, netlink + 5 - length(index), 0));
    }
    program.extend([
        answer(libc::EPROTONOSUPPORT),
        load(argument_at(1)),
        statement(BPF_ALU | BPF_AND | BPF_K, KIND),
        equal(libc::SOCK_RAW as u32, 1, 0),
        equal(SOCK_PACKET, 0, 1),
        answer(libc::EPERM),
        load(NUMBER_AT),
    ]);
    for call in [libc::SYS_setsockopt, libc::SYS_getsockopt] {
        for (level, options) in FILTER_OPTIONS {
            let count = length(options.len());
            program.extend([
                equal(number(call), 0, count + 6),
                load(argument_at(1)),
                equal(level as u32, 0, count + 3),
                load(argument_at(2)),
            ]);
            for (index, option) in options.iter().enumerate() {
                program.push(equal(*option, count - length(index), 0));
            }
            program.extend([allow(), answer(libc::EPERM), load(NUMBER_AT)]);
        }
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's machine, as far as the filter uses it.
    fn run(program: &[sock_filter], call: libc::c_long, arguments: [u64; 6], architecture: u32) -> u32 {
        let (mut at, mut register) = (0, 0u32);
        loop {
            let step = &program[at];
            at += 1;
            let code = u32::from(step.code);
            if code == BPF_LD | BPF_W | BPF_ABS {
                register = match step.k {
                    NUMBER_AT => call as u32,
                    ARCHITECTURE_AT => architecture,
                    offset => {
                        let at = offset as usize - 16;
                        (arguments[at / 8] >> (8 * (at % 8))) as u32
                    }
                };
            } else if code == BPF_ALU | BPF_AND | BPF_K {
                register &= step.k;
            } else if code == BPF_RET | BPF_K {
                return step.k;
            } else {
                let taken = match code & !(BPF_JMP | BPF_K) {
                    BPF_JEQ => register == step.k,
                    BPF_JGE => register >= step.k,
                    other => panic!("no such test: {other}"),
                };
                at += usize::from(if taken { step.jt } else { step.jf });
            }
        }
    }

    #[test]
    fn calls_pass_fail_or_do_not_exist() {
        let program = filter(false, false);
        let check = |call: libc::c_long, arguments: &[u64], expect: Option<i32>| {
            let mut all = [0; 6];
            all[..arguments.len()].copy_from_slice(arguments);
            let expect = expect.map_or(SECCOMP_RET_ALLOW, |errno| SECCOMP_RET_ERRNO | errno as u32);
            assert_eq!(run(&program, call, all, ARCHITECTURE), expect, "call {call} {arguments:?}");
        };
        check(libc::SYS_read, &[], None);
        check(libc::SYS_clone3, &[], None);
        check(libc::SYS_execve, &[], None);
        check(libc::SYS_mount, &[], Some(libc::EPERM));
        check(libc::SYS_keyctl, &[], Some(libc::EPERM));
        check(libc::SYS_io_uring_setup, &[], Some(libc::ENOSYS));
        check(470, &[], Some(libc::ENOSYS));
        check(0x4000_0000, &[], Some(libc::ENOSYS));
        check(libc::SYS_clone, &[libc::SIGCHLD as u64], None);
        check(libc::SYS_clone, &[libc::CLONE_NEWUSER as u64], Some(libc::EPERM));
        check(libc::SYS_unshare, &[libc::CLONE_FILES as u64], Some(libc::EPERM));
        check(libc::SYS_socket, &[libc::AF_INET as u64], None);
        check(libc::SYS_socket, &[libc::AF_NETLINK as u64], None);
        check(libc::SYS_socket, &[libc::AF_VSOCK as u64], Some(libc::EAFNOSUPPORT));
        check(libc::SYS_socketpair, &[libc::AF_UNIX as u64], None);
        check(libc::SYS_socketpair, &[libc::AF_PACKET as u64], Some(libc::EAFNOSUPPORT));
        check(libc::SYS_ioctl, &[0, libc::TCGETS], None);
        check(libc::SYS_ioctl, &[0, libc::TIOCSTI], Some(libc::EPERM));
        check(libc::SYS_ioctl, &[0, libc::TIOCLINUX], Some(libc::EPERM));
        check(libc::SYS_prlimit64, &[0], None);
        check(libc::SYS_prlimit64, &[1], Some(libc::EPERM));
        check(libc::SYS_prlimit64, &[7, 7, 1], None);
        check(libc::SYS_fcntl, &[3, libc::F_SETFL as u64], None);
        check(libc::SYS_fcntl, &[3, libc::F_SETLEASE as u64], Some(libc::EPERM));
        check(OPEN_TREE_ATTR, &[], Some(libc::EPERM));
        check(libc::SYS_ptrace, &[16, 1], Some(libc::EPERM));
        check(libc::SYS_ptrace, &[16, 2], None);
        check(libc::SYS_setpriority, &[0, 0], None);
        check(libc::SYS_setpriority, &[0, 1], Some(libc::EPERM));
        check(libc::SYS_setpriority, &[2, 0], Some(libc::EPERM));
        check(libc::SYS_ioprio_set, &[1, 0], None);
        check(libc::SYS_ioprio_set, &[3, 0], Some(libc::EPERM));
        let strict = filter(true, false);
        for (arguments, allowed) in [
            ([0, 7, 1], true),
            ([7, 7, 0], true),
            ([7, 7, 1], false),
            ([7, 7, 1 << 32], false),
            ([1, 7, 0], false),
        ] {
            let [process, resource, new] = arguments;
            let answer = run(&strict, libc::SYS_prlimit64, [process, resource, new, 0, 0, 0], ARCHITECTURE);
            assert_eq!(answer == SECCOMP_RET_ALLOW, allowed, "{arguments:?}");
        }
        let other = run(&program, libc::SYS_read, [0; 6], 0x4000_0003);
        assert_eq!(other, SECCOMP_RET_ERRNO | libc::ENOSYS as u32, "32-bit calls");
    }

    #[test]
    fn with_namespaces_some_are_made_and_what_is_in_them_is_bounded() {
        let program = filter(false, true);
        let check = |call: libc::c_long, arguments: [i32; 3], expect: Option<i32>| {
            let mut all = [0; 6];
            for (place, argument) in all.iter_mut().zip(arguments) {
                *place = argument as u32 as u64;
            }
            let expect = expect.map_or(SECCOMP_RET_ALLOW, |errno| SECCOMP_RET_ERRNO | errno as u32);
            assert_eq!(run(&program, call, all, ARCHITECTURE), expect, "call {call} {arguments:?}");
        };
        let some = SOME_NAMESPACES.cast_signed();
        let (inet, inet6, netlink) = (libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK);
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            check(call, [some, 0, 0], None);
            for other in [libc::CLONE_NEWNS, libc::CLONE_NEWIPC, libc::CLONE_NEWUTS, libc::CLONE_NEWCGROUP] {
                check(call, [some | other, 0, 0], Some(libc::EPERM));
            }
        }
        check(libc::SYS_unshare, [NEW_TIME.cast_signed(), 0, 0], Some(libc::EPERM));
        for call in [libc::SYS_mount, libc::SYS_setns, libc::SYS_pivot_root, libc::SYS_bpf] {
            check(call, [0; 3], Some(libc::EPERM));
        }
        check(libc::SYS_chroot, [0; 3], None);
        check(libc::SYS_socket, [netlink, libc::SOCK_RAW, libc::NETLINK_ROUTE], None);
        check(libc::SYS_socket, [netlink, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT], None);
        for other in [libc::NETLINK_NETFILTER, libc::NETLINK_XFRM, libc::NETLINK_GENERIC] {
            check(libc::SYS_socket, [netlink, libc::SOCK_RAW, other], Some(libc::EPROTONOSUPPORT));
        }
        for family in [inet, inet6] {
            check(libc::SYS_socket, [family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0], None);
            check(
                libc::SYS_socket,
                [family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, libc::IPPROTO_ICMP],
                None,
            );
            check(libc::SYS_socket, [family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 255], Some(libc::EPERM));
            check(libc::SYS_socket, [family, SOCK_PACKET.cast_signed(), 0], Some(libc::EPERM));
        }
        check(libc::SYS_socket, [libc::AF_PACKET, libc::SOCK_DGRAM, 0], Some(libc::EAFNOSUPPORT));
        check(libc::SYS_socketpair, [libc::AF_UNIX, libc::SOCK_SEQPACKET, 0], None);
        for call in [libc::SYS_setsockopt, libc::SYS_getsockopt] {
            check(call, [3, libc::SOL_SOCKET, 64], None);
            check(call, [3, libc::SOL_IP, libc::IP_TTL], None);
            check(call, [3, libc::SOL_IPV6, libc::IPV6_TCLASS], None);
            for option in [64, 65, 96, 97, 128, 129] {
                check(call, [3, libc::SOL_IP, option], Some(libc::EPERM));
            }
            check(call, [3, libc::SOL_IPV6, 64], Some(libc::EPERM));
            check(call, [3, libc::SOL_IPV6, 65], Some(libc::EPERM));
        }
        // As where the agent is the same user: a map of users may name its own.
        check(libc::SYS_prlimit64, [7, 7, 1], Some(libc::EPERM));
        check(libc::SYS_prlimit64, [0, 7, 1], None);
        check(libc::SYS_ptrace, [16, 1, 0], Some(libc::EPERM));
        check(libc::SYS_ptrace, [16, 2, 0], None);
    }
}
