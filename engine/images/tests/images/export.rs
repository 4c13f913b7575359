//! What a sandbox changed, written as a layer that others read, and read back.

use crate::tars::{As, Of, Tar, image};
use crate::trees::{Overlay, merged, run, same, tree, umoci};
use crate::{get, store};
use espalier_images::{Draft, ImageError, Rights, Stop, Upper, export, write_archive, write_layout};
use serde_json::json;
use std::path::Path;
use std::process::Command;

fn base() -> Vec<(Vec<u8>, As)> {
    let tar = Tar::new()
        .folder("etc")
        .file("etc/a", "a")
        .file("etc/b", "b")
        .folder("etc/sub")
        .file("etc/sub/x", "x")
        .folder("etc/again")
        .file("etc/again/old", "old")
        .folder("etc/again/deep")
        .file("etc/again/deep/old", "old")
        .add("etc/mode", &Of { mode: 0o600, ..Of::default() });
    vec![(tar.end(), As::Gzip), (Tar::new().folder("etc").file("etc/.wh.b", "").end(), As::Gzip)]
}

/// Changes of every kind, made by the kernel in a real overlay.
const CHANGES: &str = r#"
set -e
echo changed >> etc/a
rm -r etc/sub
rm -r etc/again; mkdir -p etc/again/deep; echo new > etc/again/new
chmod 4711 etc/mode; chown 12:34 etc/mode
mkdir -m 1777 made; ln etc/a made/linked; ln -s ../etc/a made/symlink; mkfifo made/pipe
echo b > etc/b; touch -d '1969-12-31 23:59:58.25 UTC' etc/b
printf 'x' > "made/$(printf 'not \377 utf8')"
truncate -s 3M made/sparse; printf end >> made/sparse
d=made/$(printf 'd%.0s' $(seq 120)); mkdir "$d"; echo long > "$d/$(printf 'f%.0s' $(seq 120))"
setfattr -n user.note -v value etc/a 2>/dev/null || python3 -c 'import os; os.setxattr("etc/a", "user.note", b"value")'
"#;

fn draft<'a>(tag: &'a str, uppers: &'a [Upper]) -> Draft<'a> {
    Draft { tag, base: None, uppers, rights: Rights::Root, config: None }
}

#[tokio::test]
async fn a_checkpoint_is_what_umoci_and_we_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    image(&base(), "amd64", &json!({"Env": ["A=1"], "User": "7"})).layout(&at("layout"), "v1");
    let store = store(&at("store"));
    let base = get(&store, &format!("oci:{}", at("layout").display())).await.unwrap();
    for name in ["upper", "work", "root"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let lower: Vec<_> = base.layers().iter().rev().map(|layer| layer.to_str().unwrap()).collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={},redirect_dir=off,metacopy=off",
        lower.join(":"),
        at("upper").display(),
        at("work").display()
    );
    run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(at("root")));
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let mounted = Unmount(at("root"));
    run(Command::new("bash").arg("-c").arg(CHANGES).current_dir(at("root")));
    let changed = tree(&at("root"));
    drop(mounted);

    let uppers = [Upper::root(at("upper"))];
    let written =
        write_archive(&at("c.tar"), &Draft { base: Some(&base), ..draft("v2", &uppers) }, &Stop::default())
            .unwrap();
    assert_eq!(written.layers.len(), 3);
    let back = get(&store, &format!("oci-archive:{}:v2", at("c.tar").display())).await.unwrap();
    assert_eq!(back.digest(), &written.digest);
    assert_eq!((back.config().env["A"].as_str(), back.config().user.as_str()), ("1", "7"));
    same(&Overlay::mount(back.layers(), &at("back")).tree(), &changed);
    same(&merged(back.layers(), "trusted.overlay.opaque"), &changed);
    // As others read it.
    std::fs::create_dir(at("unpacked")).unwrap();
    run(Command::new("tar").arg("-xf").arg(at("c.tar")).arg("-C").arg(at("unpacked")));
    same(&umoci(&at("unpacked"), "v2", &at("bundle")), &changed);
    // Alone, and as a folder: the upper folder itself comes back, marks and all.
    let alone = write_layout(&at("alone"), &draft("v3", &uppers)).unwrap();
    let image = get(&store, &format!("oci:{}:v3", at("alone").display())).await.unwrap();
    same(&tree(&image.layers()[0]), &without_times_of_marks(tree(&at("upper")), &image.layers()[0]));
    // The same bytes each time.
    let again = export(&uppers[0], Rights::Root, std::io::sink()).unwrap();
    assert_eq!(again, alone.layers[0]);
    assert_eq!(written.layers[2], again);
    let error = write_layout(&at("alone"), &draft("v3", &[])).unwrap_err();
    assert!(matches!(error, ImageError::Store { .. }), "{error}");
}

/// A whiteout has neither time nor mode of its own.
fn without_times_of_marks(mut upper: crate::trees::Tree, layer: &Path) -> crate::trees::Tree {
    for (name, facts) in &mut upper {
        if facts.kind == "character" && facts.device == 0 {
            *facts = crate::trees::facts(&layer.join(name));
        }
    }
    upper
}

