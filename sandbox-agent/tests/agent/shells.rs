//! Stateful shells of bash and sh.

use crate::support::{Ran, Sandbox, Way, ways};
use espalier_agent_client::wire::{CommandSpec, OpenShellRequest, Reason, TimedOut, outcome::Outcome};
use espalier_agent_client::{Agent, Excerpts, Id, command};
use std::os::unix::process::CommandExt;

async fn open(agent: &Agent, shell: &str) -> Id {
    let id = agent.allot();
    let request = OpenShellRequest { shell: shell.to_owned(), ..OpenShellRequest::default() };
    let answer = agent.open_shell(&id, request).await.unwrap();
    assert_eq!(answer.shell, if shell.is_empty() { "bash" } else { shell });
    id
}

async fn run(agent: &Agent, shell: &Id, text: &str) -> Ran {
    run_spec(agent, command::in_shell(shell, text.to_owned())).await
}

async fn run_spec(agent: &Agent, spec: CommandSpec) -> Ran {
    Ran::of(agent.run(&agent.allot(), spec, Excerpts::default()).await.unwrap())
}

#[tokio::test]
async fn a_shell_keeps_folder_variables_functions_and_status() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let agent = &sandbox.agent;
        for program in ["bash", "sh"] {
            let shell = open(agent, program).await;
            let at = format!("{way:?}, {program}");
            let ran =
                run(agent, &shell, "cd /usr/bin; plain=1; export told=2; f() { echo \"f $1 $plain\"; }")
                    .await;
            assert_eq!((ran.outcome, &*ran.out, &*ran.err), (Outcome::ExitCode(0), "", ""), "{at}");
            let ran = run(agent, &shell, "pwd; echo $plain $told; f x; sh -c 'echo $plain-$told'").await;
            assert_eq!(ran.out, "/usr/bin\n1 2\nf x 1\n-2\n", "{at}");
            assert_eq!(run(agent, &shell, "sh -c 'exit 7'").await.outcome, Outcome::ExitCode(7), "{at}");
            assert_eq!(run(agent, &shell, "echo $?").await.out, "7\n", "{at}");
            let ran = run(agent, &shell, "cat <<'EOF'\nit's \"quoted\" \\ $HOME !x\nEOF").await;
            assert_eq!(ran.out, "it's \"quoted\" \\ $HOME !x\n", "{at}");
            let ran = run(agent, &shell, "echo err >&2; printf 'no newline'").await;
            assert_eq!((&*ran.out, &*ran.err), ("no newline", "err\n"), "{at}");
            let ran = run(agent, &shell, "cat; echo end").await;
            assert_eq!(ran.out, "end\n", "{at}: input is empty unless given");
            let spec =
                CommandSpec { stdin: "line\n".into(), ..command::in_shell(&shell, "read x; echo got $x") };
            assert_eq!(run_spec(agent, spec).await.out, "got line\n", "{at}");
            assert_eq!(run(agent, &shell, "echo $x").await.out, "line\n", "{at}");
            agent.close_shell(&agent.allot(), &shell).await.unwrap();
        }
    }
}

#[tokio::test]
async fn errors_of_the_script_do_not_end_the_shell() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    for program in ["bash", "sh"] {
        let shell = open(agent, program).await;
        run(agent, &shell, "kept=yes").await;
        for text in ["if then (", "no-such-program-here", "cd /no/where", "-x", "set -u; echo $unset; set +u"]
        {
            let ran = run(agent, &shell, text).await;
            assert!(!ran.ended().shell_ended, "{program}, {text}: {ran:?}");
            assert!(!ran.err.is_empty(), "{program}, {text}: {ran:?}");
            assert_ne!(ran.outcome, Outcome::ExitCode(0), "{program}, {text}");
            assert_eq!(
                run(agent, &shell, "set +u; echo $kept").await.out,
                "yes\n",
                "{program}, after {text}"
            );
        }
    }
}

#[tokio::test]
async fn exit_ends_a_shell_cleanly_and_the_next_command_is_told() {
    for program in ["bash", "sh"] {
        let sandbox = Sandbox::start(Way::Beside).await;
        let agent = &sandbox.agent;
        let shell = open(agent, program).await;
        let ran = run(agent, &shell, "echo bye; exit 3; echo never").await;
        assert_eq!(
            (&ran.outcome, &*ran.out, ran.ended().shell_ended),
            (&Outcome::ExitCode(3), "bye\n", true)
        );
        let ran = run(agent, &shell, "echo again").await;
        let Outcome::Unstarted(unstarted) = ran.outcome else { panic!("{ran:?}") };
        assert_eq!(
            (unstarted.reason(), &*unstarted.message),
            (Reason::ShellEnded, "the shell ended with exit code 3")
        );
        let killed = open(agent, program).await;
        let ran = run(agent, &killed, "kill -9 $$; echo never").await;
        assert_eq!((&ran.outcome, ran.ended().shell_ended), (&Outcome::Signal(9), true));
        let Outcome::Unstarted(unstarted) = run(agent, &killed, "true").await.outcome else { panic!() };
        assert_eq!(unstarted.message, "the shell was ended by signal 9");
    }
}

