//! The work of one sandbox taken out and put into another.

use crate::support::{Sandbox, Way};
use espalier_agent_client::wire::{ChangesRequest, Reason};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Name to (kind and mode, owner, content or target).
type State = BTreeMap<PathBuf, (u32, u32, Vec<u8>)>;

fn state(root: &Path) -> State {
    let mut found = State::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let content = if stat.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if stat.is_symlink() {
                std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                std::fs::read(&path).unwrap()
            };
            found.insert(path.strip_prefix(root).unwrap().to_path_buf(), (stat.mode(), stat.uid(), content));
        }
    }
    found
}

fn bytes(path: &Path) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
}

fn fill(root: &Path, random: &mut StdRng) {
    for number in 0..60 {
        let folder = root.join(format!("d{}", number % 7)).join(format!("e{}", number % 3));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("f{number}")), random.random_range(0..9).to_string().repeat(50))
            .unwrap();
    }
    symlink("d1/e1", root.join("link")).unwrap();
}

/// Does something to the tree at random.
fn disturb(root: &Path, random: &mut StdRng, number: usize) {
    let mut paths: Vec<PathBuf> = state(root).into_keys().collect();
    paths.push(PathBuf::from("d1"));
    let picked = root.join(&paths[random.random_range(0..paths.len())]);
    let Ok(stat) = picked.symlink_metadata() else { return };
    match random.random_range(0..9) {
        0 if stat.is_file() => std::fs::write(&picked, format!("changed {number}\0\u{ff}")).unwrap(),
        1 if stat.is_file() => std::fs::set_permissions(&picked, PermissionsExt::from_mode(0o751)).unwrap(),
        2 if stat.is_dir() => drop(std::fs::remove_dir_all(&picked)),
        2 => drop(std::fs::remove_file(&picked)),
        3 if stat.is_dir() => std::fs::write(picked.join(format!("new {number}")), vec![7; 200_000]).unwrap(),
        4 if stat.is_file() => {
            std::fs::remove_file(&picked).unwrap();
            std::fs::create_dir(&picked).unwrap();
            std::fs::write(picked.join("inside"), "x").unwrap();
        }
        5 if stat.is_dir() => {
            std::fs::remove_dir_all(&picked).unwrap();
            symlink("no/where", &picked).unwrap();
        }
        6 => drop(std::fs::rename(&picked, root.join(format!("moved {number}")))),
        7 if stat.is_file() => drop(std::fs::hard_link(&picked, root.join(format!("hard {number}")))),
        8 if stat.is_dir() => std::fs::set_permissions(&picked, PermissionsExt::from_mode(0o711)).unwrap(),
        _ => {}
    }
}

#[tokio::test]
async fn random_work_arrives_in_a_copy() {
    let seed = 47;
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    for game in 0..12 {
        let mut random = StdRng::seed_from_u64(seed + game);
        let (root, copy) = (sandbox.path(&format!("root{game}")), sandbox.path(&format!("copy{game}")));
        std::fs::create_dir(&root).unwrap();
        fill(&root, &mut random);
        assert!(std::process::Command::new("cp").arg("-a").arg(&root).arg(&copy).status().unwrap().success());
        agent.baseline(&agent.allot(), vec![bytes(&root)], vec![]).await.unwrap();
        let file = sandbox.path("changes");
        let none = agent.changes_into(ChangesRequest::default(), &file).await.unwrap();
        assert_eq!((none.added, none.changed, none.removed), (0, 0, 0));
        for number in 0..random.random_range(1..25) {
            disturb(&root, &mut random, number);
        }
        agent
            .changes_into(ChangesRequest { root: bytes(&root), ..ChangesRequest::default() }, &file)
            .await
            .unwrap();
        // Into the copy: it takes the place of the root for the time.
        let aside = sandbox.path("aside");
        std::fs::rename(&root, &aside).unwrap();
        std::fs::rename(&copy, &root).unwrap();
        agent.apply_changes(&agent.allot(), bytes(&root), &file).await.unwrap();
        let (expect, got) = (state(&aside), state(&root));
        for (path, expected) in &expect {
            assert_eq!(
                got.get(path).map(|(mode, owner, _)| (mode, owner)),
                Some((&expected.0, &expected.1)),
                "seed {}, {}",
                seed + game,
                path.display()
            );
        }
        assert!(
            got == expect,
            "seed {}: {:?}",
            seed + game,
            got.keys().filter(|path| !expect.contains_key(*path)).collect::<Vec<_>>()
        );
        std::fs::remove_dir_all(&aside).unwrap();
    }
}

