//! The command line on sandboxes where people or sandboxes do what they should not: leave, interrupt, read slowly, lie.

use super::whole::{Store, run, text};
use espalier_tests::place::espalier;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout};

const PATIENCE: Duration = Duration::from_secs(60);

async fn create(store: &Store, arguments: &[&str]) -> String {
    let made = run(store.path(), &[&["sandbox", "create", "--memory", "128MiB"], arguments].concat()).await;
    assert!(made.status.success(), "{}", text(&made));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

async fn script(store: &Store, id: &str, script: &str) -> String {
    text(&run(store.path(), &["sandbox", "exec", id, "--", "sh", "-c", script]).await)
}

/// A command at work, and the first line that it printed.
async fn begin(store: &Store, id: &str, script: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = espalier(store.path());
    command.args(["sandbox", "exec", id, "--", "sh", "-c", script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    next_line(&mut out).await;
    (child, out)
}

async fn code(mut child: Child) -> Option<i32> {
    tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap().code()
}

fn send(child: &Child, signal: &str) {
    let id = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
}

/// Waits until nobody can put more into the pipe: its reader is slow, and whoever writes is held up.
async fn full(out: &BufReader<ChildStdout>) {
    const PIPE_BYTES: u64 = 65536;
    let held_up = async {
        // The last write need not fit whole.
        while rustix::io::ioctl_fionread(out.get_ref().as_fd()).unwrap() + 4096 < PIPE_BYTES {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held_up).await.expect("the pipe fills");
}

async fn next_line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    tokio::time::timeout(PATIENCE, out.read_line(&mut line)).await.expect("it prints").unwrap();
    line
}

#[tokio::test]
async fn a_command_ends_with_whoever_reads_or_runs_it() {
    let store = Store::new();
    let id = create(&store, &[]).await;
    let running = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c -E '[y]es|sleep [7]77'";
    let (child, out) = begin(&store, &id, "yes").await;
    drop(out);
    assert_eq!(code(child).await, Some(141), "nobody reads");
    let (child, _out) = begin(&store, &id, "echo up; exec sleep 777").await;
    send(&child, "-TERM");
    assert_eq!(code(child).await, Some(143));
    let (child, _out) = begin(&store, &id, "echo up; exec sleep 777").await;
    send(&child, "-INT");
    assert_eq!(code(child).await, Some(130));
    let (child, mut out) =
        begin(&store, &id, "trap 'echo heard' INT; echo up; while :; do sleep 0.05; done").await;
    send(&child, "-INT");
    assert_eq!(next_line(&mut out).await, "heard\n");
    send(&child, "-INT");
    assert_eq!(code(child).await, Some(137), "a second one kills");
    let (child, _out) = begin(&store, &id, "trap '' TERM; echo up; while :; do sleep 777; done").await;
    send(&child, "-TERM");
    assert_eq!(code(child).await, Some(137), "it is killed after a while");
    // Whoever reads nothing any more, and stays, keeps nobody from ending it.
    let (child, out) = begin(&store, &id, "yes").await;
    full(&out).await;
    send(&child, "-TERM");
    assert_eq!(code(child).await, Some(125), "its end is behind what nobody reads");
    assert_eq!(script(&store, &id, running).await, "0\n");
}

#[tokio::test]
async fn a_slow_reader_of_much_output_gets_it_all() {
    let store = Store::new();
    let id = create(&store, &["--disk", "16MiB"]).await;
    // The disk has no room for what was not read yet.
    script(&store, &id, "dd if=/dev/zero of=/root/fill bs=64k 2>/dev/null").await;
    let (child, mut out) = begin(&store, &id, "echo up; yes | head -c 30000000").await;
    full(&out).await;
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, out.read_to_end(&mut bytes)).await.expect("it ends").unwrap();
    assert_eq!((bytes.len(), code(child).await), (30_000_000, Some(0)));
}

#[tokio::test]
async fn nothing_is_copied_out_of_the_target_folder() {
    let store = Store::new();
    let id = create(&store, &[]).await;
    let victim = store.path().join("victim");
    std::fs::write(&victim, "private").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    let here = store.path().join("here");
    let (from, to) = (format!("{id}:/root/out"), here.display().to_string());
    let victims = victim.display();
    script(&store, &id, &format!("mkdir /root/out; ln -s {victims} /root/out/b")).await;
    std::fs::create_dir(&here).unwrap();
    let copied = run(store.path(), &["sandbox", "cp", &from, &to]).await;
    assert!(copied.status.success(), "{}", text(&copied));
    script(
        &store,
        &id,
        "rm -r /root/out; mkdir -p /root/out/b; chmod 777 /root/out/b; echo x > /root/out/b/c",
    )
    .await;
    let copied = run(store.path(), &["sandbox", "cp", &from, &to]).await;
    assert_eq!(copied.status.code(), Some(2), "{}", text(&copied));
    assert!(text(&copied).contains("here/out/b: a link is in the way of a folder"), "{}", text(&copied));
    assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
    script(&store, &id, "rm -r /root/out; mkdir /root/out; echo theirs > /root/out/b").await;
    let copied = run(store.path(), &["sandbox", "cp", &from, &to]).await;
    assert_eq!(copied.status.code(), Some(2), "{}", text(&copied));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "private");
}

/// What lies in the store's folder beside what was there when it began.
fn beside(store: &Store, known: &[&str]) -> Vec<String> {
    let names = std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| !known.contains(&name.as_str())).collect()
}

