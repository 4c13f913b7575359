//! What runs in a sandbox tries to take the agent, its neighbours or the machine along. It may spoil its own sandbox, no more.

use crate::support::{
    Place, Sandbox, found_by_the_next, keeper_pid, keepers, kill, of_disk, order, wait_until,
};
use espalier_agent_client::wire::{CommandSpec, outcome::Outcome};
use espalier_agent_client::{Excerpts, Id, command};
use espalier_keeper::wire::Order;
use espalier_sandbox::backend::Ended;
use espalier_sandbox::local::machine::Machine;
use std::process::Stdio;
use std::time::Duration;

/// A program in Python as a command.
fn python(text: &str) -> String {
    format!("python3 - <<'END'\n{text}\nEND")
}

async fn outcome(sandbox: &Sandbox, spec: CommandSpec) -> Outcome {
    let answer = sandbox.agent.run(&sandbox.agent.allot(), spec, Excerpts::default()).await.unwrap();
    answer.ended.unwrap().outcome.unwrap().outcome.unwrap()
}

#[tokio::test]
async fn whoever_stops_every_process_does_not_stop_the_agent() {
    let place = Place::new();
    let sandbox = place.host("stopped").await;
    let id = sandbox.agent.allot();
    let sleeper = command::within(command::script("echo began; sleep 100000"), Duration::from_secs(5));
    sandbox.agent.start(&id, sleeper).await.unwrap();
    until_output(&sandbox, &id).await;
    // Its own shell among them.
    let stop = python("import os, signal\nos.kill(-1, signal.SIGSTOP)\nprint('stopped', flush=True)");
    sandbox_started(&sandbox, &stop).await;
    // It answers, starts what is new, and ends what was stopped when its time is over.
    assert_eq!(sandbox.run("echo alive").await, ("alive\n".to_owned(), 0));
    let mut follow = sandbox.agent.attach(&id, espalier_agent_client::Offsets::default(), false);
    let ended = loop {
        match follow.next().await.unwrap() {
            Some(espalier_agent_client::Event::Ended(ended)) => break ended,
            Some(_) => {}
            None => panic!("it has no end"),
        }
    };
    let outcome = ended.outcome.unwrap().outcome.unwrap();
    assert!(matches!(outcome, Outcome::TimedOut(_)), "{outcome:?}");
}

/// Commands that are tried until one was stopped before it began; more than one or two are hardly ever needed.
const TRIES: u32 = 100;

#[tokio::test]
async fn a_command_that_is_stopped_before_it_began_is_told_as_such() {
    let place = Place::new();
    let sandbox = place.host("stopping").await;
    // It stops whatever comes, from before the first command until it is ended itself.
    let stop = python(
        "import os, signal\nprint('stops', flush=True)\nwhile True:\n  try: os.kill(-1, signal.SIGSTOP)\n  except OSError: pass",
    );
    let id = sandbox.agent.allot();
    sandbox.agent.start(&id, command::script(stop)).await.unwrap();
    until_output(&sandbox, &id).await;
    let mut unstarted = None;
    for _ in 0..TRIES {
        let spec = command::within(command::script("true"), Duration::from_millis(500));
        if let Outcome::Unstarted(told) = outcome(&sandbox, spec).await {
            unstarted = Some(told.message);
            break;
        }
    }
    let message = unstarted.expect("none of them was stopped before it began");
    let text = "its process was stopped from inside the sandbox before it started";
    assert!(message.ends_with(text), "{message}");
    sandbox.agent.signal(&sandbox.agent.allot(), &id, 9, true).await.unwrap();
    assert_eq!(sandbox.run("echo alive").await, ("alive\n".to_owned(), 0));
}

