//! Commands and shells: outcomes, outputs, and what is refused.

use crate::support::{Rollout, code, eventually, lives, sh, shell};
use espalier_core::attempt::{AttemptCapability, Draft};
use espalier_core::ending::{Ending, StopReason};
use espalier_core::host::sandbox::{
    Command, Ended, Program, RunOptions, Sandboxes, ShellOptions, Show, TerminalSize,
};
use espalier_core::journal::{Edge, EdgeLog};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn a_command_runs_where_the_sandbox_says_with_its_variables() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let work = rollout.work(0);
    let ran = sh(&sandbox, "pwd; echo $GIVEN; echo oops >&2; exit 3").await;
    assert_eq!(ran.ended, Ended::ExitCode(3));
    assert_eq!(ran.stdout.head, format!("{}\nby the experiment\n", work.display()));
    assert_eq!((ran.stderr.head.as_str(), ran.stderr.total, ran.left_running), ("oops\n", 5, 0));
    let ran = sandbox
        .exec(Command {
            program: Program::Argv(vec!["sh".into(), "-c".into(), "pwd; echo $GIVEN$MORE; cat".into()]),
            cwd: Some(b"..".to_vec()),
            env: vec![("GIVEN".into(), "mine".into()), ("MORE".into(), "!".into())],
            stdin: b"in".to_vec(),
            merge_stderr: true,
            ..shell("")
        })
        .await
        .unwrap();
    assert_eq!(ran.stdout.head, format!("{}\nmine!\nin", work.parent().unwrap().display()));
    let ran = sandbox
        .exec(Command { terminal: Some(TerminalSize { rows: 7, columns: 50 }), ..shell("stty size") })
        .await
        .unwrap();
    assert_eq!(ran.stdout.head.trim(), "7 50");
}

#[tokio::test]
async fn each_way_to_end_is_told_from_the_others() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    assert_eq!(sh(&sandbox, "kill -9 $$").await.ended, Ended::Signal(9));
    assert_eq!(sh(&sandbox, "exit 124").await.ended, Ended::ExitCode(124));
    let timeout = Some(Duration::from_millis(300));
    let text = "echo before; sleep 60 & echo $! > pid; sleep 60";
    let ran = sandbox.exec(Command { timeout, ..shell(text) }).await.unwrap();
    assert_eq!((ran.ended, ran.stdout.head.as_str()), (Ended::TimedOut, "before\n"));
    assert!(!lives(&rollout.work(0).join("pid")), "its child is gone");
    let ran = sh(&sandbox, "sleep 60 & echo $! > pid; echo hi").await;
    assert_eq!((ran.ended, ran.left_running), (Ended::ExitCode(0), 1));
    assert!(lives(&rollout.work(0).join("pid")), "it was left running");
    for (what, command) in [
        ("program", Command { program: Program::Argv(vec!["no-such-program".into()]), ..shell("") }),
        ("user", Command { user: Some("nobody-here".into()), ..shell("true") }),
        ("folder", Command { cwd: Some(b"/no/where".to_vec()), ..shell("true") }),
    ] {
        let failure = sandbox.exec(command).await.unwrap_err();
        assert_eq!(code(&failure), "not-found", "{what}: {failure}");
    }
    assert_eq!(rollout.sandboxes.lost(), None, "a refusal is not a loss");
}

#[tokio::test]
async fn an_output_is_shown_by_its_ends_and_kept_where_that_is_asked() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let show = Show { output_max: 10, keep_whole: true };
    let text = "for i in 1 2 3 4 5 6 7 8 9; do printf $i$i; done; printf '\\377' >&2";
    let ran = sandbox.exec(Command { show, ..shell(text) }).await.unwrap();
    let (out, err) = (&ran.stdout, &ran.stderr);
    assert_eq!((&*out.head, out.left_out, &*out.tail, out.total), ("11223", 8, "78899", 18));
    assert_eq!(rollout.blobs.get(out.whole.as_ref().unwrap()), b"112233445566778899");
    assert_eq!((&*err.head, err.left_out), ("\u{FFFD}", 0));
    assert_eq!(rollout.blobs.get(err.whole.as_ref().unwrap()), [0xFF], "what is not text is kept as it is");
    let text = "head -c 30000000 /dev/zero | tr '\\0' x; printf end";
    let ran = sandbox.exec(Command { show, ..shell(text) }).await.unwrap();
    assert_eq!((&*ran.stdout.head, &*ran.stdout.tail, ran.stdout.total), ("xxxxx", "xxend", 30_000_003));
    let whole = rollout.blobs.get(ran.stdout.whole.as_ref().unwrap());
    assert_eq!(whole.len(), 8 << 20, "bounded");
    assert!(whole.ends_with(b"xend"));
    let before = rollout.blobs.count();
    let ran =
        sandbox.exec(Command { show: Show { keep_whole: false, ..show }, ..shell(text) }).await.unwrap();
    assert_eq!((ran.stdout.whole, rollout.blobs.count()), (None, before));
    let poor = Rollout::with_blob_bytes(4);
    let sandbox = poor.main().await;
    let failure = sandbox.exec(Command { show, ..shell("seq 1000") }).await.unwrap_err();
    assert_eq!(code(&failure), "budget");
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_any_more_is_killed() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let pid = rollout.work(0).join("pid");
    let text = "setsid sh -c 'echo $$ > pid; exec sleep 600' & sleep 600";
    let waiting = sandbox.exec(shell(text));
    assert!(tokio::time::timeout(Duration::from_millis(400), waiting).await.is_err());
    eventually("its tree is gone", || pid.exists() && !lives(&pid)).await;
    assert_eq!(sh(&sandbox, "echo still here").await.stdout.head, "still here\n");
}

