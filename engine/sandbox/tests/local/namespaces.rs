//! Sandboxes that may make namespaces, for programs that confine parts of themselves: what they can then do, and what still not.

use crate::attacks::attack_with_namespaces;
use crate::support::{Place, Sandbox, order};
use espalier_agent_client::command;
use espalier_agent_client::wire::CommandSpec;
use espalier_keeper::wire::{Order, Reach};
use std::path::Path;

/// A user that every image has.
const NOBODY: &str = "65534:65534";

pub(crate) fn with_namespaces(folder: &Path, id: &str) -> Order {
    Order { network: Reach::Loopback, user_namespaces: true, ..order(folder, id) }
}

async fn as_nobody(sandbox: &Sandbox, script: &str) -> String {
    let spec =
        CommandSpec { user: NOBODY.to_owned(), merge_stderr: true, ..command::script(script.to_owned()) };
    let out = sandbox.spec(spec).await.stdout.unwrap_or_default();
    String::from_utf8_lossy(&[out.head, out.tail].concat()).into_owned()
}

#[tokio::test]
async fn root_gets_neither_out_nor_at_the_agent() {
    let place = Place::new();
    let sandbox = place.make(with_namespaces(&place.folder, "hostile")).await;
    attack_with_namespaces(&sandbox, "root").await;
    place.local.delete("hostile").await.unwrap();
}

#[tokio::test]
async fn nor_does_root_in_the_sandbox_of_an_ordinary_user() {
    let place = Place::of_user();
    let placed = place.local.create(&with_namespaces(&place.folder, "hostile"), &[]).await.unwrap();
    let sandbox = Sandbox::of(placed, "test").await;
    attack_with_namespaces(&sandbox, "an ordinary user").await;
    place.local.delete("hostile").await.unwrap();
}

/// Root becomes the user that the agent hides as, in a namespace whose map names it, and tries what one user may do to itself.
const AS_THE_AGENT: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
(ready, made), (mapped, go) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    assert libc.unshare(0x10000000) == 0, ctypes.get_errno()
    os.write(made, b"x")
    os.read(mapped, 1)
    os.setresuid(5, 5, 5)
    threads = [int(thread) for thread in os.listdir("/proc/1/task")] if os.access("/proc/1/task", os.R_OK) else [1]
    def attempt(what, *arguments):
        ctypes.set_errno(0)
        print(what, libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]), flush=True)
    for thread in threads:
        attempt("limit", 302, thread, 7, (ctypes.c_uint64 * 2)(3, 3), None)
    attempt("slow", 203, 1, 8, b"\1" + b"\0" * 7)
    attempt("renice", 141, 0, 1, 19)
    attempt("renice all", 141, 2, 0, 19)
    attempt("attach", 101, 16, 1, 0, 0)
    for signal in (9, 15, 19):
        os.kill(1, signal)
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/exe"):
        try:
            open(path, "rb").read(1)
            print("read", path)
        except OSError as error:
            print("denied")
    os._exit(0)
os.read(ready, 1)
open(f"/proc/{child}/uid_map", "w").write("5 64998 1")
os.write(go, b"x")
os.waitpid(child, 0)
"#;

#[tokio::test]
async fn who_becomes_the_agents_user_has_no_right_over_it() {
    let place = Place::new();
    let sandbox = place.make(with_namespaces(&place.folder, "mapped")).await;
    let (text, code) = sandbox.run(&format!("python3 - <<'END'\n{AS_THE_AGENT}\nEND")).await;
    assert_eq!(code, 0, "{text}");
    let came_of_it = text.lines().filter(|line| !line.ends_with(" -1") && *line != "denied");
    assert_eq!(came_of_it.collect::<Vec<_>>(), [""; 0], "{text}");
    assert!(text.contains("limit -1") && text.contains("attach -1"), "{text}");
    assert_eq!(sandbox.run("grep State /proc/1/status; echo alive").await.0, "State:\tS (sleeping)\nalive\n");
}

#[tokio::test]
async fn an_ordinary_user_makes_few_namespaces_of_three_kinds() {
    let place = Place::new();
    let sandbox = place.make(with_namespaces(&place.folder, "few")).await;
    let text =
        as_nobody(&sandbox, "unshare -Urnpf sh -c 'id -u; ls /sys/class/net 2>/dev/null; echo $$'").await;
    assert_eq!(text, "0\n1\n");
    for refused in ["-Urm", "-Uru", "-Uri", "-UrC", "-UrT"] {
        let text = as_nobody(&sandbox, &format!("unshare {refused} echo made")).await;
        assert!(!text.contains("made"), "{refused}: {text}");
    }
    let many = "import ctypes, os\nc = ctypes.CDLL(None)\nassert c.unshare(0x10000000) == 0\nkept = []\nwhile c.unshare(0x40000000) == 0: kept.append(os.open('/proc/self/ns/net', os.O_RDONLY))\nprint(len(kept))";
    let text = as_nobody(&sandbox, &format!("python3 - <<'END'\n{many}\nEND")).await;
    assert_eq!(text, "128\n");
    // And none where the order does not say so.
    let plain = place.host("plain").await;
    let text = as_nobody(&plain, "unshare -U echo made; cat /proc/sys/user/max_*_namespaces | sort -u").await;
    assert!(!text.contains("made") && text.ends_with("\n0\n"), "{text}");
}
