//! Files: streamed, whole, with mode and owner; odd names, links, holes.

use crate::support::{Sandbox, Way, ways};
use bytes::Bytes;
use espalier_agent_client::files::Source;
use espalier_agent_client::wire::{self, FileKind, MakeFolderRequest, Reason, WriteHeader};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn wire(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

fn header(path: &Path) -> WriteHeader {
    WriteHeader { path: wire(path), ..WriteHeader::default() }
}

async fn write(
    sandbox: &Sandbox,
    header: WriteHeader,
    bytes: impl Into<Bytes>,
) -> Result<wire::FileStat, Option<Reason>> {
    let written = sandbox.agent.write(&sandbox.agent.allot(), header, Source::Bytes(bytes.into())).await;
    written.map(|answer| answer.stat.unwrap()).map_err(|error| error.reason())
}

async fn read(sandbox: &Sandbox, path: &Path) -> Vec<u8> {
    sandbox.agent.read(wire(path), 0, 0).await.unwrap().collect(64 << 20).await.unwrap()
}

#[tokio::test]
async fn a_file_goes_in_and_comes_out() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let path = sandbox.path("file");
        let bytes: Vec<u8> =
            (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let stat =
            write(&sandbox, WriteHeader { mode: Some(0o640), ..header(&path) }, bytes.clone()).await.unwrap();
        assert_eq!((stat.kind(), stat.mode, stat.size), (FileKind::File, 0o640, 3_000_000), "{way:?}");
        assert!(read(&sandbox, &path).await == bytes, "{way:?}");
        let part = sandbox.agent.read(wire(&path), 1_000_000, 77_777).await.unwrap();
        assert!(part.collect(1 << 20).await.unwrap() == bytes[1_000_000..1_077_777], "{way:?}");
        write(&sandbox, header(&path), "").await.unwrap();
        let kept = std::fs::metadata(&path).unwrap();
        assert_eq!((kept.len(), kept.permissions().mode() & 0o7777), (0, 0o640), "the mode stays");
        let fresh = sandbox.path("a/b/c");
        assert_eq!(write(&sandbox, header(&fresh), "x").await, Err(Some(Reason::NotFound)));
        let stat = write(&sandbox, WriteHeader { parents: true, ..header(&fresh) }, "x").await.unwrap();
        assert_eq!(stat.mode, 0o644);
    }
}

#[tokio::test]
async fn owners_are_names_or_numbers() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = Sandbox::start(Way::Beside).await;
    let path = sandbox.path("owned/file");
    let wanted = WriteHeader { owner: "nobody".into(), parents: true, mode: Some(0o4755), ..header(&path) };
    let stat = write(&sandbox, wanted, "x").await.unwrap();
    assert_eq!((stat.user_id, stat.mode), (65534, 0o4755));
    assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().uid(), 65534);
    write(&sandbox, header(&path), "y").await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), 65534, "the owner stays");
    let stat = write(&sandbox, WriteHeader { owner: "7:8".into(), ..header(&path) }, "z").await.unwrap();
    assert_eq!((stat.user_id, stat.group_id), (7, 8));
    let unknown = write(&sandbox, WriteHeader { owner: "who".into(), ..header(&path) }, "z").await;
    assert_eq!(unknown, Err(Some(Reason::NotFound)));
    assert_eq!(std::fs::metadata(sandbox.path("owned")).unwrap().uid(), 65534);
    let plain = write(&sandbox, header(&sandbox.path("plain")), "x").await.unwrap();
    assert_eq!((plain.user_id, plain.group_id), (0, 0));
}

#[tokio::test]
async fn links_are_followed_or_replaced_and_broken_ones_are_links() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (target, link, broken) = (sandbox.path("target"), sandbox.path("link"), sandbox.path("broken"));
    std::fs::write(&target, "old").unwrap();
    symlink("target", &link).unwrap();
    symlink("no/where", &broken).unwrap();
    write(&sandbox, header(&link), "through").await.unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"through");
    write(&sandbox, WriteHeader { replace_link: true, ..header(&link) }, "instead").await.unwrap();
    assert_eq!(
        (std::fs::read(&target).unwrap(), std::fs::read(&link).unwrap()),
        (b"through".to_vec(), b"instead".to_vec())
    );
    let listed = sandbox.agent.list_folder(wire(sandbox.folder.path()), 1).await.unwrap();
    let entry = listed.iter().find(|entry| entry.path == "broken").unwrap();
    let stat = entry.stat.as_ref().unwrap();
    assert_eq!((stat.kind(), &stat.target[..]), (FileKind::Link, &b"no/where"[..]));
    assert_eq!(sandbox.agent.stat(wire(&broken), false).await.unwrap().kind(), FileKind::Link);
    assert_eq!(sandbox.agent.stat(wire(&broken), true).await.unwrap_err().reason(), Some(Reason::NotFound));
}

