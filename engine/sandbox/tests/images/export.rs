//! What a sandbox changed, written as a layer that others read, and read back.

use crate::tars::{As, Of, Tar, image};
use crate::trees::{Overlay, merged, run, same, tree, umoci};
use crate::{get, store};
use espalier_sandbox::image::{Draft, ImageError, Rights, Upper, export, write_archive, write_layout};
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
    let written = write_archive(&at("c.tar"), &Draft { base: Some(&base), ..draft("v2", &uppers) }).unwrap();
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
    check("bad content of .wh.a in UPPER: a layer has no way to say such a name");
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
        "bad content of moved in UPPER: the overlay was mounted so that trusted.overlay.redirect stands for content of layers below",
    );
}
