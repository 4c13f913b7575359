//! Signals to commands that wait: each ends with the documented code.

use crate::Fixture;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// How long anything of a test may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What comes of something that may block for ever.
fn within<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}: nothing for {PATIENCE:?}"))
}

/// Each waits for what never comes: a server that says nothing, or a pipe that nobody writes to.
#[test]
fn a_signal_ends_every_command_with_the_documented_code() {
    let fixture = Fixture::with("name = \"craft\"", "name = \"craft\"");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let server = format!("postgres://u:p@{address}/d?sslmode=disable");
    let image = format!("{address}/a:v1");
    let store = ["--store", server.as_str()];
    for (number, arguments) in [
        &[&store[..], &["list"]].concat()[..],
        &[&store[..], &["show", "craft"]].concat(),
        &[&store[..], &["export", "craft", "--format", "sft-chat", "--out", "out"]].concat(),
        &[&store[..], &["key", "list"]].concat(),
        &[&store[..], &["key", "create", "ci"]].concat(),
        &[&store[..], &["plugin", "alias", "agent", "idle"]].concat(),
        &[&store[..], &["serve", "--listen", "127.0.0.1:0"]].concat(),
        &["image", "pull", &image],
        &["task", "import", "swe-bench", "pipe.jsonl", "--out", "out"],
        &["task", "check", "pipe.jsonl"],
        &["task", "check", "pipe.toml"],
        &["task", "from-manifest", "pipe.toml", "--out", "out"],
        &["run", "pipe.toml"],
    ]
    .into_iter()
    .enumerate()
    {
        let shown = arguments.join(" ");
        let pipe = arguments.iter().find_map(|argument| argument.find("pipe.").map(|at| &argument[at..]));
        let pipe = pipe.map(|name| fixture.folder.path().join(name));
        if let Some(pipe) = &pipe {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        let mut child = fixture.command(arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
        // It is at work when somebody is there.
        let _connected = pipe.is_none().then(|| {
            let silent = silent.try_clone().unwrap();
            within(&shown, move || silent.accept().unwrap())
        });
        let _opened = pipe
            .clone()
            .map(|pipe| within(&shown, move || fs::OpenOptions::new().write(true).open(pipe).unwrap()));
        let signal = ["-TERM", "-INT", "-HUP"][number % 3];
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let status = within(&shown, move || child.wait().unwrap());
        assert_eq!(status.code(), Some(130), "{shown}: {status}");
        pipe.map(fs::remove_file).transpose().unwrap();
        assert!(!fixture.folder.path().join("out").exists(), "{shown}");
    }
}
