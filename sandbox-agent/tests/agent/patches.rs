//! Patches: all or nothing, with what they say of names and modes.

use crate::support::{Sandbox, Way};
use espalier_agent_client::wire::{self, ApplyPatchRequest, patched_file::Action};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

async fn patch(sandbox: &Sandbox, root: &Path, text: &str) -> Result<Vec<wire::PatchedFile>, String> {
    let request = ApplyPatchRequest {
        root: root.display().to_string().into(),
        patch: text.to_owned().into(),
        ..ApplyPatchRequest::default()
    };
    let answer = sandbox.agent.apply_patch(&sandbox.agent.allot(), request).await;
    answer.map(|answer| answer.files).map_err(|error| error.to_string())
}

/// Every file with mode and content.
fn state(root: &Path) -> Vec<(String, u32, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if stat.is_dir() {
                if path.file_name().unwrap() != ".git" {
                    folders.push(path);
                }
            } else {
                let content = match std::fs::read_link(&path) {
                    Ok(target) => format!("-> {}", target.display()),
                    Err(_) => String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned(),
                };
                found.push((name, stat.permissions().mode() & 0o777, content));
            }
        }
    }
    found.sort();
    found
}

fn lines(numbers: impl Iterator<Item = usize>) -> String {
    numbers.map(|number| format!("line {number}\n")).collect()
}

