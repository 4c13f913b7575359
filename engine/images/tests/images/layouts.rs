//! Images from layouts and archives, compared file by file with what `umoci unpack` makes of them.

use crate::tars::{As, Of, Tar, image, layout};
use crate::trees::{Overlay, merged, run, same, tree, umoci};
use crate::{get, left_over, options, store};
use espalier_images::{ImageStore, Rights};
use serde_json::json;
use std::path::Path;
use std::process::Command;

const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Everything that a layer can say and a sound tool would write.
fn odd_but_legal() -> Vec<(Vec<u8>, As)> {
    let long = format!("opt/{}/{}", "d".repeat(120), "f".repeat(120));
    let mut sparse = vec![0; 300_000];
    sparse[150_000] = 1;
    let folder = |mode| Of { kind: b'5', mode, ..Of::default() };
    let bottom = Tar::new()
        .folder("etc/")
        .file("etc/a", "one")
        .hard_link("etc/b", "etc/a")
        .file("etc/gone", "gone")
        .folder("etc/many/")
        .file("etc/many/1", "1")
        .file("etc/many/2", "2")
        .folder("usr")
        .folder("usr/bin")
        .symlink("bin", "usr/bin")
        .symlink("door", "etc")
        .symlink("opened", "etc")
        .add("usr/bin/su", &Of { mode: 0o4755, data: b"#!", ..Of::default() })
        .add("usr/bin/group", &Of { mode: 0o2711, owner: (10, 20), ..Of::default() })
        .add("tmp", &folder(0o1777))
        .add("root", &folder(0o700))
        .add("closed", &folder(0o000))
        .file("closed/file", "within")
        .folder("opt")
        .folder(format!("opt/{}", "d".repeat(120)))
        .file(&long, "long")
        .file(b"opt/not \xff\xfe utf8\n", "bytes")
        .symlink("opt/link", format!("/{}", "x".repeat(200)))
        .symlink("opt/dangling", "../../../../outside")
        .add("opt/sparse", &Of { data: &sparse, ..Of::default() })
        .add("opt/pipe", &Of { kind: b'6', mode: 0o620, ..Of::default() })
        .add("opt/null", &Of { kind: b'3', mode: 0o666, device: (1, 3), ..Of::default() })
        .add("opt/loop", &Of { kind: b'4', mode: 0o660, device: (7, 0), owner: (0, 6), ..Of::default() })
        .add("opt/times", &Of { pax: vec![("mtime", b"1234567890.123456789".to_vec())], ..Of::default() })
        .add("opt/owner", &Of { owner: (1_234_567, 2_000_000), ..Of::default() })
        .add(
            "opt/attributes",
            &Of {
                pax: vec![("SCHILY.xattr.user.note", b"a\n=\0b".to_vec()), ("comment", b"x".to_vec())],
                ..Of::default()
            },
        )
        .add(
            "opt/capable",
            &Of {
                mode: 0o755,
                pax: vec![("SCHILY.xattr.security.capability", CAPABILITY.to_vec())],
                ..Of::default()
            },
        )
        .folder("var")
        .folder("var/lib")
        .file("var/lib/hidden", "hidden")
        .folder("becomes-file")
        .file("becomes-file/x", "x")
        .file("becomes-folder", "file")
        .folder("becomes-link")
        .file("becomes-link/x", "x");
    let middle = Tar::new()
        .folder("etc/")
        .file("etc/.wh.gone", "")
        .file("etc/.wh.many", "")
        .folder("var/")
        .folder("var/lib/")
        .file("var/lib/new", "new")
        .file("var/lib/.wh..wh..opq", "")
        .file("becomes-file", "now a file")
        .folder("becomes-folder")
        .file("becomes-folder/x", "x")
        .symlink("becomes-link", "etc");
    let top = Tar::new()
        .folder("etc/")
        .folder("etc/many")
        .file("etc/many/3", "3")
        .folder("door")
        .file("door/inside", "inside")
        .file(".wh.opened", "")
        .folder("opened")
        .file("opened/inside", "inside")
        .folder("becomes-file")
        .file("becomes-file/y", "y")
        .file("etc/a", "two")
        .file("twice", "first")
        .folder("twice-folder")
        .file("twice-folder/kept", "kept")
        .file("twice", "second")
        .add("twice-folder", &folder(0o711))
        .symlink("was-link", "etc")
        .file("was-link", "a file");
    vec![(bottom.end(), As::Gzip), (middle.end(), As::Tar), (top.end(), As::Gzip)]
}

