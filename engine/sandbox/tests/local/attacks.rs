//! Attempts to get out of a sandbox, or at its agent, by a command that is root in it. Each has to fail; the reasons are in
//! `docs/sandboxes.md`.

use crate::support::{Place, Sandbox, order};
use espalier_agent_client::command;
use espalier_agent_client::wire::CommandSpec;
use espalier_keeper::wire::{Order, Reach};

/// An attempt, and what has to be in what comes of it; `!` in front: what must not be.
const ATTEMPTS: &[(&str, &str, &str)] = &[
    ("reads host files", "cat /etc/shadow", "No such file"),
    ("reads homes", "ls -A /root /home | grep -v :", "!ssh"),
    ("reads the disk", "ls /dev | grep -E 'vd|sd|nvme|loop|mem|kmsg'", "![a-z]"),
    ("makes a device", "mknod /root/sda b 8 0", "Operation not permitted"),
    ("mounts", "mount -t tmpfs x /mnt", "permi|denied"),
    ("binds over", "mount --bind /etc /mnt", "permi|denied"),
    ("unmasks /proc", "umount /proc/kcore; umount /proc/sys; cat /proc/kcore | head -c 16 | wc -c", "^0$"),
    ("makes namespaces", "unshare -Ur true", "not permitted|No space|denied"),
    ("makes a mount namespace", "unshare -m true", "not permitted|No space|denied"),
    ("joins namespaces", "nsenter -t 1 -m true", "permi|denied|cannot"),
    ("sets the kernel", "echo 1 > /proc/sys/kernel/panic", "Read-only|denied"),
    ("presses the magic key", "echo b > /proc/sysrq-trigger; echo $?", "."),
    ("sees outside processes", "ps -e | wc -l", "^[0-9]$"),
    ("signals everything", "kill -9 -1; echo", "!x"),
    ("reads keys", "cat /proc/keys | wc -l", "^0$"),
    ("sets the host name", "hostname evil", "permi|denied|must be root"),
    ("sets the clock", "date -s 2001-01-01", "not permitted|cannot set"),
    ("leaves by links", "ln -s /proc/1/root /root/r; ls /root/r/", "denied"),
    ("leaves by dots", "cat ../../../../../../var/tmp/../../etc/shadow", "No such file"),
    ("leaves by chroot", "chroot /proc/1/root /bin/true", "denied|cannot"),
    ("reads the agent's memory", "head -c 1 /proc/1/mem", "denied"),
    ("reads the agent's environment", "cat /proc/1/environ", "denied"),
    ("reads the agent's descriptors", "cat /proc/1/fd/* 2>&1 | head -1", "denied|No such"),
    ("reads the agent's maps", "cat /proc/1/maps", "denied"),
    ("reads the agent's program", "cat /proc/1/exe | head -c 4", "denied"),
    ("sees the lower folders", "ls /tmp /proc/1/cwd/", "denied|^$"),
    (
        "signals the agent",
        "kill -TERM 1; kill -KILL 1; kill -STOP 1; sleep 0.1; grep State /proc/1/status",
        "sleeping",
    ),
    ("limits the agent", "prlimit --pid 1 --nofile=3:3", "permi|denied|failed"),
    (
        "slows the agent",
        "a=$(cut -d' ' -f19 /proc/1/stat); renice 19 1; chrt -i -p 0 1; b=$(cut -d' ' -f19 /proc/1/stat); [ $a = $b ] && echo the same",
        "the same",
    ),
    ("gives the agent up to the memory killer", "echo 1000 > /proc/1/oom_score_adj", "Read-only"),
    ("slows the agent's group", "echo 19 > /proc/1/autogroup", "Read-only|No such"),
    ("renames the agent", "echo x > /proc/1/comm", "Read-only"),
    ("raises its own standing", "echo -1000 > /proc/self/oom_score_adj", "denied|permi"),
    ("writes control groups", "ls /sys/fs/cgroup; mkdir /sys/fs/cgroup/x", "Read-only|denied"),
    ("loads a module", "insmod /dev/null || modprobe loop", "permi|denied|not found|FATAL|No such"),
];