#[tokio::test]
async fn a_git_diff_does_what_git_did() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (before, after) = (sandbox.path("before"), sandbox.path("after"));
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(&after)
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    std::fs::create_dir(&after).unwrap();
    std::fs::create_dir(after.join("deep")).unwrap();
    std::fs::write(after.join("changed"), lines(1..=40)).unwrap();
    std::fs::write(after.join("deep/gone"), "x\n").unwrap();
    std::fs::write(after.join("old name"), lines(1..=20)).unwrap();
    std::fs::write(after.join("script"), "#!/bin/sh\n").unwrap();
    std::fs::write(after.join("no newline"), "a").unwrap();
    // Files and a link that become folders, a folder that becomes a file.
    for name in ["module", "module.py", "same/inner"] {
        std::fs::create_dir_all(after.join(name).parent().unwrap()).unwrap();
        std::fs::write(after.join(name), format!("{name}\n")).unwrap();
    }
    std::os::unix::fs::symlink("deep", after.join("pointer")).unwrap();
    std::fs::create_dir_all(after.join("package/deeper")).unwrap();
    std::fs::write(after.join("package/one"), "1\n").unwrap();
    std::fs::write(after.join("package/deeper/two"), "2\n").unwrap();
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "before"]);
    assert!(Command::new("cp").arg("-a").arg(&after).arg(&before).status().unwrap().success());
    std::fs::write(
        after.join("changed"),
        lines(
            (1..=40).filter(|number| number % 13 != 0).map(|number| if number == 20 { 200 } else { number }),
        ),
    )
    .unwrap();
    std::fs::remove_file(after.join("deep/gone")).unwrap();
    std::fs::rename(after.join("old name"), after.join("neu é")).unwrap();
    std::fs::write(after.join("neu é"), lines(1..=21)).unwrap();
    std::fs::set_permissions(after.join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(after.join("no newline"), "a\nb").unwrap();
    std::fs::create_dir_all(after.join("new/folder")).unwrap();
    std::fs::write(after.join("new/folder/file"), "new\n").unwrap();
    std::fs::write(after.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("changed", after.join("link")).unwrap();
    for (file, inner) in
        [("module", "module/new.py"), ("pointer", "pointer/gone"), ("same/inner", "same/inner/inner")]
    {
        std::fs::remove_file(after.join(file)).unwrap();
        std::fs::create_dir(after.join(file)).unwrap();
        std::fs::write(after.join(inner), "other\n").unwrap();
    }
    std::fs::remove_dir_all(after.join("package")).unwrap();
    std::fs::write(after.join("package"), "whole\n").unwrap();
    git(&["add", "-A"]);
    let diff = git(&["diff", "--cached", "-M"]);
    let expect_before = state(&before);
    let files = patch(&sandbox, &before, &diff).await.unwrap();
    assert_eq!(state(&before), state(&after));
    assert!(!before.join("deep").exists(), "an empty folder goes");
    let renamed = files.iter().find(|file| file.action() == Action::Renamed).unwrap();
    assert_eq!((&renamed.from[..], &renamed.path[..]), (&b"old name"[..], "neu é".as_bytes()));
    // And back.
    let request = ApplyPatchRequest {
        root: before.display().to_string().into(),
        patch: diff.into(),
        reverse: true,
        ..ApplyPatchRequest::default()
    };
    sandbox.agent.apply_patch(&sandbox.agent.allot(), request).await.unwrap();
    assert_eq!(state(&before), expect_before);
}

#[tokio::test]
async fn what_does_not_apply_changes_nothing_and_names_the_hunk() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let root = sandbox.path("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("one"), lines(1..=30)).unwrap();
    std::fs::write(root.join("two"), "a\nb\nc\n").unwrap();
    std::fs::write(root.join("binary"), b"a\0b\n").unwrap();
    std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
    let expect = state(&root);
    let good = "--- a/one\n+++ b/one\n@@ -1,2 +1,2 @@\n-line 1\n+LINE 1\n line 2\n";
    for (bad, message) in [
        (
            "--- a/two\n+++ b/two\n@@ -1,1 +1,1 @@\n-a\n+A\n@@ -3,1 +3,1 @@\n-x\n+y\n",
            "`two`: hunk 2 (line 3) does not apply",
        ),
        ("--- a/none\n+++ b/none\n@@ -1,1 +1,1 @@\n-a\n+A\n", "`none`: no such file"),
        ("--- /dev/null\n+++ b/two\n@@ -0,0 +1,1 @@\n+A\n", "`two`: already exists"),
        ("--- a/binary\n+++ b/binary\n@@ -1,1 +1,1 @@\n-a\n+b\n", "`binary` is binary: send it as a file"),
        (
            "--- a/two\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n",
            "`two`: cannot be deleted, it has lines that are not in the patch",
        ),
        (
            "--- a/out/passwd\n+++ b/out/passwd\n@@ -1,1 +1,1 @@\n-a\n+b\n",
            "`out/passwd`: invalid cross-device link",
        ),
    ] {
        let error = patch(&sandbox, &root, &format!("{good}{bad}")).await.unwrap_err();
        assert_eq!(error, message);
        assert_eq!(state(&root), expect, "after {message}");
    }
    assert_eq!(patch(&sandbox, &root, "no patch at all\n").await.unwrap_err(), "the patch contains no file");
    // A place that cannot be written: what was written before is taken back.
    let order = "--- /dev/null\n+++ b/new/file\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/two/file\n@@ -0,0 +1 @@\n+x\n";
    assert_eq!(
        patch(&sandbox, &root, &format!("{good}{order}")).await.unwrap_err(),
        "`two/file`: not a directory"
    );
    assert_eq!(state(&root), expect);
    assert!(!root.join("new").exists());
    // Files and folders that take each other's names, where something is in the way.
    std::fs::create_dir_all(root.join("folder/inner")).unwrap();
    std::fs::write(root.join("folder/inner/file"), "x\n").unwrap();
    std::fs::write(root.join("folder/other"), "x\n").unwrap();
    let expect = state(&root);
    let file = "--- /dev/null\n+++ b/folder\n@@ -0,0 +1 @@\n+y\n";
    let gone = "--- a/folder/inner/file\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";
    let within = "--- /dev/null\n+++ b/folder/new\n@@ -0,0 +1 @@\n+y\n";
    let into = "--- a/two\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-a\n-b\n-c\n--- /dev/null\n+++ b/two/in\n@@ -0,0 +1 @@\n+y\n";
    let kept = "`folder`: is a directory with entries that the patch does not remove";
    for (bad, message) in [
        (format!("{file}{gone}"), kept),
        (format!("{into}{file}{gone}"), kept),
        (format!("{file}{file}"), "`folder`: already exists"),
        (format!("{file}{within}"), "`folder/new`: `folder` is a file after the patch"),
    ] {
        assert_eq!(patch(&sandbox, &root, &bad).await.unwrap_err(), message);
        assert_eq!(state(&root), expect, "after {message}");
    }
    let other = gone.replace("inner/file", "other");
    patch(&sandbox, &root, &format!("{into}{file}{gone}{other}")).await.unwrap();
    let names: Vec<String> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert_eq!(std::fs::read_to_string(root.join("folder")).unwrap(), "y\n");
    assert_eq!(std::fs::read_to_string(root.join("two/in")).unwrap(), "y\n");
    let expect = state(&root);
    let request = ApplyPatchRequest {
        root: root.display().to_string().into(),
        patch: good.into(),
        dry_run: true,
        ..ApplyPatchRequest::default()
    };
    let answer = sandbox.agent.apply_patch(&sandbox.agent.allot(), request).await.unwrap();
    assert_eq!((answer.files.len(), state(&root) == expect), (1, true));
    let shifted =
        patch(&sandbox, &root, "--- a/one\n+++ b/one\n@@ -1,3 +1,3 @@\n line 9\n-line 10\n+ten\n wrong\n")
            .await
            .unwrap();
    assert_eq!((shifted[0].shifted, shifted[0].fuzzy), (1, 1));
}
