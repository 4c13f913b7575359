//! What a command can be and how it ends.

use crate::support::{Ran, Sandbox, Way, eventually, ways};
use bytes::Bytes;
use espalier_agent_client::wire::{self, CommandSpec, Reason, Variable, outcome::Outcome};
use espalier_agent_client::{Event, Excerpts, Offsets, command};
use std::time::Duration;

fn spec(text: &str) -> CommandSpec {
    command::script(text.to_owned())
}

#[tokio::test]
async fn a_command_prints_and_exits() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let ran = sandbox.sh("echo out; echo err >&2; exit 3").await;
        assert_eq!((ran.outcome, &*ran.out, &*ran.err), (Outcome::ExitCode(3), "out\n", "err\n"), "{way:?}");
        let hello = sandbox.agent.hello();
        let expect = matches!(way, Way::ProcessOne | Way::Cgroup);
        assert_eq!(hello.capabilities.contains(&"process-1".to_owned()), expect);
    }
}

#[tokio::test]
async fn commands_that_have_ended_hold_no_descriptors() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        sandbox.sh("true").await;
        let open = || std::fs::read_dir(format!("/proc/{}/fd", sandbox.pid())).unwrap().count();
        let before = open();
        for _ in 0..40 {
            sandbox.sh("true").await;
        }
        eventually("descriptors of commands are closed", || open() <= before + 3).await;
    }
}

#[tokio::test]
async fn an_outcome_is_never_taken_for_another() {
    let sandbox = Sandbox::start(Way::Beside).await;
    for (text, expect) in [
        ("exit 124", Outcome::ExitCode(124)),
        ("exit 137", Outcome::ExitCode(137)),
        ("kill -9 $$", Outcome::Signal(9)),
        ("kill -15 $$", Outcome::Signal(15)),
        ("no-such-program-here", Outcome::ExitCode(127)),
        ("true", Outcome::ExitCode(0)),
    ] {
        assert_eq!(sandbox.sh(text).await.outcome, expect, "{text}");
    }
    let late = sandbox.run(CommandSpec { timeout_ms: 100, ..spec("exec sleep 60") }).await;
    assert_eq!(late.outcome, Outcome::TimedOut(wire::TimedOut { unkillable: 0 }));
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let cases = [
        (
            command::arguments(["no-such-program-here"]),
            Reason::NotFound,
            "program `no-such-program-here`: not found",
        ),
        (
            command::arguments(["/etc/passwd"]),
            Reason::Denied,
            "program `/etc/passwd`: Permission denied (os error 13)",
        ),
        (
            CommandSpec { folder: "/no/where".into(), ..spec("true") },
            Reason::NotFound,
            "folder `/no/where`: No such file or directory (os error 2)",
        ),
        (
            CommandSpec { folder: "here".into(), ..spec("true") },
            Reason::Invalid,
            "folder: `here` is not absolute",
        ),
        (
            CommandSpec { user: "nobody-knows".into(), ..spec("true") },
            Reason::NotFound,
            "user `nobody-knows`: not in /etc/passwd",
        ),
        (CommandSpec::default(), Reason::Invalid, "a command without a program"),
        (command::arguments(["a\0b"]), Reason::Invalid, "arguments: a NUL byte"),
    ];
    for (spec, reason, message) in cases {
        let ran = sandbox.run(spec.clone()).await;
        let expect = wire::Unstarted { reason: reason.into(), message: message.to_owned() };
        assert_eq!(ran.outcome, Outcome::Unstarted(expect));
        let refused = sandbox.agent.start(&sandbox.agent.allot(), spec).await.unwrap_err();
        assert_eq!((refused.reason(), refused.to_string()), (Some(reason), message.to_owned()));
    }
}

