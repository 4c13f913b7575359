//! The keeper of sandboxes as a program of its own; engines start it.

use std::process::ExitCode;

fn main() -> ExitCode {
    match espalier_keeper::main(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("espalier-keeper: {error}");
            ExitCode::from(2)
        }
    }
}