#[tokio::test]
async fn a_merged_root_is_what_umoci_makes_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let config = json!({
        "Env": ["PATH=/usr/bin", "A=b=c"], "WorkingDir": "/root", "User": "10:20", "Entrypoint": ["/bin/su"],
        "Cmd": ["-"], "Labels": {"k": "v"}, "Volumes": {"/var/lib": {}},
    });
    image(&odd_but_legal(), "amd64", &config).layout(&at("layout"), "v1");
    let theirs = umoci(&at("layout"), "v1", &at("bundle"));
    let store = store(&at("store"));
    let image = get(&store, &format!("oci:{}:v1", at("layout").display())).await.unwrap();
    assert_eq!(store.rights(), Rights::Root);
    same(&Overlay::mount(image.layers(), &at("root")).tree(), &theirs);
    same(&merged(image.layers(), "trusted.overlay.opaque"), &theirs);
    assert!(image.reports().iter().all(|report| report.devices_skipped == 0 && report.xattrs_skipped == 0));
    let config = image.config();
    assert_eq!(config.env["A"], "b=c");
    assert_eq!((config.workdir.as_str(), config.user.as_str()), ("/root", "10:20"));
    assert_eq!(
        (config.entrypoint.as_slice(), config.command.as_slice()),
        (&["/bin/su".into()][..], &["-".into()][..])
    );
    assert_eq!((&config.labels["k"], config.volumes.as_slice()), (&"v".into(), &["/var/lib".into()][..]));
    assert_eq!(left_over(&at("store")), Vec::<String>::new());
}

#[tokio::test]
async fn compression_does_not_change_what_comes_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut trees = Vec::new();
    for how in [As::Tar, As::Gzip, As::Zstd] {
        let layers: Vec<_> = odd_but_legal().into_iter().map(|(tar, _)| (tar, how)).collect();
        let at = folder.path().join(format!("{how:?}"));
        image(&layers, "amd64", &json!({})).layout(&at.join("layout"), "v1");
        let image =
            get(&store(&at.join("store")), &format!("oci:{}", at.join("layout").display())).await.unwrap();
        trees.push(merged(image.layers(), "trusted.overlay.opaque"));
    }
    same(&trees[0], &trees[1]);
    same(&trees[0], &trees[2]);
}