#[tokio::test]
async fn bounds_holes_and_times() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let root = sandbox.path("root");
    std::fs::create_dir_all(root.join("left out")).unwrap();
    std::fs::write(root.join("same size"), "aaaa").unwrap();
    let file = sandbox.path("changes");
    let early = agent.changes_into(ChangesRequest::default(), &file).await.unwrap_err();
    assert_eq!(early.to_string(), "changes: no baseline was taken");
    let answer = agent
        .baseline(&agent.allot(), vec![bytes(&root)], vec![bytes(&root.join("left out"))])
        .await
        .unwrap();
    assert_eq!(answer.entries, 1);
    // The same size, and the time set back.
    let stamp = std::fs::metadata(root.join("same size")).unwrap().modified().unwrap();
    std::fs::write(root.join("same size"), "bbbb").unwrap();
    std::fs::File::options().write(true).open(root.join("same size")).unwrap().set_modified(stamp).unwrap();
    std::fs::write(root.join("left out/file"), "x").unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 28).unwrap();
    sparse.write_all_at(b"x", 1 << 27).unwrap();
    let request = ChangesRequest { bytes_max: 1000, ..ChangesRequest::default() };
    let refused = agent.changes_into(request, &file).await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Bound), "{refused}");
    let end = agent.changes_into(ChangesRequest::default(), &file).await.unwrap();
    assert_eq!((end.added, end.changed, end.removed), (1, 1, 0));
    assert!(std::fs::metadata(&file).unwrap().len() < 1 << 20);
    // What counts is what exists of a file, whatever size it says.
    sparse.set_len(1 << 40).unwrap();
    let request = ChangesRequest { bytes_max: 64 << 10, ..ChangesRequest::default() };
    let end = agent.changes_into(request, &file).await.unwrap();
    assert!(end.content_bytes < 64 << 10, "{}", end.content_bytes);
    let names = ChangesRequest { names_only: true, bytes_max: 1, ..ChangesRequest::default() };
    agent.changes_into(names, &file).await.unwrap();
    let elsewhere = ChangesRequest { root: "/usr".into(), ..ChangesRequest::default() };
    let refused = agent.changes_into(elsewhere, &file).await.unwrap_err();
    assert_eq!(refused.to_string(), "changes: `/usr` is in no folder of the baseline");
}

#[tokio::test]
async fn changes_cannot_lead_out_of_their_folder() {
    let sandbox = Sandbox::start(Way::Beside).await;
    let agent = &sandbox.agent;
    let (root, outside) = (sandbox.path("root"), sandbox.path("outside"));
    std::fs::create_dir(&root).unwrap();
    std::fs::create_dir(&outside).unwrap();
    agent.baseline(&agent.allot(), vec![bytes(&root)], vec![]).await.unwrap();
    std::fs::create_dir(root.join("door")).unwrap();
    std::fs::write(root.join("door/file"), "planted").unwrap();
    let file = sandbox.path("changes");
    agent.changes_into(ChangesRequest::default(), &file).await.unwrap();
    // In the target the folder is a link that leads outside.
    std::fs::remove_dir_all(root.join("door")).unwrap();
    symlink(&outside, root.join("door")).unwrap();
    agent.apply_changes(&agent.allot(), bytes(&root), &file).await.unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert!(root.join("door").symlink_metadata().unwrap().is_dir(), "the link was replaced by the folder");
    assert_eq!(std::fs::read(root.join("door/file")).unwrap(), b"planted");
    // Only what is below the folder that is named is taken.
    let answer = agent.apply_changes(&agent.allot(), bytes(&outside), &file).await.unwrap();
    assert_eq!((answer.added, answer.changed, answer.removed), (0, 0, 0));
}