#[tokio::test]
async fn an_export_that_is_told_to_stop_leaves_nothing() {
    let store = Store::new();
    let id = create(&store, &[]).await;
    script(&store, &id, "head -c 200000000 /dev/urandom > /root/noise").await;
    let kept = text(&run(store.path(), &["sandbox", "checkpoint", &id]).await);
    let there = beside(&store, &[]);
    let known: Vec<&str> = there.iter().map(String::as_str).collect();
    let to = store.path().join("out.tar").display().to_string();
    for signal in ["-TERM", "-INT"] {
        let mut command = espalier(store.path());
        let child = command.args(["sandbox", "export", kept.trim(), &to]).spawn().unwrap();
        let begun = async {
            while beside(&store, &known).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.expect("it writes");
        send(&child, signal);
        assert_eq!(code(child).await, Some(130), "{signal}");
        assert_eq!(beside(&store, &known), Vec::<String>::new(), "{signal}");
    }
}

#[tokio::test]
async fn a_create_that_is_told_to_stop_leaves_no_sandbox() {
    let store = Store::new();
    let mut command = espalier(store.path());
    command.args(["sandbox", "create", "--setup", "sleep 777"]);
    let child = command.spawn().unwrap();
    let begun = async { while store.sandboxes().await.is_empty() {} };
    tokio::time::timeout(PATIENCE, begun).await.expect("it is being made");
    send(&child, "-TERM");
    assert_eq!(code(child).await, Some(130));
    assert_eq!(store.sandboxes().await, Vec::<String>::new());
}

/// Sizes that only `truncate` makes: what goes out goes with what exists.
#[tokio::test]
async fn files_of_holes_come_out_as_such() {
    let store = Store::new();
    let id = create(&store, &[]).await;
    script(&store, &id, "mkdir /root/out && cd /root/out && truncate -s 60G holes && printf end >> holes && truncate -s 4E huge && echo x > plain").await;
    let here = store.path().join("here");
    let copied =
        run(store.path(), &["sandbox", "cp", &format!("{id}:/root/out"), &here.display().to_string()]).await;
    assert_eq!(copied.status.code(), Some(1), "{}", text(&copied));
    assert!(text(&copied).contains("huge: left out: it has 4611686018427387904 bytes"), "{}", text(&copied));
    let stat = std::fs::metadata(here.join("holes")).unwrap();
    assert_eq!(stat.len(), (60 << 30) + 3);
    assert!(std::os::unix::fs::MetadataExt::blocks(&stat) < 64);
    assert_eq!(std::fs::read_to_string(here.join("plain")).unwrap(), "x\n");
    assert!(!here.join("huge").exists());
    // As a checkpoint it goes out too, but for what no reader takes.
    let export = async |to: &str| {
        let kept = text(&run(store.path(), &["sandbox", "checkpoint", &id]).await);
        run(store.path(), &["sandbox", "export", kept.trim(), &store.path().join(to).display().to_string()])
            .await
    };
    let refused = export("refused.tar").await;
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("out/huge in "), "{}", text(&refused));
    script(&store, &id, "rm /root/out/huge").await;
    let exported = export("out.tar").await;
    assert!(exported.status.success(), "{}", text(&exported));
    let image = format!("oci-archive:{}", store.path().join("out.tar").display());
    let back = create(&store, &[&image]).await;
    let seen = script(
        &store,
        &back,
        "cd /root/out && stat -c %s holes && tail -c 3 holes && test $(stat -c %b holes) -lt 64",
    )
    .await;
    assert_eq!(seen, format!("{}\nend", (60_u64 << 30) + 3));
}