#[tokio::test]
async fn a_shell_keeps_its_state_and_says_when_it_is_over() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let options = ShellOptions { env: vec![("MORE".into(), "yes".into())], ..ShellOptions::default() };
    let shell = sandbox.open_shell(options).await.unwrap();
    let options = || RunOptions { timeout: Some(Duration::from_secs(30)), ..RunOptions::default() };
    let run = async |text: &str| shell.run(text.to_owned(), options()).await;
    assert_eq!(run("cd /usr; x=1; f() { echo f $x; }").await.unwrap().ended, Ended::ExitCode(0));
    assert_eq!(
        run("pwd; f; echo $GIVEN $MORE").await.unwrap().stdout.head,
        "/usr\nf 1\nby the experiment yes\n"
    );
    let timeout = Some(Duration::from_millis(300));
    let late = shell.run("echo old; sleep 60; echo never".into(), RunOptions { timeout, ..options() }).await;
    assert_eq!(late.unwrap().ended, Ended::TimedOut);
    assert_eq!(run("echo $x").await.unwrap().stdout.head, "1\n", "nothing of the old output");
    let last = run("exit 4").await.unwrap();
    assert_eq!(last.ended, Ended::ExitCode(4));
    assert!(last.extra.unwrap().contains(r#""shell_ended":true"#));
    let failure = run("true").await.unwrap_err();
    assert_eq!((code(&failure), failure.to_string().contains("exit code 4")), ("shell-ended", true));
    shell.close().await.unwrap();
    shell.close().await.unwrap();
}

#[tokio::test]
async fn each_name_is_one_machine_and_a_fresh_one_is_another() {
    let rollout = Rollout::new();
    let main = rollout.main().await;
    sh(&main, "echo touched > given; kill -0 $$").await;
    assert_eq!(sh(&rollout.main().await, "cat given").await.stdout.head, "touched\n");
    let other = rollout.sandboxes.open("other").await.unwrap();
    assert_eq!(sh(&other, "cat given").await.stdout.head, "as it was\n");
    let fresh = rollout.sandboxes.open_fresh("main").await.unwrap();
    assert_eq!(sh(&fresh, "cat given").await.stdout.head, "as it was\n");
    assert_eq!(rollout.provider.started.lock().unwrap().len(), 3);
    let failure = rollout.sandboxes.open("nowhere").await.err().unwrap();
    assert_eq!(
        failure.to_string(),
        r#"invalid: sandbox nowhere: invalid sandbox "nowhere": expected main or other"#
    );
    assert_eq!(code(&main.checkpoint().await.unwrap_err()), "unsupported");
    assert_eq!(code(&fresh.checkpoint().await.unwrap_err()), "unsupported");
}

#[tokio::test]
async fn how_a_command_ended_is_kept_by_its_id() {
    let edges = Arc::new(EdgeLog::default());
    let rollout = Rollout::recorded(Arc::clone(&edges));
    let sandbox = rollout.main().await;
    for text in ["echo one", "echo two; exit 3"] {
        sh(&sandbox, text).await;
    }
    let mut draft = Draft::empty(Ending { stop_reason: StopReason::Submitted, error: None }, 0);
    edges.finish(&mut draft);
    let [Edge::Command { sandbox, id: first, outcome: one }, Edge::Command { id: second, outcome: two, .. }] =
        &draft.edges[..]
    else {
        panic!("{:?}", draft.edges)
    };
    assert_eq!((sandbox.as_str(), one.stdout.head.as_str()), ("main", "one\n"));
    assert_eq!((two.ended.clone(), two.stdout.head.as_str()), (Ended::ExitCode(3), "two\n"));
    let number = |id: &str| id.strip_prefix("rollout-1/").unwrap().parse::<u64>().unwrap();
    assert!(number(first) < number(second), "{first} {second}");
}
