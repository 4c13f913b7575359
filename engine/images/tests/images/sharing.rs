//! Several processes with one store: two that pull, one that is killed, one that uses what another would remove.

use crate::registries::large;
use crate::registry::{Line, Proxy, Server};
use crate::tars::{As, Tar, image};
use crate::{get, left_over, options, store};
use espalier_images::{ImageError, ImageOptions, ImageStore};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// This test program as another process, which does what the variables say.
fn command(folder: &Path, uid: Option<u32>, variables: &[(&str, &str)]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = match uid {
        None => Command::new(own),
        Some(uid) => {
            use std::os::unix::process::CommandExt;
            // Where it was built others may not look.
            let copy = folder.join("test-program");
            std::fs::copy(own, &copy).unwrap();
            let mut command = Command::new(copy);
            command.uid(uid).gid(uid);
            command
        }
    };
    command.args(["--exact", "sharing::in_a_process_of_its_own", "--ignored", "--nocapture"]);
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    for (name, value) in variables {
        command.env(name, value);
    }
    command
}

/// Runs it to its end, which has to be good, and returns what it said.
#[track_caller]
pub(crate) fn child(folder: &Path, uid: Option<u32>, variables: &[(&str, &str)]) -> String {
    let output = command(folder, uid, variables).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[tokio::test]
#[ignore = "run by others as a process of its own"]
async fn in_a_process_of_its_own() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let (name, at) = (variable("NAME"), variable("STORE"));
    match variable("ROLE").as_str() {
        "get" => {
            let image = get(&store(Path::new(&at)), &name).await.unwrap();
            println!("\nLAYERS {}", json!([image.layers(), image.reports()]));
        }
        "hold" => {
            let _image = get(&store(Path::new(&at)), &name).await.unwrap();
            println!("\nHELD");
            // Until whoever started it closes the pipe.
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        "outlived" => {
            let image = get(&store(Path::new(&at)), &name).await.unwrap();
            // Passed on as something inherited, as to whoever owns a sandbox.
            let held = image.hold().try_clone_to_owned().unwrap();
            let mut sleeper = Command::new("sleep");
            // Not its other ends, on which whoever started this waits.
            sleeper.arg("600").stdin(held).stdout(Stdio::null()).stderr(Stdio::null());
            #[expect(clippy::zombie_processes, reason = "it outlives this process on purpose")]
            let sleeper = sleeper.spawn().unwrap();
            println!("\nSLEEPER {}", sleeper.id());
        }
        "remove" => {
            let pruned = store(Path::new(&at)).remove(&name).await.unwrap();
            assert_eq!(pruned.images.len(), 1);
        }
        "helpers" => helpers(&name, Path::new(&at), &variable("REGISTRY")).await,
        other => panic!("{other}"),
    }
}

/// Docker's helpers, which are looked for in this process's own path.
async fn helpers(name: &str, at: &Path, registry: &str) {
    for (case, config) in [
        ("helper", json!({"credHelpers": {registry: "good"}})),
        ("store", json!({"auths": {registry: {}}, "credsStore": "good"})),
        ("empty", json!({"credsStore": "empty"})),
        ("broken", json!({"credsStore": "broken"})),
        ("absent", json!({"credsStore": "absent"})),
        ("path", json!({"credsStore": "../good"})),
    ] {
        let file = at.with_extension(case);
        std::fs::write(&file, config.to_string()).unwrap();
        let options = ImageOptions { credentials: vec![file.clone()], ..options() };
        let store = ImageStore::open(&at.join(case), options).unwrap();
        let said = match get(&store, name).await {
            Ok(_) => "pulled".to_owned(),
            Err(error) => crate::text(&error, &[]).replace('\n', "\\n"),
        };
        println!("\nSAID {case}: {said}");
    }
}

fn wait_for(child: &mut Child, line: &str) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|said| said.unwrap() == line), "{line} was not said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_that_want_the_same_load_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let (layers, bytes) = (30, 60_000);
    server.push(&large(layers, bytes), "a:v1").await;
    let proxy = Proxy::start(server.address, Line::Good, 0).await;
    let (name, at) = (proxy.name("a:v1"), folder.path().join("store"));
    let variables = [("ROLE", "get"), ("NAME", name.as_str()), ("STORE", at.to_str().unwrap())];
    let children: Vec<Child> =
        (0..4).map(|_| command(folder.path(), None, &variables).spawn().unwrap()).collect();
    let said: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{said}");
            said.lines().find(|line| line.starts_with("LAYERS ")).unwrap().to_owned()
        })
        .collect();
    assert!(said.iter().all(|other| *other == said[0]));
    let through = proxy.bytes.load(Ordering::SeqCst);
    println!("{through} bytes for {}", layers * bytes);
    assert!(through < (layers * bytes) as u64 * 3 / 2, "{through}");
    assert_eq!(left_over(&at), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_began_is_gone_on_with_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let bytes = 6 << 20;
    server.push(&large(1, bytes), "a:v1").await;
    let proxy = Proxy::start(server.address, Line::Slow(6 << 20), 0).await;
    let (name, at) = (proxy.name("a:v1"), folder.path().join("store"));
    let variables = [("ROLE", "get"), ("NAME", name.as_str()), ("STORE", at.to_str().unwrap())];
    let mut child = command(folder.path(), None, &variables).spawn().unwrap();
    while proxy.bytes.load(Ordering::SeqCst) < bytes as u64 / 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // As if it had died while it unpacked, too.
    let tmp = at.join("tmp").join(child.id().to_string());
    assert!(tmp.is_dir());
    std::fs::create_dir_all(tmp.join("0/root/closed")).unwrap();
    std::fs::write(tmp.join("0/root/closed/file"), "half").unwrap();
    let before = proxy.bytes.load(Ordering::SeqCst);
    let store = store(&at);
    let image = get(&store, &name).await.unwrap();
    assert_eq!(std::fs::metadata(image.layers()[0].join("data/0")).unwrap().len(), bytes as u64);
    let after = proxy.bytes.load(Ordering::SeqCst) - before;
    assert!(after < bytes as u64 * 3 / 4, "{after} more after {before}");
    store.prune().await.unwrap();
    assert_eq!(left_over(&at), Vec::<String>::new());
    assert!(!tmp.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_is_made_of_what_nobody_uses() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("store");
    let shared = (
        Tar::new().folder("shared").file("shared/file", crate::registries::noise(200_000, 99)).end(),
        As::Gzip,
    );
    let mut names = Vec::new();
    for number in 0..4 {
        let own = Tar::new()
            .add("closed", &crate::tars::Of { kind: b'5', mode: 0, ..Default::default() })
            .file("closed/own", crate::registries::noise(1_000_000, number));
        let made = image(&[shared.clone(), (own.end(), As::Tar)], "amd64", &json!({}));
        made.layout(&folder.path().join(format!("layout-{number}")), "v1");
        names.push(format!("oci:{}:v1", folder.path().join(format!("layout-{number}")).display()));
    }
    let bounded = ImageOptions { size_max: Some(2_500_000), ..options() };
    let bounded = ImageStore::open(&at, bounded).unwrap();
    let variables = [("ROLE", "hold"), ("NAME", names[0].as_str()), ("STORE", at.to_str().unwrap())];
    let mut holder = command(folder.path(), None, &variables).spawn().unwrap();
    wait_for(&mut holder, "HELD");
    let one = get(&bounded, &names[1]).await.unwrap();
    let gone = {
        let image = get(&bounded, &names[2]).await.unwrap();
        (image.digest().clone(), image.layers().to_vec())
    };
    let last = get(&bounded, &names[3]).await.unwrap();
    // The first is used by another process, the second and the last by this one.
    let there = |listed: &[espalier_images::Listed]| -> Vec<String> {
        let mut names: Vec<String> = listed.iter().flat_map(|image| image.names.clone()).collect();
        names.sort();
        names
    };
    let listed = bounded.list().await.unwrap();
    assert_eq!(there(&listed), [names[0].clone(), names[1].clone(), names[3].clone()]);
    assert!(listed.iter().all(|image| image.in_use && image.complete && image.layers == 2));
    assert!(gone.1[0].exists(), "the layer that all have");
    assert!(!gone.1[1].exists());
    for image in [&one, &last] {
        assert!(image.layers().iter().all(|layer| layer.exists()));
    }
    let error = bounded.remove(&names[0]).await.unwrap_err();
    assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    let error = bounded.remove(gone.0.as_str()).await.unwrap_err();
    assert!(matches!(error, ImageError::Unknown { .. }), "{error}");
    // A process that dies uses nothing any more.
    holder.kill().unwrap();
    holder.wait().unwrap();
    let pruned = bounded.prune().await.unwrap();
    assert_eq!((pruned.images.len(), pruned.layers), (1, 1));
    assert!(pruned.bytes >= 1_000_000, "{pruned:?}");
    assert_eq!(there(&bounded.list().await.unwrap()), [names[1].clone(), names[3].clone()]);
    drop((one, last));
    let pruned = bounded.remove(&names[1]).await.unwrap();
    assert_eq!((pruned.images.len(), pruned.layers), (1, 1));
    let pruned = bounded.remove(&names[3]).await.unwrap();
    assert_eq!((pruned.images.len(), pruned.layers), (1, 2));
    assert_eq!(std::fs::read_dir(at.join("layers")).unwrap().count(), 0);
    assert_eq!(bounded.list().await.unwrap(), []);
    // And it comes again.
    get(&bounded, &names[0]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn getting_and_pruning_at_once_never_takes_away_what_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("store");
    let mut names = Vec::new();
    for number in 0..6_u64 {
        let tar = Tar::new().file("own", crate::registries::noise(20_000, number)).end();
        image(&[(tar, As::Tar)], "amd64", &json!({})).layout(&folder.path().join(number.to_string()), "v1");
        names.push(format!("oci:{}", folder.path().join(number.to_string()).display()));
    }
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let (at, names) = (at.clone(), names.clone());
            tokio::spawn(async move {
                // A store object each, as processes have it.
                let store = ImageStore::open(&at, ImageOptions { size_max: Some(1), ..options() }).unwrap();
                for round in 0..12 {
                    let image = get(&store, &names[(task + round * 5) % 6]).await.unwrap();
                    tokio::task::yield_now().await;
                    assert_eq!(std::fs::read(image.layers()[0].join("own")).unwrap().len(), 20_000);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let store = store(&at);
    assert!(store.list().await.unwrap().iter().all(|image| !image.in_use));
    assert_eq!(left_over(&at), Vec::<String>::new());
}

#[tokio::test]
async fn what_outlives_the_engine_and_what_is_pinned_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("store");
    let tar = Tar::new().file("own", crate::registries::noise(20_000, 1)).end();
    image(&[(tar, As::Tar)], "amd64", &json!({})).layout(&folder.path().join("layout"), "v1");
    let name = format!("oci:{}", folder.path().join("layout").display());
    let variables = [("ROLE", "outlived"), ("NAME", name.as_str()), ("STORE", at.to_str().unwrap())];
    let said = child(folder.path(), None, &variables);
    let sleeper = said.lines().find_map(|line| line.strip_prefix("SLEEPER ")).unwrap().to_owned();
    let none = ImageStore::open(&at, ImageOptions { size_max: Some(0), ..options() }).unwrap();
    assert_eq!(none.prune().await.unwrap().images.len(), 0);
    let listed = none.list().await.unwrap();
    assert!(listed[0].in_use);
    let image = none.find(&listed[0].digest).await.unwrap().expect("it is there");
    crate::trees::run(Command::new("kill").arg("-9").arg(&sleeper));
    none.pin(&image, "checkpoint one").await.unwrap();
    drop(image);
    assert_eq!(none.prune().await.unwrap().images.len(), 0);
    let listed = none.list().await.unwrap();
    assert_eq!(listed[0].pinned_by, ["checkpoint one"]);
    assert!(matches!(none.remove(&name).await, Err(ImageError::InUse { .. })));
    none.unpin("checkpoint one").await.unwrap();
    // The killed process may need a moment until the kernel has closed what it held.
    for _ in 0..1000 {
        if !none.list().await.unwrap()[0].in_use {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(none.prune().await.unwrap().images.len(), 1);
    assert!(none.find(&listed[0].digest).await.unwrap().is_none());
}

#[tokio::test]
async fn a_store_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("a/store");
    store(&at);
    assert_eq!(at.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let file = folder.path().join("file");
    std::fs::File::create(&file).unwrap().write_all(b"x").unwrap();
    let error = ImageStore::open(&file, options()).unwrap_err();
    assert!(error.to_string().starts_with("opening the image store "), "{error}");
}
