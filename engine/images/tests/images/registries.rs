//! Pulls from Debian's `docker-registry`, over good lines and bad ones.

use crate::registry::{Line, Proxy, Server, USER, docker_config, free_port};
use crate::tars::{As, Made, Tar, digest, image};
use crate::trees::{Overlay, same, umoci};
use crate::{get, left_over, options, store, text};
use espalier_images::{ImageError, ImageOptions, ImageStore, Progress, Pull, Remedy, Source};
use rand::{RngExt, SeedableRng};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// Bytes that do not compress.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut noise = vec![0; bytes];
    rng.fill(&mut noise[..]);
    noise
}

/// An image of layers of this many bytes each.
pub(crate) fn large(layers: usize, bytes: usize) -> Made {
    let layer = |number: usize| {
        (
            Tar::new().folder("data").file(format!("data/{number}"), noise(bytes, number as u64)).end(),
            As::Gzip,
        )
    };
    image(&(0..layers).map(layer).collect::<Vec<_>>(), "amd64", &json!({"Env": ["A=1"]}))
}

fn holds(image: &espalier_images::Image, layers: usize, bytes: usize) {
    assert_eq!(image.layers().len(), layers);
    for (number, layer) in image.layers().iter().enumerate() {
        assert!(std::fs::read(layer.join(format!("data/{number}"))).unwrap() == noise(bytes, number as u64));
    }
}

#[tokio::test]
async fn by_tag_and_by_digest_the_same_as_umoci_makes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let made = large(3, 100_000);
    server.push(&made, "a/b:v1").await;
    made.layout(&folder.path().join("layout"), "v1");
    let theirs = umoci(&folder.path().join("layout"), "v1", &folder.path().join("bundle"));
    let store = store(&folder.path().join("store"));
    let by_tag = get(&store, &server.name("a/b:v1")).await.unwrap();
    same(&Overlay::mount(by_tag.layers(), &folder.path().join("root")).tree(), &theirs);
    let pinned = digest(&made.manifest);
    assert_eq!(by_tag.digest().as_str(), pinned);
    let by_digest = get(&store, &server.name(&format!("a/b@{pinned}"))).await.unwrap();
    assert_eq!(by_digest.layers(), by_tag.layers());
    // The digest counts, whatever the tag is.
    let both = get(&store, &server.name(&format!("a/b:other@{pinned}"))).await.unwrap();
    assert_eq!(both.digest(), by_tag.digest());
    assert_eq!(left_over(&folder.path().join("store")), Vec::<String>::new());
    // A known name needs no registry, unless it is to be asked.
    let address = server.stop();
    assert_eq!(get(&store, &format!("{address}/a/b:v1")).await.unwrap().digest(), by_tag.digest());
    let always =
        ImageStore::open(&folder.path().join("store"), ImageOptions { pull: Pull::Always, ..options() })
            .unwrap();
    get(&always, &format!("{address}/a/b@{pinned}")).await.unwrap();
    let error = get(&always, &format!("{address}/a/b:v1")).await.unwrap_err();
    assert_eq!(error.remedy(), Remedy::Retry, "{error}");
}

#[tokio::test]
async fn a_tag_that_moved_is_seen_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    server.push(&large(1, 10), "a:v1").await;
    let missing = store(folder.path());
    let always = ImageStore::open(folder.path(), ImageOptions { pull: Pull::Always, ..options() }).unwrap();
    let old = get(&missing, &server.name("a:v1")).await.unwrap();
    server.push(&large(2, 10), "a:v1").await;
    assert_eq!(get(&missing, &server.name("a:v1")).await.unwrap().digest(), old.digest());
    let new = get(&always, &server.name("a:v1")).await.unwrap();
    assert_ne!(new.digest(), old.digest());
    assert_eq!(get(&missing, &server.name("a:v1")).await.unwrap().digest(), new.digest());
}

