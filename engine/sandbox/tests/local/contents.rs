//! What is in one sandbox, or written down of it, whatever it is, keeps nobody from another.

use crate::support::{Leftovers, Place, Sandbox, found_by_the_next, keeper_pid, kill, open, order};
use espalier_core::sandbox::SandboxSpec;
use espalier_keeper::wire::{Environment, Order};
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::service::Purpose;
use std::collections::BTreeMap;
use std::path::Path;

/// Nearly 1 MiB of characters that JSON writes with six.
fn control_characters() -> Vec<(String, String)> {
    (0..9).map(|number| (format!("V{number}"), "\u{1}".repeat(110_000))).collect()
}

const COUNT: &str = "for n in 0 1 2 3 4 5 6 7 8; do eval \"printf %s \\\"\\$V$n\\\"\" | tr -d '\\001' | wc -c; eval \"printf %s \\\"\\$V$n\\\"\" | wc -c; done | sort -u | tr '\\n' ' '";

#[tokio::test]
async fn sandboxes_with_large_environments_are_listed_and_found_by_everybody() {
    let place = Place::new();
    let service = place.service(None);
    let spec = SandboxSpec {
        env: control_characters().into_iter().collect(),
        memory: 64 << 20,
        ..SandboxSpec::default()
    };
    let mut own = Vec::new();
    for _ in 0..6 {
        own.push(service.create(&spec, &Purpose::new("test")).await.unwrap());
    }
    let mut ids: Vec<String> = own.iter().map(|sandbox| sandbox.placed.id.clone()).collect();
    ids.sort();
    let listed = |all: Vec<espalier_sandbox::backend::Placed>| {
        let mut ids: Vec<String> = all.into_iter().map(|placed| placed.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(listed(place.local.list().await.unwrap()), ids);
    assert_eq!(listed(open(&place.folder).list().await.unwrap()), ids, "another engine");
    kill(keeper_pid(&place));
    assert_eq!(listed(found_by_the_next(&place, 6).await), ids, "the next keeper");
    // It is all there, also in what starts from it.
    let placed = place.local.find(&ids[0]).await.unwrap().unwrap();
    assert_eq!(Sandbox::of(placed, "again").await.run(COUNT).await.0, "0 110000 ");
    let kept = service.checkpoint(&ids[0]).await.unwrap();
    let small = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
    let fork = service.fork(&kept.id, &small, &Purpose::new("fork")).await.unwrap();
    let fork_id = fork.placed.id.clone();
    let fork = Sandbox { placed: fork.placed, agent: fork.agent };
    assert_eq!(fork.run(COUNT).await.0, "0 110000 ");
    service.delete_checkpoint(&kept.id).await.unwrap();
    for id in ids.iter().chain([&fork_id]) {
        service.delete(id).await.unwrap();
    }
}

#[tokio::test]
async fn labels_have_a_bound_that_refuses_their_own_sandbox_alone() {
    let place = Place::new();
    place.host("other").await;
    place.host("labelled").await;
    let set = |name: String, value: Option<String>| {
        place.local.relabel("labelled", BTreeMap::from([(name, value)]))
    };
    let mut refused = None;
    for number in 0..100 {
        if let Err(error) = set(format!("label-{number}"), Some("\u{1}".repeat(50_000))).await {
            refused = Some((number, error));
            break;
        }
    }
    let (count, error) = refused.expect("they have a bound");
    assert!(
        matches!(&error, SandboxError::Rejected(_) if error.with_causes().contains("at most 2097152")),
        "{error}"
    );
    let placed = place.local.find("labelled").await.unwrap().unwrap();
    assert_eq!(placed.labels.len(), count, "all of a change or nothing");
    // What is removed makes room.
    set("label-0".to_owned(), None).await.unwrap();
    set("last".to_owned(), Some("\u{1}".repeat(50_000))).await.unwrap();
    assert!(!place.local.find("labelled").await.unwrap().unwrap().labels.contains_key("label-0"));
    let long = BTreeMap::from([("long".to_owned(), "x".repeat(3 << 20))]);
    let error =
        place.local.create(&Order { labels: long, ..order(&place.folder, "long") }, &[]).await.unwrap_err();
    assert!(matches!(error, SandboxError::Rejected(_)), "{error}");
    let longer = BTreeMap::from([("long".to_owned(), "x".repeat(30 << 20))]);
    let error = place
        .local
        .create(&Order { labels: longer, ..order(&place.folder, "longer") }, &[])
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::Rejected(_)), "{error}");
    let environment = Some(Environment::of(&[("A".to_owned(), "x".repeat(200_000))]));
    let error =
        place.local.create(&Order { environment, ..order(&place.folder, "env") }, &[]).await.unwrap_err();
    assert!(matches!(error, SandboxError::Rejected(_)), "{error}");
    assert_eq!(place.local.list().await.unwrap().len(), 2);
    for id in ["other", "labelled"] {
        place.local.delete(id).await.unwrap();
    }
}

#[tokio::test]
async fn a_list_has_all_of_them_however_many_pages_it_takes() {
    let place = Place::new();
    let labels = BTreeMap::from([("big".to_owned(), "x".repeat(300_000))]);
    let here = &place;
    futures::future::join_all((0..10).map(|number| {
        let order = Order { labels: labels.clone(), ..order(&here.folder, &format!("paged-{number}")) };
        async move { here.local.create(&order, &[]).await.map(drop).unwrap() }
    }))
    .await;
    let ids: Vec<String> = place.local.list().await.unwrap().into_iter().map(|placed| placed.id).collect();
    assert_eq!(ids, (0..10).map(|number| format!("paged-{number}")).collect::<Vec<_>>());
    for number in 0..10 {
        place.local.checkpoint(&format!("paged-{number}"), &format!("kept-{number}")).await.unwrap();
        place.local.delete(&format!("paged-{number}")).await.unwrap();
    }
    let ids: Vec<String> =
        place.local.checkpoints(false).await.unwrap().into_iter().map(|kept| kept.id).collect();
    assert_eq!(ids, (0..10).map(|number| format!("kept-{number}")).collect::<Vec<_>>());
    for id in ids {
        place.local.delete_checkpoint(&id).await.unwrap();
    }
}

