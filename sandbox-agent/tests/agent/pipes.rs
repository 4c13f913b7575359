//! Commands as byte streams: what is written and printed arrives whole, and where it cannot, both sides are told.

use crate::cuts::{Proxy, cut_client};
use crate::support::{Ran, Sandbox, Way, eventually, ways};
use espalier_agent_client::wire::{CommandSpec, Outcome, Reason, Terminal, outcome};
use espalier_agent_client::{AgentError, Excerpts, PipeError, command};
use std::io::ErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn script(text: impl Into<String>) -> CommandSpec {
    command::script(text.into())
}

fn exit(code: i32) -> Option<Outcome> {
    Some(Outcome { outcome: Some(outcome::Outcome::ExitCode(code)) })
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Why a read or a write failed.
fn cause(error: &std::io::Error) -> &PipeError {
    error.get_ref().and_then(|inner| inner.downcast_ref()).unwrap_or_else(|| panic!("{error:?}"))
}

#[tokio::test]
async fn bytes_go_both_ways_to_the_end() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let agent = &sandbox.agent;
        let spec = CommandSpec { stdin: b"first ".as_slice().into(), ..command::arguments(["cat"]) };
        let mut pipe = agent.pipe(&agent.allot(), spec).await.unwrap();
        assert!(pipe.pid > 0);
        // A question and its answer, again and again; then much at once, more than all buffers hold.
        let mut answer = [0; 6];
        pipe.reader.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"first ");
        for _ in 0..100 {
            pipe.writer.write_all(b"hello\n").await.unwrap();
            pipe.reader.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"hello\n");
        }
        let sent = pattern(5_000_000);
        let (mut writer, mut got) = (pipe.writer, Vec::new());
        let write = async {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(write, pipe.reader.read_to_end(&mut got));
        read.unwrap();
        assert!(got == sent, "{way:?}: {} of {} bytes", got.len(), sent.len());
        let ended = pipe.ended.await.unwrap();
        assert_eq!((ended.ended.outcome, ended.stderr.as_ref()), (exit(0), b"".as_slice()), "{way:?}");
    }
}

#[tokio::test]
async fn a_slow_reader_holds_the_command_up_and_loses_nothing() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (agent, done) = (&sandbox.agent, sandbox.path("done"));
    let size = 16 << 20;
    std::fs::write(sandbox.path("content"), pattern(size)).unwrap();
    let text = format!("cat {}; touch {}", sandbox.path("content").display(), done.display());
    let mut pipe = agent.pipe(&agent.allot(), script(text)).await.unwrap();
    let mut got = vec![0; 8 << 20];
    pipe.reader.read_exact(&mut got).await.unwrap();
    // All buffers on the way hold less than 2 MiB.
    let kept = agent.heartbeat(std::time::Duration::ZERO).await.unwrap();
    assert!(!done.exists() && kept.memory_bytes < 1 << 20, "{kept:?}");
    pipe.reader.read_to_end(&mut got).await.unwrap();
    assert!(got == pattern(size), "{} bytes", got.len());
    assert_eq!(pipe.ended.await.unwrap().ended.outcome, exit(0));
    assert!(done.exists());
}

#[tokio::test]
async fn a_command_that_reads_nothing_holds_the_writer_up() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (agent, go) = (&sandbox.agent, sandbox.path("go"));
    let text = format!("until [ -e {} ]; do sleep 0.02; done; wc -c", go.display());
    let mut pipe = agent.pipe(&agent.allot(), script(text)).await.unwrap();
    let sent = pattern(2 << 20);
    {
        let mut writing = std::pin::pin!(pipe.writer.write_all(&sent));
        // As much as fits on the way is taken, and no more.
        let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut writing).await;
        assert!(early.is_err(), "2 MiB were taken by nobody");
        std::fs::write(&go, "").unwrap();
        writing.await.unwrap();
    }
    drop(pipe.writer);
    let mut got = String::new();
    pipe.reader.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, format!("{}\n", 2 << 20));
}

#[tokio::test]
async fn the_end_tells_how_and_what_was_complained_of() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    // Nobody wants the output; standard error alone would fill a pipe.
    let text = "head -c 1000000 /dev/zero; head -c 100000 /dev/zero | tr '\\0' x >&2; echo oops >&2; exit 3";
    let pipe = agent.pipe(&agent.allot(), script(text)).await.unwrap();
    drop(pipe.reader);
    let ended = pipe.ended.await.unwrap();
    assert_eq!(ended.ended.outcome, exit(3));
    assert_eq!((ended.stderr.len(), ended.stderr.ends_with(b"xoops\n")), (16 << 10, true));
    // One that has closed its input breaks the writer alone.
    let mut pipe = agent.pipe(&agent.allot(), script("exec <&-; echo closed; sleep 60")).await.unwrap();
    let mut answer = [0; 7];
    pipe.reader.read_exact(&mut answer).await.unwrap();
    let error = loop {
        if let Err(error) = pipe.writer.write_all(&[0; 4096]).await {
            break error;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error:?}");
    agent.signal(&agent.allot(), &pipe.id, 9, true).await.unwrap();
    assert_eq!(pipe.ended.await.unwrap().ended.outcome.unwrap().outcome, Some(outcome::Outcome::Signal(9)));
}

