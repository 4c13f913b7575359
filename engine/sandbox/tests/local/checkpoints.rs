//! File systems that are kept, and sandboxes that start from them.

use crate::support::{Leftovers, Place, order, wait_until};
use espalier_sandbox::backend::{Backend, Order};

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
        forks.push(place.make(Order { root: kept.root.clone(), ..order(&place.folder, id) }).await);
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
    let grandchild =
        place.make(Order { root: second.root.clone(), ..order(&place.folder, "grandchild") }).await;
    assert_eq!(grandchild.run("cat /root/d/1").await.0, "one\n");
    for id in ["fork-1", "fork-2", "grandchild"] {
        place.local.delete(id).await.unwrap();
    }
    assert_eq!(place.local.checkpoints().await.unwrap().len(), 1);
    place.local.delete_checkpoint("second").await.unwrap();
    wait_until("nothing is left", || Leftovers::of(&place) == before).await;
}

#[tokio::test]
async fn a_fork_has_its_own_quota() {
    let place = Place::new();
    let origin = place.host("origin").await;
    origin.run("head -c 10M /dev/zero > /root/big").await;
    let kept = place.local.checkpoint("origin", "moment").await.unwrap();
    let fork =
        place.make(Order { root: kept.root.clone(), disk: 16 << 20, ..order(&place.folder, "fork") }).await;
    let (text, code) = fork.run("head -c 64M /dev/urandom > /root/more; rc=$?; sync; exit $rc").await;
    assert_ne!(code, 0, "{text}");
    let error = place.local.checkpoint("origin", "moment").await.unwrap_err().to_string();
    assert!(error.contains("\"moment\" is in use"), "{error}");
    let error = place.local.checkpoint("nobody", "other").await.unwrap_err().to_string();
    assert!(error.contains("there is no sandbox \"nobody\""), "{error}");
}
