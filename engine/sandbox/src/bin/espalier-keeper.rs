//! The keeper of sandboxes as a program of its own; `espalier` is one too.

use std::process::ExitCode;

fn main() -> ExitCode {
    match espalier_sandbox::local::keeper::main(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("espalier-keeper: {error}");
            ExitCode::from(2)
        }
    }
}
