//! Control groups of sandboxes, for a keeper that is root. Version 2, version 1, and both at once (where version 2 has no
//! controllers but still kills, freezes and holds processes from their first instruction).
//!
//! A sandbox has one group of version 2 with `agent` and `box` in it: limits are on `box` alone, so that what runs in the sandbox
//! cannot take memory or processes from its agent. Controllers of version 1 have a group each, which commands enter.

use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Uid, flock, fstat};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Length of the period that shares of processor time are counted in.
const PERIOD_US: u64 = 100_000;

/// What a sandbox may use of what the kernel counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: u64,
    /// At once.
    pub processes_max: u32,
}

/// Where groups can be made on this machine, as found once.
#[derive(Debug, Default)]
pub(super) struct Hierarchies {
    /// Folder of version 2 in which sandboxes' groups are made.
    unified: Option<PathBuf>,
    /// Whether version 2 has the controllers.
    unified_controls: Vec<&'static str>,
    /// Version 1: controller and folder.
    split: Vec<(&'static str, PathBuf)>,
    /// This store's own folders, open and locked: a keeper is at work in them.
    _claims: Vec<OwnedFd>,
}

/// What the name of a store's folder begins with, before 16 hexadecimal digits.
pub(super) const STORE_PREFIX: &str = "espalier-";
/// The controllers that limits need.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

impl Hierarchies {
    /// Looks at the machine and makes this store's own folders, named `name`. Those that keepers of other stores left when they were
    /// killed are removed where they are empty.
    pub(super) fn find(name: &str) -> Hierarchies {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut found = Hierarchies::default();
        for line in mounts.lines() {
            let mut fields = line.split(' ');
            let (_, Some(at), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let at = Path::new(at);
            if kind == "cgroup2" && found.unified.is_none() {
                found.find_unified(at, &own, name);
            } else if kind == "cgroup" {
                let has = |controller: &&&str| options.split(',').any(|option| option == **controller);
                for controller in CONTROLLERS.iter().filter(has) {
                    let parent = at.join(own_path(&own, Some(controller)));
                    let folder = parent.join(name);
                    if found.split.iter().any(|(known, _)| known == controller) {
                        continue;
                    }
                    if let Ok(claim) = claim(&folder) {
                        remove_abandoned(&parent);
                        found.split.push((controller, folder));
                        found._claims.push(claim);
                    }
                }
            }
        }
        found
    }

    fn find_unified(&mut self, at: &Path, own: &str, name: &str) {
        let own = at.join(own_path(own, None));
        // A group with processes cannot hand controllers on: beside it, then at the root.
        let candidates =
            [own.parent().filter(|parent| parent.starts_with(at)).map(Path::to_owned), Some(at.to_owned())];
        for parent in candidates.into_iter().flatten() {
            let folder = parent.join(name);
            let Ok(claim) = claim(&folder) else { continue };
            remove_abandoned(&parent);
            self._claims.push(claim);
            self.unified_controls =
                CONTROLLERS.into_iter().filter(|control| hand_on(&parent, &folder, control)).collect();
            self.unified = Some(folder);
            return;
        }
    }

    /// Whether limits of this controller hold.
    pub(super) fn can(&self, controller: &str) -> bool {
        self.unified_controls.contains(&controller)
            || self.split.iter().any(|(known, _)| *known == controller)
    }

    /// Whether commands can be stopped, all at once.
    pub(super) fn can_freeze(&self) -> bool {
        // The root of the hierarchy has no such file; the groups of sandboxes, and this one, have where the kernel can.
        self.unified.as_ref().is_some_and(|folder| folder.join("cgroup.freeze").exists())
    }

    /// Whether commands can be killed as a whole.
    pub(super) fn has_unified(&self) -> bool {
        self.unified.is_some()
    }

    /// Groups of a new sandbox, whose root is the user `owner`.
    pub(super) fn make(&self, id: &str, owner: u32, limits: Limits) -> io::Result<Groups> {
        let groups = self.groups(id);
        let made = groups.make(owner, limits, &self.unified_controls);
        if made.is_err() {
            groups.remove();
        }
        made.map(|()| groups)
    }

    /// Groups of a sandbox that is there.
    pub(super) fn groups(&self, id: &str) -> Groups {
        let split = self.split.iter().map(|(controller, folder)| (*controller, folder.join(id)));
        Groups { unified: self.unified.as_ref().map(|folder| folder.join(id)), split: split.collect() }
    }

    /// Ids of all groups there are.
    pub(super) fn ids(&self) -> Vec<String> {
        let folders = self.unified.iter().chain(self.split.iter().map(|(_, folder)| folder));
        let mut ids: Vec<String> = folders
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Removes this store's own folders, if empty.
    pub(super) fn retire(&self) {
        for folder in self.unified.iter().chain(self.split.iter().map(|(_, folder)| folder)) {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// This process's group in the hierarchy of a controller, or in that of version 2; relative.
fn own_path(own: &str, controller: Option<&str>) -> PathBuf {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let here = match controller {
            Some(controller) => names.split(',').any(|name| name == controller),
            None => names.is_empty(),
        };
        here.then_some(path)
    });
    PathBuf::from(path.unwrap_or("/").trim_start_matches('/'))
}

fn make(folder: &Path) -> io::Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Makes a folder that no other keeper removes while what is returned is open.
fn claim(folder: &Path) -> io::Result<OwnedFd> {
    loop {
        make(folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
        flock(&opened, FlockOperation::LockShared)?;
        // Another keeper may have removed it between.
        if std::fs::metadata(folder)
            .is_ok_and(|there| Some(there.ino()) == fstat(&opened).ok().map(|own| own.st_ino))
        {
            return Ok(opened);
        }
    }
}

/// Removes the folders of other stores whose keepers are gone; the kernel keeps those that still hold a sandbox.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let hash = name.strip_prefix(STORE_PREFIX).unwrap_or_default();
        if hash.len() != 16 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(opened) = rustix::fs::openat(CWD, entry.path(), flags, Mode::empty()) else { continue };
        if flock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Lets a controller reach the groups in `folder`.
fn hand_on(parent: &Path, folder: &Path, controller: &str) -> bool {
    let has = |folder: &Path| {
        let there = std::fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
        there.split_whitespace().any(|name| name == controller)
    };
    let order = format!("+{controller}");
    if !has(parent) {
        return false;
    }
    if !has(folder) {
        let _ = std::fs::write(parent.join("cgroup.subtree_control"), &order);
    }
    has(folder) && std::fs::write(folder.join("cgroup.subtree_control"), &order).is_ok()
}

/// The groups of one sandbox.
#[derive(Debug)]
pub(super) struct Groups {
    unified: Option<PathBuf>,
    split: Vec<(&'static str, PathBuf)>,
}

/// Descriptors that the agent gets.
#[derive(Debug, Default)]
pub(super) struct CgroupFds {
    /// Group of version 2 in which the agent itself starts.
    pub agent: Option<OwnedFd>,
    /// Group of version 2 where it makes a group for each command.
    pub commands: Option<OwnedFd>,
    /// Where kills for memory are counted.
    pub memory: Option<OwnedFd>,
    /// Files `tasks` of version 1 that commands enter.
    pub enter: Vec<OwnedFd>,
}

impl Groups {
    fn make(&self, owner: u32, limits: Limits, controls: &[&str]) -> io::Result<()> {
        let quota_us = ((limits.cpu * PERIOD_US as f64) as u64).max(1000);
        if let Some(folder) = &self.unified {
            make(folder)?;
            for control in controls {
                std::fs::write(folder.join("cgroup.subtree_control"), format!("+{control}"))?;
            }
            let commands = folder.join("box");
            make(&folder.join("agent"))?;
            make(&commands)?;
            let files = [
                ("memory", "memory.max", limits.memory.to_string()),
                ("pids", "pids.max", limits.processes_max.to_string()),
                ("cpu", "cpu.max", format!("{quota_us} {PERIOD_US}")),
            ];
            for (_, file, value) in files.iter().filter(|(control, ..)| controls.contains(control)) {
                std::fs::write(commands.join(file), value)?;
            }
            if controls.contains(&"memory") {
                // Where there is no swap there is no such file.
                let _ = std::fs::write(commands.join("memory.swap.max"), "0");
            }
            // The sandbox's root makes groups for commands and moves them in.
            for path in [folder.clone(), folder.join("cgroup.procs"), folder.join("agent/cgroup.procs")] {
                give(&path, owner)?;
            }
            for path in [commands.clone(), commands.join("cgroup.procs"), commands.join("cgroup.kill")] {
                // A kernel that cannot kill a group has no such file.
                if path.exists() {
                    give(&path, owner)?;
                }
            }
        }
        for (controller, folder) in &self.split {
            make(folder)?;
            match *controller {
                "memory" => {
                    std::fs::write(folder.join("memory.limit_in_bytes"), limits.memory.to_string())?;
                    let _ =
                        std::fs::write(folder.join("memory.memsw.limit_in_bytes"), limits.memory.to_string());
                }
                "pids" => std::fs::write(folder.join("pids.max"), limits.processes_max.to_string())?,
                _ => {
                    std::fs::write(folder.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                    std::fs::write(folder.join("cpu.cfs_quota_us"), quota_us.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Opens what the agent gets.
    pub(super) fn lend(&self) -> io::Result<CgroupFds> {
        let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = |path: PathBuf| rustix::fs::openat(CWD, path, folder_flags, Mode::empty());
        let mut cgroup_fds = CgroupFds::default();
        if let Some(unified) = &self.unified {
            cgroup_fds.agent = Some(folder(unified.join("agent"))?);
            cgroup_fds.commands = Some(folder(unified.join("box"))?);
            if unified.join("box/memory.events").exists() {
                cgroup_fds.memory = Some(folder(unified.join("box"))?);
            }
        }
        for (controller, path) in &self.split {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            // Not `cgroup.procs`: that takes a lock over all processes, and waits for every processor (10 ms) where nobody has
            // taken it lately. A thread that moves itself takes none.
            cgroup_fds.enter.push(rustix::fs::openat(CWD, path.join("tasks"), flags, Mode::empty())?);
            if *controller == "memory" {
                cgroup_fds.memory = Some(folder(path.clone())?);
            }
        }
        Ok(cgroup_fds)
    }

    /// Stops all commands, or lets them go on. True when every one has stopped.
    pub(super) fn freeze(&self, stop: bool) -> io::Result<()> {
        let Some(unified) = &self.unified else {
            return Err(io::Error::other(
                "stopping commands needs control groups of version 2, which this machine does not have",
            ));
        };
        std::fs::write(unified.join("box/cgroup.freeze"), if stop { "1" } else { "0" })
    }

    /// Whether all commands have stopped.
    pub(super) fn is_frozen(&self) -> bool {
        let events = self.unified.as_ref().map(|unified| unified.join("box/cgroup.events"));
        let text = events.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        text.lines().any(|line| line == "frozen 1")
    }

    /// Kills whatever is in them; for sandboxes whose process 1 is gone or was never seen.
    pub(super) fn kill(&self) {
        if let Some(unified) = &self.unified {
            let _ = std::fs::write(unified.join("cgroup.kill"), "1");
        }
    }

    /// Removes the groups; true when none is left.
    pub(super) fn remove(&self) -> bool {
        if let Some(unified) = &self.unified {
            remove_all(unified);
        }
        for (_, folder) in &self.split {
            let _ = std::fs::remove_dir(folder);
        }
        self.unified.iter().chain(self.split.iter().map(|(_, folder)| folder)).all(|folder| !folder.exists())
    }
}

/// Groups in groups; files in them go with them.
fn remove_all(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_all(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(folder);
}

fn give(path: &Path, owner: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::fs::chownat(CWD, path, Some(user), Some(group), AtFlags::empty())?;
    Ok(())
}
