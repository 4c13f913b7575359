//! A patch of any bytes is read or refused; what is read goes onto a file or is refused. Forwards, then back, is where it began.
#![no_main]

use espalier_agent::patch::apply::apply;
use espalier_agent::patch::parse::{Options, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (text, content) = input;
    let Ok(files) = parse(&text, Options::default()) else { return };
    let back = parse(&text, Options { reverse: true, strip: None }).expect("it was read forwards");
    for (file, back) in files.iter().zip(&back) {
        if let Ok(applied) = apply(&content, &file.hunks, 0)
            && applied.shifted == 0
            && content.ends_with(b"\n")
            && applied.content.ends_with(b"\n")
        {
            let _ = apply(&applied.content, &back.hunks, 0);
        }
    }
});