#[tokio::test]
async fn an_index_in_a_registry() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let mut entries = Vec::new();
    for architecture in ["arm64", "amd64"] {
        let made =
            image(&[(Tar::new().file("which", architecture).end(), As::Gzip)], architecture, &json!({}));
        server.push(&made, &format!("both:{architecture}")).await;
        let mut entry = made.descriptor();
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entries.push(entry);
    }
    let index = server.push_index(&entries, "both:v1").await;
    let which =
        |image: &espalier_images::Image| std::fs::read_to_string(image.layers()[0].join("which")).unwrap();
    for (architecture, expect) in [("amd64", true), ("arm64", true), ("riscv64", false)] {
        let mut options = options();
        options.platform.architecture = architecture.to_owned();
        let store = ImageStore::open(folder.path(), options).unwrap();
        for name in ["both:v1".to_owned(), format!("both@{index}")] {
            match get(&store, &server.name(&name)).await {
                Ok(image) => assert!(expect && which(&image) == architecture),
                Err(ImageError::NoPlatform { available, .. }) if !expect => {
                    assert_eq!(available, "linux/amd64, linux/arm64");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[tokio::test]
async fn what_was_cut_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let (layers, bytes) = (3, 3 << 20);
    server.push(&large(layers, bytes), "a:v1").await;
    for seed in 1..=3 {
        let proxy = Proxy::start(server.address, Line::Cuts(600_000), seed).await;
        let at = folder.path().join(seed.to_string());
        let image = get(&store(&at), &proxy.name("a:v1")).await.unwrap();
        holds(&image, layers, bytes);
        let (through, connections) =
            (proxy.bytes.load(Ordering::SeqCst), proxy.connections.load(Ordering::SeqCst));
        println!("{through} bytes over {connections} connections for {}", layers * bytes);
        assert!(connections > 15, "it was cut: {connections}");
        assert!(through < (layers * bytes) as u64 * 3 / 2, "little came twice: {through}");
        assert_eq!(left_over(&at), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_registry_that_knows_no_parts_is_asked_for_all_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let bytes = 1 << 20;
    server.push(&large(1, bytes), "a:v1").await;
    let proxy = Proxy::start(server.address, Line::Whole(bytes as u64 / 2), 0).await;
    holds(&get(&store(folder.path()), &proxy.name("a:v1")).await.unwrap(), 1, bytes);
    let through = proxy.bytes.load(Ordering::SeqCst);
    assert!(through > bytes as u64 * 2, "three halves and a whole: {through}");
}

#[tokio::test]
async fn over_tls_with_the_roots_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key -out certificate -subj /CN=localhost \
                -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    crate::trees::run(std::process::Command::new("sh").args(["-c", make]).current_dir(folder.path()));
    let server = Server::start_as(false, Some((&at("certificate"), &at("key")))).await;
    server.push(&large(1, 100), "a:v1").await;
    // Spelled so that it is not taken for the loopback, which would be spoken to without TLS.
    let name = format!("LOCALHOST:{}/a:v1", server.address.port());
    let error = get(&store(&at("untrusted")), &name).await.unwrap_err();
    assert_eq!(error.remedy(), Remedy::Retry);
    assert!(error.to_string().contains("certificate"), "{error}");
    let said = crate::sharing::child(
        folder.path(),
        None,
        &[
            ("ROLE", "get"),
            ("NAME", &name),
            ("STORE", at("trusted").to_str().unwrap()),
            ("SSL_CERT_FILE", at("certificate").to_str().unwrap()),
        ],
    );
    assert!(said.contains("LAYERS"), "{said}");
}

#[tokio::test]
async fn a_get_that_was_dropped_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let bytes = 4 << 20;
    server.push(&large(1, bytes), "a:v1").await;
    let proxy = Proxy::start(server.address, Line::Slow(4 << 20), 0).await;
    let store = store(folder.path());
    let name = proxy.name("a:v1");
    let source = Source::parse(&name).unwrap();
    let progress = watch::Sender::new(Progress::default());
    let mut seen = progress.subscribe();
    tokio::select! {
        done = store.get(&source, &progress) => panic!("{:?} before it was half there", done.map(|image| image.digest().clone())),
        half = seen.wait_for(|progress| progress.bytes_done > bytes as u64 / 2) => { half.unwrap(); }
    }
    assert!(left_over(folder.path())[0].starts_with("partial/"));
    holds(&get(&store, &name).await.unwrap(), 1, bytes);
    let through = proxy.bytes.load(Ordering::SeqCst);
    assert!(through < bytes as u64 * 5 / 4, "{through}");
    assert_eq!(left_over(folder.path()), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_registry_changed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let made = large(1, 100_000);
    server.push(&made, "a:v1").await;
    let layer = &made.layers[0];
    let path = server.blob(layer);
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[50_000] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let store = store(folder.path());
    let error = get(&store, &server.name("a:v1")).await.unwrap_err();
    let mut lines = vec![text(&error, &[(&layer[7..], "LAYER"), (&digest(&bad)[7..], "CHANGED")])];
    // Nothing of it is taken for the begin of the right one.
    std::fs::write(&path, &good).unwrap();
    holds(&get(&store, &server.name("a:v1")).await.unwrap(), 1, 100_000);
    // A manifest that is not what was pinned.
    let pinned = digest(&made.manifest);
    let path = server.blob(&pinned);
    let other = String::from_utf8(made.manifest.clone())
        .unwrap()
        .replace("\"schemaVersion\":2", "\"schemaVersion\": 2");
    std::fs::write(&path, &other).unwrap();
    let error = get(&store, &server.name(&format!("a@{pinned}"))).await.unwrap_err();
    let address = server.address.to_string();
    lines.push(text(
        &error,
        &[(&pinned[7..], "PINNED"), (&digest(other.as_bytes())[7..], "CHANGED"), (&address, "REGISTRY")],
    ));
    insta::assert_snapshot!(lines.join("\n"));
    assert_eq!(left_over(folder.path()), Vec::<String>::new());
}

#[tokio::test]
async fn credentials_of_every_usual_place() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(true).await;
    server.push(&large(1, 1000), "team/a:v1").await;
    let registry = server.address.to_string();
    let with = async |name: &str| {
        let options = ImageOptions { credentials: vec![at("missing"), at(name)], ..options() };
        let store = ImageStore::open(&at(&format!("store-{name}")), options).unwrap();
        get(&store, &server.name("team/a:v1")).await
    };
    docker_config(&at("docker"), &registry, USER.0, USER.1);
    docker_config(&at("podman"), &format!("{registry}/team"), USER.0, USER.1);
    docker_config(&at("url"), &format!("http://{registry}/v2/"), USER.0, USER.1);
    helper(
        &at("docker-credential-good"),
        &format!(r#"{{"ServerURL":"x","Username":"{}","Secret":"{}"}}"#, USER.0, USER.1),
        0,
    );
    helper(&at("docker-credential-empty"), "credentials not found in native keychain", 1);
    helper(&at("docker-credential-broken"), "no keyring", 3);
    // The helpers are found as Docker finds them. Nothing else of this process looks at the variable meanwhile but to start
    // programs, which are found by it as before.
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let said = crate::sharing::child(
        folder.path(),
        None,
        &[
            ("ROLE", "helpers"),
            ("NAME", &server.name("team/a:v1")),
            ("STORE", at("store-helpers").to_str().unwrap()),
            ("REGISTRY", &registry),
            ("PATH", &path),
        ],
    );
    for name in ["docker", "podman", "url"] {
        holds(&with(name).await.unwrap(), 1, 1000);
    }
    docker_config(&at("wrong"), &registry, USER.0, "wrong");
    std::fs::write(at("garbled"), "{").unwrap();
    let mut lines = Vec::new();
    for name in ["none", "wrong", "garbled"] {
        let error = with(name).await.unwrap_err();
        lines.push(format!(
            "{name}: {}",
            text(&error, &[(&registry, "REGISTRY"), (folder.path().to_str().unwrap(), "HOME")])
        ));
    }
    lines.extend(said.lines().filter_map(|line| line.strip_prefix("SAID ")).map(|line| {
        line.replace("\\n", "\n")
            .replace(&registry, "REGISTRY")
            .replace(folder.path().to_str().unwrap(), "HOME")
    }));
    insta::assert_snapshot!(lines.join("\n"));
}

fn helper(path: &Path, answer: &str, code: i32) {
    std::fs::write(
        path,
        format!("#!/bin/sh\n[ \"$1\" = get ] || exit 9\ncat >/dev/null\necho '{answer}'\nexit {code}\n"),
    )
    .unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_told_from_what_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    server.push(&large(1, 10), "a:v1").await;
    let registry = server.address.to_string();
    let mut lines = Vec::new();
    let mut quick = options();
    quick.waits.idle = Duration::from_millis(200);
    quick.waits.request = Duration::from_millis(400);
    let store = ImageStore::open(folder.path(), quick).unwrap();
    let mut check = async |name: &str, shown: &str, expect: Remedy| {
        let error = get(&store, name).await.unwrap_err();
        assert_eq!(error.remedy(), expect, "{error}");
        let registry =
            name.split('/').next().filter(|first| first.starts_with("127.")).unwrap_or("none").to_owned();
        let hidden = [(registry.as_str(), "REGISTRY"), (folder.path().to_str().unwrap(), "FOLDER")];
        lines.push(format!("{shown}: {}", text(&error, &hidden)));
        assert_eq!(left_over(folder.path()), Vec::<String>::new(), "{shown}");
    };
    check(&format!("{registry}/a:v2"), "unknown tag", Remedy::RejectTask).await;
    check(&format!("{registry}/b:v1"), "unknown name", Remedy::RejectTask).await;
    check(&format!("{registry}/a@sha256:{}", "0".repeat(64)), "unknown digest", Remedy::RejectTask).await;
    check(&format!("{}/a:v1", free_port()), "down", Remedy::Retry).await;
    let silent = Proxy::start(server.address, Line::Silent, 0).await;
    check(&silent.name("a:v1"), "silent", Remedy::Retry).await;
    let broken = Proxy::start(server.address, Line::Status("503 Service Unavailable", 100), 0).await;
    check(&broken.name("a:v1"), "broken", Remedy::Retry).await;
    // The first and three more; each asks for the way to log in, too.
    assert!((4..=12).contains(&broken.connections.load(Ordering::SeqCst)));
    let limited = Proxy::start(server.address, Line::Status("429 Too Many Requests", 2), 0).await;
    holds(&get(&store, &limited.name("a:v1")).await.unwrap(), 1, 10);
    check("oci:/no/such/folder", "no folder", Remedy::RejectTask).await;
    check(&format!("oci:{}", folder.path().display()), "no layout", Remedy::RejectTask).await;
    check("host", "host", Remedy::RejectTask).await;
    check("Debian:12", "no name", Remedy::RejectTask).await;
    insta::assert_snapshot!(lines.join("\n"));
}

#[tokio::test]
async fn a_full_disk_is_said_and_left_clean() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("small");
    std::fs::create_dir(&at).unwrap();
    crate::trees::run(
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(&at),
    );
    let _mounted = Mounted(at.clone());
    let server = Server::start(false).await;
    // Neither fits as it is loaded; the second does, but not unpacked beside it.
    server.push(&large(1, 8 << 20), "a:large").await;
    server.push(&large(1, 4 << 20), "a:unpacked").await;
    server.push(&large(1, 1 << 20), "a:small").await;
    let store = store(&at);
    let mut lines = Vec::new();
    for name in ["a:large", "a:unpacked"] {
        let error = get(&store, &server.name(name)).await.unwrap_err();
        assert!(matches!(error, ImageError::DiskFull { .. }), "{error}");
        let path = text(&error, &[(at.to_str().unwrap(), "STORE")]);
        lines.push(path.lines().last().unwrap().to_owned());
        assert_eq!(left_over(&at), Vec::<String>::new());
    }
    assert_eq!(lines, ["(Stop)", "(Stop)"]);
    holds(&get(&store, &server.name("a:small")).await.unwrap(), 1, 1 << 20);
}

struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