#[tokio::test]
async fn environment_folder_user_and_input_are_as_asked() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let variable =
        |name: &str, value: &str| Variable { name: name.to_owned().into(), value: value.to_owned().into() };
    let ran = sandbox
        .run(CommandSpec {
            folder: "/usr/bin".into(),
            environment: vec![variable("ONE", "a b"), variable("TWO", "c")],
            ..spec("pwd; echo \"$ONE-$TWO\"; test -n \"$PATH\" && echo path")
        })
        .await;
    assert_eq!(ran.out, "/usr/bin\na b-c\npath\n");
    let bare = CommandSpec {
        clear_environment: true,
        environment: vec![variable("X", "1")],
        ..command::arguments(["env"])
    };
    let mut lines: Vec<String> = sandbox.run(bare).await.out.lines().map(str::to_owned).collect();
    lines.retain(|line| !line.starts_with("ESPALIER_COMMAND=") && !line.starts_with("PATH="));
    assert_eq!(lines, ["X=1"]);
    let input = CommandSpec { stdin: Bytes::from(vec![b'x'; 300_000]), ..spec("wc -c") };
    assert_eq!(sandbox.run(input).await.out.trim(), "300000");
    assert_eq!(sandbox.sh("cat").await.out, "", "without input there is an end");
    if rustix::process::geteuid().is_root() {
        let ran = sandbox
            .run(CommandSpec {
                user: "nobody".into(),
                ..spec("id -un; id -u; cd; touch /root/x 2>&1 | wc -l")
            })
            .await;
        assert_eq!(ran.out, "nobody\n65534\n1\n");
        let ran = sandbox.run(CommandSpec { user: "1234:4321".into(), ..spec("id -u; id -g; id -G") }).await;
        assert_eq!(ran.out, "1234\n4321\n4321\n");
        let ordinary = Sandbox::start(Way::Ordinary).await;
        let ran = ordinary.run(CommandSpec { user: "root".into(), ..spec("id") }).await;
        let Outcome::Unstarted(unstarted) = ran.outcome else { panic!("{ran:?}") };
        assert_eq!(unstarted.message, "user `root`: the agent is user 1234 and cannot become another");
    }
}

#[tokio::test]
async fn commands_get_nothing_of_the_agents() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let ran = sandbox.run(command::arguments(["ls", "/proc/self/fd"])).await;
        assert_eq!(ran.out, "0\n1\n2\n3\n", "{way:?}: 3 is the folder that ls reads");
        let ran = sandbox.run(command::arguments(["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"])).await;
        assert_eq!(ran.out, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n", "{way:?}");
        let session = sandbox.sh("ps -o sid= -p $$ | tr -d ' '; echo $$").await;
        let numbers: Vec<&str> = session.out.lines().collect();
        assert_eq!(numbers[0], numbers[1], "a session of its own");
    }
}

#[tokio::test]
async fn a_long_script_and_bytes_that_are_no_text() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let script = format!("# {}\necho $(( 6 * 7 )); printf '\\377\\000\\n'", "x".repeat(300_000));
    let id = sandbox.agent.allot();
    let answer = sandbox.agent.run(&id, spec(&script), Excerpts::default()).await.unwrap();
    assert_eq!(&answer.stdout.unwrap().head[..], b"42\n\xff\0\n");
}

#[tokio::test]
async fn output_of_both_streams_in_order_when_merged() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let text = "for i in 1 2 3 4 5 6; do echo out $i; echo err $i >&2; done";
    let ran = sandbox.run(CommandSpec { merge_stderr: true, ..spec(text) }).await;
    let expect: String = (1..=6).map(|i| format!("out {i}\nerr {i}\n")).collect();
    assert_eq!((ran.out, ran.err), (expect, String::new()));
}

#[tokio::test]
async fn head_and_tail_with_the_bytes_between() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let id = sandbox.agent.allot();
    let excerpts = Excerpts { head_bytes: 10, tail_bytes: 12 };
    let ran = Ran::of(sandbox.agent.run(&id, spec("seq 1 100000"), excerpts).await.unwrap());
    assert_eq!(ran.out, "1\n2\n3\n4\n5\n[588873]9999\n100000\n");
    assert_eq!(ran.ended().stdout_bytes, 588_895);
    // The whole of it is still there.
    let (whole, _, _) = sandbox.agent.attach(&id, Offsets::default(), false).collect().await.unwrap();
    let expect: String = (1..=100_000).map(|i| format!("{i}\n")).collect();
    assert_eq!(String::from_utf8(whole).unwrap(), expect);
}

#[tokio::test]
async fn output_streams_as_it_is_printed() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let mut events = sandbox.agent.exec(&sandbox.agent.allot(), spec("echo one; sleep 0.3; echo two >&2"));
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(first, Event::Output { stream: wire::Stream::Stdout, offset: 0, bytes: "one\n".into() });
    let second = events.next().await.unwrap().unwrap();
    assert_eq!(second, Event::Output { stream: wire::Stream::Stderr, offset: 0, bytes: "two\n".into() });
    let Event::Ended(ended) = events.next().await.unwrap().unwrap() else { panic!("no end") };
    assert_eq!((ended.stdout_bytes, ended.stderr_bytes), (4, 4));
    assert_eq!(events.next().await.unwrap(), None);
}

