//! `espalier-agent`.
fn main() {}
