# Calls of the kernel that a sandbox must not have; each has to fail. Says what did not. With the argument `namespaces`, some may be made.
import ctypes, errno, os, socket, sys

namespaces = sys.argv[1:] == ["namespaces"]
# Of mounts, IPC, host names, control groups and time; of users, processes and networks.
refused_namespaces = [0x00020000, 0x08000000, 0x04000000, 0x02000000, 0x80]
refused_namespaces += [] if namespaces else [0x10000000, 0x20000000, 0x40000000]

libc = ctypes.CDLL(None, use_errno=True)
failed = []


def refused(name, call, *arguments, expect=(errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EAFNOSUPPORT, errno.ENOSPC)):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(call), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result != -1 or ctypes.get_errno() not in expect:
        failed.append(f"{name}: {result} {errno.errorcode.get(ctypes.get_errno())}")


refused("keyctl", 250, 0, -3, 0)
refused("add_key", 248, b"user", b"x", b"y", 1, -3)
refused("request_key", 249, b"user", b"x", None, 0)
refused("bpf", 321, 0, None, 0)
refused("perf_event_open", 298, None, 0, -1, -1, 0)
refused("userfaultfd", 323, 0)
refused("io_uring_setup", 425, 1, None)
refused("open_by_handle_at", 304, -1, None, 0)
refused("mount", 165, b"x", b"/mnt", b"tmpfs", 0, None)
refused("fsopen", 430, b"tmpfs", 0)
refused("open_tree", 428, -100, b"/", 1)
for kind in refused_namespaces:
    refused(f"unshare {kind:#x}", 272, kind)
    if kind != 0x80:
        refused(f"clone {kind:#x}", 56, kind | 17, 0, 0, 0, 0)
refused("setns", 308, 0, 0)
refused("pivot_root", 155, b"/", b"/")
refused("reboot", 169, 0xFEE1DEAD, 672274793, 0, None)
refused("init_module", 175, None, 0, b"")
refused("kexec_load", 246, 0, 0, None, 0)
refused("quotactl", 179, 0, None, 0, None)
refused("syslog", 103, 3, None, 0)
refused("ptrace attach to the agent", 101, 16, 1, 0, 0)
refused("ptrace seize the agent", 101, 0x4206, 1, 0, 0)
piece = ctypes.create_string_buffer(16)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(piece), 16)
refused("process_vm_readv of the agent", 310, 1, vector, 1, vector, 1, 0)
refused("pidfd_getfd of the agent", 438, os.pidfd_open(1), 0, 0)
refused("prlimit of the agent", 302, 1, 7, b"\0" * 16, None)
refused("scheduling of the agent", 203, 1, 8, b"\1" + b"\0" * 7)
refused("sethostname", 170, b"x", 1)
refused("acct", 163, b"/root/acct")
sockets = [(40, 1, 0), (17, 3, 0), (38, 5, 0), (2, 3, 1), (2, 10, 3), (10, 3, 58), (31, 3, 0)]
# Packet filters, IPsec and what else is spoken to by names.
sockets += [(16, 3, 12), (16, 3, 6), (16, 3, 16)] if namespaces else []
for family, kind, protocol in sockets:
    try:
        socket.socket(family, kind, protocol).close()
        failed.append(f"socket {family} {kind}")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EAFNOSUPPORT, errno.EACCES, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
            failed.append(f"socket {family} {kind}: {error}")

if namespaces:
    for level, option in ((0, 64), (0, 96), (0, 128), (41, 64)):
        try:
            socket.socket(socket.AF_INET6 if level else socket.AF_INET, socket.SOCK_DGRAM).getsockopt(level, option, 84)
            failed.append(f"getsockopt {level} {option}")
        except OSError as error:
            if error.errno != errno.EPERM:
                failed.append(f"getsockopt {level} {option}: {error}")

# The clone3 that the filter lets through meets the bound on namespaces.
for kind in refused_namespaces:
    arguments = (ctypes.c_uint64 * 11)()
    arguments[0] = kind
    arguments[4] = 17
    pid = libc.syscall(ctypes.c_long(435), arguments, ctypes.c_long(88))
    if pid == 0:
        os._exit(0)
    if pid != -1:
        failed.append(f"clone3 made a namespace {kind:#x}")
print("\n".join(failed) or "all refused")