#[tokio::test]
async fn streams_that_nobody_reads_hold_no_other_call_up() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let id = sandbox.agent.allot();
    let printed = CommandSpec { output_keep_bytes: 8 << 20, ..spec("head -c 4000000 /dev/zero") };
    sandbox.agent.run(&id, printed, Excerpts::default()).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = sandbox.agent.attach(&id, Offsets::default(), false);
        stream.next().await.unwrap().unwrap();
        held.push(stream);
    }
    let ran = tokio::time::timeout(Duration::from_secs(60), sandbox.sh("echo goes on")).await;
    assert_eq!(ran.expect("no other call is held up").out, "goes on\n");
    // And what was held is all there.
    let (rest, _, _) = held.pop().unwrap().collect().await.unwrap();
    assert!(rest.len() > 3_000_000 && rest.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn input_goes_to_a_running_command_and_each_byte_once() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let id = agent.allot();
    agent
        .start(&id, CommandSpec { stdin: "a".into(), stdin_open: true, ..command::arguments(["cat"]) })
        .await
        .unwrap();
    let send = async |offset, text: &str, end| {
        agent.input(&agent.allot(), &id, offset, text.to_owned().into(), end).await
    };
    assert_eq!(send(1, "bc\n", false).await.unwrap().taken, 4);
    assert_eq!(send(1, "bc\nd\n", false).await.unwrap().taken, 6, "what was taken is not taken again");
    let gap = send(9, "x", false).await.unwrap_err();
    assert_eq!(gap.to_string(), "input at 9: only 6 bytes came before");
    assert_eq!(send(6, "", true).await.unwrap(), wire::InputAnswer { taken: 6, closed: true });
    let (out, _, ended) = agent.attach(&id, Offsets::default(), false).collect().await.unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "abc\nd\n");
    assert_eq!(ended.outcome.unwrap().outcome, Some(Outcome::ExitCode(0)));
    assert!(send(6, "late", false).await.unwrap().closed);
}

#[tokio::test]
async fn input_that_nobody_reads_ends_with_the_command() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let id = agent.allot();
    agent.start(&id, CommandSpec { stdin_open: true, timeout_ms: 300, ..spec("sleep 60") }).await.unwrap();
    let answer = agent.input(&agent.allot(), &id, 0, vec![0; 1 << 20].into(), true).await.unwrap();
    assert!(answer.closed && answer.taken < 1 << 20, "{answer:?}");
}

#[tokio::test]
async fn a_terminal_with_a_size() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let agent = &sandbox.agent;
        let id = agent.allot();
        let terminal = Some(wire::Terminal { rows: 30, columns: 100 });
        let text = "stty size; test -t 0 && test -t 1 && test -t 2 && echo terminal; read a; stty size; echo got $a; read b || echo end";
        agent.start(&id, CommandSpec { terminal, stdin_open: true, ..spec(text) }).await.unwrap();
        let printed = async |wanted: &str| {
            let mut follow = agent.attach(&id, Offsets::default(), false);
            let mut seen = String::new();
            while !seen.contains(wanted) {
                match follow.next().await.unwrap() {
                    Some(Event::Output { bytes, .. }) => seen += &String::from_utf8_lossy(&bytes),
                    Some(_) => {}
                    None => panic!("{way:?}: no {wanted:?} in {seen:?}"),
                }
            }
        };
        printed("30 100\r\nterminal\r\n").await;
        agent.resize(&id, wire::Terminal { rows: 50, columns: 120 }).await.unwrap();
        agent.input(&agent.allot(), &id, 0, "hi\n".into(), false).await.unwrap();
        printed("50 120\r\ngot hi\r\n").await;
        agent.input(&agent.allot(), &id, 3, Bytes::new(), true).await.unwrap();
        printed("end\r\n").await;
        let no_terminal = agent.allot();
        agent.start(&no_terminal, spec("sleep 1")).await.unwrap();
        let refused = agent.resize(&no_terminal, wire::Terminal::default()).await.unwrap_err();
        assert_eq!(refused.to_string(), "resize: the command has no terminal");
    }
}

#[tokio::test]
async fn input_that_is_never_read_holds_nobody_up() {
    for (what, script, terminal) in [
        (
            "a terminal",
            "stty raw -echo; echo ready; exec sleep 1000",
            Some(wire::Terminal { rows: 24, columns: 80 }),
        ),
        // Closed, and opened again.
        (
            "a pipe",
            "exec 5>/proc/self/fd/0 0<&-; sleep 0.5; exec 6</proc/self/fd/5; echo ready; exec sleep 1000",
            None,
        ),
    ] {
        for way in ways() {
            let sandbox = Sandbox::start(way).await;
            let agent = &sandbox.agent;
            let id = agent.allot();
            agent.start(&id, CommandSpec { terminal, stdin_open: true, ..spec(script) }).await.unwrap();
            let mut follow = agent.attach(&id, Offsets::default(), false);
            follow.next().await.unwrap();
            let (writer, target) = (agent.clone(), id.clone());
            let write = tokio::spawn(async move {
                writer.input(&writer.allot(), &target, 0, vec![b'x'; 1 << 20].into(), false).await
            });
            assert_eq!(sandbox.sh("true").await.outcome, Outcome::ExitCode(0), "{what} {way:?}");
            agent.signal(&agent.allot(), &id, 9, true).await.unwrap();
            let mut last = None;
            while let Some(event) = follow.next().await.unwrap() {
                last = Some(event);
            }
            assert!(matches!(last, Some(Event::Ended(_))), "{what} {way:?}: {last:?}");
            let taken = write.await.unwrap().unwrap();
            assert!(taken.closed && taken.taken < 1 << 20, "{what} {way:?}: {taken:?}");
            assert_eq!(sandbox.sh("true").await.outcome, Outcome::ExitCode(0), "{what} {way:?}");
        }
    }
}

