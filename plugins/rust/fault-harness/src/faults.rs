//! The faults that need no import. Shared by the fault plugins of all worlds.

use std::hint::black_box;

/// Stands in the component's data: a test mends the plugin by writing `mended!!` over `unmended`.
static STATE: &str = "state of the plugin: unmended";

/// Carries out the fault of this name; returns where it is none of these.
pub(crate) fn misbehave(fault: &str) {
    match fault {
        "loop" => spin(),
        "memory" => eat_memory(),
        "panic" => panic!("a panic on purpose"),
        "unmended" => {
            let list = black_box(Vec::<u8>::new());
            if black_box(STATE).ends_with("unmended") {
                black_box(list[black_box(7)]);
            }
        }
        "recurse" => {
            black_box(recurse(black_box(1)));
        }
        "index" => {
            let list = black_box(Vec::<u8>::new());
            black_box(list[black_box(7)]);
        }
        _ => {}
    }
}

fn spin() {
    loop {
        black_box(());
    }
}

fn eat_memory() {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(black_box(vec![1; 1 << 20]));
    }
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1) + frame[black_box(3)]
}
