//! Sandboxes come and go, and leave nothing.

use crate::support::{
    Leftovers, Place, Sandbox, found_by_the_next, keeper_pid, keepers, kill, order, wait_until,
};
use espalier_agent_client::Agent;

use std::time::Duration;

#[tokio::test]
async fn a_sandbox_of_this_machine_runs_commands_and_leaves_nothing() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let sandbox = place.host("one").await;
    assert_eq!(sandbox.run("id -u; hostname; pwd").await, ("0\nsandbox-one\n/\n".to_owned(), 0));
    assert_eq!(
        sandbox.run("echo hi > /usr/bin/new && cat /usr/bin/new; ls /tmp /home /root").await.0,
        "hi\n/home:\n\n/root:\n\n/tmp:\n"
    );
    assert!(!std::path::Path::new("/usr/bin/new").exists());
    let (environment, _) = sandbox.run("echo $LANG; echo $PATH | grep -c /usr/bin").await;
    assert_eq!(environment, "C.UTF-8\n1\n");
    place.local.delete("one").await.unwrap();
    assert!(place.local.list().await.unwrap().is_empty());
    assert_eq!(Leftovers::of(&place), before);
    place.local.delete("one").await.unwrap();
}

#[tokio::test]
async fn many_at_once_each_with_its_own() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let ids: Vec<String> = (0..40).map(|number| format!("many-{number}")).collect();
    let here = &place;
    let made = futures::future::join_all(ids.iter().map(|id| async move {
        let sandbox = here.host(id).await;
        let (text, _) = sandbox
            .run(&format!("echo {id} > /root/mine; sleep 0.05; cat /root/mine; ls /root | wc -l"))
            .await;
        assert_eq!(text, format!("{id}\n1\n"));
        sandbox
    }))
    .await;
    let listed = place.local.list().await.unwrap();
    assert_eq!(listed.len(), 40);
    let ids_of: std::collections::HashSet<String> = made
        .iter()
        .map(|sandbox| {
            std::fs::read_to_string(format!("/proc/{}/uid_map", sandbox.placed.pid.unwrap())).unwrap()
        })
        .collect();
    assert_eq!(ids_of.len(), 40, "no two share user ids");
    futures::future::join_all(ids.iter().map(|id| async move { here.local.delete(id).await.unwrap() })).await;
    assert_eq!(Leftovers::of(&place), before);
}

#[test]
fn the_image_of_this_machine_is_whole_however_many_ask_for_it_first() {
    let folder = tempfile::tempdir().unwrap();
    let count = |path: &std::path::Path| walk(path);
    let alone = espalier_sandbox::local::host::overlays(&folder.path().join("alone")).unwrap();
    let together = std::thread::scope(|scope| {
        let ask = || espalier_sandbox::local::host::overlays(&folder.path().join("together")).unwrap();
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    for overlays in &together {
        assert_eq!(count(&overlays[0].lowers[0]), count(&alone[0].lowers[0]));
    }
}

/// Entries below a folder.
fn walk(path: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().flatten();
    entries.map(|entry| 1 + if entry.file_type().unwrap().is_dir() { walk(&entry.path()) } else { 0 }).sum()
}

#[tokio::test]
async fn a_killed_agent_is_reported_at_once_and_its_sandbox_removed() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let sandbox = place.host("lost").await;
    let mut ended = place.local.ended();
    let command = {
        let agent: Agent = sandbox.agent.clone();
        tokio::spawn(async move {
            let spec = espalier_agent_client::command::script("sleep 1000");
            agent.run(&agent.allot(), spec, espalier_agent_client::Excerpts::default()).await
        })
    };
    let at_work = async {
        while sandbox.agent.list().await.unwrap().iter().all(|one| one.alive == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), at_work).await.expect("the command runs");
    kill(sandbox.placed.pid.unwrap());
    let told = tokio::time::timeout(Duration::from_secs(10), ended.recv()).await.unwrap().unwrap();
    assert_eq!(told.sandbox, "lost");
    assert_eq!(told.how, "its agent was killed by signal 9");
    let error = tokio::time::timeout(Duration::from_secs(20), command).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, espalier_agent_client::AgentError::Lost(_)), "{error}");
    before.are_back(&place).await;
}