/// What a sandbox that may make namespaces does not refuse.
const NAMESPACES: &[&str] = &["makes namespaces"];

pub(crate) async fn attack(sandbox: &Sandbox, kind: &str) {
    attempt(sandbox, kind, &[], "bash -c \"$1\"").await;
    let program = include_str!("attacks/calls.py");
    let (text, code) = sandbox.run(&format!("python3 - <<'END'\n{program}\nEND")).await;
    assert_eq!((&*text, code), ("all refused\n", 0), "{kind}");
    assert_eq!(sandbox.run("echo alive").await.0, "alive\n", "{kind}");
}

/// The attempts, each carried out by this shell text as its first argument.
async fn attempt(sandbox: &Sandbox, kind: &str, but: &[&str], by: &str) {
    for (name, attempt, expect) in ATTEMPTS.iter().filter(|(name, ..)| !but.contains(name)) {
        let words = ["bash", "-c", by, "attempt", attempt];
        let spec = CommandSpec { merge_stderr: true, ..command::arguments(words) };
        let answer = sandbox.spec(spec).await;
        let out = answer.stdout.unwrap_or_default();
        let text = String::from_utf8_lossy(&[out.head, out.tail].concat()).trim().to_owned();
        let (pattern, wanted) = match expect.strip_prefix('!') {
            Some(pattern) => (pattern, false),
            None => (*expect, true),
        };
        let found = regex::RegexBuilder::new(pattern).multi_line(true).build().unwrap().is_match(&text);
        assert_eq!(found, wanted, "{kind}: {name}: {attempt}\n{text}");
    }
}

/// The same where namespaces may be made: by root of the sandbox, and by root of namespaces that it made.
pub(crate) async fn attack_with_namespaces(sandbox: &Sandbox, kind: &str) {
    attempt(sandbox, kind, NAMESPACES, "bash -c \"$1\"").await;
    let within = format!("{kind}, within namespaces");
    attempt(sandbox, &within, NAMESPACES, "unshare -Urn bash -c \"$1\"").await;
    let program = include_str!("attacks/calls.py");
    for by in ["python3 - namespaces", "unshare -Urn python3 - namespaces"] {
        let (text, code) = sandbox.run(&format!("{by} <<'END'\n{program}\nEND")).await;
        assert_eq!((&*text, code), ("all refused\n", 0), "{kind}: {by}");
    }
    assert_eq!(sandbox.run("echo alive").await.0, "alive\n", "{kind}");
}

#[tokio::test]
async fn root_in_a_sandbox_gets_neither_out_nor_at_its_agent() {
    let place = Place::new();
    let sandbox = place.make(Order { network: Reach::Loopback, ..order(&place.folder, "hostile") }).await;
    attack(&sandbox, "root").await;
    place.local.delete("hostile").await.unwrap();
}

#[tokio::test]
async fn one_sandbox_does_not_reach_another() {
    let place = Place::new();
    let one = place.make(Order { network: Reach::Loopback, ..order(&place.folder, "one") }).await;
    let other = place.make(Order { network: Reach::Loopback, ..order(&place.folder, "other") }).await;
    one.run("echo secret > /tmp/secret; echo secret > /dev/shm/secret; chmod 777 /tmp/secret; (python3 -c \"import socket,time; s=socket.create_server(('127.0.0.1',7000)); u=socket.socket(socket.AF_UNIX); u.bind('\\0espalier'); u.listen(); time.sleep(60)\") >/dev/null 2>&1 & sleep 0.5").await;
    for attempt in [
        "cat /tmp/secret",
        "cat /dev/shm/secret",
        "exec 3<>/dev/tcp/127.0.0.1/7000",
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0espalier')\"",
        "ps -ef | grep -v grep | grep create_server",
        "ipcs -m | grep -q secret",
    ] {
        let (text, code) = other.run(attempt).await;
        assert_ne!(code, 0, "{attempt}: {text}");
    }
}