#[tokio::test]
async fn the_list_of_users_may_be_anything() {
    let place = Place::new();
    let sandbox = place.host("users").await;
    for (spoil, expect) in [
        ("ln -sf /dev/zero /etc/passwd", "/etc/passwd: not a plain file"),
        ("rm /etc/passwd; mkfifo /etc/passwd", "/etc/passwd: not a plain file"),
        ("rm /etc/passwd; ln -s /dev/ptmx /etc/passwd", "/etc/passwd: not a plain file"),
        ("rm /etc/passwd; ln -s /proc/self/environ /etc/passwd", "/etc/passwd: not a plain file"),
        ("rm /etc/passwd; ln -s passwd /etc/passwd", "/etc/passwd: Too many levels of symbolic links"),
        ("rm /etc/passwd; truncate -s 1G /etc/passwd", "/etc/passwd: more than 1048576 bytes"),
    ] {
        // Without a shell: that would read the list itself.
        for words in spoil.split(';') {
            let spec = command::arguments(words.split_whitespace());
            assert_eq!(outcome(&sandbox, spec).await, Outcome::ExitCode(0), "{words}");
        }
        let spec = CommandSpec { user: "daemon".to_owned(), ..command::script("id") };
        match outcome(&sandbox, spec).await {
            Outcome::Unstarted(unstarted) => assert!(unstarted.message.starts_with(expect), "{unstarted:?}"),
            other => panic!("{spoil}: {other:?}"),
        }
    }
    let spec = CommandSpec { user: "4294967295".to_owned(), ..command::script("id") };
    assert!(matches!(outcome(&sandbox, spec).await, Outcome::Unstarted(_)));
    assert_eq!(outcome(&sandbox, command::arguments(["true"])).await, Outcome::ExitCode(0));
}

#[tokio::test]
async fn what_the_kernel_counts_by_user_is_counted_for_each_sandbox_alone() {
    let place = Place::new();
    let (greedy, neighbour) = (place.host("greedy").await, place.host("neighbour").await);
    let watch = "import ctypes, time\nc = ctypes.CDLL(None)\nn = sum(c.inotify_init() >= 0 for _ in range(4000))\nprint(n, flush=True)\ntime.sleep(SECONDS)";
    let queue = "import ctypes, os, signal, time\nc = ctypes.CDLL(None)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])\nn = 0\nwhile n < 300000 and c.sigqueue(os.getpid(), signal.SIGRTMIN, 0) == 0: n += 1\nprint(n, flush=True)\ntime.sleep(SECONDS)";
    for program in [watch, queue] {
        let hold = python(&program.replace("SECONDS", "100000"));
        sandbox_started(&greedy, &hold).await;
        let (text, code) = neighbour.run(&python(&program.replace("SECONDS", "0"))).await;
        let got: u32 = text.trim().parse().unwrap();
        assert!(code == 0 && got > 60, "{text}");
    }
    // And the machine's own.
    rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).unwrap();
}

/// Starts a program that prints one line when it has done what it is to do.
async fn sandbox_started(sandbox: &Sandbox, script: &str) {
    let id = sandbox.agent.allot();
    sandbox.agent.start(&id, command::script(script.to_owned())).await.unwrap();
    until_output(sandbox, &id).await;
}

/// Waits for the first output of a command.
async fn until_output(sandbox: &Sandbox, id: &Id) {
    let mut follow = sandbox.agent.attach(id, espalier_agent_client::Offsets::default(), false);
    while let Some(event) = follow.next().await.unwrap() {
        if matches!(event, espalier_agent_client::Event::Output { .. }) {
            return;
        }
    }
    panic!("it ended without a word");
}

#[tokio::test]
async fn nobody_becomes_the_agents_user_or_leases_its_files() {
    let place = Place::new();
    let sandbox = place.host("user").await;
    let program = "import ctypes, fcntl, os\nfor call in (lambda: os.setresuid(64998, -1, -1), lambda: os.setresuid(0, 0, 64998), lambda: os.setreuid(-1, 64998), lambda: os.setuid(64998), lambda: fcntl.fcntl(os.open('/root/x', os.O_RDWR | os.O_CREAT), fcntl.F_SETLEASE, fcntl.F_WRLCK)):\n  try: call(); print('done')\n  except PermissionError: pass\nctypes.CDLL(None).setfsuid(64998)\nprint(open('/proc/self/status').read().split('Uid:')[1].split()[3])\nos.setresuid(33, 33, 33)\nprint(os.getuid())";
    assert_eq!(sandbox.run(&python(program)).await, ("0\n33\n".to_owned(), 0));
}

#[tokio::test]
async fn a_sandbox_that_was_being_kept_when_the_keeper_died_goes_on() {
    let place = Place::new();
    let sandbox = place.host("frozen").await;
    let pid = sandbox.placed.pid.unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let folder = roots
        .iter()
        .map(|root| format!("{root}{own}/../box"))
        .find(|path| std::path::Path::new(path).exists());
    std::fs::write(folder.unwrap() + "/cgroup.freeze", "1").unwrap();
    kill(keeper_pid(&place));
    assert_eq!(found_by_the_next(&place, 1).await.len(), 1);
    assert_eq!(sandbox.run("echo goes on").await.0, "goes on\n");
}