#[tokio::test]
async fn names_that_are_not_utf8_are_kept() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let path = sandbox.folder.path().join(OsStr::from_bytes(b"\xff\xfe name\n"));
    write(&sandbox, header(&path), "x").await.unwrap();
    assert_eq!(read(&sandbox, &path).await, b"x");
    let listed = sandbox.agent.list_folder(wire(sandbox.folder.path()), 1).await.unwrap();
    assert!(listed.iter().any(|entry| &entry.path[..] == b"\xff\xfe name\n"));
}

#[tokio::test]
async fn holes_stay_holes_and_large_files_are_no_burden() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let path = sandbox.path("sparse");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(2 << 30).unwrap();
    file.write_all_at(b"middle", 1 << 30).unwrap();
    file.write_all_at(b"end", (2 << 30) - 3).unwrap();
    let mut reader = sandbox.agent.read(wire(&path), 0, 0).await.unwrap();
    assert_eq!(reader.stat().size, 2 << 30);
    let mut bytes = 0;
    let mut seen = Vec::new();
    while let Some(chunk) = reader.next().await.unwrap() {
        bytes += chunk.bytes.len();
        seen.push(chunk.offset);
    }
    assert!(bytes < 1 << 20, "{bytes} bytes for 9 that are not zero");
    assert!(seen.iter().any(|offset| *offset <= 1 << 30));
    let copy = sandbox.path("copy");
    let id = sandbox.agent.allot();
    sandbox.agent.write(&id, header(&copy), Source::File(path.clone())).await.unwrap();
    let stat = std::fs::metadata(&copy).unwrap();
    assert_eq!(stat.len(), 2 << 30);
    assert!(stat.blocks() * 512 < 4 << 20, "{} blocks", stat.blocks());
    let mut middle = [0; 6];
    std::fs::File::open(&copy).unwrap().read_exact_at(&mut middle, 1 << 30).unwrap();
    assert_eq!(&middle, b"middle");
}

#[tokio::test]
async fn folders_are_listed_as_deep_as_asked_and_never_through_links() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let root = sandbox.path("tree");
    std::fs::create_dir_all(root.join("a/b/c")).unwrap();
    std::fs::write(root.join("a/file"), "x").unwrap();
    symlink("..", root.join("a/up")).unwrap();
    let names = async |depth| {
        let listed = sandbox.agent.list_folder(wire(&root), depth).await.unwrap();
        listed.into_iter().map(|entry| String::from_utf8(entry.path.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(0).await, ["a"]);
    assert_eq!(names(2).await, ["a", "a/b", "a/file", "a/up"]);
    assert_eq!(names(9).await, ["a", "a/b", "a/file", "a/up", "a/b/c"]);
    for number in 0..1000 {
        std::fs::write(root.join(format!("f{number:04}")), "").unwrap();
    }
    assert_eq!(names(1).await.len(), 1001);
}

#[tokio::test]
async fn entries_are_made_moved_and_removed() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let make = async |path: &Path, parents| {
        let request = MakeFolderRequest {
            path: wire(path),
            mode: Some(0o1777),
            parents,
            ..MakeFolderRequest::default()
        };
        agent.make_folder(&agent.allot(), request).await.map_err(|error| error.reason())
    };
    let folder = sandbox.path("one/two");
    assert_eq!(make(&folder, false).await, Err(Some(Reason::NotFound)));
    make(&folder, true).await.unwrap();
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o1777);
    assert_eq!(make(&folder, false).await, Err(Some(Reason::Kind)));
    std::fs::write(folder.join("file"), "x").unwrap();
    let moved = |from: &Path, to: &Path, replace| {
        let (from, to) = (wire(from), wire(to));
        async move { agent.move_to(&agent.allot(), from, to, replace).await.map_err(|error| error.reason()) }
    };
    std::fs::write(sandbox.path("other"), "y").unwrap();
    assert_eq!(moved(&folder.join("file"), &sandbox.path("other"), false).await, Err(Some(Reason::Kind)));
    moved(&folder.join("file"), &sandbox.path("other"), true).await.unwrap();
    assert_eq!(std::fs::read(sandbox.path("other")).unwrap(), b"x");
    // Where a link stands in the way.
    symlink(sandbox.path("one"), sandbox.path("way")).unwrap();
    let through = sandbox.path("way/two/deep");
    let without_links = async |to: &Path| {
        let moved = agent.move_without_links(&agent.allot(), wire(&sandbox.path("other")), wire(to)).await;
        moved.map_err(|error| error.reason())
    };
    assert!(without_links(&through).await.is_err() && !through.exists());
    without_links(&folder.join("plain")).await.unwrap();
    assert_eq!(std::fs::read(folder.join("plain")).unwrap(), b"x");
    std::fs::rename(folder.join("plain"), sandbox.path("other")).unwrap();
    // To another file system.
    let far = Path::new("/dev/shm").join(format!("espalier-test-{}", std::process::id()));
    std::fs::write(folder.join("deep"), "z").unwrap();
    symlink("deep", folder.join("link")).unwrap();
    moved(&sandbox.path("one"), &far, false).await.unwrap();
    assert_eq!(std::fs::read(far.join("two/link")).unwrap(), b"z");
    assert!(!sandbox.path("one").exists());
    let removed = async |path: &Path, recursive, missing_ok| {
        agent.remove(&agent.allot(), wire(path), recursive, missing_ok).await.map_err(|error| error.reason())
    };
    assert_eq!(removed(&far, false, false).await, Err(Some(Reason::Kind)));
    assert_eq!(removed(&far, true, false).await, Ok(4));
    assert_eq!(removed(&far, true, false).await, Err(Some(Reason::NotFound)));
    assert_eq!(removed(&far, true, true).await, Ok(0));
    assert_eq!(removed(Path::new("/"), true, true).await, Err(Some(Reason::Denied)));
    assert_eq!(removed(Path::new("relative"), true, true).await, Err(Some(Reason::Invalid)));
}