/// Ways to spoil the files of one sandbox.
type Spoil = (&'static str, fn(&Path));

const SPOILT: [Spoil; 8] = [
    ("empty", |file| std::fs::write(file, "").unwrap()),
    ("cut", |file| {
        let text = std::fs::read(file).unwrap();
        std::fs::write(file, &text[..text.len() / 2]).unwrap();
    }),
    ("garbage", |file| std::fs::write(file, [0xff; 4096]).unwrap()),
    ("nested", |file| std::fs::write(file, "[".repeat(1 << 20)).unwrap()),
    ("huge", |file| std::fs::File::create(file).unwrap().set_len(1 << 42).unwrap()),
    ("folder", |file| {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
    }),
    ("pipe", |file| {
        std::fs::remove_file(file).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }),
    ("link", |file| {
        std::fs::remove_file(file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", file).unwrap();
    }),
];

#[tokio::test]
async fn damaged_records_of_some_keep_nobody_from_the_others() {
    let place = Place::new();
    let healthy = place.host("healthy").await;
    healthy.run("echo kept > /root/kept").await;
    place.local.checkpoint("healthy", "whole").await.unwrap();
    for (name, _) in SPOILT {
        place.host(name).await;
        place.local.checkpoint("healthy", name).await.unwrap();
    }
    kill(keeper_pid(&place));
    for (name, spoil) in SPOILT {
        spoil(&place.folder.join(format!("sandboxes/{name}.json")));
        spoil(&place.folder.join(format!("checkpoints/{name}.json")));
    }
    let ids = |all: Vec<espalier_sandbox::backend::Placed>| -> Vec<String> {
        all.into_iter().map(|placed| placed.id).collect()
    };
    assert_eq!(ids(found_by_the_next(&place, 1).await), ["healthy"]);
    let kept: Vec<String> =
        place.local.checkpoints(false).await.unwrap().into_iter().map(|kept| kept.id).collect();
    assert_eq!(kept, ["whole"]);
    // The environments of checkpoints are spoilt: each tells that of itself.
    place.local.checkpoint("healthy", "second").await.unwrap();
    for (name, spoil) in
        SPOILT.into_iter().filter(|(name, _)| !["empty", "cut", "garbage", "nested"].contains(name))
    {
        place.local.checkpoint("healthy", &format!("again-{name}")).await.unwrap();
        spoil(&place.folder.join(format!("checkpoints/again-{name}.environ")));
        let error = place.local.find_checkpoint(&format!("again-{name}")).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("the environment of checkpoint again-{name}: ")), "{error}");
        place.local.find_checkpoint("second").await.unwrap().unwrap();
        place.local.delete_checkpoint(&format!("again-{name}")).await.unwrap();
    }
    assert_eq!(healthy.run("cat /root/kept").await.0, "kept\n");
    assert_eq!(place.host("next").await.run("echo made").await.0, "made\n");
    for id in ["healthy", "next"] {
        place.local.delete(id).await.unwrap();
    }
    for id in ["whole", "second"] {
        place.local.delete_checkpoint(id).await.unwrap();
    }
}

#[tokio::test]
async fn sandboxes_and_checkpoints_of_version_2_are_taken_over() {
    let place = Place::new();
    let before = Leftovers::of(&place);
    let environment = Some(Environment::of(&[("OLD".to_owned(), "\u{1}kept".to_owned())]));
    place.make(Order { environment, ..order(&place.folder, "old") }).await;
    place.local.checkpoint("old", "moment").await.unwrap();
    kill(keeper_pid(&place));
    // As that version wrote them: with the environment in the record, and no file beside it.
    for (file, order) in [("sandboxes/old.json", Some("order")), ("checkpoints/moment.json", None)] {
        let path = place.folder.join(file);
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let holder = order.map_or_else(|| None, |name| record.get_mut(name));
        let pairs = serde_json::json!([["OLD", "\u{1}kept"]]);
        match holder {
            Some(order) => order["environment"] = pairs,
            None => record["environment"] = pairs,
        }
        std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        std::fs::remove_file(path.with_extension("environ")).unwrap();
    }
    let listed = found_by_the_next(&place, 1).await;
    assert_eq!(listed[0].id, "old");
    let again = Sandbox::of(listed[0].clone(), "again").await;
    assert_eq!(again.run("printf %s \"$OLD\" | tail -c 4").await.0, "kept");
    let kept = place.local.find_checkpoint("moment").await.unwrap().unwrap();
    assert_eq!(kept.environment.unwrap().variables(), [("OLD".to_owned(), "\u{1}kept".to_owned())]);
    let next = place.local.checkpoint("old", "next").await.unwrap();
    let found = place.local.find_checkpoint(&next.id).await.unwrap().unwrap();
    assert_eq!(found.environment.unwrap().variables(), [("OLD".to_owned(), "\u{1}kept".to_owned())]);
    for id in [kept.id, next.id] {
        place.local.delete_checkpoint(&id).await.unwrap();
    }
    place.local.delete("old").await.unwrap();
    before.are_back(&place).await;
}