#[tokio::test]
async fn a_checkpoint_of_an_ordinary_user_is_roots() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("upper/opaque")).unwrap();
    std::fs::write(at("upper/opaque/file"), "x").unwrap();
    std::fs::write(at("upper/gone"), "").unwrap();
    run(Command::new("chown").args(["-R", "1234:1234"]).arg(at("upper")));
    let set = |path: &str, name: &str| {
        rustix::fs::setxattr(at(path), name, b"y", rustix::fs::XattrFlags::empty()).unwrap();
    };
    set("upper/opaque", "user.overlay.opaque");
    set("upper/gone", "user.overlay.whiteout");
    write_layout(&at("layout"), &Draft { rights: Rights::User, ..draft("v1", &[Upper::root(at("upper"))]) })
        .unwrap();
    let image = get(&store(&at("store")), &format!("oci:{}", at("layout").display())).await.unwrap();
    let layer = &image.layers()[0];
    let ours = tree(layer);
    assert_eq!((ours["gone"].kind, ours["gone"].device), ("character", 0));
    assert_eq!(ours["opaque/file"].owner, (0, 0));
    let mut value = [0; 1];
    rustix::fs::lgetxattr(layer.join("opaque"), "trusted.overlay.opaque", &mut value[..]).unwrap();
    assert_eq!(&value, b"y");
}

#[test]
fn what_no_layer_can_say_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let upper = folder.path().join("upper");
    std::fs::create_dir(&upper).unwrap();
    let check = |expect: &str| {
        let error = export(&Upper::root(&upper), Rights::Root, std::io::sink()).unwrap_err();
        assert_eq!(error.to_string().replace(upper.to_str().unwrap(), "UPPER"), expect);
    };
    std::fs::write(upper.join(".wh.a"), "").unwrap();
    check("bad content of .wh.a in UPPER: a layer cannot represent this name");
    std::fs::remove_file(upper.join(".wh.a")).unwrap();
    std::fs::create_dir(upper.join("moved")).unwrap();
    rustix::fs::setxattr(
        upper.join("moved"),
        "trusted.overlay.redirect",
        b"/x",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    check(
        "bad content of moved in UPPER: in this overlay mount trusted.overlay.redirect refers to content of lower layers",
    );
}

/// Bytes of a gzipped tar of this folder alone, which three readers make the same files of.
async fn exported(folder: &Path, tree_is: bool) -> u64 {
    let at = |name: &str| folder.join(name);
    let written = write_layout(&at("layout"), &draft("v1", &[Upper::root(at("upper"))])).unwrap();
    let back = get(&store(&at("store")), &format!("oci:{}:v1", at("layout").display())).await.unwrap();
    if tree_is {
        let upper = tree(&at("upper"));
        same(&tree(&back.layers()[0]), &upper);
        same(&umoci(&at("layout"), "v1", &at("bundle")), &upper);
    }
    let layer = at("layout/blobs/sha256").join(written.layers[0].digest.hex());
    std::fs::create_dir(at("gnu")).unwrap();
    run(Command::new("tar").args(["--xattrs", "-xSpzf"]).arg(layer).arg("-C").arg(at("gnu")));
    for name in std::fs::read_dir(at("upper")).unwrap().map(|entry| entry.unwrap().file_name()) {
        use std::os::unix::fs::MetadataExt;
        let facts = |folder: &str| {
            let stat = at(folder).join(&name).symlink_metadata().unwrap();
            (stat.len(), stat.blocks() < 64, (stat.mtime(), stat.mtime_nsec()))
        };
        assert_eq!(facts("gnu"), facts("upper"), "{name:?} by tar");
        let ours = back.layers()[0].join(&name).symlink_metadata().unwrap();
        assert_eq!((ours.len(), ours.blocks() < 64), (facts("upper").0, facts("upper").1), "{name:?} by us");
    }
    written.layers[0].size
}

#[tokio::test]
async fn holes_are_kept_as_holes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("upper")).unwrap();
    let long = "f".repeat(200);
    let make = format!(
        "truncate -s 1M empty; printf begin > begin; truncate -s 3M begin
         truncate -s 3M end; printf end >> end; truncate -s 5M many
         for i in $(seq 0 40); do printf x$i | dd of=many bs=1 seek=$((i * 100000)) conv=notrunc status=none; done
         cp --sparse=always many {long}; cp --sparse=always many \"$(printf 'not \\377 utf8')\"; ln many linked
         cp --sparse=always many noted; touch -d '1969-12-31 23:59:58.25 UTC' noted
         python3 -c 'import os; os.setxattr(\"noted\", \"user.note\", b\"value\")'
         truncate -s 8k small; printf x > dense"
    );
    run(Command::new("sh").args(["-ec", &make]).current_dir(folder.path().join("upper")));
    exported(folder.path(), true).await;
}

