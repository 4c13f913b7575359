//! Layers by chance: sound ones compared with `umoci`, damaged ones that must only fail.

use crate::tars::{As, Of, Tar, image};
use crate::trees::{Tree, merged, same, tree, umoci};
use crate::{get, left_over, store};
use espalier_images::ImageError;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::collections::BTreeMap;

/// What is at a name.
#[derive(Clone, Copy, PartialEq)]
enum Is {
    Folder,
    Other,
}

/// A layer as a tool writes it that compares two states: folders before what is in them, a mark for what is gone.
fn layer(rng: &mut ChaCha8Rng, state: &mut BTreeMap<String, Is>) -> Tar {
    let mut tar = Tar::new();
    let mut own: BTreeMap<String, Is> = BTreeMap::new();
    let mut files: Vec<String> = Vec::new();
    let name = |rng: &mut ChaCha8Rng| ["a", "b", "c", "\u{e9}", "d d"][rng.random_range(0..5)].to_owned();
    for _ in 0..rng.random_range(1..25) {
        let mut path = String::new();
        // Down into folders, as many as there are on the way.
        loop {
            let next = if path.is_empty() { name(rng) } else { format!("{path}/{}", name(rng)) };
            let down = state.get(&next) == Some(&Is::Folder) && rng.random_bool(0.7);
            path = next;
            if !down {
                break;
            }
            if !own.contains_key(&path) {
                own.insert(path.clone(), Is::Folder);
                tar = tar.folder(&path);
            }
        }
        if own.contains_key(&path) {
            continue;
        }
        let (parent, last) =
            path.rsplit_once('/').map_or(("", path.as_str()), |(parent, last)| (parent, last));
        let inside = |other: &String| *other == path || other.starts_with(&format!("{path}/"));
        let mut add = |tar: Tar, is: Is, of: &Of<'_>| {
            if is == Is::Other {
                state.retain(|other, _| !inside(other));
            }
            state.insert(path.clone(), is);
            tar.add(&path, of)
        };
        let mode = [0o600, 0o644, 0o755, 0o4755][rng.random_range(0..4)];
        let owner = (rng.random_range(0..3), rng.random_range(0..3));
        let mtime = rng.random_range(0..2_000_000_000);
        let of = Of { mode, owner, mtime, ..Of::default() };
        let data = vec![rng.random_range(0..3_u8); rng.random_range(0..70_000)];
        match rng.random_range(0..7) {
            0 | 1 => {
                // One that takes the place of something else is new: nothing of below shows in it.
                tar = add(tar, Is::Folder, &Of { kind: b'5', ..of });
                own.insert(path.clone(), Is::Folder);
                continue;
            }
            2 | 3 => {
                tar = add(tar, Is::Other, &Of { data: &data, ..of });
                files.push(path.clone());
            }
            4 => tar = add(tar, Is::Other, &Of { kind: b'2', link: b"../a/b", mode: 0o777, ..of }),
            5 if !files.is_empty() => {
                let target = files[rng.random_range(0..files.len())].clone();
                tar = add(tar, Is::Other, &Of { kind: b'1', link: target.as_bytes(), ..of });
            }
            _ if state.contains_key(&path) => {
                state.retain(|other, _| !inside(other));
                let mark =
                    if parent.is_empty() { format!(".wh.{last}") } else { format!("{parent}/.wh.{last}") };
                tar = tar.file(mark, "");
            }
            _ => continue,
        }
        own.insert(path.clone(), Is::Other);
    }
    tar
}

#[tokio::test]
async fn sound_layers_by_chance_are_what_umoci_makes() {
    for seed in 0..25 {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut state = BTreeMap::new();
        let layers: Vec<_> = (0..4).map(|_| (layer(&mut rng, &mut state).end(), As::Gzip)).collect();
        image(&layers, "amd64", &json!({})).layout(&at("layout"), "v1");
        let theirs = umoci(&at("layout"), "v1", &at("bundle"));
        let image = get(&store(&at("store")), &format!("oci:{}", at("layout").display())).await.unwrap();
        same(&merged(image.layers(), "trusted.overlay.opaque"), &theirs);
        assert_eq!(theirs.len(), state.len());
    }
}

/// Bytes of a tar that were changed anywhere: what comes of it is an image or bad content, never anything outside, never
/// anything left.
#[tokio::test]
async fn damaged_layers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let canary = tempfile::tempdir().unwrap();
    let out = canary.path().to_str().unwrap().to_owned();
    let at = |name: &str| folder.path().join(name);
    let (mut good, mut bad) = (0, 0);
    for seed in 0..250 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut tar = layer(&mut rng, &mut BTreeMap::new())
            .symlink("out", &out)
            .file("out/x", "x")
            .add(
                "p",
                &Of {
                    pax: vec![("SCHILY.xattr.user.a", b"b".to_vec()), ("mtime", b"1.5".to_vec())],
                    ..Of::default()
                },
            )
            .end();
        for _ in 0..rng.random_range(1..6) {
            damage(&mut rng, &mut tar);
        }
        image(&[(tar, As::Tar)], "amd64", &json!({})).layout(&at("layout"), "v1");
        let store = store(&at("store"));
        match get(&store, &format!("oci:{}", at("layout").display())).await {
            Ok(image) => {
                good += 1;
                tree(&image.layers()[0]);
            }
            Err(ImageError::BadContent { .. } | ImageError::TooLarge { .. }) => bad += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        assert_eq!(tree(canary.path()), Tree::new(), "seed {seed}");
        assert_eq!(left_over(&at("store")), Vec::<String>::new(), "seed {seed}");
        std::fs::remove_dir_all(at("layout")).unwrap();
    }
    println!("{good} were still images, {bad} were refused");
    assert!(good > 20 && bad > 20, "{good} {bad}");
}

fn damage(rng: &mut ChaCha8Rng, tar: &mut Vec<u8>) {
    let block = rng.random_range(0..tar.len() / 512) * 512;
    match rng.random_range(0..6) {
        0 => tar.truncate(block + rng.random_range(0..512)),
        1 => {
            let copy = tar[block..block + 512].to_vec();
            let to = rng.random_range(0..tar.len() / 512) * 512;
            tar.splice(to..to, copy);
        }
        kind => {
            let field = [0, 100, 108, 124, 136, 156, 157, 257, 329, 345][rng.random_range(0..10)];
            let at = block + field + rng.random_range(0..8);
            tar[at] = if kind < 4 { b"./\0 017x"[rng.random_range(0..8)] } else { rng.random() };
            // Mostly with a sum that fits, so that more than the sum is tried.
            let header: &mut [u8] = &mut tar[block..block + 512];
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    tar.resize(tar.len().next_multiple_of(512), 0);
    tar.resize(tar.len().max(1024), 0);
}