/// Layers that lean on those below: folders they do not list, hard links to what is not theirs, ways through links.
#[tokio::test]
async fn a_layer_that_leans_on_others_is_unpacked_above_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bottom = Tar::new()
        .add("tmp", &Of { kind: b'5', mode: 0o1777, owner: (3, 4), ..Of::default() })
        .folder("usr")
        .add("usr/lib", &Of { kind: b'5', mode: 0o750, mtime: 77, ..Of::default() })
        .file("usr/lib/old", "old")
        .symlink("lib", "usr/lib")
        .file("usr/tool", "tool");
    let leaning =
        Tar::new().file("tmp/file", "in tmp").file("lib/new", "through the link").file("deep/er/x", "x");
    let linked = Tar::new().hard_link("usr/lib/linked", "usr/tool");
    let layers = [bottom, leaning, linked].map(|tar| (tar.end(), As::Gzip));
    image(&layers, "amd64", &json!({})).layout(&at("layout"), "v1");
    let name = format!("oci:{}:v1", at("layout").display());
    let store = store(&at("store"));
    let one = get(&store, &name).await.unwrap();
    let mut ours = Overlay::mount(one.layers(), &at("root")).tree();
    let mut theirs = umoci(&at("layout"), "v1", &at("bundle"));
    // Two files of the same content: no overlay can link into a lower layer.
    assert_eq!(theirs["usr/tool"].links, theirs["usr/lib/linked"].links);
    assert_eq!(ours["usr/lib/linked"].content, ours["usr/tool"].content);
    assert_eq!(ours["usr/lib/linked"].mtime, ours["usr/tool"].mtime);
    for tree in [&mut ours, &mut theirs] {
        for name in ["usr/tool", "usr/lib/linked"] {
            tree.get_mut(name).unwrap().links = None;
        }
        // Made without being told how: the time is that of the making.
        for name in ["deep", "deep/er"] {
            tree.get_mut(name).unwrap().mtime = (0, 0);
        }
    }
    // A folder that an entry was put into keeps its time here, as the layers below have it.
    for name in ["tmp", "usr", "usr/lib"] {
        theirs.get_mut(name).unwrap().mtime = ours[name].mtime;
    }
    same(&ours, &theirs);
    assert_eq!((ours["tmp"].mode, ours["tmp"].owner), (0o1777, (3, 4)));
    // The same chain again, by another store object: nothing is unpacked twice.
    let before = run(Command::new("ls").arg("-i").arg(at("store/layers")));
    let two = get(&crate::store(&at("store")), &name).await.unwrap();
    assert_eq!(one.layers(), two.layers());
    assert_eq!(run(Command::new("ls").arg("-i").arg(at("store/layers"))), before);
    assert_eq!(left_over(&at("store")), Vec::<String>::new());
}

#[tokio::test]
async fn thirty_layers_of_debian_packages_made_by_umoci() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let name = format!("{}:v1", at("layout").display());
    let umoci_does = |args: &[&str]| run(Command::new("umoci").args(args));
    umoci_does(&["init", "--layout", at("layout").to_str().unwrap()]);
    umoci_does(&["new", "--image", &name]);
    let packages = [
        "base-files",
        "base-passwd",
        "bash",
        "dash",
        "debianutils",
        "diffutils",
        "findutils",
        "grep",
        "gzip",
        "hostname",
    ];
    let bundle = at("bundle");
    umoci_does(&["unpack", "--image", &name, bundle.to_str().unwrap()]);
    let root = bundle.join("rootfs");
    for step in 0..30 {
        let package = packages[step / 3];
        match step % 3 {
            0 => package_into(package, &root),
            1 => {
                std::fs::remove_file(root.join(format!("usr/share/doc/{package}/copyright"))).unwrap();
                std::fs::write(root.join(format!("etc/step-{step}")), package).unwrap();
            }
            _ => {
                let doc = root.join(format!("usr/share/doc/{package}"));
                std::fs::remove_dir_all(&doc).unwrap();
                std::fs::create_dir(&doc).unwrap();
                std::fs::hard_link(root.join(format!("etc/step-{}", step - 1)), doc.join("same")).unwrap();
            }
        }
        umoci_does(&["repack", "--refresh-bundle", "--image", &name, bundle.to_str().unwrap()]);
    }
    let theirs = umoci(&at("layout"), "v1", &at("again"));
    // A short path: thirty of them have to fit into one page of mount options.
    let short = tempfile::Builder::new().prefix("e").tempdir_in("/tmp").unwrap();
    let image = get(&store(short.path()), &format!("oci:{name}")).await.unwrap();
    assert_eq!(image.layers().len(), 30);
    let ours = Overlay::mount(image.layers(), &at("root")).tree();
    assert!(ours.len() > 500, "{} files", ours.len());
    same(&without_leaning_links(ours), &without_leaning_links(theirs));
}

/// Names of hard links that go through several layers differ, since an overlay has none between layers.
fn without_leaning_links(mut tree: crate::trees::Tree) -> crate::trees::Tree {
    for (name, facts) in &mut tree {
        if name.starts_with("etc/step-") || name.ends_with("/same") {
            facts.links = None;
        }
    }
    tree
}

