//! Whole runs of the real program with real sandboxes, and sandboxes by hand. As root: an ordinary user's are in the tests of
//! `engine/sandbox`.

use espalier_tests::place::{espalier, plugin_folder, repository};
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a command to its end.
pub(crate) async fn run(store: &Path, arguments: &[&str]) -> Output {
    run_for(store, arguments, PATIENCE).await
}

/// The same, for a longer time.
pub(crate) async fn run_for(store: &Path, arguments: &[&str], patience: Duration) -> Output {
    let mut command = espalier(store);
    command.current_dir(repository()).args(arguments);
    tokio::time::timeout(patience, command.output()).await.expect("it ends").unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub(crate) async fn json(store: &Path, arguments: &[&str]) -> Value {
    let output = run(store, &[arguments, &["--json"]].concat()).await;
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
}

/// A store whose sandboxes are ended with it.
pub(crate) struct Store(tempfile::TempDir);

impl Store {
    pub(crate) fn new() -> Store {
        Store(tempfile::Builder::new().prefix("espalier-").tempdir_in("/var/tmp").unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) async fn sandboxes(&self) -> Vec<String> {
        let list = json(self.path(), &["sandbox", "list"]).await;
        list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let program = espalier_tests::place::binary();
        let _ = std::process::Command::new(program)
            .env("ESPALIER_STORE", self.path())
            .args(["sandbox", "delete", "--all"])
            .output();
    }
}

#[tokio::test]
async fn every_shell_task_is_solved_by_its_reference_and_by_nothing_else() {
    let store = Store::new();
    let checked = run(store.path(), &["task", "check", "experiments/shell-reference.toml"]).await;
    assert!(checked.status.success(), "{}", text(&checked));
    assert!(text(&checked).contains("20"), "{}", text(&checked));
    let played = run(store.path(), &["run", "experiments/shell-reference.toml"]).await;
    assert!(played.status.success(), "{}", text(&played));
    run(store.path(), &["run", "experiments/shell-idle.toml"]).await;
    let runs = json(store.path(), &["list"]).await;
    let solved = |name: &str| {
        let run = runs.as_array().unwrap().iter().find(|run| run["name"] == name).unwrap();
        (run["scored"].as_u64().unwrap(), run["solved"].as_u64().unwrap())
    };
    assert_eq!(solved("shell-reference"), (20, 20));
    assert_eq!(solved("shell-idle"), (20, 0));
    assert!(store.sandboxes().await.is_empty(), "rollouts left sandboxes");
}

#[tokio::test]
async fn a_store_named_from_the_folder_one_stands_in_is_as_good() {
    let store = Store::new();
    let here = |arguments: &[&str]| {
        let mut command = espalier(Path::new("here"));
        command.current_dir(store.path()).args(arguments);
        async move { tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap() }
    };
    let made = here(&["sandbox", "create"]).await;
    assert!(made.status.success(), "{}", text(&made));
    let id = String::from_utf8(made.stdout).unwrap();
    let said = here(&["sandbox", "exec", id.trim(), "--", "echo", "hi"]).await;
    assert_eq!(text(&said), "hi\n");
    let ended = here(&["sandbox", "delete", "--all"]).await;
    assert!(ended.status.success(), "{}", text(&ended));
}

#[tokio::test]
async fn what_a_killed_engine_left_is_found_and_ended_by_the_next() {
    let store = Store::new();
    let experiment = store.path().join("slow.toml");
    let tasks = store.path().join("slow.jsonl");
    let task = |number: u32| {
        format!(
            r#"{{"id":"t{number}","instruction":"wait","sandbox":{{"memory":"64MiB"}},"private":{{"reference":{{"script":"sleep 0.5; echo x > /root/done"}},"tests":{{"script":"test -e /root/done"}}}}}}"#
        )
    };
    std::fs::write(&tasks, (0..24).map(|number| task(number) + "\n").collect::<String>()).unwrap();
    let text_of = "name = \"slow\"\n[tasks]\nsource = \"slow.jsonl\"\n[groups]\nsize = 1\nconcurrent_rollouts = 8\n[harness]\nplugin = \"reference\"\ngrants = [\"private-task\"]\n[sandbox]\n[[rewards]]\nplugin = \"check-reward\"\n";
    std::fs::write(&experiment, text_of).unwrap();
    let file = experiment.display().to_string();
    let mut engine = espalier(store.path()).args(["run", &file]).spawn().unwrap();
    // Until some are at work.
    for _ in 0..600 {
        if store.sandboxes().await.len() >= 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    engine.start_kill().unwrap();
    engine.wait().await.unwrap();
    assert!(!store.sandboxes().await.is_empty(), "they outlive the engine");
    let again = run(store.path(), &["run", &file]).await;
    assert!(again.status.success(), "{}", text(&again));
    let runs = json(store.path(), &["list"]).await;
    assert_eq!((runs[0]["scored"].as_u64(), runs[0]["solved"].as_u64()), (Some(24), Some(24)));
    assert!(store.sandboxes().await.is_empty());
}

#[tokio::test]
async fn a_result_whose_repaired_reward_needs_a_sandbox_that_is_gone_is_sampled_again() {
    let store = Store::new();
    let folder = store.path();
    let task = |number: u32| {
        format!(
            r#"{{"id":"t{number}","instruction":"x","private":{{"reference":{{"script":"echo x > /root/done"}}}}}}"#
        )
    };
    std::fs::write(folder.join("tasks.jsonl"), (0..6).map(|number| task(number) + "\n").collect::<String>())
        .unwrap();
    let experiment = "name = \"gone\"\n[tasks]\nsource = \"tasks.jsonl\"\n[groups]\nsize = 1\nmin_size = 1\n\
        concurrent_rollouts = 2\nplugin_failures_max = 4\n[harness]\nplugin = \"reference\"\n\
        grants = [\"private-task\"]\n[sandbox]\n[[rewards]]\nplugin = \"./inspect.wasm\"\n\
        settings = { fault = \"unmended-sandbox\" }\n";
    let file = folder.join("gone.toml");
    std::fs::write(&file, experiment).unwrap();
    let component = std::fs::read(plugin_folder().join("fault-reward.wasm")).unwrap();
    std::fs::write(folder.join("inspect.wasm"), &component).unwrap();
    let file = file.display().to_string();
    let stopped = run(folder, &["run", &file]).await;
    assert_eq!(stopped.status.code(), Some(2), "{}", text(&stopped));

    let state = b"state of the plugin: unmended";
    let at = component.windows(state.len()).position(|bytes| bytes == state).unwrap();
    let mut repaired = component;
    repaired[at..][..state.len()].copy_from_slice(b"state of the plugin: mended!!");
    std::fs::write(folder.join("inspect.wasm"), repaired).unwrap();
    let summary = json(folder, &["run", &file]).await;
    let sampled = summary["sampled_again"].as_u64().unwrap();
    assert!((1..=6).contains(&sampled), "{summary}");
    assert_eq!((&summary["scored_again"], &summary["scored"]), (&Value::from(0), &Value::from(6)));
    let shown = json(folder, &["show", "gone"]).await;
    assert_eq!(shown["endings"]["submitted"], 6);
    assert!(store.sandboxes().await.is_empty());
}

#[tokio::test]
async fn sandboxes_by_hand() {
    let store = Store::new();
    let made =
        run(store.path(), &["sandbox", "create", "--count", "2", "--label", "task=7", "--memory", "128MiB"])
            .await;
    assert!(made.status.success(), "{}", text(&made));
    let ids: Vec<String> = String::from_utf8(made.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), 2);
    let one = ids[0].as_str();
    let out =
        run(store.path(), &["sandbox", "exec", one, "--", "sh", "-c", "echo out; echo err >&2; exit 7"])
            .await;
    assert_eq!((out.status.code(), &*out.stdout, &*out.stderr), (Some(7), &b"out\n"[..], &b"err\n"[..]));
    let late = run(
        store.path(),
        &["sandbox", "exec", one, "--timeout", "300ms", "--", "sh", "-c", "echo kept; sleep 60"],
    )
    .await;
    assert_eq!((late.status.code(), &*late.stdout), (Some(124), &b"kept\n"[..]));
    assert!(text(&late).contains("timed out"), "{}", text(&late));
    let missing = run(store.path(), &["sandbox", "exec", one, "--", "no-such-program"]).await;
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing).contains("program `no-such-program`: not found"), "{}", text(&missing));
    let stranger = run(store.path(), &["sandbox", "exec", one, "--user", "nobody-here", "--", "true"]).await;
    assert!(text(&stranger).contains("user `nobody-here`: not in /etc/passwd"), "{}", text(&stranger));
    // Files there and back.
    let source = store.path().join("source");
    std::fs::create_dir_all(source.join("deep")).unwrap();
    std::fs::write(source.join("deep/file"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("deep/file", source.join("link")).unwrap();
    let (from, back) = (source.display().to_string(), store.path().join("back"));
    let copied = run(store.path(), &["sandbox", "cp", &from, &format!("{one}:/root/copy")]).await;
    assert!(copied.status.success(), "{}", text(&copied));
    let copied =
        run(store.path(), &["sandbox", "cp", &format!("{one}:/root/copy"), &back.display().to_string()])
            .await;
    assert!(copied.status.success(), "{}", text(&copied));
    assert_eq!(std::fs::read(back.join("deep/file")).unwrap(), vec![7; 300_000]);
    assert_eq!(std::fs::read_link(back.join("link")).unwrap(), Path::new("deep/file"));
    let nowhere = run(store.path(), &["sandbox", "cp", &format!("{one}:/no/such"), "."]).await;
    assert_eq!(nowhere.status.code(), Some(2), "{}", text(&nowhere));
    // Kept, and gone on from.
    let kept = run(store.path(), &["sandbox", "checkpoint", one]).await;
    assert!(kept.status.success(), "{}", text(&kept));
    let kept = String::from_utf8(kept.stdout).unwrap().trim().to_owned();
    let fork = run(store.path(), &["sandbox", "create", &format!("checkpoint:{kept}")]).await;
    assert!(fork.status.success(), "{}", text(&fork));
    let fork = String::from_utf8(fork.stdout).unwrap().trim().to_owned();
    let out = run(store.path(), &["sandbox", "exec", &fork, "--", "cat", "/root/copy/link"]).await;
    assert_eq!(out.stdout.len(), 300_000);
    let listed = json(store.path(), &["sandbox", "list", "--label", "task=7"]).await;
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(run(store.path(), &["sandbox", "delete", &ids[1]]).await.status.success());
    let twice = run(store.path(), &["sandbox", "delete", &ids[1]]).await;
    assert_eq!(twice.status.code(), Some(1));
    let unknown = run(store.path(), &["sandbox", "delete", "--checkpoint", "nobody"]).await;
    assert_eq!((unknown.status.code(), &*text(&unknown)), (Some(1), "there is no checkpoint \"nobody\"\n"));
    for (arguments, expect, code) in [
        (&["sandbox", "create", "no such image"][..], "invalid image name", 2),
        (
            &["sandbox", "create", "--memory", "1MiB"],
            "invalid sandbox.memory \"1MiB\": expected 16MiB to 16384GiB",
            2,
        ),
        (&["sandbox", "create", "--require", "gold"], "cannot guarantee `gold`", 4),
        (&["sandbox", "create", "--user", "stranger", "--setup", "true"], "stranger", 2),
        (&["sandbox", "create", "--setup", "echo broken; exit 3"], "exit code 3: broken", 2),
        (&["sandbox", "create", "--lease", "0s"], "invalid sandbox.lease \"0ms\": expected 1s to 24h", 2),
        (&["sandbox", "create", "--lease", "1000h"], "expected 1s to 24h", 2),
        (&["sandbox", "create", "--workdir", "/etc/passwd"], "expected a folder", 2),
        (&["sandbox", "create", "127.0.0.1:1/no/registry:x"], "127.0.0.1:1", 4),
        (&["sandbox", "exec", "nobody", "--", "true"], "invalid sandbox \"nobody\": expected an id of", 125),
        (&["sandbox", "create", "checkpoint:gone"], "invalid checkpoint \"gone\": expected an id of", 2),
    ] {
        let output = run(store.path(), arguments).await;
        assert!(text(&output).contains(expect), "{arguments:?}: {}", text(&output));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
    }
    assert_eq!(store.sandboxes().await.len(), 2, "what could not be made left nothing");
}

#[tokio::test]
async fn two_hundred_without_an_engine_are_found_and_then_end_with_their_lease() {
    let store = Store::new();
    let made =
        run(store.path(), &["sandbox", "create", "--count", "200", "--memory", "64MiB", "--lease", "40s"])
            .await;
    assert!(made.status.success(), "{}", text(&made));
    assert_eq!(store.sandboxes().await.len(), 200);
    for _ in 0..120 {
        if store.sandboxes().await.is_empty() {
            let left = std::fs::read_dir(store.path().join("sandboxes/sandboxes")).unwrap().count();
            assert_eq!(left, 0, "files of sandboxes");
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("some outlived their lease: {:?}", store.sandboxes().await);
}
