//! The same for an ordinary user: what the machine cannot do for one is refused by name, the rest holds.

use crate::support::{Leftovers, Place, Sandbox, order};
use espalier_keeper::wire::{Order, Reach};

#[tokio::test]
async fn an_ordinary_user_gets_what_the_kernel_gives_one() {
    let place = Place::of_user();
    let before = Leftovers::of(&place);
    let promises = place.local.abilities().await.unwrap().promises;
    let missing: Vec<&str> =
        promises.iter().filter(|(_, kept)| kept.is_err()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        missing,
        [
            "checkpoint",
            "cpu-limit",
            "disk-not-memory",
            "group-kill",
            "memory-limit",
            "other-users",
            "suspend"
        ]
    );
    for (promise, expect) in [
        (
            "memory-limit",
            "this machine cannot guarantee `memory-limit`: only root can create control groups; limits per process are used instead",
        ),
        ("cpu-limit", "this machine cannot guarantee `cpu-limit`: only root can create control groups"),
        (
            "other-users",
            "this machine cannot guarantee `other-users`: only root can give a sandbox more than one user",
        ),
    ] {
        let required = order(&place.folder, "wish");
        let error = place.local.create(&required, &[promise.to_owned()]).await.unwrap_err().to_string();
        assert!(error.starts_with(expect), "{error}");
    }
    let required =
        ["network-none", "own-root", "syscall-filter", "process-limit", "disk-limit"].map(str::to_owned);
    let placed = place.local.create(&order(&place.folder, "plain"), &required).await.unwrap();
    let sandbox = Sandbox::of(placed, "test").await;
    let (text, _) =
        sandbox.run("id -u; hostname; echo hi > /root/x; cat /root/x; touch /etc/new && echo made").await;
    assert_eq!(text, "0\nsandbox-plain\nhi\nmade\n");
    assert!(!std::path::Path::new("/etc/new").exists());
    // Bounds: of disk, files, processes, and of each process's memory.
    let (text, code) =
        sandbox.run("dd if=/dev/zero of=/root/big bs=1M count=200; rc=$?; rm -f /root/big; exit $rc").await;
    assert!(code != 0 && text.contains("No space left"), "{text}");
    let (text, code) = sandbox
        .run("i=0; while : > /root/file-$i; do i=$((i+1)); [ $i -lt 20000 ] || exit 0; done; exit 1")
        .await;
    assert!(code != 0 && text.contains("No space left"), "{text}");
    sandbox.run("rm -f /root/file-*").await;
    let (text, code) = sandbox.run("head -c 1 /dev/zero | tail -c 1 > /dev/null; tail /dev/zero").await;
    assert_ne!(code, 0, "{text}");
    let (text, _) = sandbox.run("for i in $(seq 200); do sleep 5 & done 2>&1; wait 2>/dev/null; echo; kill $(jobs -p) 2>/dev/null; true").await;
    assert!(text.contains("Resource temporarily unavailable"), "{text}");
    assert_eq!(sandbox.run("echo alive").await.0, "alive\n");
    let error = place.local.checkpoint("plain", "no").await.unwrap_err().to_string();
    assert_eq!(error, "this machine cannot keep checkpoints: disks of an ordinary user are in memory");
    place.local.delete("plain").await.unwrap();
    before.are_back(&place).await;
}

#[tokio::test]
async fn a_users_sandbox_does_not_let_out_either() {
    let place = Place::of_user();
    let placed = place
        .local
        .create(&Order { network: Reach::Loopback, ..order(&place.folder, "hostile") }, &[])
        .await
        .unwrap();
    let sandbox = Sandbox::of(placed, "test").await;
    crate::attacks::attack(&sandbox, "an ordinary user").await;
    place.local.delete("hostile").await.unwrap();
}
