//! What a keeper does where the disk below all disks is nearly full: it gives back what was removed, and where that is not enough
//! it ends sandboxes, one after another, whoever has written most first. What the rest goes on to write would else be lost, and
//! none of them told.

use super::{LOOK_BELOW_EVERY, Phase, Sandbox, SandboxTable};
use crate::keeper::pool::{Free, Pool, RESERVE};
use rustix::process::Signal;
use std::process::Child;
use std::time::{Duration, Instant};

/// With less than this below the pool, a sandbox is ended.
const BELOW_MIN: u64 = 256 << 20;
/// With less than this, nobody writes until what the last one had is given back.
const BELOW_URGENT: u64 = 64 << 20;
/// With less than this in the pool, a sandbox is ended. Whoever writes meanwhile only hears that the disk is full.
const INSIDE_MIN: u64 = 256 << 20;
/// The end of one that has written less frees nothing that would help.
const WORTH: u64 = 4 << 20;
/// How long what one had written may take to be given back. A checkpoint may hold it for ever.
const GIVEN_BACK_MAX: Duration = Duration::from_secs(5);
/// So often has what was removed to be given back for all of it to be: a round may begin before the file system has noted all.
const ROUNDS: u32 = 2;
/// Between two times that what was removed is given back, while nobody has to be ended.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(5);
/// The same while something that was removed is waited for.
const GIVE_BACK_AGAIN: Duration = Duration::from_millis(50);

/// How much can still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    Enough,
    /// No new sandbox is made.
    Little,
    /// Somebody has to go.
    None,
    /// And nobody may write meanwhile.
    Urgent,
}

impl Room {
    fn of(free: Free) -> Room {
        match (free.below.saturating_sub(free.late), free.inside) {
            (..BELOW_URGENT, _) => Room::Urgent,
            (..BELOW_MIN, _) | (_, ..INSIDE_MIN) => Room::None,
            (..RESERVE, _) => Room::Little,
            _ => Room::Enough,
        }
    }
}

/// A sandbox that may be ended for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate<'a> {
    id: &'a str,
    /// Bytes of it on its disk; `None` where nobody can say.
    written: Option<u64>,
    /// Bytes that it may write.
    allowed: u64,
}

/// The one that has written most, where that is worth its end; of those that nobody can say that of, the one that may write most.
fn largest<'a>(candidates: impl Iterator<Item = Candidate<'a>>) -> Option<Candidate<'a>> {
    let bytes = |one: &Candidate<'_>| one.written.unwrap_or(one.allowed);
    candidates.filter(|one| bytes(one) >= WORTH).max_by(|one, other| {
        let order = bytes(one).cmp(&bytes(other));
        // What is known goes before what is guessed; else the first by id.
        order.then(one.written.is_some().cmp(&other.written.is_some())).then(other.id.cmp(one.id))
    })
}

/// Whether another end may help where what the last one had was not given back: only if somebody has written since. Else a
/// checkpoint holds it, or something else fills the disk.
fn may_help(stuck: Option<Free>, now: Free) -> bool {
    let is_less = |then: u64, now: u64| then.saturating_sub(now) >= WORTH;
    stuck.is_none_or(|then| is_less(then.below, now.below) || is_less(then.inside, now.inside))
}

/// What is under way against a disk that is nearly full.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    looked: Option<Instant>,
    /// Gives back what was removed.
    giving: Option<Giving>,
    gave: Option<Instant>,
    /// Who was ended last, until what they had is given back.
    awaited: Option<Awaited>,
    /// The most that was free since it was given up that what the last one had is given back; until there is room.
    stuck: Option<Free>,
    /// How often something has to be given back since a disk was removed.
    due: u32,
    /// Whether all sandboxes are stopped.
    stopped: bool,
    /// Whether it was said that something else fills the disk.
    said: bool,
}

#[derive(Debug)]
struct Giving {
    process: Child,
    /// Whether what the awaited one had was free when it began.
    counts: bool,
}

#[derive(Debug)]
struct Awaited {
    /// Id of its disk.
    disk: Option<u64>,
    since: Instant,
    /// How often what was removed was given back since its disk held nothing any more.
    rounds: u32,
}

impl Reclaim {
    /// A disk was removed.
    pub(super) fn note_removed(&mut self) {
        self.due = ROUNDS;
    }

    /// Whether it has to be looked at again soon.
    pub(super) fn is_under_way(&self) -> bool {
        self.awaited.is_some() || self.giving.is_some()
    }
}