#[tokio::test]
async fn after_a_timeout_a_shell_lives_on_without_the_old_output() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let agent = &sandbox.agent;
        for program in ["bash", "sh"] {
            let shell = open(agent, program).await;
            run(agent, &shell, "kept=yes; sleep 1234 & bg=$!").await;
            for text in [
                "echo before; sleep 60; echo after; sleep 60; echo more",
                "echo before; while :; do :; done",
                "echo before; while :; do sleep 0.01; echo noise; done",
                "echo before; setsid sh -c 'while :; do echo noise; sleep 0.01; done' & sleep 60",
            ] {
                let spec = CommandSpec { timeout_ms: 600, ..command::in_shell(&shell, text) };
                let ran = run_spec(agent, spec).await;
                let at = format!("{way:?}, {program}, {text}: {ran:?}");
                assert_eq!(ran.outcome, Outcome::TimedOut(TimedOut::default()), "{at}");
                assert!(ran.out.starts_with("before\n") && !ran.out.contains("after"), "{at}");
                assert!(!ran.ended().shell_ended, "{at}");
                let next = run(agent, &shell, "echo $kept; kill -0 $bg && echo alive").await;
                assert_eq!((&*next.out, &*next.err), ("yes\nalive\n", ""), "after {at}");
            }
            // What cannot be interrupted takes the shell along, and never lets the script go on.
            let text = "echo before; (trap '' INT TERM; while :; do sleep 0.01; done); echo after";
            let ran =
                run_spec(agent, CommandSpec { timeout_ms: 600, ..command::in_shell(&shell, text) }).await;
            assert_eq!(
                (&ran.outcome, &*ran.out),
                (&Outcome::TimedOut(TimedOut::default()), "before\n"),
                "{way:?}"
            );
            assert!(ran.ended().shell_ended, "{way:?}, {program}: {ran:?}");
            let Outcome::Unstarted(unstarted) = run(agent, &shell, "true").await.outcome else { panic!() };
            assert_eq!(unstarted.message, "the shell was ended by signal 9");
        }
    }
}

/// Processes of others, ended with it.
struct Crowd(std::process::Child);

impl Crowd {
    fn of(count: u32) -> Crowd {
        let script = format!("for i in $(seq {count}); do sleep 600 & done; echo; wait");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).process_group(0).stdout(std::process::Stdio::piped());
        let mut crowd = Crowd(command.spawn().unwrap());
        let mut line = [0];
        std::io::Read::read_exact(crowd.0.stdout.as_mut().unwrap(), &mut line).unwrap();
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Where a look at all processes takes longer than a script's child lives, the script is interrupted none the less.
#[tokio::test]
async fn a_script_is_interrupted_among_a_thousand_processes() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let _crowd = Crowd::of(1000);
    for program in ["bash", "sh"] {
        let shell = open(agent, program).await;
        for text in ["while :; do sleep 0.01; done", "while :; do sh -c 'sleep 0.01; :'; done"] {
            let spec = CommandSpec { timeout_ms: 300, ..command::in_shell(&shell, text) };
            let ran = run_spec(agent, spec).await;
            let at = format!("{program}, {text}: {ran:?}");
            assert_eq!(ran.outcome, Outcome::TimedOut(TimedOut::default()), "{at}");
            assert!(!ran.ended().shell_ended, "{at}");
        }
    }
}

#[tokio::test]
async fn what_an_earlier_script_left_running_prints_nowhere_else() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let shell = open(agent, "").await;
    let noisy = run(agent, &shell, "(while :; do echo noise; sleep 0.01; done) & echo started").await;
    assert!(noisy.out.contains("started"));
    for number in 0..20 {
        let ran = run(agent, &shell, &format!("echo {number}")).await;
        assert_eq!((ran.out, ran.err), (format!("{number}\n"), String::new()));
    }
}

#[tokio::test]
async fn scripts_of_one_shell_run_one_after_the_other() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let shell = open(agent, "").await;
    run(agent, &shell, "n=0").await;
    let runs = (0..30).map(|_| run(agent, &shell, "m=$n; n=$((m + 1)); echo $n"));
    let mut seen: Vec<usize> = futures::future::join_all(runs)
        .await
        .into_iter()
        .map(|ran| ran.out.trim().parse().unwrap())
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (1..=30).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_shell_of_another_user_and_what_is_refused() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let shell = open(agent, "").await;
    let Outcome::Unstarted(unstarted) =
        run_spec(agent, CommandSpec { program: None, ..command::in_shell(&shell, "") }).await.outcome
    else {
        panic!()
    };
    assert_eq!(unstarted.message, "in a shell a command is a script");
    let request = OpenShellRequest { shell: "fish".into(), ..OpenShellRequest::default() };
    let refused = agent.open_shell(&agent.allot(), request).await.unwrap_err();
    assert_eq!(refused.to_string(), "shell `fish`: expected `bash` or `sh`");
    let no_shell =
        agent.run(&agent.allot(), command::in_shell(&agent.allot(), "true"), Excerpts::default()).await;
    assert_eq!(no_shell.unwrap_err().reason(), Some(Reason::NotFound));
    if rustix::process::geteuid().is_root() {
        let id = agent.allot();
        let request = OpenShellRequest { user: "nobody".into(), ..OpenShellRequest::default() };
        agent.open_shell(&id, request).await.unwrap();
        let ran = run(agent, &id, "id -un; echo err >&2; read x; echo $?").await;
        assert_eq!((&*ran.out, &*ran.err), ("nobody\n1\n", "err\n"));
    }
}