#[tokio::test]
async fn a_fork_bomb_of_an_ordinary_user_leaves_the_agent_its_threads() {
    let place = Place::of_user();
    let sandbox = place.host("bombed").await;
    let bomb = "import os, time\nfor _ in range(200):\n  try:\n    if os.fork() == 0: time.sleep(100000)\n  except OSError: break\nprint('full', flush=True)\ntime.sleep(100000)";
    sandbox_started(&sandbox, &python(bomb)).await;
    // Work that the agent does on its other threads.
    sandbox.agent.list_folder("/etc", 2).await.unwrap();
    let all = (0..8).map(|_| async { sandbox.agent.list_folder("/usr", 2).await.unwrap().len() });
    assert!(futures::future::join_all(all).await.iter().all(|count| *count > 10));
    place.local.delete("bombed").await.unwrap();
}

/// A file system of its own below the store, unmounted in the end.
struct Small(tempfile::TempDir);

impl Small {
    fn new(size: &str) -> Small {
        let folder = tempfile::Builder::new().prefix("espalier-").tempdir_in("/var/tmp").unwrap();
        let options = format!("size={size}");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path());
        assert!(mount.status().unwrap().success());
        Small(folder)
    }
}

impl Drop for Small {
    #[expect(
        clippy::disallowed_methods,
        reason = "a drop cannot wait for a runtime, and a test has no other to block"
    )]
    fn drop(&mut self) {
        // The pool of a keeper is a file in it, mounted on it: taken away lazily they would hold each other for ever.
        keepers(self.0.path()).into_iter().for_each(kill);
        for _ in 0..500 {
            let unmounted =
                std::process::Command::new("umount").arg(self.0.path()).stderr(Stdio::null()).status();
            if unmounted.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is still mounted", self.0.path().display());
    }
}