#[tokio::test]
async fn dropping_all_parts_closes_its_input() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (agent, done) = (&sandbox.agent, sandbox.path("done"));
    let mut pipe =
        agent.pipe(&agent.allot(), script(format!("cat; touch {}", done.display()))).await.unwrap();
    pipe.writer.write_all(b"something").await.unwrap();
    drop(pipe);
    eventually("its end", || done.exists()).await;
}

#[tokio::test]
async fn many_calls_leave_the_records_of_others() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (agent, counter) = (&sandbox.agent, sandbox.path("counter"));
    let (id, text) = (agent.allot(), format!("echo 0 >>{}", counter.display()));
    let run = async || Ran::of(agent.run(&id, script(text.clone()), Excerpts::default()).await.unwrap());
    run().await;
    let mut pipe = agent.pipe(&agent.allot(), command::arguments(["cat"])).await.unwrap();
    for _ in 0..3000 {
        pipe.writer.write_all(b"x").await.unwrap();
        pipe.reader.read_u8().await.unwrap();
    }
    // Answered from its record.
    assert_eq!(run().await.outcome, outcome::Outcome::ExitCode(0));
    assert_eq!(std::fs::read_to_string(counter).unwrap(), "0\n");
}

#[tokio::test]
async fn what_cannot_be_a_pipe_is_refused() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let terminal = CommandSpec { terminal: Some(Terminal { rows: 24, columns: 80 }), ..script("cat") };
    for (spec, expect) in [(command::arguments(["/no/such"]), Reason::NotFound), (terminal, Reason::Invalid)]
    {
        let error = agent.pipe(&agent.allot(), spec).await.unwrap_err();
        assert_eq!(error.reason(), Some(expect), "{error}");
    }
}

#[tokio::test]
async fn cuts_are_healed() {
    let (seed, sandbox) = (43, Sandbox::start(Way::Beside).await);
    let proxy = Proxy::start(sandbox.folder.path(), seed, 400_000);
    let agent = cut_client(&sandbox, &proxy, "cut").await;
    let pipe = agent.pipe(&agent.allot(), command::arguments(["cat"])).await.unwrap();
    let (mut reader, mut writer, sent) = (pipe.reader, pipe.writer, pattern(2_000_000));
    let write = async {
        for piece in sent.chunks(7919) {
            writer.write_all(piece).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (_, read) = tokio::join!(write, reader.read_to_end(&mut got));
    read.unwrap();
    assert!(got == sent, "seed {seed}: {} of {} bytes", got.len(), sent.len());
    assert_eq!(pipe.ended.await.unwrap().ended.outcome, exit(0));
    assert!(proxy.cuts() > 2);
}

#[tokio::test]
async fn a_lost_agent_is_told_to_all_parts() {
    let mut sandbox = Sandbox::start(Way::Beside).await;
    let mut pipe = sandbox.agent.pipe(&sandbox.agent.allot(), command::arguments(["cat"])).await.unwrap();
    sandbox.kill();
    let is_lost =
        |error: &PipeError| matches!(error, PipeError::Agent(why) if matches!(**why, AgentError::Lost(_)));
    let error = pipe.reader.read_u8().await.unwrap_err();
    assert!(error.kind() == ErrorKind::ConnectionAborted && is_lost(cause(&error)), "{error:?}");
    let error = pipe.writer.write_all(b"x").await.unwrap_err();
    assert!(error.kind() == ErrorKind::ConnectionAborted && is_lost(cause(&error)), "{error:?}");
    assert!(is_lost(&pipe.ended.await.unwrap_err()));
}

#[tokio::test]
async fn lost_output_is_an_error() {
    // An agent without room for output: what was under way when the connection was cut cannot be sent again.
    let sandbox = Sandbox::with(Way::Beside, &["--spill-max-bytes", "0"]).await;
    let proxy = Proxy::start(sandbox.folder.path(), 47, usize::MAX >> 1);
    let agent = cut_client(&sandbox, &proxy, "cut").await;
    let size = 4 << 20;
    let mut pipe = agent.pipe(&agent.allot(), script(format!("head -c {size} /dev/zero"))).await.unwrap();
    for _ in 0..2000 {
        let listed = sandbox.agent.list().await.unwrap();
        if listed.iter().any(|one| one.stdout_total > 600_000) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    proxy.cut_all();
    let mut got = Vec::new();
    match pipe.reader.read_to_end(&mut got).await {
        Err(error) => {
            let expect = matches!(cause(&error), PipeError::OutputLost { from, to } if from < to);
            assert!(error.kind() == ErrorKind::InvalidData && expect, "{error:?}");
            assert!(matches!(pipe.ended.await, Err(PipeError::OutputLost { .. })));
        }
        Ok(_) => panic!("{} of {size} bytes, and no error", got.len()),
    }
}
