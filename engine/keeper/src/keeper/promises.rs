//! What a keeper can promise of every sandbox, each with the remedy where it cannot.

use super::cgroups::Hierarchies;
use crate::wire::Abilities;

/// By what this user has: control groups, and a pool of disks or why there is none.
pub(super) fn of(hierarchies: &Hierarchies, pool: bool, pool_fault: &str) -> Abilities {
    let root = rustix::process::geteuid().is_root();
    let says = |able: bool, remedy: &str| if able { Ok(()) } else { Err(remedy.to_owned()) };
    let group = |controller: &str| {
        let remedy = if root {
            format!("this machine's control groups have no controller `{controller}`")
        } else {
            "only root can create control groups; limits per process are used instead".to_owned()
        };
        says(hierarchies.can(controller), &remedy)
    };
    let unified = "needs root, and control groups of version 2 (also beside version 1)";
    let promises = [
        ("own-root", Ok(())),
        ("network-none", Ok(())),
        ("network-allow-list", Ok(())),
        ("syscall-filter", Ok(())),
        ("user-namespaces", Ok(())),
        ("memory-limit", group("memory")),
        ("cpu-limit", group("cpu")),
        // The kernel counts processes of a user in a user namespace, too.
        ("process-limit", if root { group("pids") } else { Ok(()) }),
        ("disk-limit", says(pool || !root, pool_fault)),
        ("disk-not-memory", says(pool, pool_fault)),
        ("other-users", says(root, "only root can give a sandbox more than one user")),
        ("suspend", says(hierarchies.can_freeze(), unified)),
        ("group-kill", says(hierarchies.has_unified(), unified)),
        ("checkpoint", says(pool && hierarchies.has_unified(), if pool { unified } else { pool_fault })),
    ];
    Abilities { promises: promises.into_iter().map(|(name, able)| (name.to_owned(), able)).collect() }
}
