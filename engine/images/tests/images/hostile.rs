//! Layers by somebody who wants out, or wants the disk, the memory or the time of the machine.

use crate::tars::{As, Made, Of, Tar, image};
use crate::trees::{merged, tree};
use crate::{get, left_over, options, store, text};
use espalier_images::{Image, ImageError, ImageStore, Remedy};
use serde_json::json;
use std::path::Path;

async fn unpacked(tars: &[Tar], folder: &Path) -> Result<Image, ImageError> {
    let layers: Vec<_> = tars.iter().map(|tar| (tar.clone().end(), As::Gzip)).collect();
    made(&image(&layers, "amd64", &json!({})), folder).await
}

async fn made(made: &Made, folder: &Path) -> Result<Image, ImageError> {
    let _ = std::fs::remove_dir_all(folder.join("layout"));
    made.layout(&folder.join("layout"), "v1");
    get(&store(&folder.join("store")), &format!("oci:{}", folder.join("layout").display())).await
}

/// What went wrong, without the layer's digest.
fn why(error: &ImageError) -> String {
    match error {
        ImageError::BadContent { what, why } => {
            assert!(what.starts_with("layer sha256:"), "{what}");
            why.clone()
        }
        other => other.to_string(),
    }
}

#[tokio::test]
async fn what_would_reach_outside_is_refused_by_name() {
    let canary = tempfile::tempdir().unwrap();
    let outside = canary.path().join("outside");
    let out = outside.to_str().unwrap();
    let overlay = |name: &'static str| {
        let of = Of { pax: vec![(name, b"y".to_vec())], kind: b'5', mode: 0o755, ..Of::default() };
        Tar::new().add("folder", &of)
    };
    let attacks = [
        ("dots", Tar::new().file("../outside", "x")),
        ("dots within", Tar::new().file("a/../../outside", "x")),
        ("dots of a folder", Tar::new().folder("../..")),
        ("hard link with dots", Tar::new().hard_link("a", "../../../etc/passwd")),
        ("hard link to nothing", Tar::new().hard_link("a", "etc/passwd")),
        ("hard link to an absolute name", Tar::new().hard_link("a", "/etc/passwd")),
        ("hard link through a link", Tar::new().symlink("l", "/etc").hard_link("a", "l/passwd")),
        ("hard link to a folder", Tar::new().folder("d").hard_link("a", "d")),
        ("whiteout of dots", Tar::new().file("a/.wh...", "")),
        ("whiteout of nothing", Tar::new().file("a/.wh.", "")),
        ("a device that hides", Tar::new().add("a", &Of { kind: b'3', ..Of::default() })),
        ("an opaque mark", overlay("SCHILY.xattr.trusted.overlay.opaque")),
        ("a redirect", overlay("SCHILY.xattr.trusted.overlay.redirect")),
        ("a redirect of users", overlay("SCHILY.xattr.user.overlay.redirect")),
        ("below a file", Tar::new().file("a", "x").file("a/b", "x")),
        ("links in a ring", Tar::new().symlink("a", "b").symlink("b", "a").file("a/x", "x")),
        ("unknown kind", Tar::new().add("a", &Of { kind: b'Q', ..Of::default() })),
        ("too deep", Tar::new().file(vec!["d"; 300].join("/"), "x")),
        ("name too long", Tar::new().file("n".repeat(300), "x")),
        ("root is a file", Tar::new().file("./", "x").symlink("/", out)),
    ];
    let mut lines = Vec::new();
    for (name, tar) in attacks {
        let folder = tempfile::tempdir().unwrap();
        let error = unpacked(&[tar], folder.path()).await.expect_err(name);
        assert_eq!(error.remedy(), Remedy::RejectTask, "{name}");
        assert_eq!(left_over(&folder.path().join("store")), Vec::<String>::new(), "{name}");
        assert!(!outside.exists());
        let short = why(&error).replace(&"d/".repeat(299), "d/../").replace(&"n".repeat(300), "nnn");
        lines.push(format!("{name}: {short}"));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

/// Where a link leads, it leads as it would inside the image.
#[tokio::test]
async fn what_goes_through_links_stays_inside() {
    let canary = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = canary.path().to_str().unwrap();
    let inside = &out[1..];
    let tar = Tar::new()
        .symlink("absolute", out)
        .file("absolute/one", "1")
        .symlink("climbing", format!("../../../../../../..{out}"))
        .file("climbing/two", "2")
        // A folder that becomes a link between two of its files.
        .folder("swapped")
        .file("swapped/three", "3")
        .symlink("swapped", out)
        .file("swapped/four", "4")
        // What stands there is replaced, not written through.
        .symlink("file", format!("{out}/five"))
        .file("file", "5")
        .symlink("folder", out)
        .folder("folder")
        .file("folder/six", "6")
        .file("/absolute-name", "7")
        .symlink("whiteout", out)
        .file("whiteout/.wh.one", "")
        .file("whiteout/.wh..wh..opq", "")
        .hard_link("linked", "absolute/one");
    let image = unpacked(&[tar], folder.path()).await.unwrap();
    assert_eq!(tree(canary.path()), crate::trees::Tree::new(), "nothing came out");
    let ours = tree(&image.layers()[0]);
    let content = |name: &str| std::fs::read_to_string(image.layers()[0].join(name)).unwrap();
    assert_eq!(content(&format!("{inside}/one")), "1");
    assert_eq!(content(&format!("{inside}/two")), "2");
    assert_eq!(content(&format!("{inside}/four")), "4");
    assert_eq!(content("file"), "5");
    assert_eq!(content("folder/six"), "6");
    assert_eq!(content("absolute-name"), "7");
    assert_eq!(content("linked"), "1");
    assert!(!ours.contains_key("swapped/three"));
    assert_eq!(ours["swapped"].kind, "symlink");
}

#[tokio::test]
async fn an_upper_layer_does_not_leave_by_a_link_of_a_lower_one() {
    let canary = tempfile::tempdir().unwrap();
    std::fs::write(canary.path().join("secret"), "secret").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = canary.path().to_str().unwrap();
    let bottom = Tar::new().symlink("door", out).symlink("up", "../../..");
    let top = Tar::new().file("door/new", "1").file(format!("up{out}/other"), "2");
    let image = unpacked(&[bottom.clone(), top], folder.path()).await.unwrap();
    let shown = merged(image.layers(), "trusted.overlay.opaque");
    assert!(shown.contains_key(&format!("{}/new", &out[1..])), "{:?}", shown.keys());
    assert!(shown.contains_key(&format!("{}/other", &out[1..])), "{:?}", shown.keys());
    assert_eq!(tree(canary.path()).len(), 1);
    let thief = Tar::new().hard_link("stolen", "door/secret");
    let folder = tempfile::tempdir().unwrap();
    let error = unpacked(&[bottom, thief], folder.path()).await.unwrap_err();
    assert_eq!(why(&error), "stolen: a hard link to door/secret, which is not there");
}

#[tokio::test]
async fn bombs_end_at_their_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = options();
    small.bounds.bytes_max = 10 << 20;
    small.bounds.entries_max = 1000;
    let zeros = vec![0; 20 << 20];
    let large = |size: &[u8]| {
        let pax = vec![
            ("GNU.sparse.major", b"0".to_vec()),
            ("GNU.sparse.minor", b"1".to_vec()),
            ("GNU.sparse.size", size.to_vec()),
            ("GNU.sparse.map", b"0,1".to_vec()),
        ];
        Tar::new().add("a", &Of { data: b"x", pax, ..Of::default() })
    };
    let mut many = Tar::new();
    for number in 0..1001 {
        many = many.file(format!("f{number}"), "");
    }
    // Few entries, many folders.
    let mut deep = Tar::new();
    for number in 0..20 {
        deep = deep.file(format!("{number}/{}x", "d/".repeat(60)), "");
    }
    let bombs = [
        ("folders", deep, "has more than 1000 folders"),
        ("bytes", Tar::new().file("a", &zeros), "has more than 10485760 bytes"),
        ("entries", many, "has more than 1000 entries"),
        ("sparse", large(b"1000000000000000"), "has more than 10485760 bytes"),
        (
            "name",
            Tar::new().add("a", &Of { kind: b'L', data: &zeros[..2 << 20], ..Of::default() }),
            "an extended header of 2097152 bytes, at most 1048576",
        ),
    ];
    for (name, tar, expected) in bombs {
        let layout = folder.path().join(name);
        image(&[(tar.end(), As::Gzip)], "amd64", &json!({})).layout(&layout, "v1");
        let store = ImageStore::open(&folder.path().join("store"), small.clone()).unwrap();
        let error = get(&store, &format!("oci:{}", layout.display())).await.unwrap_err();
        assert!(error.to_string().ends_with(expected), "{name}: {error}");
        assert_eq!(left_over(&folder.path().join("store")), Vec::<String>::new());
    }
    // The same sparse file is fine where it fits.
    let image = unpacked(&[large(b"1000000")], folder.path()).await.unwrap();
    assert_eq!(image.layers()[0].join("a").metadata().unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn what_its_digests_do_not_fit_is_refused() {
    let layers = [(Tar::new().file("a", "x").end(), As::Gzip)];
    let good = image(&layers, "amd64", &json!({}));
    let replaced = |from: &str, to: &str| {
        let mut made = image(&layers, "amd64", &json!({}));
        made.manifest = String::from_utf8(made.manifest).unwrap().replace(from, to).into_bytes();
        made
    };
    let wrong = format!("sha256:{}", "0".repeat(64));
    let layer = good.layers[0].clone();
    let diff_id = crate::tars::digest(&layers[0].0);
    let config = String::from_utf8(good.blobs[1].clone()).unwrap();
    let other_config = config.replace(&diff_id, &wrong);
    let mut lying =
        replaced(&crate::tars::digest(config.as_bytes()), &crate::tars::digest(other_config.as_bytes()));
    lying.blobs[1] = other_config.into_bytes();
    let cases = [
        ("a layer that is missing", replaced(&layer, &wrong)),
        ("a digest of another kind", replaced(&layer, "md5:00")),
        ("a size that is not its own", replaced(&format!("\"size\":{}", good.blobs[0].len()), "\"size\":7")),
        ("a negative size", replaced(&format!("\"size\":{}", good.blobs[0].len()), "\"size\":-7")),
        ("a diff id that is not its own", lying),
        ("a layer that is not a tar archive", replaced("image.layer.v1.tar+gzip", "in-toto+json")),
        (
            "two layers for one diff id",
            replaced(
                "\"layers\":[",
                &format!("\"layers\":[{{\"mediaType\":\"tar\",\"digest\":\"{layer}\",\"size\":1}},"),
            ),
        ),
        ("no manifest", replaced("layers", "lawyers")),
    ];
    let mut lines = Vec::new();
    for (name, case) in cases {
        let folder = tempfile::tempdir().unwrap();
        let error = made(&case, folder.path()).await.expect_err(name);
        let path = folder.path().to_str().unwrap();
        let hidden =
            [(path, "FOLDER"), (&layer[7..], "LAYER"), (&diff_id[7..], "TAR"), (&wrong[7..], "WRONG")];
        lines.push(format!("{name}: {}", text(&error, &hidden)));
        assert_eq!(left_over(&folder.path().join("store")), Vec::<String>::new(), "{name}");
    }
    // The blob itself changed on the disk.
    let folder = tempfile::tempdir().unwrap();
    good.layout(&folder.path().join("layout"), "v1");
    let blob = folder.path().join("layout/blobs/sha256").join(&layer[7..]);
    let mut bytes = std::fs::read(&blob).unwrap();
    // The time in the gzip header, which changes nothing of the tar.
    bytes[4] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    let name = format!("oci:{}", folder.path().join("layout").display());
    let error = get(&store(&folder.path().join("store")), &name).await.unwrap_err();
    let changed = crate::tars::digest(&bytes);
    let hidden = [
        (name.as_str(), "IMAGE"),
        (&layer[7..], "LAYER"),
        (&diff_id[7..], "TAR"),
        (&changed[7..], "CHANGED"),
    ];
    lines.push(format!("another blob: {}", text(&error, &hidden)));
    insta::assert_snapshot!(lines.join("\n"));
}
