//! File systems that are kept, and sandboxes that start from them.

use crate::support::{Leftovers, Place, Sandbox, of_disk, order};
use espalier_core::sandbox::SandboxSpec;
use espalier_images::{Draft, ImageConfig, Rights, Stop, Upper, write_layout};
use espalier_keeper::wire::{Checkpoint, Order, Root};
use espalier_sandbox::local::Local;
use espalier_sandbox::service::{Purpose, Sandboxes};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The order of a sandbox that starts from a checkpoint.
fn from(kept: &Checkpoint, order: Order) -> Order {
    let (overlays, holds) = (kept.overlays.clone(), kept.holds.clone());
    Order { root: Root { overlays, checkpoint: Some(kept.id.clone()), holds }, ..order }
}

#[tokio::test]
async fn a_checkpoint_is_a_moment_and_forks_are_apart() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let origin = place.host("origin").await;
    origin.run("mkdir /root/d && for i in $(seq 1000); do echo $i > /root/d/$i; done; rm /usr/bin/yes; ln -s d /root/link; chown 33:33 /root/d/7").await;
    origin.run("(while :; do date +%N >> /root/ticks; sleep 0.01; done) >/dev/null 2>&1 &").await;
    let kept = place.local.checkpoint("origin", "moment").await.unwrap();
    origin.run("echo later > /root/later; rm -r /root/d").await;
    let ticks = origin
        .run("a=$(wc -l < /root/ticks); sleep 0.2; b=$(wc -l < /root/ticks); [ $b -gt $a ] && echo goes on")
        .await;
    assert_eq!(ticks.0, "goes on\n");
    let mut forks = Vec::new();
    for id in ["fork-1", "fork-2"] {
        forks.push(place.make(from(&kept, order(&place.folder, id))).await);
    }
    for fork in &forks {
        let (text, code) = fork.run("ls /root/d | wc -l; cat /root/d/999; stat -c %u /root/d/7; readlink /root/link; ls /usr/bin/yes /root/later; ps -e | wc -l").await;
        assert!(text.starts_with("1000\n999\n33\nd\n"), "{text} {code}");
        assert!(
            text.contains("'/usr/bin/yes': No such file") && text.contains("'/root/later': No such file"),
            "{text}"
        );
    }
    forks[0].run("echo one > /root/d/1").await;
    assert_eq!(forks[1].run("cat /root/d/1").await.0, "1\n");
    // Neither needs its origin, nor the checkpoint that it was made from.
    place.local.delete("origin").await.unwrap();
    place.local.delete_checkpoint("moment").await.unwrap();
    assert_eq!(forks[1].run("cat /root/d/1000").await.0, "1000\n");
    // A fork of a fork.
    let second = place.local.checkpoint("fork-1", "second").await.unwrap();
    let grandchild = place.make(from(&second, order(&place.folder, "grandchild"))).await;
    assert_eq!(grandchild.run("cat /root/d/1").await.0, "one\n");
    for id in ["fork-1", "fork-2", "grandchild"] {
        place.local.delete(id).await.unwrap();
    }
    assert_eq!(place.local.checkpoints(false).await.unwrap().len(), 1);
    place.local.delete_checkpoint("second").await.unwrap();
    before.are_back(&place).await;
}

#[tokio::test]
async fn a_fork_has_its_own_quota() {
    let place = Place::new();
    let origin = place.host("origin").await;
    origin.run("head -c 10M /dev/zero > /root/big").await;
    let kept = place.local.checkpoint("origin", "moment").await.unwrap();
    let fork = place.make(from(&kept, of_disk(&place.folder, "fork", 16 << 20))).await;
    let (text, code) = fork.run("head -c 64M /dev/urandom > /root/more; rc=$?; sync; exit $rc").await;
    assert_ne!(code, 0, "{text}");
    let error = place.local.checkpoint("origin", "moment").await.unwrap_err().to_string();
    assert!(error.contains("\"moment\" is in use"), "{error}");
    let error = place.local.checkpoint("nobody", "other").await.unwrap_err().to_string();
    assert!(error.contains("no sandbox \"nobody\""), "{error}");
}

async fn create(service: &Sandboxes, image: &str) -> Sandbox {
    let spec = SandboxSpec { image: image.to_owned(), memory: 256 << 20, ..SandboxSpec::default() };
    let made = service.create(&spec, &Purpose::new("test")).await.unwrap();
    Sandbox { placed: made.placed, agent: made.agent }
}