/// The files of an installed package, as a folder of their own.
fn package_into(package: &str, root: &Path) {
    let pack = format!(
        "dpkg-query -L {package} | grep -v '^/.$' | while read -r f; do if [ -e \"$f\" -o -L \"$f\" ]; then echo \"${{f#/}}\"; fi; done \
         | tar -C / --no-recursion -cf - -T - | tar -C {} --keep-directory-symlink -xpf -",
        root.display()
    );
    run(Command::new("bash").args(["-o", "pipefail", "-c", &pack]));
    for folder in ["etc", "usr/share/doc"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
}

#[tokio::test]
async fn an_archive_is_the_same_as_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    image(&odd_but_legal(), "amd64", &json!({})).layout(&at("layout"), "v1");
    run(Command::new("tar").arg("-C").arg(at("layout")).arg("-cf").arg(at("a.tar")).arg("."));
    let store = store(&at("store"));
    let one = get(&store, &format!("oci-archive:{}:v1", at("a.tar").display())).await.unwrap();
    let two = get(&store, &format!("oci:{}", at("layout").display())).await.unwrap();
    assert_eq!(one.digest(), two.digest());
    assert_eq!(one.layers(), two.layers());
    same(&tree(&one.layers()[0]), &tree(&two.layers()[0]));
}

#[tokio::test]
async fn of_two_architectures_that_of_the_machine_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let of = |architecture: &str| {
        image(&[(Tar::new().file("which", architecture).end(), As::Gzip)], architecture, &json!({}))
    };
    let made = ["amd64", "arm64"].map(of);
    let entry = |number: usize, architecture: &str| {
        let mut entry = made[number].descriptor();
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entry
    };
    let entries = [entry(0, "amd64"), entry(1, "arm64")];
    layout(&at("both"), &[&made[0], &made[1]], &entries);
    layout(&at("other"), &[&made[1]], &entries[1..]);
    made[1].layout(&at("silent"), "v1");
    let which =
        |image: &espalier_images::Image| std::fs::read_to_string(image.layers()[0].join("which")).unwrap();
    let mut arm = options();
    let name = |layout: &str| format!("oci:{}", at(layout).display());
    let store = store(&at("store"));
    assert_eq!(
        which(&get(&store, &name("both")).await.unwrap()),
        std::env::consts::ARCH.replace("x86_64", "amd64")
    );
    arm.platform.architecture = "arm64".to_owned();
    let arm = ImageStore::open(&at("store"), arm).unwrap();
    assert_eq!(which(&get(&arm, &name("both")).await.unwrap()), "arm64");
    for layout in ["other", "silent"] {
        let error = get(&store, &name(layout)).await.unwrap_err();
        let said = crate::text(&error, &[(at(layout).to_str().unwrap(), "FOLDER")]);
        let expect = "image oci:FOLDER is not available for linux/amd64, only for linux/arm64\n\
                      hint: use an image for one of linux/arm64\n(RejectTask)";
        assert_eq!(said, expect);
    }
}