#[tokio::test]
async fn silence_longer_than_the_lease_ends_a_sandbox() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let mut ended = place.local.ended();
    let order = espalier_keeper::wire::Order { lease_ms: 1000, ..order(&place.folder, "silent") };
    place.local.create(&order, &[]).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(20), ended.recv()).await.unwrap().unwrap();
    assert_eq!(
        (&*told.sandbox, &*told.how),
        ("silent", "its lease expired: it received no request from an engine")
    );
    before.are_back(&place).await;
}

#[tokio::test]
async fn sandboxes_outlive_their_keeper_and_the_next_one_finds_them() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let healthy = place.host("healthy").await;
    let killed = place.host("doomed").await;
    healthy.run("echo kept > /root/kept").await;
    kill(keeper_pid(&place));
    // Without a keeper: one dies, the other answers.
    assert_eq!(healthy.run("cat /root/kept").await.0, "kept\n");
    kill(killed.placed.pid.unwrap());
    // Finds or starts the next.
    let listed = found_by_the_next(&place, 1).await;
    let ids: Vec<&str> = listed.iter().map(|placed| &*placed.id).collect();
    assert_eq!(ids, ["healthy"]);
    let again = Sandbox::of(listed[0].clone(), "again").await;
    assert_eq!(again.run("cat /root/kept").await.0, "kept\n");
    let next = place.host("next").await;
    assert_eq!(next.run("ls /root").await.0, "");
    for id in ["healthy", "next"] {
        place.local.delete(id).await.unwrap();
    }
    before.are_back(&place).await;
}

#[tokio::test]
async fn control_groups_of_a_killed_keeper_are_removed_by_another_and_those_of_a_live_one_stay() {
    let (gone, idle, next) = (Place::new(), Place::new(), Place::new());
    for place in [&gone, &idle] {
        place.host("first").await;
        place.local.delete("first").await.unwrap();
    }
    kill(keeper_pid(&gone));
    wait_until("its keeper is gone", || keepers(&gone.folder).is_empty()).await;
    let kept = idle.store_groups();
    assert!(!kept.is_empty(), "it keeps none");
    next.host("first").await;
    assert_eq!((gone.store_groups(), idle.store_groups()), (Vec::new(), kept));
    idle.host("second").await;
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_says_why_and_leaves_nothing() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let plain = || order(&place.folder, "bad");
    let mut missing = plain();
    missing.root.overlays[0].lowers[0] = "/no/such/folder".into();
    let mut relative = plain();
    relative.root.overlays[0].lowers[0] = "no/such/folder".into();
    let mut nowhere = plain();
    nowhere.root.overlays[1].at = "/no/such/mount/point".into();
    let mut forked = plain();
    forked.root.checkpoint = Some("gone".to_owned());
    let mut id = plain();
    id.id = "../escape".to_owned();
    let required = ["gold".to_owned()];
    for (order, require, expect) in [
        (relative, &[][..], "no/such/folder below a sandbox: the path must be absolute"),
        (missing, &[], "/no/such/folder: No such file or directory (os error 2)"),
        (
            nowhere,
            &[],
            "sandbox bad could not be created: /no/such/mount/point: No such file or directory (os error 2)",
        ),
        (forked, &[], "there is no checkpoint \"gone\""),
        (id, &[], "invalid sandbox id \"../escape\": expected 1 to 40 letters, digits and dashes"),
        (plain(), &required, "this machine cannot guarantee `gold`: unknown, expected one of"),
    ] {
        let error = place.local.create(&order, require).await.unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
        before.are_back(&place).await;
    }
}