#[tokio::test]
async fn what_was_changed_on_one_machine_goes_over_the_programs_of_another() {
    let (here, there) = (Place::new(), Place::new());
    let (ours, theirs) = (here.service(None), there.service(None));
    let origin = create(&ours, "host").await;
    let change = "echo made > /root/made; rm /usr/bin/yes; echo 'echo new' > /usr/local/bin/new; chmod 755 /usr/local/bin/new; chown 33:33 /root/made; mkdir -p /srv/a; rm -r /usr/share/doc; mkdir /usr/share/doc";
    assert_eq!(origin.run(change).await, (String::new(), 0));
    let kept = ours.checkpoint(&origin.placed.id).await.unwrap();
    let archive = here.folder.join("work.tar");
    ours.export(&kept.id, &archive, &Stop::default()).await.unwrap();
    let fork = create(&theirs, &format!("oci-archive:{}", archive.display())).await;
    let (text, _) = fork
        .run("cat /root/made; stat -c %u /root/made; ls /usr/bin/yes; new; ls -d /srv/a; ls /usr/share/doc | wc -l; ls /usr/bin/env")
        .await;
    let expect = "made\n33\nls: cannot access '/usr/bin/yes': No such file or directory\nnew\n/srv/a\n0\n/usr/bin/env\n";
    assert_eq!(text, expect);
    let error = ours.export("nothing", &archive, &Stop::default()).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid checkpoint \"nothing\": expected an id of `espalier sandbox list --checkpoints`"
    );
    ours.delete(&origin.placed.id).await.unwrap();
    ours.delete_checkpoint(&kept.id).await.unwrap();
    theirs.delete(&fork.placed.id).await.unwrap();
}

/// A shell with the libraries that it needs, and `cat`, as an OCI layout.
fn small_image(folder: &Path) -> String {
    let programs = folder.join("programs");
    for program in ["/bin/bash", "/bin/cat"] {
        let listed = Command::new("ldd").arg(program).output().unwrap().stdout;
        let listed = String::from_utf8(listed).unwrap();
        let files = listed.split_whitespace().filter(|word| word.starts_with('/')).chain([program]);
        for file in files.map(Path::new) {
            let target = programs.join(file.strip_prefix("/").unwrap());
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::copy(file, target).unwrap();
        }
    }
    let layout = folder.join("layout");
    let config = ImageConfig {
        env: BTreeMap::from([("COLOUR".to_owned(), "green".to_owned())]),
        workdir: "/srv".to_owned(),
        ..ImageConfig::default()
    };
    let uppers = [Upper::root(programs)];
    let draft = Draft { tag: "v1", base: None, uppers: &uppers, rights: Rights::Root, config: Some(&config) };
    write_layout(&layout, &draft).unwrap();
    format!("oci:{}", layout.display())
}

#[tokio::test]
async fn a_checkpoint_keeps_the_image_below_it_and_goes_with_it_into_an_archive() {
    let (here, there) = (Place::new(), Place::new());
    let folder = tempfile::tempdir().unwrap();
    let ours = here.service(Some(0));
    let origin = create(&ours, &small_image(folder.path())).await;
    assert_eq!(origin.run("echo $COLOUR; pwd > where; echo more > /srv/more").await.0, "green\n");
    let kept = ours.checkpoint(&origin.placed.id).await.unwrap();
    ours.delete(&origin.placed.id).await.unwrap();
    // Nothing runs, and nothing may stay but what is kept.
    drop(ours);
    assert_eq!(here.backend(Some(0)).images().unwrap().prune().await.unwrap().images.len(), 0);
    let ours = here.service(Some(0));
    let fork = create(&ours, &format!("checkpoint:{}", kept.id)).await;
    assert_eq!(fork.run("cat /srv/more").await.0, "more\n");
    ours.delete(&fork.placed.id).await.unwrap();
    let archive = folder.path().join("work.tar");
    let written = ours.export(&kept.id, &archive, &Stop::default()).await.unwrap();
    assert_eq!(written.layers.len(), 2);
    ours.delete_checkpoint(&kept.id).await.unwrap();
    drop(ours);
    wait_for_prune(&here.backend(Some(0))).await;
    let theirs = there.service(None);
    let copy = create(&theirs, &format!("oci-archive:{}", archive.display())).await;
    assert_eq!(copy.run("cat /srv/more; echo $COLOUR").await.0, "more\ngreen\n");
    theirs.delete(&copy.placed.id).await.unwrap();
}

/// The keeper lets go of what it held for a checkpoint when it has forgotten it.
async fn wait_for_prune(backend: &Local) {
    for _ in 0..100 {
        if !backend.images().unwrap().prune().await.unwrap().images.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the image stays, though nothing wants it");
}