#[tokio::test]
async fn an_ordinary_user_has_all_but_owners_devices_and_capabilities() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    image(&odd_but_legal(), "amd64", &json!({})).layout(&at("layout"), "v1");
    let theirs = umoci(&at("layout"), "v1", &at("bundle"));
    run(Command::new("chmod").arg("755").arg(folder.path()));
    std::fs::create_dir(at("home")).unwrap();
    std::os::unix::fs::chown(at("home"), Some(65_534), Some(65_534)).unwrap();
    let said = crate::sharing::child(
        &at("home"),
        Some(65_534),
        &[
            ("ROLE", "get"),
            ("NAME", &format!("oci:{}:v1", at("layout").display())),
            ("STORE", at("home/store").to_str().unwrap()),
        ],
    );
    let (layers, reports): (Vec<std::path::PathBuf>, Vec<espalier_images::Report>) =
        serde_json::from_str(said.lines().find_map(|line| line.strip_prefix("LAYERS ")).unwrap()).unwrap();
    let mut ours = merged(&layers, "user.overlay.opaque");
    let mut expected = theirs;
    expected.retain(|_, facts| facts.device == 0);
    for facts in expected.values_mut() {
        facts.owner = (65_534, 65_534);
        facts.xattrs.retain(|(name, _)| name.starts_with("user."));
    }
    // The group of a file is the user's own, whose bit the kernel may take.
    ours.get_mut("usr/bin/group").unwrap().mode |= 0o2000;
    same(&ours, &expected);
    assert_eq!((reports[0].devices_skipped, reports[0].xattrs_skipped), (2, 1));
    // The kernel shows the same to a user who mounts it.
    let lower: Vec<&str> = layers.iter().rev().map(|layer| layer.to_str().unwrap()).collect();
    let mount = format!(
        "mkdir root && mount -t overlay overlay -o ro,userxattr,lowerdir={} root && cd root && find . -mindepth 1 -printf '%P\\0%m\\0%s\\0'",
        lower.join(":")
    );
    let mut command = Command::new("unshare");
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    std::os::unix::process::CommandExt::gid(&mut command, 65_534);
    let output = command.args(["-Urm", "sh", "-ec", &mount]).current_dir(at("home")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut shown: Vec<(String, u32, u64)> = output
        .stdout
        .split(|byte| *byte == 0)
        .map(|field| field.escape_ascii().to_string())
        .collect::<Vec<_>>()
        .chunks_exact(3)
        .map(|fields| {
            (fields[0].clone(), u32::from_str_radix(&fields[1], 8).unwrap(), fields[2].parse().unwrap())
        })
        .map(|(name, mode, size)| {
            (name.clone(), mode, if expected[&name].kind == "folder" { 0 } else { size })
        })
        .collect();
    shown.sort();
    ours.get_mut("usr/bin/group").unwrap().mode =
        shown.iter().find(|(name, ..)| name == "usr/bin/group").unwrap().1;
    let ours: Vec<_> = ours.iter().map(|(name, facts)| (name.clone(), facts.mode, facts.size)).collect();
    assert_eq!(shown, ours);
    // What the user cannot even look into goes all the same.
    crate::sharing::child(
        &at("home"),
        Some(65_534),
        &[
            ("ROLE", "remove"),
            ("NAME", &format!("oci:{}:v1", at("layout").display())),
            ("STORE", at("home/store").to_str().unwrap()),
        ],
    );
    assert_eq!(std::fs::read_dir(at("home/store/layers-user")).unwrap().count(), 0);
}

/// Every form in which GNU tar writes sparse files.
#[tokio::test]
async fn sparse_files_as_gnu_tar_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = "mkdir in && cd in && truncate -s 5M many && for i in $(seq 0 40); do \
                printf x$i | dd of=many bs=1 seek=$((i * 100000)) conv=notrunc status=none; done && \
                truncate -s 1M empty && printf end > tail && truncate -s 300000 tail";
    run(Command::new("sh").args(["-ec", make]).current_dir(folder.path()));
    let forms = [
        &["--format=gnu"][..],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ];
    for (number, form) in forms.iter().enumerate() {
        let tar = at(&format!("{number}.tar"));
        run(Command::new("tar").args(*form).arg("-cSf").arg(&tar).arg("-C").arg(at("in")).arg("."));
        let bytes = std::fs::read(&tar).unwrap();
        assert!(bytes.len() < 1_000_000, "sparse");
        let layout = at(&format!("layout-{number}"));
        image(&[(bytes, As::Gzip)], "amd64", &json!({})).layout(&layout, "v1");
        let image = get(&store(&at("store")), &format!("oci:{}", layout.display())).await.unwrap();
        let ours = tree(&image.layers()[0]);
        let mut theirs = tree(&at("in"));
        if form[0] == "--format=gnu" {
            // It keeps no parts of a second.
            theirs.values_mut().for_each(|facts| facts.mtime.1 = 0);
        }
        same(&ours, &theirs);
        let blocks =
            std::os::unix::fs::MetadataExt::blocks(&image.layers()[0].join("empty").metadata().unwrap());
        assert_eq!(blocks, 0, "a hole stays one");
    }
}
