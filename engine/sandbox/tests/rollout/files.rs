//! Files, patches, and the work of one sandbox put into another.

use crate::support::{Rollout, code, sh};
use espalier_core::attempt::AttemptCapability;
use espalier_core::host::Blobs;
use espalier_core::host::sandbox::{FileKind, PatchAction, PatchOptions, Sandboxes, WriteOptions};

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let parents = WriteOptions { parents: true, mode: Some(0o640), ..WriteOptions::default() };
    sandbox.write_file(b"a/b/\xFFname", b"0123456789".to_vec(), parents).await.unwrap();
    assert_eq!(sandbox.read_file(b"a/b/\xFFname", 4, 3).await.unwrap(), b"456");
    assert_eq!(sandbox.read_file(b"a/b/\xFFname", 10, 3).await.unwrap(), b"");
    assert_eq!(sandbox.read_file(b"a/b/\xFFname", 99, 3).await.unwrap(), b"");
    assert_eq!(sandbox.read_file(b"given", 0, 0).await.unwrap(), b"");
    let stat = sandbox.stat(b"a/b/\xFFname", true).await.unwrap();
    assert_eq!((stat.kind, stat.mode, stat.size), (FileKind::File, 0o640, 10));
    assert!(stat.modified_ms > 1_600_000_000_000);
    sh(&sandbox, "ln -s nowhere a/broken").await;
    let mut entries = sandbox.list_folder(b"a", 2, 10).await.unwrap();
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let listed: Vec<_> = entries.iter().map(|entry| (&entry.path[..], &entry.stat.kind)).collect();
    assert_eq!(
        listed,
        [
            (&b"b"[..], &FileKind::Folder),
            (&b"b/\xFFname"[..], &FileKind::File),
            (&b"broken"[..], &FileKind::Link)
        ]
    );
    assert_eq!(entries[2].stat.target.as_deref(), Some(&b"nowhere"[..]));
    assert_eq!(code(&sandbox.list_folder(b"a", 2, 2).await.unwrap_err()), "bound");
    sandbox.make_folder(b"c", WriteOptions::default()).await.unwrap();
    sandbox.move_to(b"a/b", b"c/d", false).await.unwrap();
    assert_eq!(code(&sandbox.move_to(b"c/d", b"given", false).await.unwrap_err()), "wrong-kind");
    let new = WriteOptions { create_new: true, ..WriteOptions::default() };
    assert_eq!(code(&sandbox.write_file(b"given", vec![], new).await.unwrap_err()), "wrong-kind");
    assert_eq!(code(&sandbox.remove(b"gone", false, false).await.unwrap_err()), "not-found");
    assert_eq!(sandbox.remove(b"gone", false, true).await.unwrap(), 0);
    assert_eq!(sandbox.remove(b"c", true, false).await.unwrap(), 3);
    assert_eq!(code(&sandbox.read_file(b"c", 0, 1).await.unwrap_err()), "not-found");
    assert_eq!(rollout.sandboxes.lost(), None);
}

#[tokio::test]
async fn files_are_kept_as_blobs_and_blobs_written_as_files() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    sh(&sandbox, "head -c 3000000 /dev/urandom > big; cp big same").await;
    let blob = sandbox.file_to_blob(b"big", 4 << 20).await.unwrap();
    assert_eq!(rollout.blobs.stat(&blob).await.unwrap().length, 3_000_000);
    sandbox.blob_to_file(&blob, b"again", WriteOptions::default(), 4 << 20).await.unwrap();
    assert_eq!(sh(&sandbox, "cmp big again && echo same").await.stdout.head, "same\n");
    assert_eq!(code(&sandbox.file_to_blob(b"big", 1000).await.unwrap_err()), "bound");
    let options = WriteOptions::default();
    assert_eq!(code(&sandbox.blob_to_file(&blob, b"x", options, 1000).await.unwrap_err()), "bound");
}

#[tokio::test]
async fn a_patch_applies_wholly_or_says_where_it_does_not() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    let patch = "--- a/given\n+++ b/given\n@@ -1 +1,2 @@\n-as it was\n+as it is\n+now\n\
                 --- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n";
    let dry = PatchOptions { dry_run: true, ..PatchOptions::default() };
    assert_eq!(sandbox.apply_patch(patch.to_owned(), dry).await.unwrap().len(), 2);
    assert_eq!(sh(&sandbox, "cat given").await.stdout.head, "as it was\n");
    let files = sandbox.apply_patch(patch.to_owned(), PatchOptions::default()).await.unwrap();
    let told: Vec<_> = files.iter().map(|file| (&file.path[..], &file.action, file.hunks)).collect();
    assert_eq!(told, [(&b"given"[..], &PatchAction::Modified, 1), (&b"new"[..], &PatchAction::Created, 1)]);
    assert_eq!(sh(&sandbox, "cat given new").await.stdout.head, "as it is\nnow\nnew\n");
    let failure = sandbox.apply_patch(patch.to_owned(), PatchOptions::default()).await.unwrap_err();
    assert_eq!((code(&failure), failure.to_string().contains("given")), ("patch", true), "{failure}");
}

#[tokio::test]
async fn the_work_of_one_sandbox_is_put_into_a_fresh_one() {
    let rollout = Rollout::new();
    let sandbox = rollout.main().await;
    sh(&sandbox, "printf 'b\\0\\377' > binary; chmod 751 binary; ln -s binary link; rm given; mkdir empty")
        .await;
    let changes = sandbox.changes(None, 1 << 20).await.unwrap();
    assert_eq!((changes.added, changes.changed, changes.removed), (3, 0, 1));
    // Two agents on one machine have their own folders, so what is put into the second goes to the same paths: taken away
    // from the first before, it comes back.
    sh(&sandbox, "rm -r binary link empty; echo again > given").await;
    let fresh = rollout.sandboxes.open_fresh("main").await.unwrap();
    fresh.apply_changes(&changes.blob).await.unwrap();
    let ran = sh(&sandbox, "stat -c %a binary; od -An -c binary; readlink link; ls -A").await;
    assert_eq!(ran.stdout.head, "751\n   b  \\0 377\nbinary\nbinary\nempty\nlink\n");
    assert_eq!(code(&sandbox.changes(Some(b"/usr"), 1 << 20).await.unwrap_err()), "invalid");
    sh(&sandbox, "head -c 100000 /dev/zero > large").await;
    assert_eq!(code(&sandbox.changes(None, 1000).await.unwrap_err()), "bound");
    let nonsense = rollout.blobs.put(b"no changes at all".to_vec(), "text/plain").await.unwrap();
    let failure = fresh.apply_changes(&nonsense).await.unwrap_err();
    assert_eq!(code(&failure), "invalid", "{failure}");
}
