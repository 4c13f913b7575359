//! What two root file systems have in common: everything, or the difference is named.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that can be seen of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) kind: &'static str,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) size: u64,
    /// Digest of a file, target of a link.
    pub(crate) content: String,
    pub(crate) device: u64,
    pub(crate) mtime: (i64, i64),
    pub(crate) xattrs: Vec<(String, String)>,
    /// The first of the names that the file has.
    pub(crate) links: Option<String>,
}

pub(crate) type Tree = BTreeMap<String, Facts>;

fn shown(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

pub(crate) fn facts(path: &Path) -> Facts {
    let stat = path.symlink_metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let kind = stat.file_type();
    let (kind, content) = if kind.is_dir() {
        ("folder", String::new())
    } else if kind.is_symlink() {
        ("symlink", shown(&std::fs::read_link(path).unwrap()))
    } else if kind.is_file() {
        ("file", crate::tars::digest(&std::fs::read(path).unwrap()))
    } else if kind.is_fifo() {
        ("fifo", String::new())
    } else if kind.is_char_device() {
        ("character", String::new())
    } else {
        ("block", String::new())
    };
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut xattrs = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        let name = String::from_utf8(name.to_vec()).unwrap();
        if !name.starts_with("trusted.overlay.") && !name.starts_with("user.overlay.") {
            xattrs.push((name, value[..length].escape_ascii().to_string()));
        }
    }
    xattrs.sort();
    Facts {
        kind,
        mode: stat.mode() & 0o7777,
        owner: (stat.uid(), stat.gid()),
        size: if stat.is_dir() { 0 } else { stat.len() },
        content,
        device: stat.rdev(),
        mtime: (stat.mtime(), stat.mtime_nsec()),
        xattrs,
        links: None,
    }
}

/// Everything below a folder, itself not.
pub(crate) fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    walk(root, root, &mut found);
    named_by_first(found)
}

/// A file with several names is told by the first that shows.
fn named_by_first(mut found: Tree) -> Tree {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, facts) in &mut found {
        if let Some(group) = facts.links.take() {
            groups.entry(group).or_default().push(name.clone());
        }
    }
    for names in groups.values().filter(|names| names.len() > 1) {
        for name in names {
            found.get_mut(name).unwrap().links = Some(names[0].clone());
        }
    }
    found
}

fn walk(root: &Path, folder: &Path, found: &mut Tree) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = shown(path.strip_prefix(root).unwrap());
        let stat = path.symlink_metadata().unwrap();
        let mut facts = facts(&path);
        if !stat.is_dir() && stat.nlink() > 1 {
            facts.links = Some(format!("{}:{}", stat.dev(), stat.ino()));
        }
        found.insert(name, facts);
        if stat.is_dir() {
            walk(root, &path, found);
        }
    }
}

/// What an overlay of these layers shows, computed here and by nothing of the store.
pub(crate) fn merged(layers: &[PathBuf], opaque: &str) -> Tree {
    let mut found = Tree::new();
    for layer in layers {
        let mut upper = Tree::new();
        walk(layer, layer, &mut upper);
        for (name, facts) in &upper {
            let inside = format!("{name}/");
            let path = layer.join(unescaped(name));
            let mut value = [0; 8];
            let is_opaque = rustix::fs::lgetxattr(&path, opaque, &mut value[..])
                .is_ok_and(|length| value[..length] == *b"y");
            if facts.kind != "folder" || is_opaque {
                found.retain(|other, _| !other.starts_with(&inside));
            }
            if facts.kind == "character" && facts.device == 0 {
                found.remove(name);
            } else {
                found.insert(name.clone(), facts.clone());
            }
        }
    }
    named_by_first(found)
}

fn unescaped(name: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, next)) = rest.split_first() {
        rest = next;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (escape, next) = rest.split_first().unwrap();
        rest = next;
        bytes.push(match escape {
            b'x' => {
                let (digits, next) = rest.split_at(2);
                rest = next;
                u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            }
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            other => *other,
        });
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// Fails with each file that differs.
#[track_caller]
pub(crate) fn same(ours: &Tree, theirs: &Tree) {
    let mut names: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
    names.sort();
    names.dedup();
    let differ = |name: &&&String| ours.get(**name) != theirs.get(**name);
    let lines: Vec<String> = names
        .iter()
        .filter(differ)
        .map(|name| format!("{name}:\n  ours   {:?}\n  theirs {:?}", ours.get(*name), theirs.get(*name)))
        .collect();
    assert!(lines.is_empty(), "{} of {} files differ\n{}", lines.len(), names.len(), lines.join("\n"));
    assert!(!ours.is_empty());
}

/// A mounted overlay of layers, lowest first; read-only, unmounted in the end.
pub(crate) struct Overlay(PathBuf);

impl Overlay {
    pub(crate) fn mount(layers: &[PathBuf], at: &Path) -> Overlay {
        std::fs::create_dir_all(at).unwrap();
        // The kernel wants two.
        let bottom = at.with_extension("bottom");
        std::fs::create_dir_all(&bottom).unwrap();
        let lower: Vec<String> =
            layers.iter().rev().chain([&bottom]).map(|layer| layer.to_str().unwrap().to_owned()).collect();
        let options = format!("ro,nodev,lowerdir={}", lower.join(":"));
        run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(at));
        Overlay(at.to_path_buf())
    }

    pub(crate) fn tree(&self) -> Tree {
        tree(&self.0)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// What `umoci unpack` makes of an image.
pub(crate) fn umoci(layout: &Path, tag: &str, bundle: &Path) -> Tree {
    assert!(rustix::process::geteuid().is_root(), "these tests compare owners and devices: run them as root");
    let image = format!("{}:{tag}", layout.display());
    run(Command::new("umoci").args(["unpack", "--image", &image]).arg(bundle));
    tree(&bundle.join("rootfs"))
}

/// Runs a program to its end, which has to be good.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; cargo xtask setup tests"));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}
