use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn budget() -> Budget {
    Budget { memory: 0, memory_max: 4 << 20, spill: 0, spill_max: 64 << 20 }
}

/// The byte printed at an offset.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn printed(from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(byte).collect()
}

/// Reads all from `from`; checks each byte; returns (bytes, lost).
#[track_caller]
fn check(output: &Output, mut from: u64) -> (u64, u64) {
    let (mut read, mut lost) = (0, 0);
    loop {
        match output.read(from, 5000) {
            Piece::Bytes(bytes) => {
                assert_eq!(&bytes[..], printed(from, bytes.len() as u64), "at {from}");
                assert!(!bytes.is_empty());
                from += bytes.len() as u64;
                read += bytes.len() as u64;
            }
            Piece::LostUntil(next) => {
                assert!(next > from, "a gap from {from} to {next}");
                lost += next - from;
                from = next;
            }
            Piece::Nothing => return (read, lost),
        }
    }
}

#[test]
fn every_byte_within_the_bound_is_kept_and_beyond_it_head_and_tail() {
    for (keep, total, spill) in [
        (8 << 20, 100, true),
        (8 << 20, 3 << 20, true),
        (1 << 20, 5 << 20, true),
        (1 << 20, 20 << 20, true),
        (8 << 20, 1 << 20, false),
        (4096, 100_000, false),
    ] {
        let spill = if spill { Spill::Memory } else { Spill::Nowhere };
        let (mut output, mut budget) = (Output::new(keep), budget());
        while output.total() < total {
            let at = output.total();
            output.append(&printed(at, 7919.min(total - at)), &mut budget, &spill);
        }
        let (read, lost) = check(&output, 0);
        let kept = if matches!(spill, Spill::Nowhere) { MEMORY_EACH } else { keep };
        assert_eq!(read + lost, total);
        assert_eq!(read, kept.min(total), "keep {keep}, total {total}");
        assert!(budget.memory <= MEMORY_EACH && budget.spill <= keep);
        let (head, omitted, tail) = output.excerpt(1000, 1000);
        if total > 2000 {
            assert_eq!((head, omitted, tail), (printed(0, 1000), total - 2000, printed(total - 1000, 1000)));
        } else {
            assert_eq!((head, omitted, tail), (printed(0, total), 0, Vec::new()));
        }
        output.discard(&mut budget);
        assert_eq!((budget.memory, budget.spill), (0, 0));
        assert_eq!(check(&output, 0), (0, total));
    }
}

#[test]
fn random_writes_and_reads() {
    let seed = 3;
    let mut random = StdRng::seed_from_u64(seed);
    for game in 0..60 {
        let keep = random.random_range(2..200_000);
        let spill = if random.random_bool(0.7) { Spill::Memory } else { Spill::Nowhere };
        let mut budget = budget();
        budget.spill_max = random.random_range(0..300_000);
        budget.memory_max = random.random_range(0..100_000);
        let mut output = Output::new(keep);
        let mut reader = 0;
        for _ in 0..random.random_range(1..60) {
            let length = random.random_range(0..9000);
            let at = output.total();
            output.append(&printed(at, length), &mut budget, &spill);
            assert_eq!(output.total(), at + length);
            // A reader that keeps up loses nothing, if what comes at once fits the ring.
            if let Piece::Bytes(bytes) = output.read(reader, 100_000) {
                assert_eq!(&bytes[..], printed(reader, bytes.len() as u64), "seed {seed}, game {game}");
                reader += bytes.len() as u64;
            } else {
                reader = output.total();
            }
            let (read, lost) = check(&output, 0);
            assert_eq!(read + lost, output.total(), "seed {seed}, game {game}");
        }
        let (head, omitted, tail) = output.excerpt(100, 100);
        assert_eq!(head.len() as u64 + omitted + tail.len() as u64, output.total());
        assert!(printed(0, output.total()).starts_with(&head));
        assert!(printed(0, output.total()).ends_with(&tail));
        output.discard(&mut budget);
        assert_eq!((budget.memory, budget.spill), (0, 0), "seed {seed}, game {game}");
    }
}

#[test]
fn after_a_full_disk_the_end_is_kept_in_memory() {
    let (mut output, mut budget) = (Output::new(8 << 20), budget());
    output.append(&printed(0, 100_000), &mut budget, &Spill::Full);
    let (read, lost) = check(&output, 0);
    assert_eq!(read + lost, 100_000);
    assert!(output.disk_full());
    assert!(lost > 0 && read >= MEMORY_EACH / 2);
    assert_eq!(output.excerpt(0, 1000).2, printed(99_000, 1000));
}