/// A file that takes so much of a disk, when there is room for it.
async fn fill(small: &Small, bytes: u64) {
    let free = || {
        let found = rustix::fs::statvfs(small.0.path()).unwrap();
        found.f_bavail * found.f_frsize
    };
    wait_until("there is room", || free() > bytes).await;
    let file =
        std::fs::OpenOptions::new().create(true).append(true).open(small.0.path().join("filler")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
}

/// Asks until a sandbox is made: for 20 s.
async fn made_in_the_end(local: &Machine, order: &Order) -> Sandbox {
    let mut refused = String::new();
    for _ in 0..400 {
        match local.create(order, &[]).await {
            Ok(placed) => return Sandbox::of(placed, "test").await,
            Err(error) => refused = error.with_causes(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never made: {refused}");
}

#[tokio::test]
async fn whoever_fills_the_disk_below_is_ended_and_the_others_go_on() {
    let small = Small::new("3000m");
    let folder = small.0.path().join("sandboxes");
    let local = crate::support::open(&folder);
    let make = async |id: &str, disk: u64| {
        let placed = local.create(&of_disk(&folder, id, disk), &[]).await.unwrap();
        Sandbox::of(placed, "test").await
    };
    let (some, little, greedy) =
        (make("some", 64 << 20).await, make("little", 64 << 20).await, make("greedy", 2800 << 20).await);
    assert_eq!(little.run("echo fine > /root/x; cat /root/x").await.0, "fine\n");
    let wrote = some
        .run("dd if=/dev/zero of=/root/x bs=1M count=50 conv=fsync 2>/dev/null; stat -c %s /root/x")
        .await;
    assert_eq!(wrote.0, "52428800\n");
    let mut ended = local.ended();
    let bomb = command::script("head -c 4000000000 /dev/zero > /root/big; sleep 100000".to_owned());
    greedy.agent.start(&greedy.agent.allot(), bomb).await.unwrap();
    let told = async |ended: &mut tokio::sync::broadcast::Receiver<Ended>| {
        tokio::time::timeout(Duration::from_secs(300), ended.recv()).await.unwrap().unwrap()
    };
    let first = told(&mut ended).await;
    assert_eq!(first.sandbox, "greedy");
    let said = "the disk of the sandboxes is full, and this one had written the most: ";
    assert!(first.how.starts_with(said) && first.how.ends_with(" GiB"), "{}", first.how);
    // There is room again, and nobody else had to go.
    let next = made_in_the_end(&local, &order(&folder, "next")).await;
    for sandbox in [&some, &little, &next] {
        // What was removed is given back little by little.
        let script =
            "for i in $(seq 400); do echo more 2>/dev/null > /root/y && break; sleep 0.05; done; cat /root/y";
        assert_eq!(sandbox.run(script).await.0, "more\n");
    }
    assert!(ended.try_recv().is_err());

    // What others fill the disk with belongs to no sandbox: those that have written nothing worth it stay.
    fill(&small, 2880 << 20).await;
    let second = told(&mut ended).await;
    assert_eq!((&*second.sandbox, &*second.how), ("some", &*format!("{said}50 MiB")));
    let log = || std::fs::read_to_string(folder.join("keeper.log")).unwrap();
    wait_until("it is said", || log().contains("ending sandboxes frees nothing")).await;
    let refused = local.create(&order(&folder, "refused"), &[]).await.unwrap_err().with_causes();
    assert!(refused.starts_with("disk full: its disk: No space left on device"), "{refused}");
    assert_eq!(little.run("cat /root/x").await.0, "fine\n");
    std::fs::remove_file(small.0.path().join("filler")).unwrap();
    made_in_the_end(&local, &order(&folder, "last")).await;
    assert_eq!(next.run("cat /root/y").await.0, "more\n");
    assert_eq!(log().matches("ending sandboxes frees nothing").count(), 1, "{}", log());
    assert!(ended.try_recv().is_err());
    for id in ["little", "next", "last"] {
        local.delete(id).await.unwrap();
    }
    wait_until("nothing runs", || std::fs::read_dir(folder.join("sandboxes")).unwrap().count() == 0).await;
}

#[tokio::test]
async fn others_are_not_ended_for_what_a_checkpoint_holds() {
    let small = Small::new("3000m");
    let folder = small.0.path().join("sandboxes");
    let local = crate::support::open(&folder);
    let write = async |id: &str, disk: u64, mib: u64| {
        let placed = local.create(&of_disk(&folder, id, disk), &[]).await.unwrap();
        let sandbox = Sandbox::of(placed, "test").await;
        let script = format!("dd if=/dev/zero of=/root/x bs=1M count={mib} conv=fsync 2>/dev/null");
        assert_eq!(sandbox.run(&script).await.1, 0);
        sandbox
    };
    let (some, _greedy) = (write("some", 64 << 20, 50).await, write("greedy", 1100 << 20, 500).await);
    let kept = local.checkpoint("greedy", "kept").await.unwrap();
    assert_eq!(kept.bytes.map(|bytes| bytes >> 20), Some(500));
    let mut ended = local.ended();
    fill(&small, 2250 << 20).await;
    let told = tokio::time::timeout(Duration::from_secs(300), ended.recv()).await.unwrap().unwrap();
    assert_eq!(told.sandbox, "greedy");
    let log = || std::fs::read_to_string(folder.join("keeper.log")).unwrap();
    wait_until("it is said", || log().contains("checkpoints or other files fill it")).await;
    assert_eq!(some.run("stat -c %s /root/x").await.0, "52428800\n");
    local.delete_checkpoint("kept").await.unwrap();
    made_in_the_end(&local, &order(&folder, "next")).await;
    assert!(ended.try_recv().is_err());
    for id in ["some", "next"] {
        local.delete(id).await.unwrap();
    }
}

#[tokio::test]
async fn a_disk_larger_than_the_file_system_below_is_refused() {
    let small = Small::new("1200m");
    let folder = small.0.path().join("sandboxes");
    let local = crate::support::open(&folder);
    let of = |id: &str, disk: u64| of_disk(&folder, id, disk);
    let refused = local.create(&of("whole", (1200 << 20) + 1), &[]).await.unwrap_err();
    let place = std::fs::canonicalize(&folder).unwrap();
    let expect = format!(
        "this machine cannot give a sandbox a `disk` of 1258291201: the whole file system of {} has 1.2 GiB; use a smaller disk or a larger file system",
        place.display()
    );
    assert_eq!(refused.to_string(), expect);
    // Together they may have more than there is.
    for id in ["one", "other"] {
        local.create(&of(id, 1200 << 20), &[]).await.unwrap();
    }
}