impl SandboxTable {
    /// Sees to it that there is room for what sandboxes write.
    pub(super) fn reclaim_disk(&mut self) {
        let calm = !self.reclaim.is_under_way();
        if calm && self.reclaim.looked.is_some_and(is_recent) {
            return;
        }
        self.reclaim.looked = Some(Instant::now());
        let Some(free) = self.pool.as_ref().and_then(Pool::free) else { return };
        self.note_given_back(free);
        if let Some(stuck) = &mut self.reclaim.stuck {
            stuck.below = stuck.below.max(free.below);
            stuck.inside = stuck.inside.max(free.inside);
        }
        let room = Room::of(free);
        if room < Room::None {
            (self.reclaim.said, self.reclaim.stuck) = (false, None);
        } else if self.reclaim.awaited.is_none() {
            self.end_largest(free);
        }
        let awaited = self.reclaim.awaited.is_some();
        self.stop(awaited && (room == Room::Urgent || room == Room::None && self.reclaim.stopped));
        let pause = if awaited || self.reclaim.due > 0 { GIVE_BACK_AGAIN } else { GIVE_BACK_EVERY };
        if (awaited || room > Room::Enough)
            && self.reclaim.giving.is_none()
            && self.reclaim.gave.is_none_or(|at| at.elapsed() >= pause)
        {
            self.give_back();
        }
    }

    /// Whether what was removed is given back by now.
    fn note_given_back(&mut self, free: Free) {
        let Reclaim { giving, gave, awaited, stuck, .. } = &mut self.reclaim;
        if let Some(under_way) = giving
            && !matches!(under_way.process.try_wait(), Ok(None))
        {
            if let Some(awaited) = awaited {
                awaited.rounds += u32::from(under_way.counts);
            }
            (*giving, *gave) = (None, Some(Instant::now()));
        }
        let Some(Awaited { rounds, since, .. }) = awaited else { return };
        if *rounds >= ROUNDS {
            (*awaited, *stuck) = (None, None);
        } else if since.elapsed() >= GIVEN_BACK_MAX {
            (*awaited, *stuck) = (None, Some(free));
        }
    }

    fn give_back(&mut self) {
        let Some(pool) = &self.pool else { return };
        let freed = |awaited: &Awaited| {
            awaited.disk.is_some_and(|disk| pool.written(disk).is_none_or(|bytes| bytes < WORTH))
        };
        self.reclaim.due = self.reclaim.due.saturating_sub(1);
        let counts = self.reclaim.awaited.as_ref().is_some_and(freed);
        match pool.give_back() {
            Ok(process) => self.reclaim.giving = Some(Giving { process, counts }),
            Err(error) => {
                // Without it the file system does so by itself, some time later.
                eprintln!("fstrim: {error} (Debian: apt-get install util-linux)");
                self.reclaim.gave = Some(Instant::now());
            }
        }
    }

    /// Ends the sandbox that has written most, where one has written something worth it.
    fn end_largest(&mut self, free: Free) {
        let Some(pool) = &self.pool else { return };
        let lives = |sandbox: &&Sandbox| {
            sandbox.kill_reason.is_none() && !matches!(sandbox.state, Phase::Ending { .. })
        };
        let candidates = self.sandboxes.values().filter(lives).map(|sandbox| {
            let order = &sandbox.record.order;
            let disk = pool.disk_id(&order.id).ok();
            let written = disk.and_then(|disk| pool.written(disk));
            Candidate { id: &order.id, written, allowed: order.bounds.disk }
        });
        let place = self.home.folder.display();
        let largest = largest(candidates).filter(|_| may_help(self.reclaim.stuck, free));
        let Some(largest) = largest else {
            if !self.reclaim.said {
                self.reclaim.said = true;
                eprintln!(
                    "the disk of {place} is full, and ending sandboxes frees nothing: checkpoints or other files fill it"
                );
            }
            return;
        };
        let most = match largest.written {
            Some(bytes) => format!("had written the most: {}", size(bytes)),
            None => format!("has the largest limit: {}", size(largest.allowed)),
        };
        eprintln!("the disk of {place} is full: ending sandbox {}, which {most}", largest.id);
        let (id, disk) = (largest.id.to_owned(), pool.disk_id(largest.id).ok());
        self.reclaim.awaited = Some(Awaited { disk, since: Instant::now(), rounds: 0 });
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.kill_reason = Some(format!("the disk of the sandboxes is full, and this one {most}"));
            let _ = rustix::process::pidfd_send_signal(&sandbox.process, Signal::KILL);
        }
    }

    /// Stops all sandboxes, or lets them go on.
    fn stop(&mut self, stop: bool) {
        if stop == self.reclaim.stopped {
            return;
        }
        self.reclaim.stopped = stop;
        for (id, _) in self.sandboxes.iter().filter(|(_, sandbox)| sandbox.kill_reason.is_none()) {
            // One that cannot be stopped goes on writing.
            let _ = self.hierarchies.groups(id).freeze(stop);
        }
    }
}