#[tokio::test]
async fn what_is_no_file_is_refused_with_its_reason() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let fails = async |path: &str| sandbox.agent.read(path.to_owned(), 0, 0).await.unwrap_err();
    let folder = sandbox.folder.path().display().to_string();
    sandbox.sh(&format!("mkfifo {folder}/fifo; ln -s /proc/self/mem {folder}/mem; ln -s loop {folder}/loop; ln -s /proc/self/fd/0 {folder}/fd")).await;
    for (path, reason, message) in [
        (format!("{folder}/none"), Reason::NotFound, "no such file or directory"),
        (folder.clone(), Reason::Kind, "is a directory"),
        (format!("{folder}/fifo"), Reason::Kind, "not a regular file"),
        ("/dev/zero".to_owned(), Reason::Kind, "not a regular file"),
        (format!("{folder}/loop"), Reason::Denied, "too many levels of symbolic links"),
        (format!("{folder}/mem"), Reason::Denied, "permission denied"),
        (format!("{folder}/fd"), Reason::Denied, "too many levels of symbolic links"),
        ("/proc/self/environ".to_owned(), Reason::Denied, "permission denied"),
        ("here".to_owned(), Reason::Invalid, "not absolute"),
    ] {
        let error = fails(&path).await;
        assert_eq!(error.reason(), Some(reason), "{path}: {error}");
        assert!(error.to_string().ends_with(message), "{path}: {error}");
    }
    let text = sandbox.agent.read("/proc/version", 0, 0).await.unwrap();
    assert!(text.stat().size == 0);
    let full = write(&sandbox, header(Path::new("/dev/full/x")), "x").await;
    assert_eq!(full, Err(Some(Reason::Kind)));
    let exists = WriteHeader { create_new: true, ..header(Path::new("/etc/passwd")) };
    assert_eq!(write(&sandbox, exists, "x").await, Err(Some(Reason::Kind)));
    let mode = WriteHeader { mode: Some(0o100_644), ..header(&sandbox.path("x")) };
    assert_eq!(write(&sandbox, mode, "x").await, Err(Some(Reason::Invalid)));
    assert!(!sandbox.path("x").exists());
}

#[tokio::test]
async fn a_full_disk_is_told_as_such() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = Sandbox::start(Way::ProcessOne).await;
    let small = sandbox.path("small");
    let ran =
        sandbox.sh(&format!("mkdir {0} && mount -t tmpfs -o size=64k tmpfs {0}", small.display())).await;
    assert_eq!(ran.err, "");
    assert_eq!(
        write(&sandbox, header(&small.join("file")), vec![1; 200_000]).await,
        Err(Some(Reason::DiskFull))
    );
    assert_eq!(
        sandbox.sh(&format!("ls -A {} | wc -l", small.display())).await.out,
        "0\n",
        "nothing is left behind"
    );
}

#[tokio::test]
async fn a_folder_with_more_names_than_fit_is_said_to_be_one() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let (many, long) = (sandbox.path("many"), sandbox.path("long"));
    for (folder, count, width) in [(&many, 5000, 8), (&long, 17_000, 250)] {
        std::fs::create_dir(folder).unwrap();
        for number in 0..count {
            std::fs::File::create(folder.join(format!("{number:0width$}"))).unwrap();
        }
    }
    let listed = sandbox.agent.list_folder(sandbox.folder.path().display().to_string(), 2).await.unwrap();
    let below = listed.iter().filter(|entry| entry.path.starts_with(b"many/"));
    let names: Vec<_> = below.map(|entry| entry.path.clone()).collect();
    assert_eq!(names.len(), 5000);
    assert!(names.is_sorted());
    let errors: Vec<_> = listed.iter().filter(|entry| !entry.error.is_empty()).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (&errors[0].path[..], &*errors[0].error),
        (&b"long"[..], "its names have more than 4194304 bytes")
    );
}