/// Sizes that only `truncate` makes: what is written goes with what exists.
#[tokio::test]
async fn a_file_of_holes_costs_what_exists_of_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("upper")).unwrap();
    let make = "for i in $(seq 20); do truncate -s 60G $i; printf x | dd of=$i bs=1 seek=30000000000 conv=notrunc status=none; done";
    run(Command::new("sh").args(["-ec", make]).current_dir(folder.path().join("upper")));
    let size = exported(folder.path(), false).await;
    assert!(size < 64 << 10, "{size} bytes for 20 bytes that exist");
}

#[test]
fn a_file_longer_than_any_reader_takes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let upper = folder.path().join("upper");
    std::fs::create_dir(&upper).unwrap();
    let file = std::fs::File::create(upper.join("huge")).unwrap();
    file.set_len((64 << 30) + 1).unwrap();
    let error = export(&Upper::root(&upper), Rights::Root, std::io::sink()).unwrap_err();
    let expect = "bad content of huge in UPPER: it has 68719476737 bytes, a file of a layer at most 68719476736; \
                  delete or shorten it before the checkpoint";
    assert_eq!(error.to_string().replace(upper.to_str().unwrap(), "UPPER"), expect);
    file.set_len(64 << 30).unwrap();
    export(&Upper::root(&upper), Rights::Root, std::io::sink()).unwrap();
}

/// A layer that links to a file of holes of another layer.
#[tokio::test]
async fn a_file_that_is_copied_between_layers_keeps_its_holes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("upper")).unwrap();
    let file = std::fs::File::create(at("upper/holes")).unwrap();
    file.set_len(40 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", (40 << 30) - 3).unwrap();
    let mut bottom = Vec::new();
    let mut gzip = Vec::new();
    export(&Upper::root(at("upper")), Rights::Root, &mut gzip).unwrap();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&gzip[..]), &mut bottom).unwrap();
    let linked = Tar::new().hard_link("linked", "holes").end();
    image(&[(bottom, As::Gzip), (linked, As::Gzip)], "amd64", &json!({})).layout(&at("layout"), "v1");
    let image = get(&store(&at("store")), &format!("oci:{}:v1", at("layout").display())).await.unwrap();
    let stat = image.layers()[1].join("linked").metadata().unwrap();
    assert_eq!(stat.len(), 40 << 30);
    assert!(std::os::unix::fs::MetadataExt::blocks(&stat) < 64);
    let mut end = [0; 3];
    let copied = std::fs::File::open(image.layers()[1].join("linked")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&copied, &mut end, (40 << 30) - 3).unwrap();
    assert_eq!(&end, b"end");
}

/// Whoever stops it finds nothing where it wrote.
#[test]
fn an_archive_that_is_stopped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["upper", "out"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::write(at("upper/noise"), crate::registries::noise(64 << 20, 1)).unwrap();
    std::fs::write(at("out/a.tar"), "the one before").unwrap();
    let listed = || {
        let names = std::fs::read_dir(at("out")).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    let stop = Stop::default();
    let (uppers, told) = ([Upper::root(at("upper"))], stop.clone());
    let error = std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_archive(&at("out/a.tar"), &draft("v1", &uppers), &stop));
        while listed().len() == 1 {
            assert!(!writing.is_finished(), "it is not done that quickly");
            std::thread::yield_now();
        }
        told.tell();
        writing.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, ImageError::Stopped { .. }), "{error}");
    assert_eq!(listed(), ["a.tar"]);
    assert_eq!(std::fs::read(at("out/a.tar")).unwrap(), b"the one before");
}

/// A device or a pipe stays what it is and takes the bytes; a link stays, and what it leads to is replaced.
#[test]
fn an_archive_goes_into_a_pipe_and_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("upper")).unwrap();
    std::fs::write(at("upper/text"), "kept").unwrap();
    let uppers = [Upper::root(at("upper"))];
    let plain = write_archive(&at("a.tar"), &draft("v1", &uppers), &Stop::default()).unwrap();

    run(Command::new("mkfifo").arg(at("pipe")));
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| std::fs::read(at("pipe")).unwrap());
        let written = write_archive(&at("pipe"), &draft("v1", &uppers), &Stop::default()).unwrap();
        assert_eq!(written.digest, plain.digest);
        reading.join().unwrap()
    });
    assert_eq!(read, std::fs::read(at("a.tar")).unwrap());
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::metadata(at("pipe")).unwrap().file_type()));
    // A device that takes nothing says so, and is still there.
    let full = write_archive(Path::new("/dev/full"), &draft("v1", &uppers), &Stop::default()).unwrap_err();
    assert!(matches!(full, ImageError::DiskFull { .. }), "{full}");
    assert!(!std::fs::metadata("/dev/full").unwrap().is_file());

    std::fs::write(at("there.tar"), "old").unwrap();
    std::os::unix::fs::symlink("there.tar", at("link.tar")).unwrap();
    write_archive(&at("link.tar"), &draft("v1", &uppers), &Stop::default()).unwrap();
    assert!(std::fs::symlink_metadata(at("link.tar")).unwrap().is_symlink());
    assert_eq!(std::fs::read(at("there.tar")).unwrap(), read);
}