fn is_recent(at: Instant) -> bool {
    at.elapsed() < LOOK_BELOW_EVERY
}

/// Bytes as people read them.
pub(super) fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib >= 1024.0 { format!("{:.1} GiB", mib / 1024.0) } else { format!("{mib:.0} MiB") }
}

/// Bytes as they were ordered: in a unit where they are a multiple of it.
pub(super) fn exact_size(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, word)) => format!("{}{word}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn whoever_has_written_most_is_ended_and_nobody_in_vain() {
        let check = |all: &[(&str, Option<u64>, u64)], expect: Option<&str>| {
            let all = all.iter().map(|(id, written, allowed)| Candidate {
                id,
                written: *written,
                allowed: *allowed,
            });
            assert_eq!(largest(all.clone()).map(|one| one.id), expect, "{:?}", all.collect::<Vec<_>>());
        };
        check(&[], None);
        check(&[("a", Some(2 * GIB), 100 * GIB), ("b", Some(GIB), GIB), ("c", Some(0), GIB)], Some("a"));
        // What it may write does not matter where one knows what it has written.
        check(&[("a", Some(10 * MIB), 1 << 50), ("b", Some(11 * MIB), 16 * MIB)], Some("b"));
        check(&[("a", Some(WORTH - 1), 1 << 50), ("b", Some(0), GIB)], None);
        check(&[("a", Some(WORTH), GIB), ("b", Some(WORTH - 1), GIB)], Some("a"));
        // The same bytes: the first by id, whatever the order.
        check(&[("b", Some(GIB), GIB), ("a", Some(GIB), GIB)], Some("a"));
        check(&[("a", None, GIB), ("b", None, 2 * GIB), ("c", Some(MIB), GIB)], Some("b"));
        check(&[("a", None, GIB), ("b", Some(GIB), 2 * GIB)], Some("b"));
        check(&[("a", None, MIB)], None);
    }

    #[test]
    fn room_is_what_is_free_below_and_inside() {
        let check = |below: u64, inside: u64, expect: Room| {
            let all = [(below, 0), (below.saturating_add(GIB), below.saturating_add(GIB) - below)];
            for (below, late) in all {
                assert_eq!(
                    Room::of(Free { below, late, inside }),
                    expect,
                    "{below} - {late} below, {inside} inside"
                );
            }
        };
        check(u64::MAX, u64::MAX, Room::Enough);
        check(RESERVE, INSIDE_MIN, Room::Enough);
        check(RESERVE - 1, u64::MAX, Room::Little);
        check(BELOW_MIN, INSIDE_MIN, Room::Little);
        check(BELOW_MIN - 1, u64::MAX, Room::None);
        check(u64::MAX, INSIDE_MIN - 1, Room::None);
        check(BELOW_URGENT, 0, Room::None);
        check(BELOW_URGENT - 1, u64::MAX, Room::Urgent);
        check(0, 0, Room::Urgent);
    }

    #[test]
    fn after_an_end_in_vain_another_follows_only_where_somebody_writes() {
        let free = |below: u64, inside: u64| Free { below: below * MIB, late: 0, inside: inside * MIB };
        let check = |then: Option<Free>, now: Free, expect: bool| {
            assert_eq!(may_help(then, now), expect, "{then:?}, then {now:?}");
        };
        check(None, free(0, 0), true);
        check(Some(free(200, 900)), free(200, 900), false);
        check(Some(free(200, 900)), free(203, 897), false);
        check(Some(free(200, 900)), free(250, 950), false);
        check(Some(free(200, 900)), free(196, 900), true);
        check(Some(free(900, 60)), free(900, 0), true);
        // What is on its way comes and goes.
        check(Some(Free { late: GIB, ..free(200, 900) }), free(200, 900), false);
    }

    #[test]
    fn sizes_are_read_by_people() {
        let sizes = [0, WORTH, 1023 * MIB, GIB, 2_040_109_466].map(size);
        assert_eq!(sizes, ["0 MiB", "4 MiB", "1023 MiB", "1.0 GiB", "1.9 GiB"]);
        let ordered = [5, 1 << 20, 3 << 10, 2 << 30, (2 << 30) + 1].map(exact_size);
        assert_eq!(ordered, ["5", "1MiB", "3KiB", "2GiB", "2147483649"]);
    }
}
