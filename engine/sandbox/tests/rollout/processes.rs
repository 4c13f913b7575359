//! Commands that go on while other calls are made, and ports behind which they listen.

use crate::support::{Rollout, code, sh, shell};
use espalier_core::host::sandbox::{Channel, Command, Ended, Process, Show, TerminalSize};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: Duration = Duration::from_secs(30);

async fn read_until(process: &Arc<dyn Process>, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let piece = process.read(Channel::Stdout, text.len() as u64, 1000, LONG).await.unwrap();
        assert!(!piece.bytes.is_empty(), "nothing more after {text:?}");
        text += &String::from_utf8(piece.bytes).unwrap();
    }
    text
}

#[tokio::test]
async fn a_process_is_fed_read_and_waited_for() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let text = "echo ready; while read line; do echo got $line; done; echo end >&2; exit 5";
    let command = Command { timeout: None, stdin: b"zero\n".to_vec(), ..shell(text) };
    let process = sandbox.start(command).await.unwrap();
    assert!(process.pid() > 1);
    assert_eq!(read_until(&process, "zero\n").await, "ready\ngot zero\n");
    assert_eq!(process.poll().await.unwrap(), None);
    assert!(!process.ended(Duration::from_millis(20)).await.unwrap());
    assert_eq!(process.write_stdin(b"one\ntwo\n".to_vec()).await.unwrap(), 8);
    assert_eq!(read_until(&process, "two\n").await, "ready\ngot zero\ngot one\ngot two\n");
    assert_eq!(sh(&sandbox, "echo beside").await.stdout.head, "beside\n");
    process.close_stdin().await.unwrap();
    process.close_stdin().await.unwrap();
    assert_eq!(code(&process.write_stdin(b"late".to_vec()).await.unwrap_err()), "invalid");
    assert!(process.ended(LONG).await.unwrap());
    let outcome = process.poll().await.unwrap().unwrap();
    assert_eq!((&outcome.ended, &*outcome.stderr.head), (&Ended::ExitCode(5), "end\n"));
    assert_eq!(outcome.stdout.head, "ready\ngot zero\ngot one\ngot two\n");
    assert_eq!(process.poll().await.unwrap().unwrap(), outcome, "told again");
    let last = process.read(Channel::Stderr, 4, 10, Duration::ZERO).await.unwrap();
    assert_eq!((last.bytes.len(), last.total, last.ended), (0, 4, true));
}

#[tokio::test]
async fn a_process_that_reads_nothing_gets_the_rest_when_it_does() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let text = "while [ ! -e go ]; do sleep 0.01; done; wc -c";
    let process = sandbox.start(Command { timeout: None, ..shell(text) }).await.unwrap();
    let writing = process.write_stdin(vec![b'x'; 300_000]);
    assert!(tokio::time::timeout(Duration::from_millis(300), writing).await.is_err(), "the pipe is full");
    sh(&sandbox, "touch go").await;
    assert_eq!(process.write_stdin(b"yz".to_vec()).await.unwrap(), 2);
    process.close_stdin().await.unwrap();
    assert!(process.ended(LONG).await.unwrap());
    assert_eq!(process.poll().await.unwrap().unwrap().stdout.head.trim(), "300002");
}

#[tokio::test]
async fn signals_reach_the_leader_or_the_tree_and_a_dropped_handle_nobody() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let text = "trap 'echo usr; exit 9' USR1; echo up; while :; do sleep 0.05; done";
    let process = sandbox.start(Command { timeout: None, ..shell(text) }).await.unwrap();
    read_until(&process, "up\n").await;
    assert_eq!(process.signal(10, false).await.unwrap(), 1);
    assert!(process.ended(LONG).await.unwrap());
    assert_eq!(process.poll().await.unwrap().unwrap().ended, Ended::ExitCode(9));
    let text = "setsid sleep 600 & sleep 600 & wait";
    let process = sandbox.start(Command { timeout: None, ..shell(text) }).await.unwrap();
    while process.signal(18, true).await.unwrap() < 3 {}
    assert!(process.signal(9, true).await.unwrap() >= 3);
    assert!(process.ended(LONG).await.unwrap());
    let process = sandbox.start(shell("echo $$ > pid; exec sleep 600")).await.unwrap();
    while !rollout.work(0).join("pid").exists() {
        sh(&sandbox, "sleep 0.01").await;
    }
    drop(process);
    assert_eq!(sh(&sandbox, "kill -0 $(cat pid) && echo lives").await.stdout.head, "lives\n");
}

#[tokio::test]
async fn a_terminal_has_a_size_that_changes_and_a_pipe_has_none() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let terminal = Some(TerminalSize { rows: 10, columns: 20 });
    let command = Command { timeout: None, terminal, ..shell("stty size; read x; stty size") };
    let process = sandbox.start(command).await.unwrap();
    read_until(&process, "10 20\r\n").await;
    process.resize(TerminalSize { rows: 30, columns: 40 }).await.unwrap();
    process.write_stdin(b"\n".to_vec()).await.unwrap();
    assert!(process.ended(LONG).await.unwrap());
    assert!(process.poll().await.unwrap().unwrap().stdout.head.ends_with("30 40\r\n"));
    let piped = sandbox.start(shell("cat")).await.unwrap();
    assert_eq!(code(&piped.resize(TerminalSize { rows: 1, columns: 1 }).await.unwrap_err()), "invalid");
    piped.close_stdin().await.unwrap();
}

#[tokio::test]
async fn what_a_process_printed_beyond_its_bounds_is_named_by_offsets() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let show = Show { output_max: 100, keep_whole: true };
    let text = "head -c 20000000 /dev/zero | tr '\\0' a; printf tail";
    let process = sandbox.start(Command { timeout: None, show, ..shell(text) }).await.unwrap();
    assert!(process.ended(LONG).await.unwrap());
    let outcome = process.poll().await.unwrap().unwrap();
    assert_eq!((outcome.stdout.total, outcome.stdout.left_out), (20_000_004, 20_000_004 - 100));
    assert_eq!(rollout.blobs.get(outcome.stdout.whole.as_ref().unwrap()).len(), 8 << 20);
    let lost = process.read(Channel::Stdout, 10_000_000, 8, Duration::ZERO).await.unwrap();
    assert!(lost.offset > 10_000_000 && lost.offset <= 20_000_004 - 8, "{}", lost.offset);
    let end = process.read(Channel::Stdout, 20_000_000, 100, Duration::ZERO).await.unwrap();
    assert_eq!((end.offset, &end.bytes[..]), (20_000_000, &b"tail"[..]));
}

#[tokio::test]
async fn a_port_of_the_sandbox_is_reached_by_an_address_of_the_host() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let number = listener.local_addr().unwrap().port();
    // The agent of this test shares the host's network, so its own port is one of the host.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = Vec::new();
            stream.read_to_end(&mut asked).await.unwrap();
            asked.reverse();
            stream.write_all(&asked).await.unwrap();
        }
    });
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let address = sandbox.port(number).await.unwrap();
    assert_eq!(sandbox.port(number).await.unwrap(), address);
    for text in ["abc", "defg"] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, text.chars().rev().collect::<String>());
    }
}