#[tokio::test]
async fn signals_reach_the_leader_or_the_tree() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let agent = &sandbox.agent;
        let id = agent.allot();
        agent.start(&id, spec("trap 'echo hup; exit 5' HUP; sleep 60 & echo ready; wait")).await.unwrap();
        let mut follow = agent.attach(&id, Offsets::default(), false);
        follow.next().await.unwrap();
        assert_eq!(agent.signal(&agent.allot(), &id, 1, false).await.unwrap().reached, 1);
        let mut ended = None;
        while let Some(event) = follow.next().await.unwrap() {
            if let Event::Ended(end) = event {
                ended = Some(end);
            }
        }
        let ended = ended.unwrap();
        assert_eq!(ended.outcome.unwrap().outcome, Some(Outcome::ExitCode(5)), "{way:?}");
        assert_eq!(ended.left_running, 1, "{way:?}");
        // What was left running is still the command's.
        let listed = agent.list().await.unwrap();
        assert_eq!(listed.iter().find(|one| one.id.as_ref() == Some(&id)).unwrap().alive, 1);
        assert_eq!(agent.signal(&agent.allot(), &id, 9, true).await.unwrap().reached, 1);
        let alive = async || agent.list().await.unwrap().iter().map(|one| one.alive).sum::<u32>();
        for _ in 0..200 {
            if alive().await == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(alive().await, 0, "{way:?}");
        let unknown = agent.signal(&agent.allot(), &id, 999, false).await.unwrap_err();
        assert_eq!(unknown.to_string(), "signal 999");
    }
}

#[tokio::test]
async fn poll_reads_on_and_waits_within_bounds() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let id = agent.allot();
    agent.start(&id, spec("echo one; sleep 0.2; echo two; sleep 0.2; exit 4")).await.unwrap();
    let ask = |from, wait_ms, until_ended| wire::PollRequest {
        id: Some(id.clone()),
        stdout_from: from,
        wait_ms,
        until_ended,
        ..wire::PollRequest::default()
    };
    let first = agent.poll(ask(0, 5000, false)).await.unwrap();
    assert_eq!((&first.outputs[0].bytes[..], first.ended), (&b"one\n"[..], None));
    let nothing = agent.poll(ask(4, 1, false)).await.unwrap();
    assert!(nothing.outputs.is_empty() && nothing.ended.is_none());
    let rest = agent.poll(ask(4, 5000, true)).await.unwrap();
    assert_eq!((&rest.outputs[0].bytes[..], rest.stdout_total), (&b"two\n"[..], 8));
    assert_eq!(rest.ended.unwrap().outcome.unwrap().outcome, Some(Outcome::ExitCode(4)));
}

#[tokio::test]
async fn a_background_child_keeps_its_log() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let agent = &sandbox.agent;
        let id = agent.allot();
        let text = "(sleep 0.4; echo late; sleep 0.1; echo later) & echo now";
        let ran = Ran::of(agent.run(&id, spec(text), Excerpts::default()).await.unwrap());
        assert_eq!(ran.out, "now\n", "{way:?}");
        assert!(ran.ended().left_running >= 1, "{way:?}");
        let mut follow = agent.attach(&id, Offsets::default(), true);
        let mut seen = String::new();
        while let Some(event) = follow.next().await.unwrap() {
            if let Event::Output { bytes, .. } = event {
                seen += &String::from_utf8_lossy(&bytes);
            }
        }
        assert_eq!(seen, "now\nlate\nlater\n", "{way:?}");
    }
}

#[tokio::test]
async fn many_commands_at_once() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let runs = (0..100).map(|number| {
        let sandbox = &sandbox;
        async move {
            let ran = sandbox.sh(&format!("sleep 0.2; echo {number}")).await;
            assert_eq!(ran.out, format!("{number}\n"));
        }
    });
    futures::future::join_all(runs).await;
}

#[tokio::test]
async fn orphans_are_reaped() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        sandbox.sh("for i in $(seq 20); do (sleep 0.05 & ) ; done").await;
        let pid = sandbox.pid();
        let children =
            || std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        eventually("no child is left", || children().trim().is_empty()).await;
    }
}