#[tokio::test]
async fn what_is_not_copied_is_named() {
    let store = Store::new();
    let id = create(&store, &[]).await;
    let deep = (0..80).map(|number| number.to_string()).collect::<Vec<_>>().join("/");
    script(&store, &id, &format!("mkdir -p /root/out/{deep}; echo down > /root/out/{deep}/file; mkfifo /root/out/pipe; cd /root/out && python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"")).await;
    let here = store.path().join("here");
    let to = here.display().to_string();
    let copied = run(store.path(), &["sandbox", "cp", &format!("{id}:/root/out"), &to]).await;
    assert_eq!(copied.status.code(), Some(1), "{}", text(&copied));
    for expect in ["/root/out/pipe: left out: it is a fifo", "/root/out/socket: left out: it is a socket"] {
        assert!(text(&copied).contains(expect), "{}", text(&copied));
    }
    assert_eq!(std::fs::read_to_string(here.join(deep).join("file")).unwrap(), "down\n");
    // A file that says it is empty, and is not.
    let copied = run(store.path(), &["sandbox", "cp", &format!("{id}:/proc/version"), &to]).await;
    assert!(copied.status.success(), "{}", text(&copied));
    assert!(std::fs::read_to_string(here.join("version")).unwrap().starts_with("Linux"));
}

#[tokio::test]
async fn links_are_copied_for_the_user_that_has_the_files() {
    let store = Store::new();
    let id = create(&store, &["--user", "daemon", "--workdir", "/code"]).await;
    let source = store.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", source.join("-link")).unwrap();
    std::os::unix::fs::symlink("file", source.join("taken")).unwrap();
    let from = source.display().to_string();
    let copied = run(store.path(), &["sandbox", "cp", &from, &format!("{id}:/code/copy")]).await;
    assert!(copied.status.success(), "{}", text(&copied));
    let seen = script(&store, &id, "cd /code/copy && stat -c '%n %U %G' -- * && readlink -- -link").await;
    assert_eq!(seen, "-link daemon daemon\nfile daemon daemon\ntaken daemon daemon\nfile\n");
    // A folder is in the way of one of them, and there is something that cannot be copied.
    script(&store, &id, "cd /code/copy && rm taken && mkdir -p taken/full").await;
    assert!(std::process::Command::new("mkfifo").arg(source.join("pipe")).status().unwrap().success());
    std::fs::rename(Path::new(&from), store.path().join("copy")).unwrap();
    let from = store.path().join("copy").display().to_string();
    let copied = run(store.path(), &["sandbox", "cp", &from, &format!("{id}:/code")]).await;
    assert_eq!(copied.status.code(), Some(1), "{}", text(&copied));
    assert!(text(&copied).contains("copy/pipe: left out: it is a fifo"), "{}", text(&copied));
    assert!(text(&copied).contains("/code/copy/taken"), "{}", text(&copied));
}

#[tokio::test]
async fn those_that_were_made_before_one_failed_are_named() {
    let store = Store::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    // The first are made in time, and not all can be.
    let setup = format!("sleep 2; test $(date +%s) -lt {}", now + 12);
    let made = run(store.path(), &["sandbox", "create", "--json", "--count", "30", "--setup", &setup]).await;
    assert_eq!(made.status.code(), Some(2), "{}", text(&made));
    let mut ids: Vec<String> = serde_json::from_slice(&made.stdout).unwrap();
    assert!(!ids.is_empty());
    let mut there = store.sandboxes().await;
    ids.sort();
    there.sort();
    assert_eq!(ids, there);
}

#[tokio::test]
async fn an_experiment_asks_for_a_lease_that_can_be() {
    let store = Store::new();
    let task = r#"{"id":"t","instruction":"wait","private":{"reference":{"script":"true"},"tests":{"script":"true"}}}"#;
    std::fs::write(store.path().join("tasks.jsonl"), task).unwrap();
    let experiment = store.path().join("experiment.toml");
    let said = "name = \"lease\"\n[tasks]\nsource = \"tasks.jsonl\"\n[groups]\nsize = 1\n[harness]\nplugin = \"reference\"\ngrants = [\"private-task\"]\n[sandbox]\nlease = \"0s\"\n[[rewards]]\nplugin = \"check-reward\"\n";
    std::fs::write(&experiment, said).unwrap();
    let refused = run(store.path(), &["run", &experiment.display().to_string()]).await;
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(
        text(&refused).contains("invalid sandbox.lease \"0ms\": expected 1s to 24h"),
        "{}",
        text(&refused)
    );
}
