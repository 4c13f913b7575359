//! Every import of `espalier:sandbox`, once and more, each with what came back: the host's side is tested by it.

use crate::guest::bindings::espalier::base::types::Failure;
use crate::guest::bindings::espalier::sandbox::sandboxes::{
    self, Channel, Command, Ending, PatchOptions, Path, Program, RunOptions, ShellOptions, TerminalSize,
    WriteOptions,
};

fn command(text: &str) -> Command {
    Command {
        program: Program::Shell(text.to_owned()),
        cwd: None,
        env: Vec::new(),
        stdin: None,
        user: None,
        timeout_ms: Some(30_000),
        output_max: None,
        keep_whole: false,
        merge_stderr: false,
        terminal: None,
        extra: None,
    }
}

fn text(name: &str) -> Path {
    Path::Text(name.to_owned())
}

fn options() -> WriteOptions {
    WriteOptions { mode: None, owner: None, parents: false, create_new: false, extra: None }
}

fn failed<T>(result: Result<T, Failure>) -> String {
    match result {
        Ok(_) => "fine".to_owned(),
        Err(Failure::Other(other)) => other.code,
        Err(Failure::Invalid(why)) => format!("invalid: {why}"),
        Err(failure) => format!("{failure:?}"),
    }
}

/// What each call came to, one line for each.
pub(crate) fn tour() -> Result<Vec<String>, Failure> {
    let mut told = Vec::new();
    let mut tell = |line: String| told.push(line);
    let sandbox = sandboxes::open("main")?;

    let ran = sandbox.exec(&Command {
        program: Program::Argv(vec!["sh".into(), "-c".into(), "cat; echo $A; echo e >&2; exit 3".into()]),
        env: vec![("A".into(), "b".into())],
        stdin: Some(b"in ".to_vec()),
        cwd: Some(text("/")),
        ..command("")
    })?;
    tell(format!("exec {:?} {:?} {:?}", ran.ending, ran.stdout.head, ran.stderr.head));
    let ran =
        sandbox.exec(&Command { output_max: Some(4), keep_whole: true, ..command("printf 123456789") })?;
    let whole = crate::guest::bindings::espalier::base::blobs::read_text(
        ran.stdout.whole.as_deref().unwrap_or(""),
        0,
        99,
    )?;
    tell(format!("cut {} {} {} {whole}", ran.stdout.head, ran.stdout.left_out, ran.stdout.tail));
    let late = sandbox.exec(&Command { timeout_ms: Some(200), ..command("sleep 60") })?;
    tell(format!("late {:?}", late.ending));
    tell(failed(sandbox.exec(&Command { timeout_ms: Some(0), ..command("true") })));
    tell(failed(sandbox.exec(&Command { output_max: Some(2 << 20), ..command("true") })));
    tell(failed(sandbox.exec(&Command { program: Program::Argv(vec![]), ..command("") })));
    tell(failed(sandbox.exec(&Command { env: vec![("A=".into(), String::new())], ..command("") })));
    tell(failed(sandbox.exec(&Command { cwd: Some(Path::Bytes(vec![])), ..command("") })));
    tell(failed(sandbox.exec(&Command { program: Program::Argv(vec!["no-such".into()]), ..command("") })));

    let cat = sandbox.start(&Command { timeout_ms: None, ..command("echo up; cat; exit 7") })?;
    let pid = cat.pid();
    tell(format!("pid {} {:?}", pid > 1, cat.poll()?.is_none()));
    let piece = cat.read(Channel::Stdout, 0, 100, 30_000)?;
    tell(format!("read {} {:?}", piece.offset, String::from_utf8_lossy(&piece.bytes)));
    tell(format!("taken {}", cat.write_stdin(b"hello\n")?));
    tell(format!("waited {:?}", cat.wait(10)?.is_none()));
    tell(failed(cat.resize(TerminalSize { rows: 1, columns: 1 })));
    tell(failed(cat.signal(0, false)));
    let sleeper = sandbox.start(&Command { timeout_ms: None, ..command("sleep 600") })?;
    tell(format!("none {:?}", sandboxes::wait_any(&[&sleeper, &cat], 10)?));
    cat.close_stdin()?;
    tell(format!("any {:?}", sandboxes::wait_any(&[&sleeper, &cat], 30_000)?));
    let ended = cat.wait(30_000)?.expect("wait-any said so");
    tell(format!("ended {:?} {:?}", ended.ending, ended.stdout.head));
    tell(format!("signal {}", sleeper.signal(15, false)?));
    let ended = sleeper.wait(30_000)?;
    tell(format!("killed {:?}", ended.map(|outcome| matches!(outcome.ending, Ending::Signal(15)))));
    tell(failed(sandboxes::wait_any(&[], 1)));
    drop((cat, sleeper));

    let shell = sandbox.open_shell(&ShellOptions {
        program: Some("sh".into()),
        cwd: None,
        env: vec![],
        user: None,
        extra: None,
    })?;
    let run = RunOptions {
        timeout_ms: None,
        stdin: Some(b"line\n".to_vec()),
        output_max: None,
        keep_whole: false,
        merge_stderr: true,
        extra: None,
    };
    shell.run("read x; cd /usr", &run)?;
    tell(format!("shell {:?}", shell.run("pwd; echo $x >&2", &run)?.stdout.head));
    shell.close()?;
    tell(failed(shell.run("true", &run)));

    sandbox.make_folder(&text("d"), &options())?;
    let raw = Path::Bytes(b"d/\xFF".to_vec());
    sandbox.write_file(&raw, b"0123456789", &WriteOptions { mode: Some(0o600), ..options() })?;
    tell(format!("file {:?}", String::from_utf8_lossy(&sandbox.read_file(&raw, 3, 4)?)));
    tell(failed(sandbox.read_file(&raw, 0, 2 << 20)));
    tell(failed(sandbox.read_file(&text("d/none"), 0, 1)));
    for entry in sandbox.list_folder(&text("d"), 1)? {
        tell(format!("entry {:?} {:?} {:o}", entry.path, entry.stat.kind, entry.stat.mode));
    }
    tell(failed(sandbox.list_folder(&text("d"), 0)));
    let blob = sandbox.file_to_blob(&raw)?;
    sandbox.blob_to_file(&blob, &text("d/copy"), &options())?;
    sandbox.move_to(&text("d/copy"), &text("moved"), false)?;
    let stat = sandbox.stat(&text("moved"), true)?;
    tell(format!("stat {:?} {}", stat.kind, stat.size));
    let patch = "--- /dev/null\n+++ b/p\n@@ -0,0 +1 @@\n+x\n";
    let asked =
        PatchOptions { root: None, strip: None, fuzz: None, reverse: false, dry_run: false, extra: None };
    for file in sandbox.apply_patch(patch, &asked)? {
        tell(format!("patched {:?} {:?} {}", file.path, file.action, file.hunks));
    }
    tell(failed(sandbox.apply_patch("--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n", &asked)));
    let changes = sandbox.changes(None)?;
    tell(format!("changes {} {} {}", changes.added, changes.changed, changes.removed));
    sandbox.apply_changes(&changes.blob)?;
    tell(format!("removed {}", sandbox.remove(&text("d"), true, false)?));
    tell(failed(sandbox.checkpoint()));
    tell(format!("port {}", sandbox.port(4_000)?.starts_with("127.0.0.1:")));
    tell(failed(sandbox.port(0)));
    tell(failed(sandboxes::open("nowhere")));
    Ok(told)
}
