//! The program by itself: without what an engine gives it, it says so and does nothing.

use std::process::Command;

#[test]
fn what_is_missing_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("sandboxes");
    for (arguments, expect) in [
        (
            vec![],
            "espalier-keeper: usage: espalier-keeper FOLDER AGENT; it is started by the engine\n".to_owned(),
        ),
        (
            vec![kept.clone(), folder.path().join("no-agent")],
            format!(
                "espalier-keeper: the agent {}/no-agent: No such file or directory (os error 2)\n",
                folder.path().display()
            ),
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_espalier-keeper")).args(arguments).output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(2), expect));
    }
    assert!(!kept.join("keeper.sock").exists());
}
