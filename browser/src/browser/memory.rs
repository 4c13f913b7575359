//! What the processes of a group take, read from `/proc`.

use std::fs;
use std::io;

/// The sum of the proportional set sizes of the group's processes, in bytes.
pub(crate) fn of_group(group: u32) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // Processes come and go while the folder is read.
        let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
        if group_of(&stat) != Some(group) {
            continue;
        }
        if let Ok(rollup) = fs::read_to_string(path.join("smaps_rollup")) {
            bytes += pss(&rollup);
        }
    }
    Ok(bytes)
}

/// The fifth field; the second is a name in parentheses that may hold anything.
fn group_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
}

fn pss(rollup: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib =
        line.and_then(|line| line.split_ascii_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_name_is() {
        assert_eq!(group_of("12 (a) b (c) S 1 77 12 0"), Some(77));
        assert_eq!(group_of("garbage"), None);
        assert_eq!(pss("Rss:  9 kB\nPss:   12 kB\nPss_Dirty: 3 kB\n"), 12 * 1024);
    }
}
